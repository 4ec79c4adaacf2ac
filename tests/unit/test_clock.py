"""The clock that halts while this process stands still."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import clusterctl
from clusterctl.core.clock import Deadline, RunningClock


class StillClock(RunningClock):
    """Its thread makes no notes."""

    TICK = 1e6


class Machine:
    """Its monotonic clock, in seconds. Tests make the notes of `clock`, not a thread."""

    def __init__(self) -> None:
        self.time = 100.0
        self.clock = StillClock(lambda: self.time)
        self.clock.note()

    def go_on(self, seconds: float) -> float:
        """Until the next note; what the clock says then."""
        self.time += seconds
        self.clock.note()
        return self.clock()


def deadline(at: float) -> Deadline:
    made = Deadline(1.0)
    made.at = at
    return made


def test_time_in_which_the_process_stood_still_counts_a_second_at_most() -> None:
    machine = Machine()
    began = machine.clock()
    assert machine.go_on(0.25) - began == 0.25
    assert machine.go_on(3600) - began == 1.25
    assert machine.go_on(0.25) - began == 1.5


def test_a_block_is_ended_that_is_stuck_and_not_one_that_was_stopped() -> None:
    machine, ended = Machine(), Event()
    with machine.clock.guard(deadline(machine.clock() + 0.5), ended.set):
        machine.go_on(3600)
        assert not ended.wait(0.1), "late at one note, for it could not run"
    with machine.clock.guard(deadline(machine.clock() + 0.5), ended.set):
        for _ in range(RunningClock.CHANCES + 2):
            machine.go_on(0.25)
        assert ended.wait(20)


def test_a_block_that_has_ended_is_left_alone() -> None:
    machine, ended = Machine(), Event()
    with machine.clock.guard(deadline(machine.clock() + 0.5), ended.set):
        pass
    for _ in range(20):
        machine.go_on(0.25)
    assert not ended.wait(0.1)


def test_limits_do_not_count_time_in_which_the_process_stood_still() -> None:
    """Those of nodes, programs and Terraform. How long something took, the usual clock tells."""
    source = Path(clusterctl.__file__).parent
    files = [*source.glob("t[re]*/*.py"), source / "process.py", source / "machines/networks.py"]
    files.remove(source / "transport/spreading.py")  # it has limits of its own
    looks = [line for file in files for line in file.read_text().splitlines() if "time.m" in line]
    assert looks
    assert [line for line in looks if "started" not in line] == []
