"""How a program gets faster with more ranks, and where its time goes. Pure.

A run says in its metrics what an epoch took (`seconds`), how fast it was (`samples_per_second`) and
where the time went (`compute_seconds`, `communication_seconds`, `waiting_seconds`). A program that
prints none of them is timed as a whole, from its start to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct

from clusterctl.insight.metrics import MetricPoint
from clusterctl.insight.verify import Measurements

# -------------------------------------------------------------------------------------------------
# How long all-reduces of many sizes take, in each backend, beside what the links allow. Pure.
#
# As NVIDIA's nccl-tests define them, of W ranks:
#
#     algorithm bandwidth = bytes / time
#     bus bandwidth       = algorithm bandwidth x 2 (W - 1) / W
#
# The second is what each link carries in a ring, whatever the number of ranks, and is what can be
# compared with the slowest link:
# https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md


class Figure(Struct, frozen=True):
    """Of several repeats: the median, the smallest and the largest, which are the error bar."""

    value: float
    low: float
    high: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Figure:
        return cls(median(values), min(values), max(values))

    @classmethod
    def of(cls, value: float) -> Figure:
        """Of one repeat."""
        return cls(value, value, value)

    def scale(self, by: float) -> Figure:
        return Figure(self.value * by, self.low * by, self.high * by)

    def __str__(self) -> str:
        """`7.1 (6.9-8)`."""
        text = format_figure(self.value)
        spread = f" ({format_figure(self.low)}-{format_figure(self.high)})"
        return text if self.low == self.high else text + spread


def format_figure(value: float | None) -> str:
    """Three digits, or two of what is very little; `-` of what is not known."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.1e}"


class Row(Struct, frozen=True):
    """All-reduces of `size` bytes: seconds of the slowest rank, and bytes per second."""

    backend: str
    ranks: int
    size: int
    seconds: Figure
    algorithm: Figure
    bus: Figure


class HardwareLimit(Struct, frozen=True):
    """What the hardware allows, as `verify` has measured it: bytes per second of the slowest link,
    `of` which it is; 0 where nothing is known."""

    rate: float = 0.0
    of: str = ""


class Curves(Struct, frozen=True):
    """`failed`: backends that do not work here, and why. `time`: seconds since the epoch."""

    rows: tuple[Row, ...]
    limit: HardwareLimit
    repeats: int
    failed: dict[str, str]
    time: float = 0.0


def make_rows(
    backend: str, ranks: int, repeats: Iterable[Sequence[MetricPoint]]
) -> tuple[Row, ...]:
    """From the metrics that reduce_all.py has printed in each repeat; sizes that only some of them
    have are left out."""
    runs = [
        {
            int(p.values["bytes"]): p.values["seconds"]
            for p in points
            if p.values.get("bytes", 0) > 0 and p.values.get("seconds", 0) > 0
        }
        for points in repeats
    ]
    found = []
    for size in sorted(set(runs[0]).intersection(*runs[1:]) if runs else ()):
        seconds = Figure.from_values([run[size] for run in runs])
        rate = Figure.from_values([size / run[size] for run in runs])
        bus = rate.scale(2 * (ranks - 1) / ranks)
        found.append(Row(backend, ranks, size, seconds, rate, bus))
    return tuple(found)


def tabulate_allreduce(found: Curves) -> list[tuple[str, ...]]:
    """A head, and a row for each backend and size."""
    limit = found.limit.rate
    rows = (
        (
            row.backend,
            str(row.size),
            str(row.seconds.scale(1e6)),
            str(row.algorithm.scale(1e-9)),
            str(row.bus.scale(1e-9)),
            f"{row.bus.value / limit:.0%}" if limit else "-",
        )
        for row in found.rows
    )
    return [("backend", "bytes", "latency µs", "algbw GB/s", "busbw GB/s", "of limit"), *rows]


def find_limit(report: Measurements) -> HardwareLimit:
    """The slowest link; on one node, its memory."""
    sound = [link for link in report.links if not link.error and link.rate]
    if sound:
        slowest = min(sound, key=lambda link: link.least)
        return HardwareLimit(slowest.least, f"link {slowest.name}")
    nodes = [(node.memory, f"memory of {node.name}") for node in report.nodes if node.memory]
    return HardwareLimit(*min(nodes)) if nodes else HardwareLimit()


