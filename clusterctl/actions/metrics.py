"""Metrics of a job, from what its ranks have printed, and from TensorBoard's event files among its
outputs that are on this machine: `logs --metrics`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from clusterctl.actions.jobs import find_job, read_logs
from clusterctl.core.job import Job
from clusterctl.core.model import Reporter
from clusterctl.insight.metrics import MetricPoint, Reader, drop_repeated, keep_numbers
from clusterctl.jobs import fetch, records
from clusterctl.jobs.records import Piece, read_stored
from clusterctl.state.store import Store

EVENT_FILE = "events.out.tfevents."
"""What the names of TensorBoard's files begin with."""
EVENT_BYTES = 20_000_000
"""What is read of a job, the smallest files first: about 6 s. They may hold images, too."""


def follow(
    store: Store, number: int, where: str | None, report: Reporter, *, rank: int | None = None
) -> Iterator[list[MetricPoint]]:
    """The metrics that the job prints, as they come, to its end."""
    return _read_points(read_logs(store, number, where, report, follow=True, rank=rank), rank)


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


def collect_metrics(
    store: Store, number: int, where: str | None, report: Reporter, *, rank: int | None = None
) -> tuple[MetricPoint, ...]:
    """The metrics that the job has made so far, rank by rank."""
    output = read_logs(store, number, where, report, follow=False, rank=rank)
    found = _join(store, find_job(store, number, where), _read_points(output, rank), report)
    return tuple(point for point in found if rank in (None, point.rank))


def collect_stored(store: Store, job: Job) -> tuple[MetricPoint, ...]:
    """The same from what is on this machine, without asking any node."""
    return _join(store, job, _read_points(read_stored(store.locate_job_folder(job.id))))


def _join(
    store: Store,
    job: Job,
    printed: Iterable[list[MetricPoint]],
    report: Reporter = lambda line: None,
) -> tuple[MetricPoint, ...]:
    points = [point for some in printed for point in some]
    try:
        points += _read_event_files(job, _find_event_files(store, job))
    except ImportError:
        if not points:
            report(
                "TensorBoard's event files need a package: uv pip install --python"
                f" {sys.executable} tensorboard"
            )
    return tuple(sorted(drop_repeated(points), key=lambda point: point.rank))


def _find_event_files(store: Store, job: Job) -> dict[str, Path]:
    """By NODE/PATH. Of a file that was both fetched and copied here, the longer one."""
    copies = fetch.locate_copies(store.locate_job_folder(job.id))
    fetched = records.read_fetched(store.home, job)
    places = [(place, Path(fetched.folder) / place) for place in fetched.files]
    for node, known in fetch.list_stored(copies).items():
        places += [(f"{node}/{path}", copies / node / path) for path, *_ in known.files]
    files = [(place, path) for place, path in places if path.name.startswith(EVENT_FILE)]
    sized = [(path.stat().st_size, place, path) for place, path in files if path.is_file()]
    found, total = dict[str, Path](), 0
    for size, place, path in sorted(sized):
        total += size
        if total <= EVENT_BYTES:
            found[place] = path
    return found


def _read_event_files(job: Job, files: dict[str, Path]) -> Iterator[MetricPoint]:
    """Raises ImportError where there are some, and no reader."""
    folders: dict[int, dict[str, list[Path]]] = {}
    for place, path in sorted(files.items()):
        rank, folder = _place(job, place)
        folders.setdefault(rank, {}).setdefault(folder, []).append(path)
    for rank, mine in folders.items():
        for folder, paths in mine.items():
            prefix = os.path.relpath(folder, os.path.commonpath(list(mine)))
            for path in paths:
                yield from _read_events(path, rank, "" if prefix == "." else f"{prefix}/")


def _place(job: Job, place: str) -> tuple[int, str]:
    """The rank, or point, that an event file NODE/PATH is of, and its folder: programs write one
    for all ranks, or one on each node."""
    node, *path = PurePosixPath(place).parent.parts
    if job.spec.is_sweep and path[:1] == ["points"] and path[1:] and path[1].isdecimal():
        return int(path[1]), "/".join(path[2:]) or "."
    rank = next((r for r in job.processes if job.find_node(r) == node), 0)
    return rank, "/".join(path) or "."


def _read_events(path: Path, rank: int, prefix: str) -> Iterator[MetricPoint]:
    """A point for each step, up to where the file is damaged. `prefix`: of all names."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found: dict[int, dict[str, float]] = {}
    with suppress(Exception):  # the reader's own, protobuf's and numpy's
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    number = value.simple_value
                elif value.metadata.plugin_data.plugin_name == "scalars":  # as TensorFlow 2 does
                    number = make_ndarray(value.tensor).item()
                else:
                    continue
                values = found.setdefault(event.step, {"step": event.step})
                values |= {f"{prefix}{value.tag}": number, "time": event.wall_time}
    for step in sorted(found):
        yield MetricPoint(rank, keep_numbers(found[step]), meant=False)


def find_last_by_rank(store: Store, job: Job, report: Reporter) -> dict[int, dict[str, float]]:
    """The last value of each metric that each rank, or point of a sweep, has printed so far."""
    found: dict[int, dict[str, float]] = {}
    for point in collect_metrics(store, job.id, None, report):
        found.setdefault(point.rank, {}).update(point.values)
    return found
