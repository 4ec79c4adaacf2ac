"""What `verify` has measured, and its verdicts. Units are SI: bytes and operations per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gpu:
    """None where the GPU does not say. Memory in MiB."""

    index: int
    name: str
    driver: str = ""
    temperature: float | None = None
    width: float | None = None
    width_most: float | None = None
    errors: float | None = None
    """ECC errors since the driver was loaded that could not be corrected."""
    throttled: str = ""
    memory_used: float | None = None
    utilization: float | None = None


@dataclass(slots=True)
class NodeFigures:
    """One node's measurements. `kind`: nodes of one kind have to be equally fast. `expected` cores
    and GPUs are those of bootstrap. `error`: why nothing could be measured; `failed`: why single
    figures could not, by their names. `shaping`: what `tc` does with what `device` sends, and
    `line_rate` its bits per second, where it is a piece of hardware that tells."""

    name: str
    kind: str = ""
    instance_type: str = ""
    error: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    offset: float | None = None
    uncertainty: float = 0.0
    device: str = ""
    line_rate: float | None = None
    shaping: str = ""
    expected_cores: int = 0
    expected_gpus: int = 0
    cores: int = 0
    load: float = 0.0
    """Cores of its machine that others use."""
    visible: float = 0.0
    """Cores that others use on the node itself, where it is only a part of its machine."""
    busiest: str = ""
    steal: float = 0.0
    share: float = 1.0
    """Of one core, that one thread got."""
    throttled: float = 0.0
    """Share of the time slices in which a limit of its cgroup stopped a thread."""
    core: float = 0.0
    """Bytes of SHA-256 per second of processor time."""
    together: float = 0.0
    """The same of all cores, per second."""
    memory: float = 0.0
    disk: float | None = None
    gemm: Mapping[str, float] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    gpu_error: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """Between two nodes: latency of a round trip, bytes per second of one flow and of several from
    the second to the first, and of several the other way; 0: not measured."""

    first: str
    second: str
    latency: float = 0.0
    flow: float = 0.0
    rate: float = 0.0
    back: float = 0.0
    error: str = ""

    @property
    def name(self) -> str:
        return f"{self.first} – {self.second}"

    @property
    def least(self) -> float:
        """Of the slower direction."""
        return min(self.rate, self.back or self.rate)


@dataclass(frozen=True, slots=True)
class Reduction:
    """An all-reduce over all ranks: latency of the smallest message, bus bandwidth of the
    largest (bytes per second)."""

    backend: str
    ranks: int = 0
    latency: float = 0.0
    rate: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What was not measured of nodes or links, and why."""

    what: str
    subjects: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A line of the report. `state`: `ok`, `low` (below its limit) or `note`."""

    subject: str
    what: str
    state: str
    text: str
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured at a moment (seconds since the epoch), and the verdicts."""

    nodes: tuple[NodeFigures, ...]
    links: tuple[Link, ...]
    reductions: tuple[Reduction, ...]
    verdicts: tuple[Verdict, ...]
    seconds: float
    time: float = 0.0
    left_out: tuple[LeftOut, ...] = ()

    @property
    def low(self) -> tuple[Verdict, ...]:
        return tuple(item for item in self.verdicts if item.state == "low")
