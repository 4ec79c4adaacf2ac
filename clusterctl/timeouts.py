"""Time limits: a deadline that is passed along, and a watchdog for calls that cannot see theirs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Deadline:
    """`seconds` from now. One deadline spans all steps of a call."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds; never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at

    def within(self, seconds: float) -> Deadline:
        """A deadline for a part: `seconds` from now, and no later than this one."""
        return Deadline(min(seconds, self.left))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Does not count the time that the block takes, such as that of a person's answer."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.at += time.monotonic() - began


NEVER = Deadline(math.inf)


def background(action: Callable[[], T]) -> Future[T]:
    """Starts `action` in a thread that does not keep the interpreter from ending, unlike those of
    an executor: what it waits for may never come."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="background").start()
    return future


@dataclass(slots=True, eq=False)
class _Guard:
    at: float
    action: Callable[[], None]
    ticks: int


class Watchdog:
    """Calls back when a guarded block is still running well after its time. One daemon thread for
    all.

    A process that was stopped (Ctrl-Z), or that a busy machine left standing, finds all its blocks
    late without one of them being stuck. So a block that is late gets `ticks` more chances of TICK
    seconds, counted as the watchdog wakes: however long the process stands still, that is one.
    """

    TICK = 0.1

    def __init__(self, ticks: int = 10) -> None:
        self._ticks = ticks
        self._condition = threading.Condition()
        self._guarded: set[_Guard] = set()
        self._wakes = float("inf")
        self._thread: threading.Thread | None = None

    @contextmanager
    def guard(self, at: float, action: Callable[[], None]) -> Iterator[None]:
        """Runs `action` in the watchdog's thread unless the block ends about by `at` (monotonic).

        `action` has to be quick and must not raise.
        """
        guard = _Guard(at, action, self._ticks)
        with self._condition:
            self._guarded.add(guard)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
                self._thread.start()
            if at < self._wakes:
                self._condition.notify()
        try:
            yield
        finally:
            with self._condition:
                self._guarded.discard(guard)

    def _watch(self) -> None:
        while True:
            with self._condition:
                actions = self._collect(time.monotonic())
                if not actions:
                    # Blocks that ended are not looked at before the next time that was planned:
                    # ending one costs nothing.
                    now = time.monotonic()
                    self._wakes = min((guard.at for guard in self._guarded), default=now + 3600)
                    self._condition.wait(self._wakes - now)
                    self._wakes = float("-inf")
                    continue
            for action in actions:
                action()

    def _collect(self, now: float) -> list[Callable[[], None]]:
        """What is to be done now; a block that has a chance left uses it up."""
        actions = []
        for guard in [guard for guard in self._guarded if guard.at <= now]:
            if guard.ticks:
                guard.ticks -= 1
                guard.at = now + self.TICK
            else:
                self._guarded.remove(guard)
                actions.append(guard.action)
        return actions


WATCHDOG = Watchdog()
