"""Metrics of a job, from what its ranks have printed (`logs --metrics`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterctl.actions import jobs
from clusterctl.errors import make_write_error
from clusterctl.insight import event_files
from clusterctl.insight.metrics import MetricPoint, Reader, drop_repeated
from clusterctl.insight.metrics import find_last as find_last
from clusterctl.insight.metrics import list_columns as list_columns
from clusterctl.insight.metrics import render as render
from clusterctl.insight.metrics import to_csv as to_csv
from clusterctl.insight.metrics import to_json as to_json
from clusterctl.job_model import Job
from clusterctl.jobs.logs import read_stored
from clusterctl.model import Reporter
from clusterctl.state import Store
from clusterctl.state.home import replace_file


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
    reader = Reader()
    for pieces in jobs.read_logs(store, number, where, report, follow=follow, rank=rank):
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


def collect(
    store: Store, number: int, where: str | None, report: Reporter, *, rank: int | None = None
) -> tuple[MetricPoint, ...]:
    """The metrics that the job has printed so far, rank by rank."""
    found = [point for some in follow(store, number, where, report, rank=rank) for point in some]
    return tuple(sorted(drop_repeated(found), key=lambda point: point.rank))


def export(job: Job, points: Sequence[MetricPoint], target: Path) -> tuple[Path, ...]:
    """Writes the metrics of the job to a file, if its name ends in .csv, else as event files of
    TensorBoard to `target`/job-N. Returns the file, or the folders of the runs. UsageError if that
    cannot be done."""
    try:
        if target.suffix.lower() == ".csv":
            replace_file(target, to_csv(points).encode())
            return (target,)
        started = job.started or job.created
        return event_files.write(points, target / f"job-{job.id}", started)
    except OSError as error:
        hint = "choose another folder or FILE.csv with --export"
        raise make_write_error(f"the metrics to {target}", error, hint) from error


def collect_stored(store: Store, job: Job) -> tuple[MetricPoint, ...]:
    """The same from the output that is on this machine, without asking any node."""
    reader, found = Reader(), []
    for pieces in read_stored(store.locate_job_folder(job.id)):
        for piece in pieces:
            if piece.rank is not None:
                found += reader.read(piece.rank, piece.data, piece.stream)
    found += reader.finish()
    return tuple(sorted(drop_repeated(found), key=lambda point: point.rank))


def find_last_by_rank(store: Store, job: Job, report: Reporter) -> dict[int, dict[str, float]]:
    """The last value of each metric that each rank, or point of a sweep, has printed so far."""
    found: dict[int, dict[str, float]] = {}
    for point in collect(store, job.id, None, report):
        found.setdefault(point.rank, {}).update(point.values)
    return found
