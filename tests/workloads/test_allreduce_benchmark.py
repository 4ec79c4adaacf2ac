"""The table of reduce_all: sizes, repetitions, and the two bandwidths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from trainlib import allreduce_benchmark
from trainlib.allreduce_benchmark import Row


def test_sizes_are_powers_of_eight() -> None:
    assert allreduce_benchmark.list_sizes(8) == [8]
    assert allreduce_benchmark.list_sizes(4095) == [8, 64, 512]
    assert allreduce_benchmark.list_sizes(4096) == [8, 64, 512, 4096]
    assert allreduce_benchmark.list_sizes(7) == []
    assert len(allreduce_benchmark.list_sizes(8**40)) == 21


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """10^9 bytes a second; in a ring of 4 each link carries 2 * 3 / 4 of the message."""
    row = Row(size=2 * 10**9, seconds=0.5, world=4)
    assert row.algorithm_gb_s == pytest.approx(4.0)
    assert row.bus_gb_s == pytest.approx(6.0)
    assert Row(8, 1.0, 2).bus_gb_s == Row(8, 1.0, 2).algorithm_gb_s


@dataclass
class Clock:
    """A clock that only reductions move: by a nanosecond per byte, the other rank's by two."""

    now: int = 0
    counts: dict[int, list[int]] = field(default_factory=dict)
    met: int = 0

    def prepare(self, size: int) -> tuple[Callable[[], object], Callable[[], object]]:
        rounds = self.counts.setdefault(size, [])
        pending = [0]

        def reduce() -> None:
            pending[0] += 1

        def wait() -> None:
            rounds.append(pending[0])
            self.now += pending[0] * size
            pending[0] = 0

        return reduce, wait

    def slowest(self, value: int) -> int:
        self.met += value == 0
        return 2 * value


def test_a_row_has_the_time_of_the_slowest_rank() -> None:
    clock = Clock()
    found = allreduce_benchmark.measure(
        [1000, 30_000, 10**7], clock.prepare, clock.slowest, 2, clock=lambda: clock.now
    )
    assert found == [Row(1000, 2e-6, 2), Row(30_000, 6e-5, 2), Row(10**7, 0.02, 2)]
    # Three rounds of two to guess by, five for 6 ms each: from 2 to 1000 repetitions.
    assert clock.counts == {
        1000: [2, 2, 2, *[1000] * 5],
        30_000: [2, 2, 2, *[100] * 5],
        10**7: [2, 2, 2, *[2] * 5],
    }
    assert clock.met == 3 * 8  # all ranks begin a round together


def test_one_rank_alone_measures_nothing() -> None:
    clock = Clock()
    assert allreduce_benchmark.measure([8], clock.prepare, clock.slowest, 1) == []
    assert clock.counts == {}


def test_the_table_is_aligned() -> None:
    head, *rows = allreduce_benchmark.render_table(
        [Row(8, 1.5e-6, 2), Row(8**7, 0.25, 2)]
    ).splitlines()
    assert head.split() == ["bytes", *["latency", "us"], *["algbw", "GB/s"], *["busbw", "GB/s"]]
    assert [row.split() for row in rows] == [
        ["8", "1.50", "0.0053", "0.0053"],
        ["2097152", "250000.00", "0.0084", "0.0084"],
    ]
    assert {len(line) for line in (head, *rows)} == {12 * 4 + 3}
