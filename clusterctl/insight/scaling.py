"""How a program gets faster with more ranks, where its time goes, and what an epoch costs. Pure.

A run says in its metrics what an epoch took (`seconds`), how fast it was (`samples_per_second`) and
where the time went (`compute_seconds`, `communication_seconds`, `waiting_seconds`). A program that
prints none of them is timed as a whole, from its start to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from clusterctl.core.text import count, format_time
from clusterctl.insight import page
from clusterctl.insight.metrics import MetricPoint
from clusterctl.insight.page import Section, Table
from clusterctl.insight.verify import Measurements, Reduction, format_rate

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


@dataclass(frozen=True, slots=True)
class Figure:
    """Of several repeats: the median, the smallest and the largest, which are the error bar."""

    value: float
    low: float
    high: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Figure:
        return cls(median(values), min(values), max(values))

    def describe(self, unit: float = 1.0) -> str:
        """`7.1 (6.9-8)`, times `unit`."""
        texts = [describe_allreduce(each * unit) for each in (self.value, self.low, self.high)]
        return texts[0] if self.low == self.high else f"{texts[0]} ({texts[1]}-{texts[2]})"


def describe_allreduce(value: float) -> str:
    """Three digits, or two of what is very little."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.1e}"


@dataclass(frozen=True, slots=True)
class Row:
    """All-reduces of `size` bytes: seconds of the slowest rank, and bytes per second."""

    backend: str
    ranks: int
    size: int
    seconds: Figure
    algorithm: Figure
    bus: Figure


@dataclass(frozen=True, slots=True)
class HardwareLimit:
    """What the hardware allows, as `verify` has measured it: bytes per second of the slowest link,
    and seconds of a round trip. `of` says which; the rate is 0 where nothing is known."""

    rate: float = 0.0
    latency: float = 0.0
    of: str = ""


@dataclass(frozen=True, slots=True)
class Curves:
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
        {int(p.values["bytes"]): p.values["seconds"] for p in points if _is_size(p)}
        for points in repeats
    ]
    common = set(runs[0]).intersection(*runs[1:]) if runs else set()
    factor = 2 * (ranks - 1) / ranks
    found = []
    for size in sorted(common):
        seconds = [run[size] for run in runs]
        rates = [size / each for each in seconds]
        bus = [factor * rate for rate in rates]
        found.append(
            Row(
                backend,
                ranks,
                size,
                Figure.from_values(seconds),
                Figure.from_values(rates),
                Figure.from_values(bus),
            )
        )
    return tuple(found)


def _is_size(point: MetricPoint) -> bool:
    return point.values.get("bytes", 0) > 0 and point.values.get("seconds", 0) > 0


def find_limit(report: Measurements) -> HardwareLimit:
    """The slowest link; on one node, its memory."""
    sound = [link for link in report.links if not link.error and link.rate]
    if sound:
        slowest = min(sound, key=lambda link: link.least)
        return HardwareLimit(
            slowest.least, max(link.latency for link in sound), f"link {slowest.name}"
        )
    nodes = [node for node in report.nodes if node.memory]
    if nodes:
        least = min(nodes, key=lambda node: node.memory)
        return HardwareLimit(least.memory, 0.0, f"memory of {least.name}")
    return HardwareLimit()


def estimate_ring_seconds(size: int, ranks: int, limit: HardwareLimit) -> float | None:
    """What a ring takes at least: 2 (W - 1) messages one after the other, each of size / W bytes
    and half a round trip (Thakur, Rabenseifner and Gropp 2005, doi 10.1177/1094342005051521)."""
    if not limit.rate:
        return None
    return (ranks - 1) * limit.latency + 2 * (ranks - 1) / ranks * size / limit.rate


# -------------------------------------------------------------------------------------------------

