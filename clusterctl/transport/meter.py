"""How many bytes copies to and from nodes have moved in this process, for people who wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
    def copying(self, size: int | None) -> Iterator[Copy]:
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
