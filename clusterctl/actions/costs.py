"""What a cluster costs by what is seen of its machines, and what was spent over days and by job."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.actions.common import choose_cluster, open_pool
from clusterctl.core.model import GATEWAY, NETWORK_PARTS, Charge, Cluster, Phase, Reporter, shorten
from clusterctl.core.text import count, format_span, format_time
from clusterctl.errors import ClusterctlError, ProviderError, RecordError, describe_reason
from clusterctl.insight import cost
from clusterctl.machines import ledger, providers
from clusterctl.machines.deadlines import NOTICED
from clusterctl.state.store import Store

if TYPE_CHECKING:
    from clusterctl.core.job import Job


def describe_rate(charges: Iterable[Charge], digits: int = 2) -> str:
    """`$1.10/h` of what runs now, or `at least $1.10/h` where a price is unknown."""
    running = [item for item in charges if item.until is None]
    return f"{cost.render_cost(cost.sum_hourly(running), cost.is_exact(running), digits)}/h"


def describe_bill(cluster: Cluster, digits: int = 2) -> str:
    """`$1.10/h until 18:00`."""
    end = f" until {format_time(cluster.deadline)}" if cluster.deadline else ""
    return f"{describe_rate(cluster.charges, digits)}{end}"


def describe_stopped(cluster: Cluster) -> str:
    """`cluster lab is stopped; its disks cost $0.0107/h until 18:00`."""
    stored = cost.describe_stored(cluster.charges)
    return f"cluster {cluster.name} is stopped; its {stored} cost {describe_bill(cluster, 4)}"


def report_left(cluster: Cluster, report: Reporter, done: str = "removed", verb: str = "") -> None:
    """After a removal or `stop` that broke off: what may run, as far as the record tells."""
    running = {item.node for item in cluster.charges if item.until is None}
    if running:
        report(
            f"not everything was {done}: up to {count(len(running), 'machine')} may keep costing"
            f" {describe_bill(cluster)}; `clusterctl {verb or cluster.end} {cluster.name}`"
            " continues"
        )


def report_price(cluster: Cluster, report: Reporter, what: str = "nothing was removed") -> None:
    """What goes on costing money because `what`."""
    stopped = cluster.phase is Phase.STOPPED
    things = cost.describe_stored(cluster.charges) if stopped else "machines"
    report(f"{what}: the {things} keep costing {describe_bill(cluster)}")


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


# -------------------------------------------------------------------------------------------------
# Machines that have ended because nobody used them (clusterctl/agent/idle.py), as AWS and the
# launcher report them. The nodes decide that on their own, so the record does not have it.


TIMEOUT = 10.0
SHUTDOWN = 90.0
"""Seconds that a machine is billed at most until its services have ended: systemd gives them so."""


class Looked(Struct, frozen=True):
    """`gone`: nodes without a machine. `lines`: what the user should know about them."""

    gone: tuple[str, ...]
    charges: tuple[Charge, ...]
    lines: tuple[str, ...]


def may_have_ended(store: Store, cluster: Cluster, now: float) -> bool:
    """Whether machines may have ended since they were last used, judging by the record."""
    limit = cluster.spec.cloud.idle
    over = cluster.deadline is not None and cluster.deadline <= now
    if not limit or not cluster.charges or cluster.phase is not Phase.READY or over:
        return False
    jobs = store.list_cluster_jobs(cluster)
    times = [job.finished or job.created for job in jobs]
    return now - max((cluster.created, *times)) >= limit


def look(store: Store, cluster: Cluster, now: float) -> Looked:
    """Asks AWS which nodes exist, and the launcher why others are gone. Raises ClusterctlError if
    AWS does not answer."""
    folder = store.locate_folder(cluster.name)
    looks = providers.look(cluster, folder, now)
    there = ledger.list_living(looks)
    gone = tuple(node.name for node in cluster.nodes if node.name not in there)
    from clusterctl.machines import bootstrap  # few clusters have workers that end unused

    said = bootstrap.AgentReport({}, {})
    if cluster.launcher.name in there:
        with suppress(ClusterctlError), open_pool(store, cluster) as pool:
            question = bootstrap.render_question(cluster.launcher)
            result = pool.find_transport(cluster.launcher.name).run(question, timeout=TIMEOUT)
            said = bootstrap.parse_idle_agent(result.text)
    ended = said.compute_ends(now)
    # What AWS does not tell, the launcher may know: when it has told a worker to end.
    ends = {name: when + SHUTDOWN for name, when in ended.items() if name in gone}
    looks = ledger.add_ends(folder, looks, cluster, ends, now)
    cluster = replace(cluster, charges=ledger.settle(cluster, looks))
    kept = [name for name in said.kept if name not in gone]
    if there:
        told = tuple(_describe_ends(cluster, gone, ended, kept, said.holds))
    else:
        provider = providers.load_provider(cluster.spec.provider)
        why = provider.describe(cluster, folder)[cluster.launcher.name]
        told = (_describe_end_of_all(cluster, why),)
    return Looked(gone, cluster.charges, (*told, *describe_doubts(cluster, now)))


def _describe_end_of_all(cluster: Cluster, why: str) -> str:
    """`why`: what became of the launcher."""
    hours, name = format_span(cluster.spec.cloud.idle or 0.0), cluster.name
    goes_on = any(item.until is None for item in cluster.charges)
    rest = f"its NAT gateway costs {describe_rate(cluster.charges, 4)}; " if goes_on else ""
    return (
        f"all machines of cluster {name} have ended, as unused ones do after {hours} (launcher:"
        f" {why}); {rest}{suggest_up(cluster)}, `clusterctl down {name}` removes what is left"
    )


def _describe_ends(
    cluster: Cluster,
    gone: Sequence[str],
    ended: Mapping[str, float],
    kept: Sequence[str],
    holds: Sequence[str],
) -> Iterator[str]:
    hours = format_span(cluster.spec.cloud.idle or 0.0)
    rest = f"what still runs costs {describe_rate(cluster.charges, 4)}; {suggest_up(cluster)}"
    if unused := [name for name in gone if name in ended]:
        when = format_time(max(ended[name] for name in unused))
        stays = ""
        if holds:
            files = ", ".join("shared folder" if n == "shared" else f"job {n}" for n in holds)
            until = f"until {format_time(cluster.deadline)}" if cluster.deadline else "on"
            stays = f", and runs {until} because of unfetched files ({files})"
            stays += f": `clusterctl fetch {holds[0]}`" * (holds[0] != "shared")
        yield (
            f"{shorten(unused)} ended after {hours} idle at {when}; the launcher has copies of all"
            f" logs and outputs{stays}; {rest}"
        )
    if others := [name for name in gone if name not in ended]:
        are = "is" if len(others) == 1 else "are"
        yield f"{shorten(others)} {are} no longer running (reason unknown); {rest}"
    if kept:
        yield (
            f"{shorten(kept)} kept running after {hours} idle: not all files could be copied to the"
            " launcher; look at its disk with `clusterctl ssh launcher -- df -h`, or save the"
            " outputs with `clusterctl fetch`"
        )


def suggest_up(cluster: Cluster) -> str:
    return f"`clusterctl up {cluster.name}` starts them again"


def settle(
    store: Store, cluster: Cluster, report: Reporter, now: Callable[[], float] = time.time
) -> Cluster:
    """The record, updated with the ends of unused machines, which are reported. It is saved, so the
    caller has to hold the lock of the cluster."""
    if not may_have_ended(store, cluster, now()):
        return cluster
    try:
        found = look(store, cluster, now())
    except ClusterctlError as error:
        report(f"it is unknown whether unused machines have ended: {describe_reason(error)}")
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
    with suppress(ClusterctlError):
        if may_have_ended(store, cluster, now()) and (found := look(store, cluster, now())).gone:
            hint = f"{suggest_up(cluster)}, `clusterctl down {cluster.name}` removes the cluster"
            return RecordError(found.lines[0].partition(";")[0], hint=hint)
    return None


# -------------------------------------------------------------------------------------------------
# What is spent: by the record while that is sure of what runs, else by what is seen.


def find_charges(
    store: Store, cluster: Cluster, now: float, *, ask: bool = False
) -> tuple[Sequence[Charge], tuple[str, ...]]:
    """What the cluster has cost, and what a person should know of that: from the record alone,
    unless that cannot tell what runs, or `ask`."""
    try:
        if may_have_ended(store, cluster, now):
            found = look(store, cluster, now)
            return found.charges, found.lines
        if cluster.charges and (ask or is_uncertain(store, cluster, now)):
            seen = providers.settle(cluster, store.locate_folder(cluster.name), now)
            lines = (*describe_doubts(seen, now), *_describe_unexpected(seen, now))
            return seen.charges, lines
    except ClusterctlError as error:
        return cluster.charges, (
            f"it is unknown which machines of cluster {cluster.name} are running"
            f" ({describe_reason(error)}); the costs assume that all are",
        )
    return cluster.charges, describe_doubts(cluster, now)


def is_uncertain(store: Store, cluster: Cluster, now: float) -> bool:
    """Whether whoever bills the cluster has to be asked what runs: its deadline is over, a command
    that changes its machines has not finished, or nobody has used it for long."""
    changing = cluster.stopping or cluster.phase in (Phase.CREATING, Phase.DELETING)
    unsure = changing or _is_overdue(cluster, now) or may_have_ended(store, cluster, now)
    return bool(cluster.charges) and unsure


def _is_overdue(cluster: Cluster, now: float) -> bool:
    return cluster.deadline is not None and cluster.deadline < now


def _describe_unexpected(cluster: Cluster, now: float) -> tuple[str, ...]:
    """What costs money after the deadline, or runs while the cluster is stopped or a `stop` of it
    has not finished."""
    name, rate = cluster.name, describe_rate(cluster.charges, 4)
    going = [item for item in cluster.charges if item.until is None]
    if _is_overdue(cluster, now):
        nodes = {item.node for item in going if item.part not in NETWORK_PARTS}
        gateway = any(item.part == GATEWAY for item in going)
        network = "its NAT gateway" if gateway else "the address of its NAT gateway"
        line = (
            f"the deadline of cluster {name} has passed, but it still costs {rate}"
            f" ({shorten(sorted(nodes)) or network}): `clusterctl down {name}` removes it"
        )
        return (line,) if going else ()
    running = sorted({item.node for item in going if item.part == "instance"})
    still = f"{shorten(running)} {'are' if running[1:] else 'is'} still running"
    if cluster.stopping:
        return (
            f"`stop` has not finished for cluster {name}: {still if running else 'nothing runs'},"
            f" {rate}: `clusterctl stop {name}` completes it, `clusterctl start {name}` starts it"
            " again",
        )
    if running and cluster.phase is Phase.STOPPED:
        return (f"cluster {name} is stopped, but {still}: `clusterctl stop {name}` stops it",)
    return ()


def describe_late_clock(cluster: Cluster, now: float) -> tuple[str, ...]:
    """A warning where this machine's clock shows an earlier time than at `up`."""
    behind = cluster.created - now
    if behind <= NOTICED:
        return ()
    return (
        f"this machine's clock is at least {format_span(round(behind / 60) * 60)} behind, by the"
        " creation of the cluster: ages and costs are wrong until it is set"
        " (`timedatectl set-ntp true`)",
    )