SPLIT = ("compute_seconds", "communication_seconds", "waiting_seconds")


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run. `seconds` are those of an epoch, or of the whole job (`unit`: `epoch`, `run`);
    `split` has those of SPLIT; `allreduces` and their `bytes` are those of an epoch. None: the
    program does not say."""

    job: int
    ranks: int
    nodes: tuple[str, ...]
    seconds: float
    unit: str
    rate: float | None = None
    split: tuple[float, float, float] | None = None
    allreduces: float | None = None
    bytes: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """All runs with so many ranks. `rate`: work per second, in samples, else in epochs or runs;
    `predicted`: seconds, from what `verify` has measured; `dollars`: of an epoch or run."""

    ranks: int
    nodes: int
    jobs: tuple[int, ...]
    seconds: Figure
    rate: Figure
    speedup: Figure
    efficiency: float
    split: tuple[float, float, float] | None
    predicted: float | None
    dollars: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """`fastest` and `cheapest` are numbers of ranks; None: no price is known. `assumes` says what
    the prediction is made from. `time`: seconds since the epoch."""

    program: str
    unit: str
    steps: tuple[ScalingStep, ...]
    fastest: int
    cheapest: int | None
    assumes: str
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class PredictionBasis:
    """What a prediction is made from. `cores`: as fast as so many cores are all ranks of a cluster
    on one machine together; None: each rank has its own."""

    cores: float | None
    reduction: Reduction | None


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
    found = tuple(value for name in SPLIT if (value := _find_median(mine, name)) is not None)
    return TimedRun(
        job,
        ranks,
        nodes,
        _find_median(mine, "seconds") or seconds,
        "epoch",
        rate,
        (found[0], found[1], found[2]) if len(found) == len(SPLIT) else None,
        _find_median(mine, "allreduces"),
        _find_median(mine, "allreduce_bytes"),
    )


def _find_median(points: Iterable[MetricPoint], name: str) -> float | None:
    values = [point.values[name] for point in points if name in point.values]
    return median(values) if values else None


def choose_basis(report: Measurements | None, shared: bool, backend: str) -> PredictionBasis:
    """From what `verify` has measured. `shared`: all nodes are names of one machine; `backend`:
    whose all-reduce it is, or `auto`: the fastest."""
    if report is None:
        return PredictionBasis(None, None)
    ratios = [node.together / node.core for node in report.nodes if node.core and node.together]
    sound = [item for item in report.reductions if not item.error and item.ranks > 1 and item.rate]
    chosen = [item for item in sound if item.backend == backend] or sound
    best = max(chosen, key=lambda item: item.rate, default=None)
    return PredictionBasis(max(1.0, min(ratios)) if shared and ratios else None, best)


def make_curve(
    program: str,
    runs: Sequence[TimedRun],
    machine: PredictionBasis,
    hourly: Callable[[Sequence[str]], float | None],
) -> Curve:
    """`hourly`: what nodes cost, in dollars; None where that is not known, or nothing."""
    counts = sorted({run.ranks for run in runs})
    groups = [[run for run in runs if run.ranks == count] for count in counts]
    rated = all(run.rate for run in runs)
    rates = [
        Figure.from_values([(rated and run.rate) or 1 / run.seconds for run in g]) for g in groups
    ]
    base = groups[0]
    steps, prices = [], []
    for group, rate in zip(groups, rates, strict=True):
        seconds = Figure.from_values([run.seconds for run in group])
        speedup = Figure(*(v / rates[0].value for v in (rate.value, rate.low, rate.high)))
        splits = [run.split for run in group if run.split]
        price = hourly(group[0].nodes)
        prices.append(None if price is None else price / rate.value)
        steps.append(
            ScalingStep(
                group[0].ranks,
                len(group[0].nodes),
                tuple(run.job for run in group),
                seconds,
                rate,
                speedup,
                speedup.value * base[0].ranks / group[0].ranks,
                _find_medians(splits) if len(splits) == len(group) else None,
                _predict(base, group, machine, rated),
                None if price is None else price / 3600 * seconds.value,
            )
        )
    known = [(price, step.ranks) for price, step in zip(prices, steps, strict=True) if price]
    return Curve(
        program,
        runs[0].unit,
        tuple(steps),
        max(steps, key=lambda step: step.rate.value).ranks,
        min(known)[1] if len(known) == len(steps) else None,
        _describe_assumptions(base, groups, machine),
    )


def _find_medians(splits: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    compute, communication, waiting = (median(values) for values in zip(*splits, strict=True))
    return compute, communication, waiting


def _predict(
    base: Sequence[TimedRun], group: Sequence[TimedRun], machine: PredictionBasis, rated: bool
) -> float:
    """Seconds: the computing of the fewest ranks, divided among these, and their all-reduces."""

    def compute_work(runs: Sequence[TimedRun]) -> float:
        return median(run.seconds * ((rated and run.rate) or 1 / run.seconds) for run in runs)

    def compute_power(ranks: int) -> float:
        return min(ranks, machine.cores) if machine.cores else ranks

    ranks = group[0].ranks
    computing = median(run.split[0] if run.split else run.seconds for run in base)
    computing *= (
        compute_work(group)
        / compute_work(base)
        * compute_power(base[0].ranks)
        / compute_power(ranks)
    )
    number, carried, found = group[0].allreduces, group[0].bytes, machine.reduction
    if ranks == 1 or not (number and carried and found):
        return computing
    latency = found.latency * (ranks - 1) / (found.ranks - 1)
    return computing + number * latency + 2 * (ranks - 1) / ranks * carried / found.rate


def _describe_assumptions(
    base: Sequence[TimedRun], groups: Sequence[Sequence[TimedRun]], machine: PredictionBasis
) -> str:
    what = "the computing" if base[0].split else "the time"
    text = f"{what} of {base[0].ranks} {'rank' if base[0].ranks == 1 else 'ranks'}, divided"
    if machine.cores:
        text += f" among {machine.cores:.1f} cores"
    counted = any(group[0].allreduces and group[0].bytes for group in groups)
    if counted and machine.reduction:
        return f"{text}, and all-reduces over {machine.reduction.backend} as verify measured them"
    return f"{text}, without communication"


# -------------------------------------------------------------------------------------------------
# What `bench` has measured, as sections of a report. Pure.


Lines = dict[str, list[tuple[float, float]]]
Errors = dict[str, list[tuple[float, float]]]


def describe_allreduce_benchmarks(found: Curves, draw: bool) -> Section:
    """Table, and curves against the slowest link."""
    rows = tuple(
        (
            row.backend,
            str(row.size),
            row.seconds.describe(1e6),
            row.algorithm.describe(1e-9),
            row.bus.describe(1e-9),
            f"{row.bus.value / found.limit.rate:.0%}" if found.limit.rate else "-",
        )
        for row in found.rows
    )
    head = ("backend", "bytes", "latency µs", "algbw GB/s", "busbw GB/s", "of limit")
    limit = f" Limit: {format_rate(found.limit.rate)} ({found.limit.of})."
    text = (
        f"Measured by clusterctl bench allreduce on {format_time(found.time)} with"
        f" {count(found.rows[0].ranks, 'rank')}: median of {count(found.repeats, 'repeat')}, with"
        f" the smallest and the largest.{limit if found.limit.rate else ''}"
    )
    table = Table(head, rows, frozenset(range(1, len(head))))
    return Section("All-reduce", table, _plot_allreduce(found) if draw else (), text)


def _plot_allreduce(found: Curves) -> tuple[tuple[str, str], ...]:
    bandwidth: Lines = {}
    latency: Lines = {}
    bandwidth_errors: Errors = {}
    latency_errors: Errors = {}
    for row in found.rows:
        bandwidth.setdefault(row.backend, []).append((row.size, row.bus.value / 1e9))
        bandwidth_errors.setdefault(row.backend, []).append((row.bus.low / 1e9, row.bus.high / 1e9))
        latency.setdefault(row.backend, []).append((row.size, row.seconds.value * 1e6))
        spread = (row.seconds.low * 1e6, row.seconds.high * 1e6)
        latency_errors.setdefault(row.backend, []).append(spread)
    dashed: list[str] = []
    if found.limit.rate:
        sizes = sorted({row.size for row in found.rows})
        dashed = ["limit", "ring at the limit"]
        bandwidth["limit"] = [(size, found.limit.rate / 1e9) for size in sizes]
        ranks = found.rows[0].ranks
        ring = [(size, estimate_ring_seconds(size, ranks, found.limit) or 0.0) for size in sizes]
        latency["ring at the limit"] = [(size, seconds * 1e6) for size, seconds in ring]
    scales: Any = {"x": "bytes", "log_x": True, "log_y": True, "dashed": dashed}
    return (
        (
            "All-reduce: bus bandwidth",
            page.draw_curves(bandwidth, y="GB/s", errors=bandwidth_errors, **scales),
        ),
        ("All-reduce: time", page.draw_curves(latency, y="µs", errors=latency_errors, **scales)),
    )


def describe_scaling(found: Curve, draw: bool) -> Section:
    """Table, and curves with prediction and efficiency."""
    rows = tuple(
        (
            str(step.ranks),
            str(step.nodes),
            step.seconds.describe(),
            "-" if step.predicted is None else describe_allreduce(step.predicted),
            step.speedup.describe(),
            f"{step.efficiency:.0%}",
            *(describe_allreduce(seconds) for seconds in step.split or ()),
            *["-"] * (0 if step.split else len(SPLIT)),
            "-" if step.dollars is None else describe_allreduce(step.dollars),
        )
        for step in found.steps
    )
    times = (f"s per {found.unit}", "predicted", "speed-up", "efficiency")
    split = ("compute", "communication", "waiting")
    head = ("ranks", "nodes", *times, *split, f"$ per {found.unit}")
    cheapest = f", cheapest: {count(found.cheapest, 'rank')}" if found.cheapest else ""
    text = (
        f"{found.program}, measured by clusterctl bench scaling on {format_time(found.time)}."
        f" Fastest: {count(found.fastest, 'rank')}{cheapest}. Predicted from {found.assumes}."
    )
    table = Table(head, rows, frozenset(range(len(head))))
    return Section("Scaling", table, _plot_scaling(found) if draw else (), text)


def _plot_scaling(found: Curve) -> tuple[tuple[str, str], ...]:
    if len(found.steps) < 2:
        return ()
    unit = f"seconds per {found.unit}"
    times: Lines = {"measured": [(step.ranks, step.seconds.value) for step in found.steps]}
    spread = {"measured": [(step.seconds.low, step.seconds.high) for step in found.steps]}
    known = [(step.ranks, step.predicted) for step in found.steps if step.predicted is not None]
    if known:
        times["predicted"] = [(float(ranks), seconds) for ranks, seconds in known]
    share: Lines = {
        "measured": [(step.ranks, 100 * step.efficiency) for step in found.steps],
        "ideal": [(step.ranks, 100.0) for step in found.steps],
    }
    common: Any = {"x": "ranks", "from_zero": True}
    drawn = [
        (
            "Time by number of ranks",
            page.draw_curves(times, y=unit, errors=spread, dashed=["predicted"], **common),
        ),
        ("Efficiency", page.draw_curves(share, y="% of ideal", dashed=["ideal"], **common)),
    ]
    if all(step.split for step in found.steps):
        parts: Lines = {
            name.removesuffix("_seconds"): [
                (step.ranks, step.split[number]) for step in found.steps if step.split
            ]
            for number, name in enumerate(SPLIT)
        }
        drawn.append(("Where the time goes", page.draw_curves(parts, y=unit, **common)))
    return tuple(drawn)
