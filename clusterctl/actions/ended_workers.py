"""Workers that have ended because nobody used them (templates/node/idle.sh.j2), as AWS and the
launcher report them. The nodes decide that on their own, so the record does not have it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from clusterctl.actions.common import open_pool
from clusterctl.actions.running_costs import describe_doubts
from clusterctl.core.errors import ClusterctlError, RecordError, describe_reason
from clusterctl.core.model import Charge, Cluster, Phase, Reporter, shorten
from clusterctl.core.text import format_span, format_time
from clusterctl.insight import cost
from clusterctl.machines import bootstrap, ledger, providers
from clusterctl.state.store import Store

TIMEOUT = 10.0
SHUTDOWN = 90.0
"""Seconds that a machine is billed at most until its services have ended: systemd gives them so."""


@dataclass(frozen=True, slots=True)
class Looked:
    """`gone`: workers without a machine. `lines`: what the user should know about them."""

    gone: tuple[str, ...]
    charges: tuple[Charge, ...]
    lines: tuple[str, ...]


def may_have_ended(store: Store, cluster: Cluster, now: float) -> bool:
    """Whether workers may have ended since they were last used, judging by the record."""
    limit = cluster.spec.cloud.idle
    over = cluster.deadline is not None and cluster.deadline <= now
    if not limit or not cluster.charges or cluster.phase is not Phase.READY or over:
        return False
    times = [
        when
        for job in store.list_cluster_jobs(cluster)
        for when in (job.created, job.finished)
        if when
    ]
    return now - max((cluster.created, *times)) >= limit


def look(store: Store, cluster: Cluster, now: float) -> Looked:
    """Asks AWS which workers exist, and the launcher why others are gone. Raises ClusterctlError if
    AWS does not answer."""
    folder = store.locate_folder(cluster.name)
    looks = providers.look(cluster, folder, now)
    there = ledger.list_living(looks)
    gone = tuple(node.name for node in cluster.workers if node.name not in there)
    report = bootstrap.AgentReport({}, {})
    if cluster.launcher.name in there:
        with suppress(ClusterctlError), open_pool(store, cluster) as pool:
            question = bootstrap.render_question(cluster.launcher)
            result = pool.find_transport(cluster.launcher.name).run(question, timeout=TIMEOUT)
            report = bootstrap.parse_idle_agent(result.text)
    report = replace(report, ended=report.compute_ends(now))
    # What AWS does not tell, the launcher may know: when it has told a worker to end.
    ends = {name: when + SHUTDOWN for name, when in report.ended.items() if name in gone}
    looks = ledger.add_ends(folder, looks, cluster, ends, now)
    charges = ledger.settle(cluster, looks)
    cluster = replace(cluster, charges=charges)
    lines = (*_describe(cluster, gone, report, charges), *describe_doubts(cluster, now))
    return Looked(gone, charges, lines)


def _describe(
    cluster: Cluster,
    gone: tuple[str, ...],
    report: bootstrap.AgentReport,
    charges: tuple[Charge, ...],
) -> list[str]:
    lines = []
    hours = format_span(cluster.spec.cloud.idle or 0.0)
    running = [item for item in charges if item.until is None]
    rate = cost.render_cost(cost.sum_hourly(running), cost.is_exact(running), 4)
    rest = f"what still runs costs {rate}/h; {suggest_up(cluster)}"
    unused = [name for name in gone if name in report.ended]
    if unused:
        when = format_time(max(report.ended[name] for name in unused))
        lines.append(
            f"{shorten(unused)} ended after {hours} idle at {when}; the launcher has copies of all"
            f" logs and outputs; {rest}"
        )
    if others := [name for name in gone if name not in unused]:
        are = "is" if len(others) == 1 else "are"
        lines.append(f"{shorten(others)} {are} no longer running (reason unknown); {rest}")
    if kept := [name for name in report.kept if name not in gone]:
        lines.append(
            f"{shorten(kept)} kept running after {hours} idle: not all files could be copied to the"
            " launcher; look at its disk with `clusterctl ssh launcher -- df -h`, or save the"
            " outputs with `clusterctl fetch`"
        )
    return lines


def suggest_up(cluster: Cluster) -> str:
    return f"`clusterctl up {cluster.name}` starts them again"


def settle(
    store: Store, cluster: Cluster, report: Reporter, now: Callable[[], float] = time.time
) -> Cluster:
    """The record, updated with the ends of unused workers, which are reported. It is saved, so the
    caller has to hold the lock of the cluster."""
    if not may_have_ended(store, cluster, now()):
        return cluster
    try:
        found = look(store, cluster, now())
    except ClusterctlError as error:
        report(f"it is unknown whether unused workers have ended: {describe_reason(error)}")
        return cluster
    for line in found.lines:
        report(line)
    if found.gone:
        cluster = replace(cluster, charges=found.charges)
        store.save(cluster)
    return cluster


def count_as_used(store: Store, cluster: Cluster) -> None:
    """Restarts the idle time of the workers, if the launcher answers: they must not end while
    others are added."""
    if not cluster.spec.cloud.idle or not cluster.nodes or cluster.phase is Phase.STOPPED:
        return
    mark = shlex.quote(f"{cluster.launcher.root}/jobs/.used")
    with suppress(ClusterctlError), open_pool(store, cluster) as pool:
        pool.find_transport(cluster.launcher.name).run(f"rm -f {mark}; : >{mark}", timeout=TIMEOUT)


def explain_ended_workers(
    store: Store, cluster: Cluster, now: Callable[[], float] = time.time
) -> RecordError | None:
    """The error for a node that does not answer, if workers are known to have ended: as with a
    stopped cluster, no machine is unreachable, and `up` makes it ready again."""
    if not may_have_ended(store, cluster, now()):
        return None
    try:
        found = look(store, cluster, now())
    except ClusterctlError:
        return None
    if not found.gone:
        return None
    hint = f"{suggest_up(cluster)}, `clusterctl down {cluster.name}` removes the cluster"
    return RecordError(found.lines[0].partition(";")[0], hint=hint)