# -------------------------------------------------------------------------------------------------
# Spending of the past, by day, cluster and job.


class ClusterCost(Struct, frozen=True):
    """`exact`: every price is known; otherwise it cost at least that."""

    cluster: str
    id: str
    running: bool
    dollars: float
    exact: bool


class DayCost(Struct, frozen=True):
    """`day` is one of this machine's calendar."""

    day: str
    dollars: float
    exact: bool


class JobCost(Struct, frozen=True):
    """What its cluster cost while it ran."""

    job: int
    cluster: str
    id: str
    state: str
    dollars: float
    exact: bool


class Spending(Struct, frozen=True):
    """In US dollars since a moment, the latest day first. What ran between jobs is part of the
    clusters and days alone."""

    since: float
    days: tuple[DayCost, ...]
    clusters: tuple[ClusterCost, ...]
    jobs: tuple[JobCost, ...]
    warnings: tuple[str, ...] = ()
    """What is not certain about the figures."""
    complete: bool = True
    """Whether every record of a cluster can be read: what the others have cost is not counted."""

    @property
    def dollars(self) -> float:
        return sum(item.dollars for item in self.clusters)

    @property
    def running(self) -> bool:
        """Whether any of it goes on costing money."""
        return any(item.running for item in self.clusters)

    @property
    def exact(self) -> bool:
        return self.complete and all(item.exact for item in self.clusters)


