"""Does a cluster give what its hardware promises? A judgement over measurements. Pure.

Nodes of one kind are held against each other, links against the limits of the instance types, or
on one machine against each other and its memory. Units are SI: bytes, bits and operations per
second, seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from statistics import median
from typing import Any

from msgspec import Struct, field

from clusterctl.core import assets
from clusterctl.core.text import count

# -------------------------------------------------------------------------------------------------
# What `verify` has measured, and its verdicts. Units are SI: bytes and operations per second.


class Gpu(Struct, frozen=True):
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


class NodeFigures(Struct):
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
    gdrcopy: tuple[str, str] | None = None
    """The releases of the kernel module gdrdrv and of gdrcopy where ranks run; "" for none."""


class Link(Struct, frozen=True):
    """Between two nodes: latency of a round trip, bytes per second from the second to the first,
    and the other way; 0: not measured."""

    first: str
    second: str
    latency: float = 0.0
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


class LeftOut(Struct, frozen=True):
    """What was not measured of nodes or links, and why."""

    what: str
    subjects: tuple[str, ...]
    why: str


class Verdict(Struct, frozen=True):
    """A line of the report. `state`: `ok`, `low` (below its limit) or `note`."""

    subject: str
    what: str
    state: str
    text: str
    value: float | None = None
    limit: float | None = None


class Measurements(Struct, frozen=True):
    """What was measured at a moment (seconds since the epoch), and the verdicts."""

    nodes: tuple[NodeFigures, ...]
    links: tuple[Link, ...]
    verdicts: tuple[Verdict, ...]
    seconds: float
    time: float = 0.0
    left_out: tuple[LeftOut, ...] = ()

    @property
    def low(self) -> tuple[Verdict, ...]:
        return tuple(item for item in self.verdicts if item.state == "low")


# -------------------------------------------------------------------------------------------------


@cache
def load_baselines() -> dict[str, float]:
    """Gbit/s that an instance of a type always has."""
    return assets.load_table("insight/baselines.toml", dict[str, float])


SLOW = {"core speed": 0.8, "memory copy": 0.7, "disk write": 0.4}
"""Share of the median of its kind below which a node's figure is low. Disks vary most."""
GEMM = 0.8
"""The same of matrix products."""
LINK = 0.85
"""Share of the baseline below which a link is slow."""
LINK_AMONG = 0.4
"""The same of the median of all links, where no baseline is known."""
LINK_MEMORY = 0.02
"""The same of the memory copy of a machine whose nodes are names for it."""
LATENCY = 3.0
"""Times the median latency above which a link is slow, by LATENCY_LEAST seconds at least."""
LATENCY_LEAST = 200e-6
CLOCK = 0.5
STEAL, LOAD = 0.1, 0.25
"""Shares of a node's processors that others may have while it is measured."""
SHARE = 0.8
"""Share of a core that a thread has to get where nothing else wants it."""
NAMED = 4
"""Nodes or links that are named where they were not measured."""
THROTTLED = 0.25
"""Share of the time slices in which a limit may stop it: one may end as the measurement begins."""
HOT = 90.0
"""Degrees Celsius of a GPU."""


