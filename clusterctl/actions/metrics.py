"""Metrics of a job, from what its ranks have printed: `logs --metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusterctl.actions.jobs import read_logs
from clusterctl.core.job import Job
from clusterctl.core.model import Reporter
from clusterctl.insight.metrics import MetricPoint, Reader, drop_repeated
from clusterctl.jobs.records import Piece, read_stored
from clusterctl.state.store import Store


def follow(
    store: Store,
    number: int,
    where: str | None,
    report: Reporter,
    *,
    follow: bool = False,
    rank: int | None = None,
) -> Iterator[list[MetricPoint]]:
    """The metrics of the job as they come: to its end with `follow`, else as far as they are."""
    return _read_points(read_logs(store, number, where, report, follow=follow, rank=rank), rank)


def _read_points(
    output: Iterable[list[Piece]], rank: int | None = None
) -> Iterator[list[MetricPoint]]:
    reader = Reader()
    for pieces in output:
        found = [
            point
            for piece in pieces
            if piece.rank is not None and rank in (None, piece.rank)
            for point in reader.read(piece.rank, piece.data, piece.stream)
        ]
        if found:
            yield found
    if rest := reader.finish():
        yield rest


def _sort(found: Iterable[list[MetricPoint]]) -> tuple[MetricPoint, ...]:
    points = [point for some in found for point in some]
    return tuple(sorted(drop_repeated(points), key=lambda point: point.rank))


def collect_metrics(
    store: Store, number: int, where: str | None, report: Reporter, *, rank: int | None = None
) -> tuple[MetricPoint, ...]:
    """The metrics that the job has printed so far, rank by rank."""
    return _sort(follow(store, number, where, report, rank=rank))


def collect_stored(store: Store, job: Job) -> tuple[MetricPoint, ...]:
    """The same from the output that is on this machine, without asking any node."""
    return _sort(_read_points(read_stored(store.locate_job_folder(job.id))))


def find_last_by_rank(store: Store, job: Job, report: Reporter) -> dict[int, dict[str, float]]:
    """The last value of each metric that each rank, or point of a sweep, has printed so far."""
    found: dict[int, dict[str, float]] = {}
    for point in collect_metrics(store, job.id, None, report):
        found.setdefault(point.rank, {}).update(point.values)
    return found
