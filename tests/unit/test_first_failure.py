"""Which rank is named as the first that failed."""

from __future__ import annotations

from clusterctl.batch.verdict import RankEnd, sort_failures
from tests.unit.tables import rows


@rows("ends, order", "first_failure.who_has_failed_first")
def test_who_has_failed_first(ends: list[tuple[int, int, float]], order: list[int]) -> None:
    assert [end.rank for end in sort_failures(RankEnd(*end) for end in ends)] == order
