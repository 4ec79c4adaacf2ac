"""What the ranks of a job use: two looks at all nodes make the lines of `top`. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.core.job import UNPLACED, Job
from clusterctl.insight import metrics
from clusterctl.insight.metrics import MetricPoint, Reader
from clusterctl.insight.verify import read_rocm_cards

# -------------------------------------------------------------------------------------------------
# What the GPUs of a node do at a moment, as the agent prints it (`views.show_gpus`). Pure.


class GpuLook(Struct, frozen=True):
    """`used`: part of its time, 0 to 1; None where it does not say. Memory in bytes. `jobs`: those
    that have processes on it, as far as NVIDIA's driver says so."""

    index: int
    used: float | None
    memory: int
    total: int
    jobs: tuple[int, ...] = ()


def read_gpus(text: str, cluster: str = "") -> tuple[GpuLook, ...]:
    """Lines that mean nothing, such as a login shell's, are left out. Of jobs, those of the cluster
    with that id are read."""
    found: dict[str, GpuLook] = {}
    for line in text.split("\n"):
        word, _, rest = line.partition(" ")
        with suppress(ValueError, RecursionError):
            if word == "gpu":
                name, gpu = _read_nvidia(rest)
                found[name] = gpu
            elif word == "rocm":
                found = {str(gpu.index): gpu for gpu in _read_rocm(rest)}
            elif word == "app":
                name, _, tag = rest.partition(" ")
                id, _, number = tag.partition("/")
                if name in found and id == cluster:
                    jobs = {*found[name].jobs, int(number.rstrip(";"))}
                    found[name] = replace(found[name], jobs=tuple(sorted(jobs)))
    return tuple(sorted(found.values(), key=lambda gpu: gpu.index))


def _read_nvidia(text: str) -> tuple[str, GpuLook]:
    """`0, 97, 10240, 15360, GPU-1a2b`: per cent and MiB; a GPU may say `[N/A]`."""
    index, used, memory, total, *name = (word.strip() for word in text.split(","))
    part = float(used) / 100 if used.isdecimal() else None
    gpu = GpuLook(int(index), part, int(memory) << 20, int(total) << 20)
    return name[0] if name else index, gpu


def _read_rocm(text: str) -> Iterator[GpuLook]:
    """What `rocm-smi --showuse --showmeminfo vram --json` prints."""
    for number, card in read_rocm_cards(text).items():
        used = card.get("gpu use (%)", "")
        part = float(used) / 100 if used.isdecimal() else None
        memory, total = (
            card.get(f"vram {what} (b)", 0) for what in ("total used memory", "total memory")
        )
        if number >= 0:
            yield GpuLook(number, part, int(memory), int(total))


# -------------------------------------------------------------------------------------------------


class RankLook(Struct):
    """Processor time in seconds since its start, memory in bytes, and its last metrics."""

    cpu: dict[int, float] = field(default_factory=dict)
    """By process: one that ends takes its time with it."""
    memory: int = 0
    points: tuple[MetricPoint, ...] = ()


class Look(Struct):
    """One node at a moment, by its own clock. Counters of processors in ticks, of the network in
    bytes. `error`: why it could not be asked."""

    node: str
    error: str = ""
    time: float = 0.0
    busy: tuple[float, float] = (0.0, 0.0)
    """Of all processors: all ticks, and the idle ones."""
    memory: int = 0
    free: int = 0
    received: int = 0
    sent: int = 0
    gpus: tuple[GpuLook, ...] = ()
    ranks: dict[int, RankLook] = field(default_factory=dict)


class RankLine(Struct, frozen=True):
    """None where it is not known. CPU in cores, memory in bytes, step in seconds."""

    rank: int
    node: str
    alive: bool | None
    cpu: float | None
    memory: int | None
    step: float | None
    step_seconds: float | None
    loss: float | None
    left: float | None


class NodeLine(Struct, frozen=True):
    """`cpu`: part of all processors; memory in bytes; network in bytes per second."""

    node: str
    error: str
    cpu: float | None
    memory: int
    total: int
    received: float | None
    sent: float | None
    gpus: tuple[GpuLook, ...] = ()


