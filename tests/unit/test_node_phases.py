"""What is known of each node while a cluster is made: phases, rates, the time that is left."""

from __future__ import annotations

from clusterctl.core import progress
from clusterctl.core.progress import BOOTING, PULLING, READY, NodePhases, NodeState
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
    sizes = {"worker-1": 400_000_000}
    told: list[str] = []
    clock = iter([0.0, 1.0, 5.0, 9.0, 9.0])
    reporter = StepReporter(told.append, phases, sizes, lambda: next(clock))
    reporter.on_stdout("worker-1", b"@@received 1000\n@@step image pulling some/image:1\n")
    reporter.on_stdout("worker-1", b"@@received 5001000\n")
    reporter.on_stdout("worker-2", b"@@step docker Docker\n@@st")
    found = states(phases)
    assert (found["worker-1"].phase, found["worker-1"].what) == (PULLING, "")
    assert (found["worker-1"].received, found["worker-1"].size) == (5_000_000, 400_000_000)
    assert (found["worker-2"].phase, found["worker-2"].what) == (progress.INSTALLING, "Docker")
    reporter.on_stdout("worker-2", b"ep hosts the nodes by name\n")
    assert states(phases)["worker-2"].phase == progress.CONFIGURING
    reporter.on_stdout("worker-1", b"@@fact hostname\nip-10-0-0-1\n@@fact end\n")
    assert reporter.seconds == {"pulling some/image:1": 9.0, "Docker": 4.0}
    steps = [line.partition(": ")[2] for line in told]
    assert steps == ["pulling some/image:1", "Docker", "the nodes by name"]
