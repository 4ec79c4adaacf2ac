"""How many bytes copies to and from nodes have moved in this process, for people who wait."""

from __future__ import annotations

import threading


class Meter:
    """Counts from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0

    def add(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    def read(self) -> int:
        return self._bytes


COPIED = Meter()