def sum_spending(
    store: Store, seconds: float, name: str | None, clock: Callable[[], float] = time.time
) -> Spending:
    """Of the last `seconds`, of all clusters or those of that name, also of those that are gone.
    RecordError for a name that none has had: a mistyped one must not look like one that is free."""
    now = clock()
    since = max(0.0, now - seconds)
    known = [item for item in find_billed(store).values() if name in (None, item.name)]
    damage = store.list_cluster_damage(name)
    if not (damage or name in {None, *(item.name for item in store.list_past())}):
        choose_cluster(store, name)
    warnings = [f"not counted: {line}" for line in damage]
    for at, item in enumerate(known):
        if _is_running(item):  # its machines may have ended themselves
            charges, lines = find_charges(store, item, now)
            known[at] = replace(item, charges=tuple(charges))
            warnings += lines
        elif not _is_over(item, since):
            warnings += describe_doubts(item, now)
    if latest := max(known, key=lambda item: item.created, default=None):
        warnings += describe_late_clock(latest, now)

    def sum_from(item: Cluster, start: float, end: float) -> float:
        return cost.sum_between(item.charges, max(since, start), end, now)

    # Also the minute, or the hour of a NAT gateway, that has begun, as a receipt counts them.
    spent = {item.id: sum_from(item, since, inf) for item in known}
    shown = {item.id: item for item in known if spent[item.id] or not _is_over(item, since)}
    exact = {id: cost.is_exact(item.charges) for id, item in shown.items()}
    first = min((row.since for item in shown.values() for row in item.charges), default=0.0)
    days = []
    for day, begins, ends in _list_days(max(since, first), now):
        each = {id: sum_from(item, begins, ends) for id, item in shown.items()}
        known_prices = all(exact[id] for id, dollars in each.items() if dollars)
        days.append(DayCost(day, sum(each.values()), known_prices))
    clusters = (
        ClusterCost(item.name, id, _is_running(item), spent[id], exact[id])
        for id, item in shown.items()
    )
    jobs = (
        JobCost(
            *(job.id, job.cluster, id, job.state.value),
            sum_from(shown[id], job.started, job.finished or now),
            exact[id],
        )
        for job in store.list_jobs()
        if (id := job.cluster_id) in shown and job.started and (job.finished or now) > since
    )
    return Spending(since, tuple(days), tuple(clusters), tuple(jobs), tuple(warnings), not damage)


