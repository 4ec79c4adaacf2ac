"""How many bytes copies to and from nodes have moved in this process, and programs that it has
started have downloaded, for people who wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

INNER = ("lo:", "docker", "veth", "br-")
"""Interfaces that lead nowhere, or to containers: their bytes would count twice."""
NETWORK = Path("/proc/net/dev")
MB = 1_000_000


def count_network() -> int:
    """Bytes that the network interfaces of this machine have carried, in and out; 0 where its
    kernel does not tell (Linux does: proc_net(5))."""
    try:
        lines = NETWORK.read_text(encoding="ascii").splitlines()[2:]
    except OSError:
        return 0
    rows = (line.replace(":", ": ").split() for line in lines)
    return sum(int(row[1]) + int(row[9]) for row in rows if not row[0].startswith(INNER))


class Copy:
    """One that is under way."""

    def __init__(self, meter: Meter, size: int | None) -> None:
        self._meter, self.size, self.done = meter, size, 0

    def add(self, size: int) -> None:
        self.done += size
        self._meter.add(size)


class Meter:
    """Counts from several threads."""

    def __init__(self, count: Callable[[], int] = count_network) -> None:
        self._count = count
        self._downloaded = 0
        self._since: list[int] = []
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

    @contextmanager
    def count_download(self) -> Iterator[None]:
        """Around a program that downloads, or uploads, and does not tell how much."""
        began = self._count()
        with self._lock:
            self._since.append(began)
        try:
            yield
        finally:
            ended = self._count()
            with self._lock:
                self._since.remove(began)
                self._downloaded += ended - began

    def read(self) -> int:
        return self._bytes

    @property
    def downloaded(self) -> int:
        """Whole megabytes, in bytes: the traffic that there always is should not look like a
        download. What other programs have received meanwhile is among it."""
        now = self._count() if self._since else 0
        with self._lock:
            return (self._downloaded + sum(now - began for began in self._since)) // MB * MB

    @property
    def left(self) -> int | None:
        """Bytes of the copies that are under way; None where nobody knows, or there are none."""
        with self._lock:
            sizes = [c.size if c.size is None else max(0, c.size - c.done) for c in self._open]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None


COPIED = Meter()
