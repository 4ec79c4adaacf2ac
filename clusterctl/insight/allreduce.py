"""How long all-reduces of many sizes take, in each backend, beside what the links allow. Pure.

As NVIDIA's nccl-tests define them, of W ranks:

    algorithm bandwidth = bytes / time
    bus bandwidth       = algorithm bandwidth x 2 (W - 1) / W

The second is what each link carries in a ring, whatever the number of ranks, and is what can be
compared with the slowest link:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from clusterctl.insight.figures import Measurements
from clusterctl.insight.metrics import MetricPoint


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
        texts = [describe(each * unit) for each in (self.value, self.low, self.high)]
        return texts[0] if self.low == self.high else f"{texts[0]} ({texts[1]}-{texts[2]})"


def describe(value: float) -> str:
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
