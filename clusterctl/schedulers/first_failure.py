"""Which rank failed first: what `run` and `doctor` go by. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

TOLD_TO_END = 143
"""The exit code of a rank that SIGTERM has ended, which is how a launcher ends the others."""


class RankEnd(NamedTuple):
    """How a rank has ended. `when` is by one clock for all; `follows`: what it has printed says
    that another one had gone before it, as far as anybody has looked."""

    rank: int
    code: int
    when: float
    follows: bool = False


def correct(when: float, offset: float, uncertainty: float) -> float:
    """`when`, by a clock that is `offset` seconds ahead, known to within `uncertainty`, by the one
    that it was compared with. A difference that may be none changes nothing: it would put ranks of
    nodes with good clocks into the order in which the network was slow."""
    return when - offset if abs(offset) > uncertainty >= 0 else when


def sort_failures(ends: Iterable[RankEnd]) -> list[RankEnd]:
    """The failed ones, the first before the others: who has only SIGTERM to show comes after those
    that have more, and who only follows comes after those that have failed by themselves."""
    return sorted(
        (end for end in ends if end.code),
        key=lambda end: (end.code == TOLD_TO_END, end.follows, end.when, end.rank),
    )
