"""Which rank is named as the first that failed."""

from __future__ import annotations

import pytest

from clusterctl.batch.verdict import RankEnd, sort_failures


@pytest.mark.parametrize(
    ("ends", "order"),
    [
        ([(0, 3, 1.0), (1, 1, 2.0)], [0, 1]),
        ([(0, 143, 1.0), (1, 1, 2.0), (2, 0, 0.5)], [1, 0]),
        ([(0, 14, 1.0), (1, 134, 1.2)], [1, 0]),
        ([(0, 14, 1.0), (1, 1, 1.2)], [0, 1]),
        ([(0, 14, 1.0), (1, 137, 6.0)], [0, 1]),
    ],
    ids=[
        "the earlier one",
        "not one that was told to end",
        "the one that has crashed, whose end MPI has noticed earlier than its shell",
        "its own exit code",
        "not one that mpirun has killed",
    ],
)
def test_who_has_failed_first(ends: list[tuple[int, int, float]], order: list[int]) -> None:
    assert [end.rank for end in sort_failures(RankEnd(*end) for end in ends)] == order
