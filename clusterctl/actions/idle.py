"""Workers that have ended because nobody used them (templates/node/idle.sh.j2), as AWS and the
launcher tell of them. Nothing here but their own machines knows when that happens."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from clusterctl import providers
from clusterctl.actions import Tell, open_pool
from clusterctl.bootstrap import idle as agent
from clusterctl.errors import ClusterctlError, NodeUnreachable, reason
from clusterctl.insight import cost
from clusterctl.model import Charge, Cluster, Phase, clock, span
from clusterctl.node_results import ranges
from clusterctl.providers.protocol import Ended
from clusterctl.providers.shared import billing
from clusterctl.state import Store

TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Looked:
    """`gone`: workers without a machine. `lines`: what a person should know of them."""

    gone: tuple[str, ...]
    charges: tuple[Charge, ...]
    lines: tuple[str, ...]


def may_have_ended(store: Store, cluster: Cluster, now: float) -> bool:
    """Whether workers may have ended since they were last used, as far as the record tells."""
    limit = cluster.spec.cloud.idle
    over = cluster.deadline is not None and cluster.deadline <= now
    if not limit or not cluster.charges or cluster.phase is not Phase.READY or over:
        return False
    times = [when for job in store.jobs_of(cluster) for when in (job.created, job.finished) if when]
    return now - max((cluster.created, *times)) >= limit


def look(store: Store, cluster: Cluster, now: float) -> Looked:
    """Asks AWS which workers there are, and the launcher why others are gone. Raises
    ClusterctlError where AWS does not say."""
    provider, folder = providers.load_billing(cluster), store.folder(cluster.name)
    there = provider.list_billed(cluster, folder)
    gone = tuple(node.name for node in cluster.workers if node.name not in there)
    report = agent.Report({}, {})
    if cluster.launcher.name in there:
        with suppress(ClusterctlError), open_pool(store, cluster) as pool:
            question = agent.render_question(cluster.launcher)
            result = pool.transport(cluster.launcher.name).run(question, timeout=TIMEOUT)
            report = agent.parse(result.text)
    ends = {name: Ended(when) for name, when in report.ended.items()}
    ends |= provider.list_ended(cluster, folder)
    charges = billing.settle(
        cluster,
        living=there,
        made={node.name for node in cluster.nodes} | provider.list_made(folder),
        now=now,
        ends=ends,
    )
    return Looked(gone, charges, tuple(_describe(cluster, gone, report, charges)))


def _describe(
    cluster: Cluster, gone: tuple[str, ...], report: agent.Report, charges: tuple[Charge, ...]
) -> list[str]:
    lines = []
    hours = span(cluster.spec.cloud.idle or 0.0)
    running = [item for item in charges if item.until is None]
    rate = cost.render(cost.per_hour(running), cost.is_exact(running), 4)
    rest = f"the rest costs {rate}/h; {up_again(cluster)}"
    unused = [name for name in gone if name in report.ended]
    if unused:
        when = clock(max(report.ended[name] for name in unused))
        lines.append(
            f"{ranges(unused)} ended after {hours} idle at {when}; the launcher keeps what their"
            f" jobs have written; {rest}"
        )
    if others := [name for name in gone if name not in unused]:
        run = "runs" if len(others) == 1 else "run"
        lines.append(f"{ranges(others)} no longer {run}, and the launcher does not say why; {rest}")
    if kept := [name for name in report.kept if name not in gone]:
        lines.append(
            f"{ranges(kept)} has been idle for {hours} and keeps running: its files could not all"
            " be copied to the launcher; `clusterctl fetch` or `clusterctl ssh launcher -- df -h`"
        )
    return lines


def up_again(cluster: Cluster) -> str:
    return f"`clusterctl up {cluster.name}` starts them again"


def settle(
    store: Store, cluster: Cluster, tell: Tell, now: Callable[[], float] = time.time
) -> Cluster:
    """The record, with the ends of workers that nobody used; says what was found. It is saved:
    whoever calls it holds the lock of the cluster."""
    if not may_have_ended(store, cluster, now()):
        return cluster
    try:
        found = look(store, cluster, now())
    except ClusterctlError as error:
        tell(f"whether unused workers have ended is unknown: {reason(error)}")
        return cluster
    for line in found.lines:
        tell(line)
    if found.gone:
        cluster = replace(cluster, charges=found.charges)
        store.save(cluster)
    return cluster


def count_as_used(store: Store, cluster: Cluster) -> None:
    """Begins the time anew after which unused workers end, where the launcher answers: they must
    not end while others are added to them."""
    if not cluster.spec.cloud.idle or not cluster.nodes or cluster.phase is Phase.STOPPED:
        return
    mark = shlex.quote(f"{cluster.launcher.root}/jobs/.used")
    with suppress(ClusterctlError), open_pool(store, cluster) as pool:
        pool.transport(cluster.launcher.name).run(f"rm -f {mark}; : >{mark}", timeout=TIMEOUT)


def explain(
    store: Store, cluster: Cluster, now: Callable[[], float] = time.time
) -> NodeUnreachable | None:
    """The error for a node that does not answer where workers have ended unused, as far as that is
    known."""
    if not may_have_ended(store, cluster, now()):
        return None
    try:
        found = look(store, cluster, now())
    except ClusterctlError:
        return None
    if not found.gone:
        return None
    hint = f"{up_again(cluster)}, `clusterctl down {cluster.name}` removes the cluster"
    return NodeUnreachable(found.lines[0].partition(";")[0], hint=hint)
