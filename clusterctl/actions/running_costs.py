"""What a cluster costs by what is seen of it, and what is said of that."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from clusterctl.actions.common import open_pool
from clusterctl.core.model import NETWORK_PARTS, Charge, Cluster, Phase, Reporter, shorten
from clusterctl.core.text import count, format_span, format_time
from clusterctl.errors import ClusterctlError, ProviderError, RecordError, describe_reason
from clusterctl.insight import cost
from clusterctl.machines import bootstrap, ledger, providers
from clusterctl.state.store import Store


def report_left(cluster: Cluster, report: Reporter, done: str = "removed", verb: str = "") -> None:
    """After a removal or `stop` that broke off: what may run, as far as the record tells."""
    running = {item.node for item in cluster.charges if item.until is None}
    if running:
        end = f", until {format_time(cluster.deadline)}" if cluster.deadline else ""
        report(
            f"not everything was {done}: up to {count(len(running), 'machine')} may keep running"
            f" {describe_rate(cluster.charges)}{end}; `clusterctl {verb or cluster.end}"
            f" {cluster.name}` continues"
        )


def report_unknown(cluster: Cluster, why: ClusterctlError, report: Reporter) -> None:
    """After an `up` that broke off, where the cloud does not say what it has made."""
    running = {item.node for item in cluster.charges if item.until is None}
    end = f", until {format_time(cluster.deadline)}" if cluster.deadline else ""
    report(
        f"what runs now is unknown ({why.message}): up to {count(len(running), 'machine')}"
        f" {describe_rate(cluster.charges)}{end}; `clusterctl up {cluster.name}` continues,"
        f" `clusterctl down {cluster.name}` removes it"
    )


def list_machines(charges: Iterable[Charge]) -> tuple[str, ...]:
    """The nodes whose machines cost money, or their disks."""
    there = (i.node for i in charges if i.until is None and i.part not in NETWORK_PARTS)
    return tuple(sorted(set(there)))


def describe_doubts(cluster: Cluster, now: float) -> tuple[str, ...]:
    """What nobody saw of what is counted, and so is the most that it can be."""
    charges = cluster.charges
    unseen = [item for item in charges if item.unseen]
    ended = sorted({item.node for item in unseen if item.thing})
    planned = sorted({item.node for item in unseen if not item.thing})
    if not unseen:
        return ()
    what = [f"when {shorten(ended)} ended"] if ended else []
    what += [f"whether {shorten(planned)} was created"] if planned else []
    most = "assume the latest possible time"
    if cost.is_exact(charges):
        most = f"are at most ${cost.sum_dollars(charges, now):.2f}"
    return (f"nobody saw {' and '.join(what)} (cluster {cluster.name}): the costs {most}",)


def describe_rate(charges: Sequence[Charge]) -> str:
    """`at $1.10/h`, or `for at least $1.10/h` where a price is unknown."""
    least = any(item.hourly is None and item.until is None for item in charges)
    return f"{'for at least' if least else 'at'} ${cost.sum_hourly(charges):.2f}/h"


@contextmanager
def report_failure(cluster: Cluster, report: Reporter, what: str) -> Iterator[None]:
    """Around what changes nothing if the cloud refuses or does not answer: says then what goes on
    costing money. `what`: of `was not changed`, say."""
    try:
        yield
    except ProviderError:
        if cluster.charges:
            report_price(cluster, report, what)
        raise


def report_price(cluster: Cluster, report: Reporter, what: str = "nothing was removed") -> None:
    end = f" until {format_time(cluster.deadline)}" if cluster.deadline else ""
    rate = describe_rate(cluster.charges)
    goes_on = f"machines keep running {rate}"
    if cluster.phase is Phase.STOPPED:
        goes_on = f"{cost.describe_stored(cluster.charges)} keep costing {rate.partition(' ')[2]}"
    report(f"{what}: the {goes_on}{end}")


# -------------------------------------------------------------------------------------------------
# Workers that have ended because nobody used them (templates/node/idle.sh.j2), as AWS and the
# launcher report them. The nodes decide that on their own, so the record does not have it.


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
