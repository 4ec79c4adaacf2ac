"""What is known of each node while a cluster is made: phases, rates, the time that is left."""

from __future__ import annotations

from clusterctl.actions import common
from clusterctl.cli.console import Console
from clusterctl.cli.data import Download
from clusterctl.core import progress
from clusterctl.core.progress import (
    BOOTING,
    PULLING,
    READY,
    Meter,
    NodePhases,
    NodeState,
    Speedometer,
)
from clusterctl.machines.bootstrap import StepReporter


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def begin(*names: str) -> tuple[NodePhases, Clock]:
    clock = Clock()
    phases = NodePhases(watched=True, now=clock)
    phases.expect({name: name.partition("-")[0] for name in names})
    return phases, clock


def states(phases: NodePhases) -> dict[str, NodeState]:
    return {state.node: state for state in phases.look().nodes}


def test_the_time_left_comes_from_nodes_that_have_it_behind_them() -> None:
    phases, clock = begin("launcher", "worker-1", "worker-2", "worker-3", "worker-4")
    phases.enter(["launcher", "worker-1", "worker-2", "worker-3", "worker-4"], BOOTING)
    clock.time += 10
    assert {state.left for state in phases.look().nodes} == {None}, "nothing tells yet"
    phases.enter(["launcher"], READY)
    assert states(phases)["worker-1"].left is None, "a launcher is no worker"
    clock.time += 10
    phases.enter(["worker-1"], READY)
    clock.time += 20
    phases.enter(["worker-2"], READY)
    clock.time -= 15
    assert states(phases)["worker-3"].left == 5.0, "of 30 s, the median of 20 and 40"
    assert states(phases)["worker-1"].left is None
    clock.time += 10
    assert states(phases)["worker-3"].left is None, "it takes longer than usual"


def test_a_rate_is_that_of_the_last_seconds_of_the_phase() -> None:
    phases, clock = begin("worker-1")
    phases.receive("worker-1", 5_000_000)
    clock.time += 1
    phases.receive("worker-1", 7_000_000)
    phases.enter(["worker-1"], PULLING, size=200_000_000)
    for second in range(1, 31):
        clock.time += 1
        phases.receive("worker-1", 7_000_000 + 1_000_000 * second + 3_000_000 * max(0, second - 20))
    state = states(phases)["worker-1"]
    assert (state.received, state.rate) == (60_000_000, 4_000_000)
    assert (state.size, state.left) == (200_000_000, 35.0), "of the rest, at that rate"


def test_the_count_of_a_machine_that_ran_before_is_no_download() -> None:
    phases, clock = begin("worker-1")
    for total in (900_000_000, 901_000_000):
        phases.receive("worker-1", total)
        clock.time += 1
    assert states(phases)["worker-1"].received == 1_000_000


def test_nodes_that_are_not_expected_are_left_out() -> None:
    phases, _ = begin("worker-1", "worker-2")
    phases.enter(["worker-1", "worker-9"], BOOTING)
    phases.receive("worker-9", 1)
    phases.expect({"worker-1": "cpu"})
    assert {name: state.phase for name, state in states(phases).items()} == {"worker-1": BOOTING}


def test_a_phase_that_is_told_twice_goes_on() -> None:
    phases, clock = begin("worker-1")
    phases.enter(["worker-1"], BOOTING)
    clock.time += 7
    phases.enter(["worker-1"], BOOTING)
    assert states(phases)["worker-1"].seconds == 7


def test_the_steps_of_the_bootstrap_are_phases() -> None:
    phases, _ = begin("worker-1", "worker-2")
    sizes = {"worker-1": 400_000_000, "worker-2": 500_000_000}
    told: list[str] = []
    clock = iter([0.0, 1.0, 5.0, 5.0, 9.0, 9.0, 9.0])
    reporter = StepReporter(told.append, phases, sizes, lambda: next(clock))
    reporter.on_stdout("worker-1", b"@@received 1000\n@@step image pulling some/image:1\n")
    reporter.on_stdout("worker-1", b"@@received 5001000\n")
    reporter.on_stdout("worker-2", b"@@step docker Docker\n@@st")
    found = states(phases)
    assert (found["worker-1"].phase, found["worker-1"].what) == (PULLING, "")
    assert (found["worker-1"].received, found["worker-1"].size) == (5_000_000, 400_000_000)
    assert (found["worker-2"].phase, found["worker-2"].what) == (progress.INSTALLING, "Docker")
    assert found["worker-2"].size == 0, "its Python fetches more"
    reporter.on_stdout("worker-2", b"ep hosts the nodes by name\n")
    reporter.on_stdout("worker-1", b"@@step hosts the nodes by name\n")
    assert states(phases)["worker-2"].phase == progress.CONFIGURING
    reporter.on_stdout("worker-1", b"@@fact hostname\nip-10-0-0-1\n@@fact end\n")
    assert reporter.seconds == {
        "pulling some/image:1": 9.0,
        "Docker": 4.0,
        "the nodes by name": 0.0,
    }
    steps = [line.partition(": ")[2] for line in told]
    assert steps == ["pulling some/image:1", "Docker", "the nodes by name"]


# ------------------------------------------------------------------------------------------------
# How fast bytes move, and when somebody may be told how long the rest takes.


def test_an_estimate_begins_when_it_can_be_believed() -> None:
    """A copy of 200 MB in five seconds, after three in which it connected: no word of minutes."""
    speed, estimates, done = Speedometer(0.0, 0), [], 0
    for tick in range(33):
        if tick >= 12:
            done += 64_000 if tick == 12 else 10_000_000
        speed.add(tick / 4, done)
        estimates.append(speed.estimate(200_000_000 - done))
    assert set(estimates[:19]) == {None}
    told = [seconds for seconds in estimates if seconds is not None]
    assert told
    assert all(seconds < 5 for seconds in told)


def test_a_speed_that_changes_tells_nothing() -> None:
    speed = Speedometer(0.0, 0)
    for tick in range(1, 12):
        speed.add(tick / 4, 50_000_000 + tick * 1000)  # buffers, then the network
    assert speed.estimate(10**9) is None


def test_time_in_which_nothing_moved_does_not_count() -> None:
    """Between the copies of two steps, say."""
    speed = Speedometer(0.0, 0)
    for second in (1, 2, 3):
        speed.add(second, second * 1000)
    for second in range(4, 60):
        speed.add(second, 3000)
    for second in (60, 61, 62):
        speed.add(second, 3000 + 1000 * (second - 59))
    assert speed.rate == 1000
    assert speed.estimate(5000) == 5


# ------------------------------------------------------------------------------------------------
# How far downloads and copies are.


def test_downloads_count_beside_copies() -> None:
    download, (before, _) = Download(Console()), common.count_copied()
    download("train.bin", 10, 100)
    assert download.count() == (before + 10, 90)
    download("train.bin", 100, 100)
    download("test.bin", 5, 0)
    assert download.count() == (before + 105, None), "no server tells its size"


def test_copies_under_way_know_what_is_left() -> None:
    copies = Meter()
    assert copies.left is None
    with copies.count_copy(100) as first:
        first.add(30)
        with copies.count_copy(50) as second:
            second.add(60)  # an archive is larger than the files in it
            assert (copies.read(), copies.left) == (90, 70)
            with copies.count_copy(None):
                assert copies.left is None
        assert copies.left == 70
    assert (copies.read(), copies.left) == (90, None)
