"""Numbers and sizes in the way that people read them."""

from __future__ import annotations

import pytest

from clusterctl.core.text import count, fold_runs, format_bytes


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (5e9, "5.0 GB")],
)
def test_bytes_are_counted_in_decimal_units(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([], []),
        ([7], [(7, 7)]),
        ([3, 1, 2, 2, 9, 0], [(0, 3), (9, 9)]),
        ([0, 2, 4], [(0, 0), (2, 2), (4, 4)]),
    ],
)
def test_numbers_fold_to_runs_in_order_and_each_once(
    numbers: list[int], runs: list[tuple[int, int]]
) -> None:
    assert [(run[0], run[-1]) for run in fold_runs(numbers)] == runs


def test_one_is_singular() -> None:
    assert [count(number, "process") for number in (0, 1, 2)] == [
        "0 processes",
        "1 process",
        "2 processes",
    ]
