"""`cost`: what was spent, by day, cluster and job, from the records on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from math import inf

from clusterctl.actions import status
from clusterctl.actions.running_costs import describe_doubts
from clusterctl.core.job import Job
from clusterctl.core.model import Charge, Cluster
from clusterctl.insight import cost
from clusterctl.state.store import Store


@dataclass(frozen=True, slots=True)
class ClusterCost:
    """`exact`: every price is known; otherwise it cost at least that."""

    cluster: str
    id: str
    running: bool
    dollars: float
    exact: bool


@dataclass(frozen=True, slots=True)
class DayCost:
    """`day` is one of this machine's calendar."""

    day: str
    dollars: float
    exact: bool


@dataclass(frozen=True, slots=True)
class JobCost:
    """What its cluster cost while it ran."""

    job: int
    cluster: str
    id: str
    state: str
    dollars: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Spending:
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
    """Of the last `seconds`, of all clusters or those of that name, also of those that are gone."""
    now = clock()
    since = max(0.0, now - seconds)
    known = [item for item in find_billed(store).values() if name in (None, item.name)]
    damage = store.list_cluster_damage(name)
    warnings = [f"not counted: {line}" for line in damage]
    for at, item in enumerate(known):
        if not _is_over(item, now):  # its machines may have ended themselves
            charges, lines = status.find_charges(store, item, now)
            known[at] = replace(item, charges=tuple(charges))
            warnings += lines
        elif not _is_over(item, since):
            warnings += describe_doubts(item, now)
    if latest := max(known, key=lambda item: item.created, default=None):
        warnings += status.describe_late_clock(latest, now)
    clusters = [
        (item, dollars)
        for item in known
        # Also the minute, or the hour of a NAT gateway, that has begun, as a receipt counts them.
        if (dollars := cost.sum_between(item.charges, since, inf, now)) or not _is_over(item, since)
    ]
    billed = {item.id: item.charges for item, _ in clusters}
    jobs = [
        (
            job,
            cost.sum_between(
                billed[job.cluster_id], max(since, job.started), _find_end(job, now), now
            ),
        )
        for job in store.list_jobs()
        if job.cluster_id in billed and job.started and _find_end(job, now) > since
    ]
    exact = {id: cost.is_exact(mine) for id, mine in billed.items()}
    days = (
        (day, [cost.sum_between(mine, max(since, a), b, now) for mine in billed.values()])
        for day, a, b in _list_days(max(since, _find_first(billed)), now)
    )
    return Spending(
        since,
        tuple(DayCost(day, sum(each), _is_exact(each, list(exact.values()))) for day, each in days),
        tuple(
            ClusterCost(item.name, item.id, not _is_over(item, now), dollars, exact[item.id])
            for item, dollars in clusters
        ),
        tuple(
            JobCost(
                job.id, job.cluster, job.cluster_id, job.state.value, dollars, exact[job.cluster_id]
            )
            for job, dollars in jobs
        ),
        tuple(warnings),
        not damage,
    )


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
            mine.charges, job.started, min(_find_end(job, now), mine.deadline or now), now
        )
        for job in jobs
        if job.started and (mine := billed.get(job.cluster_id))
    }


def _find_first(charges: Mapping[str, Sequence[Charge]]) -> float:
    return min((item.since for mine in charges.values() for item in mine), default=0.0)


def _is_over(cluster: Cluster, when: float) -> bool:
    return all(item.until is not None and item.until <= when for item in cluster.charges)


def _find_end(job: Job, now: float) -> float:
    return job.finished or now


def _is_exact(each: list[float], exact: list[bool]) -> bool:
    """Whether those that cost something then are exact."""
    return all(known for dollars, known in zip(each, exact, strict=True) if dollars)


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
