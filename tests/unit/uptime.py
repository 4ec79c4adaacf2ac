"""A clock owned by a test, by which a supervisor measures how long its ranks are silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

SILENCE = 12.0
"""Seconds of --hang-timeout that may pass at once: more would be a machine that was asleep."""


class Uptime:
    """Stands still unless it is told to go on, however busy the machine is; its readers look often.
    `until` waits for a condition."""

    def __init__(self, folder: Path, until: Callable[[Callable[[], bool]], None]) -> None:
        self._file, self._looks = folder / "uptime", folder / "looks"
        self._until = until
        self._seconds = 100.0
        self._looks.touch()
        self.go_on(0)

    def go_on(self, seconds: float) -> None:
        self._seconds += seconds
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self._seconds:.2f} 1.00\n")
        fresh.replace(self._file)

    def settle(self) -> None:
        """Waits until what the ranks have written by now has been seen: a script looks at the clock
        before and after it asks, so that one question lies between four looks."""
        wanted = len(self._looks.read_text()) + 4
        self._until(lambda: len(self._looks.read_text()) >= wanted)

    def fall_silent(self) -> None:
        """As much time passes as no rank may be silent."""
        self.settle()
        self.go_on(SILENCE + 0.5)