def pair_up(names: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Each pair once, in rounds in which nobody has two partners (the circle method): n - 1 rounds
    for an even number of names, n for an odd one."""
    circle: list[str | None] = [*names, *[None] * (len(names) % 2)]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append(tuple((a, b) for a, b in pairs if a is not None and b is not None))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return tuple(found)


def judge(
    nodes: Sequence[NodeFigures],
    links: Sequence[Link],
    left_out: Sequence[LeftOut] = (),
    *,
    one_machine: bool,
) -> tuple[Verdict, ...]:
    """A verdict for each thing that was measured, node by node, then link by link, and a note for
    what was not."""
    found: list[Verdict] = []
    for node in nodes:
        if node.error:
            found.append(_give(node.name, "node", True, node.error))
        else:
            found += _judge_node(node, nodes, one_machine)
    memory = max((node.memory for node in nodes), default=0.0)
    ends = {node.name: node for node in nodes}
    busy = one_machine and any(_describe_others(node) for node in nodes)
    found += _judge_links(links, ends, memory if one_machine else 0.0, busy)
    found += map(_describe_left_out, left_out)
    return tuple(found)


def _describe_left_out(item: LeftOut) -> Verdict:
    first, *more = item.subjects
    text = f"not measured: {item.why}"
    if more:
        named = ", ".join(item.subjects[:NAMED]) + (" …" if len(item.subjects) > NAMED else "")
        first = count(len(item.subjects), "link" if item.what == "link" else "node")
        text += f" ({named})"
    return Verdict(first, item.what, "note", text)


def _give(
    subject: str,
    what: str,
    low: bool,
    text: str,
    value: float | None = None,
    limit: float | None = None,
    *,
    noted: bool = False,
) -> Verdict:
    """`noted`: what is low is no fault of the machine."""
    state = "ok" if not low else "note" if noted else "low"
    return Verdict(subject, what, state, text, value, limit)


def _judge_node(
    node: NodeFigures, nodes: Sequence[NodeFigures], one_machine: bool
) -> Iterator[Verdict]:
    busy = _describe_others(node)
    if node.cores:
        lacks = node.cores < node.expected_cores
        text = f"{node.cores} of {node.expected_cores}" if lacks else f"{node.cores}"
        if node.core and not busy:
            text += f", {node.together / node.core:.1f} times as fast as one"
        yield _give(node.name, "cores", lacks, text, node.cores, node.expected_cores)
    if busy:
        # Nodes of one machine share it with all that its user does.
        outside = one_machine and node.visible <= LOAD * node.cores
        yield _give(node.name, "processor", True, busy, node.load, noted=outside)
    if node.throttled > THROTTLED:
        text = f"a limit of its cgroup stops a thread in {node.throttled:.0%} of the time slices"
        yield _give(node.name, "processor", True, text, node.throttled, THROTTLED)
    elif node.share < SHARE and not busy:
        text = f"a thread gets {node.share:.0%} of a core: a cgroup limits it"
        yield _give(node.name, "processor", True, text, node.share, SHARE)
    for what, why in node.failed.items():
        yield _give(node.name, what, True, f"not measured: {why}")
    rest = [_list_rates(n) for n in nodes if n.kind == node.kind and not n.error and n is not node]
    hot = next((f"GPU {gpu.index} is throttled" for gpu in node.gpus if gpu.throttled), "")
    for what, value in _list_rates(node).items():
        others = [rates[what] for rates in rest if what in rates]
        usual = median(others) if others else None
        low = usual is not None and value < SLOW.get(what, GEMM) * usual
        text = format_rate(value, "B/s" if what in SLOW else "FLOP/s")
        if low and usual:
            text += f", {value / usual:.0%} of the median"
            text += f": {busy or hot}" if busy or hot else ""
        # What others slow down is no fault of the machine.
        yield _give(node.name, what, low, text, value, usual, noted=bool(busy))
    yield from _judge_clock(node, nodes)
    yield from _judge_gpus(node, nodes)


def _list_rates(node: NodeFigures) -> dict[str, float]:
    """What has to be equal in nodes of one kind."""
    bytes_ = {"core speed": node.core, "memory copy": node.memory, "disk write": node.disk}
    found = {**bytes_, **{f"GEMM {name}": rate for name, rate in node.gemm.items()}}
    return {what: rate for what, rate in found.items() if rate}


def _describe_others(node: NodeFigures) -> str:
    """Who else uses the node's processors."""
    found = []
    if node.steal > STEAL:
        found.append(f"the hypervisor gives {node.steal:.0%} of its processors to others")
    if node.load > LOAD * node.cores:
        most = f", most of all {node.busiest}" if node.busiest else ""
        cores = count(node.cores, "core")
        found.append(f"other processes use {node.load:.1f} of its {cores}{most}")
    return ", and ".join(found)


def _judge_clock(node: NodeFigures, nodes: Sequence[NodeFigures]) -> Iterator[Verdict]:
    offsets = sorted(other.offset for other in nodes if other.offset is not None)
    if node.offset is not None:
        difference = node.offset - offsets[len(offsets) // 2]
        low = abs(difference) > CLOCK + node.uncertainty
        side = "ahead" if difference > 0 else "behind"
        text = f"{abs(difference):.2f} s {side}: start a time service there" if low else "right"
        yield _give(node.name, "clock", low, text, difference, CLOCK)


def _judge_gpus(node: NodeFigures, nodes: Sequence[NodeFigures]) -> Iterator[Verdict]:
    there, expected = len(node.gpus), node.expected_gpus
    if node.gpu_error:
        yield _give(node.name, "GPUs", True, node.gpu_error, 0, expected)
    elif expected or there:
        low = there < expected
        text = f"{there} of {expected}" if low else f"{there} × {node.gpus[0].name}"
        yield _give(node.name, "GPUs", low, text, there, expected)
    drivers = {gpu.driver for other in nodes for gpu in other.gpus}
    if node.gpus and len(drivers) > 1:
        text = f"{node.gpus[0].driver}; the nodes have several: {', '.join(sorted(drivers))}"
        yield _give(node.name, "GPU driver", True, text)
    for gpu in node.gpus:
        for text in _list_ailments(gpu):
            yield _give(node.name, f"GPU {gpu.index}", True, text)
    if node.gdrcopy is not None:
        yield _judge_gdrcopy(node.name, *node.gdrcopy)


def _judge_gdrcopy(name: str, module: str, library: str) -> Verdict:
    """MPI does without it; one that does not fit its module fails."""
    text = f"gdrdrv {module} is loaded" if module else "gdrdrv is not loaded"
    text += f", and ranks have gdrcopy {library}" if library else ", and ranks have no gdrcopy"
    differs = module and library and module.split(".")[:2] != library.split(".")[:2]
    if differs:
        text += ": they have to be the same release"
    low = bool(differs or (library and not module))
    return _give(name, "gdrcopy", low, text, noted=not differs)


def _list_ailments(gpu: Gpu) -> Iterator[str]:
    if gpu.errors:
        yield f"{gpu.errors:.0f} memory errors that could not be corrected: replace the node"
    if gpu.throttled:
        at = f", {gpu.temperature:.0f} °C" if gpu.temperature is not None else ""
        yield f"throttled: {gpu.throttled}{at}"
    elif gpu.temperature is not None and gpu.temperature > HOT:
        yield f"{gpu.temperature:.0f} °C"
    if gpu.width and gpu.width_most and gpu.width < gpu.width_most:
        yield f"its PCIe link has {gpu.width:.0f} of {gpu.width_most:.0f} lanes"


# ---------------------------------------------------------------------------------------- links


def _judge_links(
    links: Sequence[Link], ends: Mapping[str, NodeFigures], memory: float, busy: bool
) -> Iterator[Verdict]:
    """`memory`: of the one machine that all nodes are names for, else 0; `busy`: with other work,
    which latencies say more of than of links."""
    sound = [link for link in links if not link.error]
    usual = median(link.least for link in sound) if sound else 0.0
    trip = median(link.latency for link in sound) if sound else 0.0
    for link in links:
        if link.error:
            yield _give(link.name, "link", True, link.error + _describe_devices(link, ends))
            continue
        yield _judge_bandwidth(link, ends, usual if len(sound) > 2 else 0.0, memory, busy)
        slow = link.latency > LATENCY * trip and link.latency - trip > LATENCY_LEAST
        text = f"{link.latency * 1e6:.0f} µs"
        text += f", {link.latency / trip:.1f} times the median" if slow else ""
        yield _give(link.name, "latency", slow, text, link.latency, trip, noted=busy)


def _judge_bandwidth(
    link: Link, ends: Mapping[str, NodeFigures], usual: float, memory: float, busy: bool
) -> Verdict:
    bits = link.least * 8 / 1e9
    text = f"{bits:.3g} Gbit/s"
    types = [ends[name].instance_type if name in ends else "" for name in (link.first, link.second)]
    baselines = load_baselines()
    known = [baselines[name] for name in types if name in baselines]
    low, noted, limit = False, False, None
    if len(known) == 2:
        limit = min(known)
        low = bits < LINK * limit
        text = f"{bits:.3g} of {limit:.3g} Gbit/s: "
        text += "below the baseline" if low else "baseline"
        text += ", burst" if bits > 1.1 * limit else ""
    elif usual and link.least < LINK_AMONG * usual:
        low, limit = True, usual * 8 / 1e9
        text += f", {100 * link.least / usual:.2g}% of the median link"
        # Short measurements: another program that runs at the moment takes most of their time.
        noted = busy and link.least > LINK_MEMORY * memory
    elif memory and link.least < LINK_MEMORY * memory:
        low, limit = True, LINK_MEMORY * memory * 8 / 1e9
        text += f": little for a machine whose memory copies {format_rate(memory)}"
    faster = max(link.rate, link.back)
    if low and faster > 1.5 * link.least:
        way = (link.first, link.second)[:: 1 if link.back < link.rate else -1]
        text += (
            f"; that is from {' to '.join(way)}, the other way has {faster * 8 / 1e9:.3g} Gbit/s"
        )
    text += _describe_devices(link, ends) if low else ""
    return _give(link.name, "bandwidth", low, text, bits, limit, noted=noted)


def _describe_devices(link: Link, ends: Mapping[str, NodeFigures]) -> str:
    """What limits a link at its ends, as far as they tell."""
    text = ""
    for name in (link.first, link.second):
        node = ends.get(name)
        if node and node.shaping:
            text += f"; {node.device} of {name} is shaped by tc: {node.shaping}"
        if node and node.line_rate:
            text += f"; {node.device} of {name} has {node.line_rate / 1e9:.3g} Gbit/s"
    return text


def format_rate(value: float, unit: str = "B/s") -> str:
    """`2.1 GB/s`, `350 GFLOP/s`."""
    scales = {"T": 1e12, "G": 1e9, "M": 1e6}
    prefix = next((name for name, scale in scales.items() if value >= scale), "M")
    return f"{value / scales[prefix]:.3g} {prefix}{unit}"


# -------------------------------------------------------------------------------------------------
# What programs on nodes print for `verify`, read: nvidia-smi, rocm-smi. Pure.


_THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "too hot",
    0x40: "too hot",
    0x80: "power brake",
}
"""Bits of clocks_throttle_reasons.active that are no ordinary work of the GPU:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"""


def _read_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # `[N/A]`
        return None


def _read_reasons(text: str) -> str:
    active = int(text, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]+", text) else 0
    return ", ".join(dict.fromkeys(why for bit, why in _THROTTLED.items() if active & bit))


GPU_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "index": ("index", int),
    "name": ("name", str),
    "driver_version": ("driver", str),
    "temperature.gpu": ("temperature", _read_number),
    "pcie.link.width.current": ("width", _read_number),
    "pcie.link.width.max": ("width_most", _read_number),
    "ecc.errors.uncorrected.volatile.total": ("errors", _read_number),
    "clocks_throttle_reasons.active": ("throttled", _read_reasons),
    "memory.used": ("memory_used", _read_number),
    "utilization.gpu": ("utilization", _read_number),
}
"""Asked of nvidia-smi, in this order; what of a Gpu that is, and how it is read."""


