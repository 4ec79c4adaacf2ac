"""Which rank failed first: what `run` and `doctor` go by. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

TOLD_TO_END = 143
"""The exit code of a rank that SIGTERM has ended, which is how a launcher ends the others."""
CRASHES = (132, 134, 135, 136, 139)
"""Of ranks that SIGILL, SIGABRT, SIGBUS, SIGFPE or SIGSEGV have ended, which is their own fault."""
LOST_PEER = 14
"""MPI_ERR_UNKNOWN: with it Open MPI ends a rank that loses its connection to another one. MPI may
notice that sooner than the shell that waits for the other one, which has crashed (seen with Open
MPI 5.0.11)."""


LOST_DAEMON = 195
"""PMIX_ERR_LOST_CONNECTION: with it a rank ends whose daemon of mpirun has gone."""


class RankEnd(NamedTuple):
    """How a rank has ended. `when` is by one clock for all; `follows`: what it has printed says
    that another one had gone before it, as far as anybody has looked; `told`: whether it was told
    to end, if that is known."""

    rank: int
    code: int
    when: float
    follows: bool = False
    told: bool | None = None


def correct(when: float, offset: float, uncertainty: float) -> float:
    """`when`, by a clock that is `offset` seconds ahead, known to within `uncertainty`, by the one
    that it was compared with. A difference that may be none changes nothing: it would put ranks of
    nodes with good clocks into the order in which the network was slow."""
    return when - offset if abs(offset) > uncertainty >= 0 else when


def sort_failures(ends: Iterable[RankEnd]) -> list[RankEnd]:
    """The failed ones, the first before the others: who was told to end comes after those that were
    not, and who only follows comes after those that have failed by themselves."""
    failed = [end for end in ends if end.code]
    crashed = any(end.code in CRASHES for end in failed)

    def place(end: RankEnd) -> tuple[bool, bool, float, int]:
        follows = end.follows or (crashed and end.code == LOST_PEER)
        told = end.code == TOLD_TO_END if end.told is None else end.told
        return told, follows, end.when, end.rank

    return sorted(failed, key=place)
