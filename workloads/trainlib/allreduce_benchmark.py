"""How long an all-reduce takes, for messages of many sizes.

The columns are those of the OSU micro-benchmarks (`osu_allreduce`) and of NVIDIA's nccl-tests:

    algorithm bandwidth = bytes / time
    bus bandwidth       = algorithm bandwidth x 2 (W - 1) / W

The second is what each link carries in a ring, and can be compared with the hardware's figure
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). torch is not imported here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: An all-reduce of a prepared message, and waiting until those that were begun are done.
Prepared = tuple[Callable[[], object], Callable[[], object]]

#: Rounds whose median counts, seconds of each, and its fewest and most repetitions.
_ROUNDS, _SECONDS, _FEWEST, _MOST = 5, 0.006, 2, 1000


@dataclass(frozen=True)
class Row:
    """One size: bytes of the message, seconds per all-reduce of the slowest rank."""

    size: int
    seconds: float
    world: int

    @property
    def algorithm_gb_s(self) -> float:
        """10^9 bytes per second."""
        return self.size / self.seconds / 1e9

    @property
    def bus_gb_s(self) -> float:
        """10^9 bytes per second."""
        return self.algorithm_gb_s * 2 * (self.world - 1) / self.world


def list_sizes(largest: int) -> list[int]:
    """Bytes: 8, 64, 512, ... up to `largest`."""
    return [8**power for power in range(1, 22) if 8**power <= largest]


def measure(
    sizes: Sequence[int],
    prepare: Callable[[int], Prepared],
    slowest: Callable[[int], int],
    world: int,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[Row]:
    """One row per size; all ranks call it, and get the same. None for one rank alone.

    Args:
        prepare: Makes a message of that many bytes and returns how to reduce it.
        slowest: The largest of the ranks' numbers; it makes them wait for each other, too.
        clock: Nanoseconds.
    """
    if world == 1:
        return []
    rows = []
    for size in sizes:
        reduce, wait = prepare(size)

        def measure_once(
            count: int, reduce: Callable[[], object] = reduce, wait: Callable[[], object] = wait
        ) -> float:
            slowest(0)
            started = clock()
            for _ in range(count):
                reduce()
            wait()
            return slowest(clock() - started) / 1e9 / count

        # The first one warms up; the fastest says what a round can hold on a busy machine.
        guess = min(measure_once(_FEWEST) for _ in range(3))
        count = min(_MOST, max(_FEWEST, int(_SECONDS / guess)))
        rounds = [measure_once(count) for _ in range(_ROUNDS)]
        rows.append(Row(size, statistics.median(rounds), world))
    return rows


def render_table(rows: Sequence[Row]) -> str:
    """The rows as text, numbers right-aligned."""
    lines = [f"{'bytes':>12} {'latency us':>12} {'algbw GB/s':>12} {'busbw GB/s':>12}"]
    for row in rows:
        lines.append(
            f"{row.size:>12} {row.seconds * 1e6:>12.2f} {row.algorithm_gb_s:>12.4f} "
            f"{row.bus_gb_s:>12.4f}"
        )
    return "\n".join(lines)
