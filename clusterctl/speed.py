"""How fast bytes move, and when the rest of them will have come. Pure."""

from __future__ import annotations

from collections import deque

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
