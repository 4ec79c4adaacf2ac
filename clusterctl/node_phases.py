"""How far each node is while a cluster is made: its phase, since when, what it has received, and
how long the phase still takes, where earlier ones tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from clusterctl.speed import Speedometer

REQUESTED = "requested"
BOOTING = "booting"
CONNECTING = "waiting for SSH"
CONNECTED = "connected"
FIRST_BOOT = "finishing its first boot"
CONFIGURING = "configuring"
INSTALLING = "installing packages"
PULLING = "pulling image"
DOWNLOADING = "downloading"
BUILDING = "building image"
STARTING = "starting container"
TESTING = "testing"
READY = "ready"
FAILED = "failed"

ENDS = (READY, FAILED)
ORDER = (
    *(REQUESTED, BOOTING, CONNECTING, CONNECTED, FIRST_BOOT, CONFIGURING, INSTALLING),
    *(PULLING, DOWNLOADING, BUILDING, STARTING, TESTING, FAILED, READY),
)
"""As nodes usually go through them."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """`seconds`: in this phase so far; `left`: in this phase, None where nothing tells. `received`:
    bytes in this phase, `rate` per second, of `size` (0: unknown)."""

    node: str
    phase: str
    what: str = ""
    seconds: float = 0.0
    left: float | None = None
    received: int = 0
    rate: float = 0.0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """What goes on at a moment. `stage`: with the cluster as a whole."""

    stage: str
    seconds: float
    nodes: tuple[NodeState, ...]


@dataclass(slots=True)
class _Node:
    kind: str
    phase: str
    since: float
    what: str = ""
    size: int = 0
    total: int = 0
    """Bytes that it has received in its life, and those of them before this phase."""
    before: int = 0
    speed: Speedometer | None = None

    @property
    def key(self) -> str:
        """What takes about as long on other nodes."""
        return "|".join((self.kind, self.phase, self.what))


class NodePhases:
    """Takes reports from several threads. `watched`: somebody looks at it, so that nodes should say
    how much they receive."""

    def __init__(self, *, watched: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self.watched = watched
        self._now = now
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {}
        self._took: dict[str, list[float]] = {}
        self._earlier: Mapping[str, float] = {}
        self._stage, self._since = "", now()

    def expect(self, kinds: Mapping[str, str]) -> None:
        """There are to be these nodes, and no others: nodes of one kind should take equally
        long."""
        with self._lock:
            now = self._now()
            for name, kind in kinds.items():
                self._nodes.setdefault(name, _Node(kind, REQUESTED, now)).kind = kind
            self._nodes = {name: self._nodes[name] for name in kinds}

    def compare_with(self, earlier: Mapping[str, float]) -> None:
        """What `medians` has returned for another cluster of this sort."""
        self._earlier = earlier

    def show_stage(self, text: str) -> None:
        """What is done with the cluster as a whole."""
        with self._lock:
            self._stage, self._since = text, self._now()

    def enter(self, names: Iterable[str], phase: str, what: str = "", size: int = 0) -> None:
        """These nodes are in that phase from now on; nodes that are not expected are left out.
        `size`: bytes that each is going to receive in it, where known."""
        with self._lock:
            now = self._now()
            for node in (self._nodes[name] for name in names if name in self._nodes):
                if (node.phase, node.what) == (phase, what):
                    continue
                self._took.setdefault(node.key, []).append(now - node.since)
                node.phase, node.what, node.since, node.size = phase, what, now, size
                node.before = node.total
                node.speed = None

    def receive(self, name: str, total: int) -> None:
        """The node has received so many bytes since it was started."""
        with self._lock:
            node = self._nodes.get(name)
            if node is None:
                return
            if not node.total:
                node.before = total
            node.total = total
            node.speed = node.speed or Speedometer(self._now(), total)
            node.speed.add(self._now(), total)

    def look(self) -> Picture:
        with self._lock:
            now = self._now()
            states = tuple(self._make_state(name, node, now) for name, node in self._nodes.items())
            return Picture(self._stage, now - self._since, states)

    def compute_medians(self) -> dict[str, float]:
        """Seconds that each phase took here, by a key that `compare_with` knows."""
        with self._lock:
            return {key: round(_compute_median(values), 1) for key, values in self._took.items()}

    def _make_state(self, name: str, node: _Node, now: float) -> NodeState:
        seconds, received = now - node.since, node.total - node.before
        rate = node.speed.rate if node.speed else 0.0
        left = None
        took = self._took.get(node.key)
        usual = _compute_median(took) if took else self._earlier.get(node.key)
        if usual is not None:
            left = usual - seconds if usual > seconds else None
        elif node.speed and node.size > received:
            left = node.speed.estimate(node.size - received)
        if node.phase in ENDS:
            left = None
        return NodeState(name, node.phase, node.what, seconds, left, received, rate, node.size)


def _compute_median(values: list[float]) -> float:
    """Not that of the statistics module, with which every command would load decimal and random."""
    ordered, middle = sorted(values), len(values) // 2
    return (ordered[middle] + ordered[~middle]) / 2
