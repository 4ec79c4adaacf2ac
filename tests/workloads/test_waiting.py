"""What ranks do while they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.unit.tables import rows
from tests.workloads.running import Programs
from trainlib import waiting


@dataclass
class Time:
    """A clock that moves by a microsecond per look, and by what is slept."""

    ends: float
    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def done(self) -> bool:
        self.now += 1e-6
        return self.now >= self.ends


@pytest.mark.parametrize("ends", [0.0, 20e-6, 400e-6])
def test_a_short_wait_has_no_pause(ends: float) -> None:
    time = Time(ends)
    waiting.wait(time.done, time.clock, time.sleep)
    assert time.pauses == []


@pytest.mark.parametrize("ends", [700e-6, 2e-3, 20e-3, 1.0])
def test_a_long_wait_leaves_the_core_and_ends_soon_after(ends: float) -> None:
    time = Time(ends)
    waiting.wait(time.done, time.clock, time.sleep)
    assert sum(time.pauses) > (ends - 550e-6) * 0.9
    assert time.now - ends < min(ends / 4, 501e-6) + 2e-6


@rows("ranks, expected", "waiting.a_machine_is_crowded_with_more_ranks_than_cores")
def test_a_machine_is_crowded_with_more_ranks_than_cores(
    ranks: list[tuple[str, int]], expected: bool
) -> None:
    assert waiting.is_crowded(ranks) is expected


LATE = """
import os, resource, time
import torch
from trainlib.ranks import discover
from trainlib.session import Session

os.cpu_count = lambda: 1
with Session(discover(), over_mpi=True) as session:
    small = torch.ones(1000)
    for tensor in (small, small.half()):
        session.reduce(tensor.clone(), average=False)
    for tensor in (small, small.half()):
        if session.ranks.rank == 1:
            time.sleep(1)
        began = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        session.reduce(tensor, average=False)
        if session.ranks.rank == 0:
            print("left", resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - began)
        assert bool((tensor == session.ranks.world).all())
"""


@pytest.mark.mpi
def test_a_rank_that_waits_leaves_its_core(programs: Programs) -> None:
    """A rank that polls for a second leaves its core when it is made to, not by itself."""
    ended = programs.mpirun(2, programs.script("late.py", LATE))
    assert ended.code == 0, ended.err
    left = [int(line.split()[1]) for line in ended.lines("left")]
    assert len(left) == 2
    assert all(times > 30 for times in left), left