def read_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """The lines of `nvidia-smi --query-gpu=GPU_FIELDS --format=csv,noheader,nounits`."""
    lines = ([word.strip() for word in line.split(",")] for line in text.splitlines())
    return tuple(
        Gpu(**{k: read(w) for (k, read), w in zip(GPU_FIELDS.values(), words, strict=True)})
        for words in lines
        if len(words) == len(GPU_FIELDS) and words[0].isdecimal()
    )


def read_rocm_cards(text: str) -> dict[int, dict[str, str]]:
    """What `rocm-smi … --json` prints of each card, and of the system (-1), below what it may print
    before: texts by their names in lower case."""
    found: dict[int, dict[str, str]] = {}
    with suppress(ValueError, RecursionError):
        for name, card in json.loads(text[text.index("{") :]).items():
            number = re.fullmatch(r"card(\d+)|system", name)
            if number and isinstance(card, dict):
                told = {key.lower(): str(value) for key, value in card.items()}
                found[int(number[1] or -1)] = told
    return found


def read_rocm_smi(text: str) -> tuple[Gpu, ...]:
    """What `rocm-smi --showproductname --showtemp --showuse --showdriverversion --json` prints."""
    cards = read_rocm_cards(text)
    driver = cards.pop(-1, {}).get("driver version", "")
    found = []
    for number, card in sorted(cards.items()):
        hottest = [_read_number(value) for key, value in card.items() if "temperature" in key]
        found.append(
            Gpu(
                index=number,
                name=next((v for key, v in card.items() if "card series" in key), "AMD GPU"),
                driver=driver,
                temperature=max((each for each in hottest if each is not None), default=None),
                utilization=_read_number(card.get("gpu use (%)", "")),
            )
        )
    return tuple(found)
