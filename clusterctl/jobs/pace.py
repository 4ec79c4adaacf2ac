"""When a follower looks again at a job, and when it asks whether anybody still looks after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterctl.timeouts import now

FASTEST, STREAMING, SLOWEST = 0.02, 0.2, 0.5
"""Seconds between polls: quick after output, slower while it goes on, or while nothing comes. A
poll starts a few programs on each node, and takes their time from the ranks."""
MUCH = 1 << 16
"""A poll that brings as many bytes is followed by the next at once."""
STILL = 300.0
"""Seconds without output of a running job after which that is said."""
SUSPICION = 5.0
"""Seconds of silence after which we ask whether the supervisor is still there."""

LONGEST = 60.0
"""The longest time between such questions of a batch system, whose queue is asked less and less
often."""
STEADY = 10.0
"""The same of a launcher, also with output that never pauses."""


@dataclass(slots=True)
class Pace:
    """When to look again, and when to ask whether anybody still looks after the job."""

    backoff: float
    sleep: Callable[[float], None] = time.sleep
    pause: float = FASTEST
    streams: bool = False
    """Whether the last poll had news."""
    patience: float = SUSPICION
    last_output: float = field(default_factory=now)
    asked: float = field(default_factory=now)
    told: float = 0.0
    """The silence that was told last began then."""

    def should_tell(self) -> bool:
        """Whether nothing has come for long, and that was not said yet."""
        if self.told == self.last_output or now() - self.last_output < STILL:
            return False
        self.told = self.last_output
        return True

    def should_ask(self, moved: int) -> bool:
        """Whether it is time to ask, after a look that saw news or did not."""
        at = now()
        if moved:
            self.last_output, self.patience = at, SUSPICION
        longest = LONGEST if self.backoff > 1 else STEADY
        if at - max(self.last_output, self.asked) <= self.patience and at - self.asked <= longest:
            return False
        self.asked = at
        self.patience = min(self.patience * self.backoff, LONGEST)
        return True

    def rest(self, moved: int) -> None:
        """Waits for the next look. `moved`: bytes that this one has brought."""
        if moved >= MUCH:
            return
        if moved and not self.streams:
            self.pause = FASTEST
        self.sleep(self.pause)
        growth, slowest = (1.5, STREAMING) if moved else (1.25, SLOWEST)
        self.pause = min(self.pause * growth, slowest)
        self.streams = bool(moved)