def find_billed(store: Store) -> Mapping[str, Cluster]:
    """The clusters that cost money, or did, by id: those that run win over a past record."""
    found = {item.id: item for item in (*store.list_past(), *store.list_clusters())}
    return {id: item for id, item in found.items() if item.charges}


def sum_by_job(
    store: Store, jobs: Iterable[Job], clock: Callable[[], float] = time.time
) -> dict[int, float]:
    """What the cluster of each job cost while it ran, by the number of the job; without those that
    cost nothing, or that nobody has a record of."""
    billed, now = find_billed(store), clock()
    return {
        job.id: cost.sum_between(
            mine.charges, job.started, min(job.finished or now, mine.deadline or now), now
        )
        for job in jobs
        if job.started and (mine := billed.get(job.cluster_id))
    }


def _is_running(cluster: Cluster) -> bool:
    """An end that nobody saw is on record as the latest possible one, which may be yet to come."""
    return any(item.until is None for item in cluster.charges)


def _is_over(cluster: Cluster, when: float) -> bool:
    return all(item.until is not None and item.until <= when for item in cluster.charges)


def _list_days(since: float, now: float) -> Iterator[tuple[str, float, float]]:
    """Days with their beginnings and ends, the last one first; those of daylight saving are longer
    or shorter, and today has no end: what is billed in advance is of today."""
    day = date.fromtimestamp(now)
    while (begins := _find_midnight(day)) > since - 86400 * 1.5:
        ends = _find_midnight(day + timedelta(days=1))
        if ends > since:
            yield day.isoformat(), begins, inf if ends > now else ends
        day -= timedelta(days=1)


def _find_midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day).timestamp()
