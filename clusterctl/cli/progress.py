"""How far a transfer is: a bar that moves on a terminal, else a line for each tenth."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from clusterctl.cli.console import Console, ago
from clusterctl.speed import Speedometer

PAUSE = 0.1
"""Seconds between two pictures on a terminal."""
STEP = 10.0
"""Seconds between two lines elsewhere, where the size is unknown."""


class Transfer:
    """Takes a name, its bytes so far, and all of its bytes (0: unknown); see
    `datasets.Progress`."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._name = ""
        self._speed = Speedometer(self._clock(), 0)
        self._shown = (-1.0, -1)
        self._drawn = False

    def __call__(self, name: str, done: int, size: int) -> None:
        now = self._clock()
        if name != self._name:
            self._name, self._shown = name, (-1.0, -1)
            self._speed = Speedometer(now, done)
        self._speed.add(now, done)
        moving = sys.stderr.isatty() and not self._console.quiet
        percent = min(100, 100 * done // size) if size else 0
        tenth = percent // 10 if size else int(now // STEP)
        if moving and (now - self._shown[0] >= PAUSE or done == size):
            self._draw(done, size, percent)
            self._shown = now, tenth
        elif not moving and tenth != self._shown[1]:
            self._console.report(f"{name} {self._describe(done, size, percent)}")
            self._shown = now, tenth

    def _describe(self, done: int, size: int, percent: int) -> str:
        rate, rest = self._speed.rate, self._speed.estimate(size - done if size else None)
        text = f"{percent:3} % of {size / 1e6:.1f} MB" if size else f"{done / 1e6:.1f} MB"
        if rate > 0:
            text += f", {rate / 1e6:.1f} MB/s"
            text += "" if rest is None else f", {ago(rest)} left"
        return text

    def _draw(self, done: int, size: int, percent: int) -> None:
        from clusterctl.cli.bar import (
            render_bar,  # on a terminal alone: rich takes its time to load
        )

        drawn = f"{render_bar(done, size)} " if size else ""
        self._console.show(f"{drawn}{self._name} {self._describe(done, size, percent)}")
        if done == size:
            self._console.leave()