# -------------------------------------------------------------------------------------------------

SPLIT = ("compute_seconds", "communication_seconds", "waiting_seconds")


class TimedRun(Struct, frozen=True):
    """One run. `seconds` are those of an epoch, or of the whole job (`unit`: `epoch`, `run`);
    `split` has those of SPLIT. None: the program does not say."""

    job: int
    ranks: int
    nodes: tuple[str, ...]
    seconds: float
    unit: str
    rate: float | None = None
    split: tuple[float, ...] | None = None


class ScalingStep(Struct, frozen=True):
    """All runs with so many ranks. `rate`: work per second, in samples, else in epochs or runs."""

    ranks: int
    nodes: int
    jobs: tuple[int, ...]
    seconds: Figure
    rate: Figure
    speedup: Figure
    efficiency: float
    split: tuple[float, ...] | None


class Curve(Struct, frozen=True):
    """`fastest` is a number of ranks; `time`: seconds since the epoch."""

    program: str
    unit: str
    steps: tuple[ScalingStep, ...]
    fastest: int
    time: float = 0.0


def read_run(
    job: int, ranks: int, nodes: tuple[str, ...], seconds: float, points: Sequence[MetricPoint]
) -> TimedRun:
    """`seconds`: from the job's start to its end. The first epoch warms up, and counts only where
    it is the only one."""
    mine = [p for p in points if "seconds" in p.values and "epoch" in p.values]
    lowest = min((p.rank for p in mine), default=0)
    mine = [p for p in mine if p.rank == lowest]
    mine = mine[1:] or mine
    rate = _find_median(mine or points, "samples_per_second")
    if not mine:
        return TimedRun(job, ranks, nodes, seconds, "run", rate)
    split = tuple(value for name in SPLIT if (value := _find_median(mine, name)) is not None)
    epoch = _find_median(mine, "seconds") or seconds
    whole = split if len(split) == len(SPLIT) else None
    return TimedRun(job, ranks, nodes, epoch, "epoch", rate, whole)


def _find_median(points: Iterable[MetricPoint], name: str) -> float | None:
    values = [point.values[name] for point in points if name in point.values]
    return median(values) if values else None


def make_curve(program: str, runs: Sequence[TimedRun]) -> Curve:
    steps: list[ScalingStep] = []
    rated = all(run.rate for run in runs)
    for ranks in sorted({run.ranks for run in runs}):
        group = [run for run in runs if run.ranks == ranks]
        rate = Figure.from_values([(rated and run.rate) or 1 / run.seconds for run in group])
        base, fewest = (steps[0].rate, steps[0].ranks) if steps else (rate, ranks)
        speedup = Figure(*(v / base.value for v in (rate.value, rate.low, rate.high)))
        splits = [run.split for run in group if run.split]
        step = ScalingStep(
            ranks,
            nodes=len(group[0].nodes),
            jobs=tuple(run.job for run in group),
            seconds=Figure.from_values([run.seconds for run in group]),
            rate=rate,
            speedup=speedup,
            efficiency=speedup.value * fewest / ranks,
            split=tuple(map(median, zip(*splits, strict=True)))
            if len(splits) == len(group)
            else None,
        )
        steps.append(step)
    fastest = max(steps, key=lambda step: step.rate.value)
    return Curve(program, runs[0].unit, tuple(steps), fastest.ranks)


def tabulate_scaling(found: Curve) -> list[tuple[str, ...]]:
    """A head, and a row for each number of ranks."""
    rows = (
        (
            str(step.ranks),
            str(step.nodes),
            str(step.seconds),
            str(step.speedup),
            f"{step.efficiency:.0%}",
            *map(format_figure, step.split or (None,) * len(SPLIT)),
        )
        for step in found.steps
    )
    times = (f"s/{found.unit}", "speed-up", "efficiency")
    parts = (name.removesuffix("_seconds") for name in SPLIT)
    return [("ranks", "nodes", *times, *parts), *rows]
