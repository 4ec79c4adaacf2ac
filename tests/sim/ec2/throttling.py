"""What EC2 rations: calls, and machines, for an account in a region.

Source: EC2 Developer Guide, "Request throttling for the Amazon EC2 API": request rate limiting (an
action has a bucket of its own) and resource rate limiting (RunInstances and others, in which each
machine takes a token).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Bucket = tuple[int, float]
"""Tokens at most, and those that come back each second."""

CALLS: dict[str, Bucket] = {
    "RunInstances": (5, 2.0),
    "CreateTags": (100, 10.0),
}
DESCRIBE: Bucket = (100, 20.0)
"""Of each action that changes nothing."""
OTHERS: Bucket = (50, 5.0)
"""Of each other action that changes something."""
MACHINES: dict[str, Bucket] = {
    "RunInstances": (1000, 2.0),
    "StartInstances": (1000, 2.0),
    "StopInstances": (1000, 20.0),
    "TerminateInstances": (1000, 20.0),
}


class Buckets:
    """What is left, in regions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[tuple[str, str, str], tuple[float, float]] = {}

    def clear(self) -> None:
        self._left.clear()

    def take(self, region: str, action: str, machines: int = 0) -> bool:
        """Whether such a call, about so many machines, is let through. One that is not takes no
        tokens."""
        calls = DESCRIBE if action.startswith(("Describe", "Get")) else OTHERS
        wanted = [("calls", CALLS.get(action, calls), 1)]
        if machines and action in MACHINES:
            wanted.append(("machines", MACHINES[action], machines))
        with self._lock:
            now = self._clock()
            left = {}
            for kind, (size, rate), count in wanted:
                before, then = self._left.get((region, action, kind), (float(size), now))
                left[region, action, kind] = min(size, before + rate * (now - then)), count
            fits = all(there >= count for there, count in left.values())
            for key, (there, count) in left.items():
                self._left[key] = (there - count if fits else there, now)
        return fits
