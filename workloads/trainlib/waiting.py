"""Waiting for other ranks without keeping the core from the rank that is waited for.

MPI's blocking calls poll until they are done. That is the fastest way on cores of one's own. Where
ranks outnumber cores, the rank that polls takes the time in which another one would compute what it
waits for.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

_POLL_S = 500e-6
"""Ranks that do the same work on cores of their own arrive within this time of each other. Ranks
that do not were put off their cores."""

_PART = 4
_LONGEST_S = 500e-6

_PR_SET_TIMERSLACK = 29


def is_crowded(ranks: Sequence[tuple[str, int]]) -> bool:
    """Whether some machine has more ranks than cores, given each rank's machine and its cores."""
    counts = Counter(machine for machine, _ in ranks)
    return any(counts[machine] > cores for machine, cores in ranks)


def wait(
    done: Callable[[], bool],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call `done` until it says so: without a pause at first, then with pauses of a quarter of the
    time that has passed (0.5 ms at most). So the end is noticed late by no more than that."""
    if done():
        return
    began = clock()
    while (waited := clock() - began) < _POLL_S:
        if done():
            return
    while not done():
        sleep(min(waited / _PART, _LONGEST_S))
        waited = clock() - began


def pause_precisely() -> None:
    """Let this thread and those that it starts sleep as long as they ask for: Linux adds up to
    50 us by default, which is as long as the shortest pause."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
