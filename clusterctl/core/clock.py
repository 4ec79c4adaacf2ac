"""Time limits: a clock that leaves out the time in which this process stood still, and a deadline
that is passed along, and enforced where a call cannot see it."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # it loads logging
    from concurrent.futures import Future

T = TypeVar("T")


class _Guard:
    """A block that is to end by `at`, or else `abort` is called; how often it was found late."""

    def __init__(self, at: float, abort: Callable[[], None]) -> None:
        self.at, self.abort, self.late = at, abort, 0


class RunningClock:
    """Seconds on a monotonic clock that halts while this process stands still: stopped (Ctrl-Z), or
    kept waiting by a busy machine.

    The other side goes on meanwhile, and what it says waits unread. So time proves something about
    it only where we could have listened. A daemon thread notes every TICK seconds that we run, and
    of the time from one note to the next at most LEAP counts. It starts with the first call.
    `real`: the monotonic clock behind it.

    The thread also ends what is late. A process that stood still may find a block late that is not
    stuck, by what the clock counts of that time: so a block is stuck that was late at CHANCES
    notes, and however long the process stands still, that is one.
    """

    TICK, LEAP, CHANCES = 0.25, 1.0, 5

    def __init__(self, real: Callable[[], float] = time.monotonic) -> None:
        self._real = real
        self._noting: threading.Thread | None = None
        self._guards: set[_Guard] = set()
        self._lock = threading.Lock()
        self._last = (0.0, 0.0)
        """When the last note was made, and how much had been left out by then: read and replaced
        as one."""
        os.register_at_fork(after_in_child=self._lose_thread)

    def __call__(self) -> float:
        if self._noting is None:
            self._start()
        noted, left_out = self._last
        return min(self._real(), noted + self.LEAP) - left_out

    def note(self) -> None:
        """What the thread does every TICK seconds."""
        real, (noted, left_out) = self._real(), self._last
        self._last = real, left_out + max(0.0, real - noted - self.LEAP)
        at = self()
        with self._lock:
            late = [guard for guard in self._guards if guard.at <= at]
        for guard in late:
            guard.late += 1
            if guard.late == self.CHANCES:
                run_in_background(guard.abort)

    @contextmanager
    def guard(self, deadline: Deadline, abort: Callable[[], None]) -> Iterator[Deadline]:
        """Calls `abort` in a thread of its own if the block is still running well after the
        deadline."""
        guard = _Guard(deadline.at, abort)
        with self._lock:
            self._guards.add(guard)
        try:
            yield deadline
        finally:
            with self._lock:
                self._guards.remove(guard)

    def _start(self) -> None:
        with self._lock:
            if self._noting is None:
                self._last = self._real(), self._last[1]
                self._noting = threading.Thread(target=self._run, daemon=True, name="clock")
                self._noting.start()

    def _run(self) -> None:
        while True:
            time.sleep(self.TICK)
            self.note()

    def _lose_thread(self) -> None:
        """A forked child has none."""
        self._noting, self._lock = None, threading.Lock()


now = RunningClock()
"""For whatever waits for others. How long something took is a matter of time.monotonic."""


class Deadline:
    """`seconds` from now, as far as this process runs. One deadline spans all steps of a call."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = now() + seconds if seconds < math.inf else math.inf  # no thread for an import

    @property
    def left(self) -> float:
        """Seconds; never negative."""
        return max(0.0, self.at - now())

    @property
    def passed(self) -> bool:
        return now() >= self.at

    def wait(self, done: Callable[[float], bool]) -> bool:
        """Whether what we wait for has happened in time. `done` waits for it as many seconds as it
        is given, and tells: a wait that the process slept through is followed by another."""
        while not done(min(self.left, threading.TIMEOUT_MAX)):
            if self.passed:
                return False
        return True

    def await_result(self, future: Future[T]) -> T:
        """What `run_in_background` has found. TimeoutError if it has not ended in time."""
        from concurrent import futures

        if not self.wait(lambda left: bool(futures.wait((future,), left).done)):
            raise TimeoutError
        return future.result()

    def enforce(self, abort: Callable[[], None]) -> AbstractContextManager[Deadline]:
        """For a block that calls what cannot see a deadline, as RunningClock.guard."""
        return now.guard(self, abort)

    def limit(self, seconds: float) -> Deadline:
        """A deadline for a part: `seconds` from now, and no later than this one."""
        return Deadline(min(seconds, self.left))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Does not count the time that the block takes, such as that of a person's answer."""
        began = now()
        try:
            yield
        finally:
            self.at += now() - began


NEVER = Deadline(math.inf)


def run_in_background(action: Callable[[], T]) -> Future[T]:
    """Starts `action` in a thread that does not keep the interpreter from ending, unlike those of
    an executor: what it waits for may never come."""
    from concurrent.futures import Future

    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="background").start()
    return future
