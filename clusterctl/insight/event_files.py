"""Metrics as event files of TensorBoard, by tensorboardX (the extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from clusterctl.errors import UsageError
from clusterctl.insight.metrics import PLACES, MetricPoint, find_curves, list_columns

SUFFIX = ".clusterctl"
"""Ends the names of the files that we write. Those of an earlier export are replaced, no others."""


class EventFile(Protocol):
    """One run, as TensorBoard calls it. OSError where the disk is full."""

    def add(self, name: str, value: float, step: int, when: float) -> None:
        """`when`: seconds since the epoch."""

    def close(self) -> None: ...


def open_event_file(folder: Path) -> EventFile:
    """A new file in `folder`. UsageError where tensorboardX is not installed."""
    try:
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto.event_pb2 import Event
    except ImportError:
        raise UsageError(
            "writing files for TensorBoard needs tensorboardX, which is not installed",
            hint="pip install 'clusterctl[tensorboard]', or use --export FILE.csv",
        ) from None

    class Written:
        # Not its SummaryWriter, whose queue waits for ever when the disk is full.
        def __init__(self) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            prefix = str(folder.absolute() / "events")
            self._writer = event_file_writer.EventsWriter(prefix, SUFFIX)

        def add(self, name: str, value: float, step: int, when: float) -> None:
            scalar = summary.scalar(name, value)
            self._writer.write_event(Event(wall_time=when, step=step, summary=scalar))

        def close(self) -> None:
            self._writer.close()

    return Written()


def write(
    points: Sequence[MetricPoint],
    folder: Path,
    started: float,
    open_file: Callable[[Path], EventFile] = open_event_file,
) -> tuple[Path, ...]:
    """A run for each rank, `folder`/rank-N; returns the runs. A point lies at its step, else at its
    epoch. `started`: the time of points that have none. UsageError and OSError: see
    `open_event_file`."""
    found = {name: find_curves(points, name) for name in list_columns(points) if name not in PLACES}
    runs = []
    for rank in sorted({rank for by_rank in found.values() for rank in by_rank}):
        run = folder / f"rank-{rank}"
        for earlier in run.glob(f"events.out.tfevents.*{SUFFIX}"):
            earlier.unlink()
        file = open_file(run)
        for name, by_rank in found.items():
            curve = by_rank.get(rank, [])
            whole = all(x == int(x) for x, _ in curve)  # else parts of epochs: no step of theirs
            for number, (x, point) in enumerate(curve):
                step = int(x) if whole else number
                file.add(name, point.values[name], step, point.values.get("time", started))
        file.close()
        runs.append(run)
    return tuple(runs)
