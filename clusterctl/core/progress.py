"""How far each node is while a cluster is made: its phase, since when, what it has received, and
how long the phase still takes, where nodes that have it behind them tell."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct

# -------------------------------------------------------------------------------------------------
# How fast bytes move, and when the rest of them will have come. Pure.


WINDOW = 10.0
"""Seconds over which the speed of a copy is measured."""
SETTLED = 2.0
"""Seconds that bytes have to move before their speed tells how long the rest will take. The first
fill buffers, or wait for connections."""
PAUSE = 2.0
"""Seconds without a byte after which the next one belongs to another copy."""


class Speedometer:
    """How fast bytes move, from what a clock and a counter show again and again."""

    def __init__(self, now: float, size: int) -> None:
        self._seen = deque([(now, size)])
        self._moved = now

    def add(self, now: float, size: int) -> bool:
        """Whether bytes have moved since the last time."""
        last = self._seen[-1]
        moving = size > last[1]
        if moving and now - self._moved > PAUSE:
            self._seen = deque([last])
        self._moved = now if moving else self._moved
        if len(self._seen) == 1 and not moving:
            self._seen.clear()
        self._seen.append((now, size))
        while now - self._seen[0][0] > WINDOW and len(self._seen) > 2:
            self._seen.popleft()
        return moving

    @property
    def rate(self) -> float:
        """Bytes per second."""
        (start, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / max(end - start, 1e-3)

    def estimate(self, left: int | None) -> float | None:
        """Seconds that so many bytes will take; None while the speed is not known, or changes."""
        (start, _), (end, last) = self._seen[0], self._seen[-1]
        middle, size = self._seen[(len(self._seen) - 1) // 2]
        recent, rate = (last - size) / max(end - middle, 1e-3), self.rate
        steady = end - start >= SETTLED and rate / 2 <= recent <= rate * 2
        return left / rate if left and rate > 0 and steady else None


# -------------------------------------------------------------------------------------------------

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


class NodeState(Struct, frozen=True):
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


class Picture(Struct, frozen=True):
    """What goes on at a moment. `stage`: with the cluster as a whole."""

    stage: str
    seconds: float
    nodes: tuple[NodeState, ...]


class _Node(Struct):
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
        self._stage, self._since = "", now()

    def expect(self, kinds: Mapping[str, str]) -> None:
        """There are to be these nodes, and no others: nodes of one kind should take equally
        long."""
        with self._lock:
            now = self._now()
            for name, kind in kinds.items():
                self._nodes.setdefault(name, _Node(kind, REQUESTED, now)).kind = kind
            self._nodes = {name: self._nodes[name] for name in kinds}

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

    def _make_state(self, name: str, node: _Node, now: float) -> NodeState:
        seconds, received = now - node.since, node.total - node.before
        rate = node.speed.rate if node.speed else 0.0
        left = None
        # Not the median of statistics, with which every command would load decimal and random.
        if took := sorted(self._took.get(node.key, ())):
            usual = (took[len(took) // 2] + took[~(len(took) // 2)]) / 2
            left = usual - seconds if usual > seconds else None
        elif node.speed and node.size > received:
            left = node.speed.estimate(node.size - received)
        if node.phase in ENDS:
            left = None
        return NodeState(name, node.phase, node.what, seconds, left, received, rate, node.size)


# -------------------------------------------------------------------------------------------------
# How many bytes copies to and from nodes have moved in this process, for people who wait.


class Copy:
    """One that is under way."""

    def __init__(self, meter: Meter, size: int | None) -> None:
        self._meter, self.size, self.done = meter, size, 0

    def add(self, size: int) -> None:
        self.done += size
        self._meter.add(size)


class Meter:
    """Counts from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0
        self._open: list[Copy] = []

    def add(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    @contextmanager
    def count_copy(self, size: int | None) -> Iterator[Copy]:
        """Around a copy of `size` bytes; None: nobody knows how many there are."""
        copy = Copy(self, size)
        with self._lock:
            self._open.append(copy)
        try:
            yield copy
        finally:
            with self._lock:
                self._open.remove(copy)

    def read(self) -> int:
        return self._bytes

    @property
    def left(self) -> int | None:
        """Bytes of the copies that are under way; None where nobody knows, or there are none."""
        with self._lock:
            sizes = [c.size if c.size is None else max(0, c.size - c.done) for c in self._open]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None


COPIED = Meter()

QUESTION = threading.Lock()
"""Held while a question for a password stands on the terminal: progress waits."""