class TopFrame(Struct, frozen=True):
    """All lines at one moment. `dollars` None: it costs nothing. `left`: seconds until the slowest
    rank is done."""

    time: float
    job: int
    state: str
    seconds: float | None
    dollars: float | None
    left: float | None
    ranks: tuple[RankLine, ...]
    nodes: tuple[NodeLine, ...]


def read_top(node: str, text: str) -> Look:
    """What `show_use` printed. Lines that mean nothing, such as a login shell's, are left out."""
    look = Look(node, gpus=read_gpus(text))
    printed: dict[int, list[str]] = {}
    for line in text.split("\n"):
        word, _, rest = line.partition(" ")
        with suppress(ValueError, IndexError):
            if word == "time":
                look.time = float(rest)
            elif word == "cpu":
                total, idle = map(float, rest.split())
                look.busy = total, idle
            elif word == "memory":
                name, kibibytes = rest.split()
                if name == "MemTotal:":
                    look.memory = int(kibibytes) * 1024
                else:
                    look.free = int(kibibytes) * 1024
            elif word == "net":
                look.received, look.sent = map(int, rest.split())
            elif word in ("process", "resident", "metrics"):
                number, _, value = rest.partition(" ")
                rank = look.ranks.setdefault(int(number), RankLook())
                if word == "metrics":
                    printed.setdefault(int(number), []).append(value)
                elif word == "resident":
                    rank.memory += int(value) * 1024
                else:
                    pid, seconds = value.split()
                    rank.cpu[int(pid)] = float(seconds)
    for item, lines in printed.items():
        reader = Reader()
        found = (*reader.read(item, "\n".join(lines).encode()), *reader.finish())
        look.ranks[item].points = metrics.drop_repeated(found)
    if not look.time:
        look.error = "it did not answer in full"
    return look


def make_rank_lines(before: Mapping[str, Look], after: Mapping[str, Look]) -> tuple[RankLine, ...]:
    """Of all ranks that were seen, by number."""
    found = []
    for name, look in after.items():
        earlier = before.get(name, Look(name))
        passed = look.time - earlier.time
        for number, rank in look.ranks.items():
            past = earlier.ranks.get(number, RankLook())
            both = rank.cpu.keys() & past.cpu.keys()
            used = sum(rank.cpu[pid] - past.cpu[pid] for pid in both)
            known = bool(both) and earlier.time > 0 and passed > 0
            points = rank.points
            found.append(
                RankLine(
                    rank=number,
                    node=name,
                    alive=bool(rank.cpu),
                    cpu=used / passed if known else None,
                    memory=rank.memory,
                    step=metrics.find_step(points),
                    step_seconds=metrics.compute_step_seconds(points),
                    loss=metrics.find_loss(points),
                    left=metrics.estimate_seconds_left(points, look.time),
                )
            )
    return tuple(sorted(found, key=lambda line: line.rank))


def place_unseen(job: Job, lines: Iterable[RankLine], asked: Container[str]) -> Iterator[RankLine]:
    """Where the ranks run. On the login node of a batch system, only their output is seen."""
    for line in lines:
        node = job.find_node(line.rank)
        if node in asked or not node:
            yield line
        else:
            node = line.node if node == UNPLACED else node
            alive = False if job.state.ended else None
            yield replace(line, node=node, alive=alive, memory=None)


def make_node_lines(before: Mapping[str, Look], after: Mapping[str, Look]) -> tuple[NodeLine, ...]:
    found = []
    for name, look in after.items():
        earlier = before.get(name, Look(name))
        passed = look.time - earlier.time if earlier.time and look.time else 0.0
        ticks = look.busy[0] - earlier.busy[0]
        idle = look.busy[1] - earlier.busy[1]
        found.append(
            NodeLine(
                node=name,
                error=look.error,
                cpu=1 - idle / ticks if passed > 0 and ticks > 0 else None,
                memory=look.memory - look.free,
                total=look.memory,
                received=(look.received - earlier.received) / passed if passed > 0 else None,
                sent=(look.sent - earlier.sent) / passed if passed > 0 else None,
                gpus=look.gpus,
            )
        )
    return tuple(found)
