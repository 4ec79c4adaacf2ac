"""What `verify` makes of measurements: planted faults, with cause and number."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import verify as verify_action
from clusterctl.actions.common import open_store
from clusterctl.actions.verify import QUICK, measure_over
from clusterctl.core.clock import Deadline
from clusterctl.core.model import Cluster, NodeResult
from clusterctl.errors import RecordError
from clusterctl.insight import verify
from clusterctl.insight.verify import Gpu, LeftOut, Link, Measurements, NodeFigures, Verdict
from tests.unit.making import cluster, node
from tests.unit.staged import lab
from tests.unit.tables import rows

NAMES = ("worker-1", "worker-2", "worker-3")
T4 = Gpu(0, "Tesla T4", driver="550.1", temperature=41, width=8, width_most=8, errors=0)


def figures(name: str, **changes: object) -> NodeFigures:
    usual = NodeFigures(
        name,
        kind="g4dn.xlarge",
        instance_type="g4dn.xlarge",
        expected_cores=4,
        cores=4,
        core=2e9,
        together=6e9,
        memory=20e9,
        disk=250e6,
        offset=0.0,
        gemm={"cpu float32": 200e9},
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def links(rate: float = 0.62e9, names: Sequence[str] = NAMES) -> list[Link]:
    return [Link(a, b, 100e-6, rate) for a, b in combinations(names, 2)]


def judge(
    *nodes: NodeFigures, of: Sequence[Link] = (), one_machine: bool = False
) -> tuple[Verdict, ...]:
    """The usual nodes, but for those given."""
    given = {node.name: node for node in nodes}
    every = [given.get(name, figures(name)) for name in NAMES]
    return verify.judge(every, of, one_machine=one_machine)


def wrong(verdicts: Sequence[Verdict]) -> list[tuple[str, str, str]]:
    return [(v.subject, v.what, v.text) for v in verdicts if v.state != "ok"]


# ---------------------------------------------------------------------------------------- nodes


def test_a_sound_cluster_has_no_low_line() -> None:
    assert wrong(judge(of=links())) == []


@rows("changes, what, says", "verify.a_fault_of_a_node")
def test_a_fault_of_a_node(changes: dict[str, Any], what: str, says: str) -> None:
    """A row names what differs from the usual node, and of a GPU from a T4."""
    if gone := changes.pop("without", ""):
        changes[gone] = None
    if "gdrcopy" in changes:
        changes["gdrcopy"] = tuple(changes["gdrcopy"])
    if "gpus" in changes:
        changes["gpus"] = tuple(replace(T4, **gpu) for gpu in changes["gpus"])
    [(subject, found, text)] = wrong(judge(figures("worker-3", **changes)))
    assert (subject, found) == ("worker-3", what)
    assert says in text


def test_what_other_processes_slow_down_is_no_fault_of_the_machine() -> None:
    """A laptop whose user works on it: noted, with the reason, and exit code 0."""
    verdicts = judge(figures("worker-3", load=2.0, memory=5e9), one_machine=True)
    assert {v.state for v in verdicts} == {"ok", "note"}
    assert any("25% of the median: other processes use 2.0" in v.text for v in verdicts)


def test_what_runs_on_the_node_itself_is_its_fault_on_one_machine_too() -> None:
    noisy = figures("worker-3", load=2.0, visible=2.0, busiest="sh (process 812)")
    [(_, what, text)] = wrong(judge(noisy, one_machine=True))
    assert what == "processor"
    assert text == "other processes use 2.0 of its 4 cores, most of all sh (process 812)"
    assert {v.state for v in judge(noisy, one_machine=True)} == {"ok", "low"}


def test_a_figure_that_is_missing_does_not_count_for_the_others() -> None:
    """Not as a nought in a median, and the node's other figures are judged."""
    failed = figures("worker-3", memory=0.0, core=1e9, failed={"memory copy": "no memory"})
    slow = figures("worker-2", memory=10e9)
    found = wrong(judge(failed, slow))
    assert [(subject, what) for subject, what, _ in found] == [
        ("worker-2", "memory copy"),
        ("worker-3", "memory copy"),
        ("worker-3", "core speed"),
    ]


def test_what_was_left_out_is_a_note() -> None:
    pairs = tuple(f"worker-1 – worker-{n}" for n in range(2, 9))
    left_out = [LeftOut("GEMM", ("worker-3",), "no time left"), LeftOut("link", pairs, "no time")]
    verdicts = verify.judge([], [], left_out, one_machine=True)
    assert [(v.subject, v.what, v.state, v.text) for v in verdicts] == [
        ("worker-3", "GEMM", "note", "not measured: no time left"),
        ("7 links", "link", "note", f"not measured: no time ({', '.join(pairs[:4])} …)"),
    ]


def test_nodes_of_other_kinds_are_not_compared() -> None:
    assert wrong(judge(figures("worker-3", kind="t3.micro", core=0.5e9, memory=1e9))) == []


def test_drivers_have_to_be_the_same() -> None:
    with_gpus = [figures(name, gpus=(T4,)) for name in NAMES[:2]]
    other = figures(NAMES[2], gpus=(replace(T4, driver="535.0"),))
    found = wrong(judge(*with_gpus, other))
    assert {what for _, what, _ in found} == {"GPU driver"}


# ---------------------------------------------------------------------------------------- links


@rows("gbits, state, text", "verify.links_are_held_against_the_baseline")
def test_links_are_held_against_the_baseline(gbits: float, state: str, text: str) -> None:
    verdicts = judge(of=links(gbits / 8 * 1e9))
    assert {(v.state, v.text) for v in verdicts if v.what == "bandwidth"} == {(state, text)}


def test_a_slow_link_among_others() -> None:
    """Of instance types without a known baseline."""
    nodes = [figures(name, instance_type="") for name in NAMES]
    of = links()
    of[2] = replace(of[2], rate=0.062e9)
    [(subject, what, text)] = wrong(judge(*nodes, of=of))
    assert (subject, what) == ("worker-2 – worker-3", "bandwidth")
    assert "10% of the median link" in text


@rows("forth, back, way", "verify.a_link_is_as_fast_as_its_slower_direction")
def test_a_link_is_as_fast_as_its_slower_direction(forth: float, back: float, way: str) -> None:
    of = links()
    of[2] = Link("worker-2", "worker-3", 100e-6, forth, back)
    nodes = [figures(name, instance_type="") for name in NAMES]
    [(_, _, text)] = wrong(judge(*nodes, of=of))
    assert text == (
        f"0.024 Gbit/s, 0.48% of the median link; that is from {way}, the other way has 4.96 Gbit/s"
    )


def test_links_within_a_machine_are_held_against_its_memory() -> None:
    nodes = [figures(name, instance_type="") for name in NAMES]
    found = wrong(judge(*nodes, of=links(6e6), one_machine=True))
    assert len(found) == 3
    assert all("little for a machine whose memory copies 20 GB/s" in text for *_, text in found)


def test_a_late_link() -> None:
    of = links()
    of[0] = replace(of[0], latency=5e-3)
    [(subject, what, text)] = wrong(judge(of=of))
    assert (subject, what, text) == (
        "worker-1 – worker-2",
        "latency",
        "5000 µs, 50.0 times the median",
    )


def test_a_dead_link() -> None:
    of = [*links()[:2], Link("worker-2", "worker-3", error="no connection: timed out")]
    assert wrong(judge(of=of)) == [("worker-2 – worker-3", "link", "no connection: timed out")]


@rows("changes, says", "verify.what_limits_a_slow_link_is_named")
def test_what_limits_a_slow_link_is_named(changes: dict[str, object], says: str) -> None:
    nodes = [figures(name, instance_type="") for name in NAMES[:2]]
    of = links()
    of[2] = replace(of[2], rate=0.0025e9, back=0.0025e9)
    [(_, _, text)] = wrong(judge(*nodes, figures("worker-3", instance_type="", **changes), of=of))
    assert text == f"0.02 Gbit/s, 0.4% of the median link; {says}"


@pytest.mark.parametrize("count", range(2, 10))
def test_every_pair_meets_once_and_nobody_twice_in_a_round(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    rounds = verify.pair_up(names)
    assert len(rounds) == count - 1 + count % 2
    for pairs in rounds:
        met = [name for pair in pairs for name in pair]
        assert len(met) == len(set(met))
    played = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, played)) == sorted(map(sorted, combinations(names, 2)))


# -------------------------------------------------------------------------------------- parsing

NVIDIA_SMI = """\
0, Tesla T4, 550.127.05, 83, 8, 16, 2, 0x0000000000000020, 3, 100
1, Tesla T4, 550.127.05, 34, 16, 16, 0, 0x0000000000000001, 0, 0
2, NVIDIA A10G, 550.127.05, 34, 16, 16, [N/A], 0x0000000000000004, 0, 0
"""


def test_nvidia_smi() -> None:
    """An idle clock and a power cap are no throttling; `[N/A]` is no number."""
    first, second, third = verify.read_nvidia_smi(NVIDIA_SMI)
    assert (first.throttled, first.temperature, first.errors) == ("too hot", 83.0, 2.0)
    assert (first.width, first.width_most) == (8.0, 16.0)
    assert (second.throttled, second.errors, second.driver) == ("", 0.0, "550.127.05")
    assert (third.throttled, third.errors) == ("", None)


@rows("text", "verify.nvidia_smi_without_gpus")
def test_nvidia_smi_without_gpus(text: str) -> None:
    assert verify.read_nvidia_smi(text) == ()


def test_rocm_smi() -> None:
    text = (
        'WARNING: AMD GPU device(s) is/are in a low-power state.\n{"card0": {"Temperature (Sensor '
        'edge) (C)": "34.0", "Temperature (Sensor junction) (C)": "96.0", "GPU use (%)": "7", '
        '"Card series": "Radeon Pro V520"}, "system": {"Driver version": "6.7.0"}}'
    )
    [gpu] = verify.read_rocm_smi(text)
    assert gpu == Gpu(0, "Radeon Pro V520", driver="6.7.0", temperature=96.0, utilization=7.0)
    assert verify.read_rocm_smi("rocm-smi: command not found") == ()


# ------------------------------------------------------------------------------------------------
# A quick look at a cluster: nodes that answer as the probe does, or do not.


SOUND: dict[str, dict[str, object]] = {
    "start": {"cores": 8, "device": "eth0", "line_rate": None, "shaping": ""},
    "load": {"load": 0.0, "visible": 0.0, "busiest": ""},
    "processor": {"core": 1e9, "share": 1.0, "together": 8e9, "steal": 0.0},
    "memory": {"memory": 1e10},
    "disk": {"disk": 1e9},
    "call": {"latency": 1e-4, "back": 1e9},
}


class Server:
    """The end of a link that is called: it has a port, and then a rate."""

    def __init__(self) -> None:
        self.said = [{"port": 4711}, {"rate": 1e9}]

    def send(self, data: bytes, timeout: float) -> None:
        pass

    def receive(self, timeout: float) -> bytes:
        return b"@@probe " + json.dumps(self.said.pop(0)).encode() + b"\n"

    def close(self) -> None:
        pass


class Nodes:
    """A pool of nodes that answer as the probe does: `failing` says what else, None for no answer
    at all from there on; those that are `away` refuse connections."""

    def __init__(
        self,
        failing: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
        away: str = "",
        spoils: str = "",
        date: bytes = b"1700000000.0\n",
    ) -> None:
        self.failing, self.away, self.spoils, self.date = failing, away, spoils, date
        self.asked: list[str] = []
        self.turns: list[list[str]] = []
        """Which nodes have measured at the same time."""

    def find_transport(self, name: str) -> Any:
        pool = self

        class Transport:
            def open(self, command: str, timeout: float) -> Server:
                return Server()

            def run(self, command: str, timeout: float, stdin: bytes = b"") -> NodeResult:
                said = pool.answer(name, stdin) if stdin else pool.date
                return NodeResult(node=name, exit_code=0, stdout=said)

        return Transport()

    def answer(self, name: str, stdin: bytes) -> bytes:
        answers, said = {**SOUND, **self.failing.get(name, {})}, b"Welcome!\n"
        for request in map(json.loads, stdin.splitlines()[1:]):
            self.asked.append(request["do"])
            if answers[request["do"]] is None:
                break
            said += b"@@probe " + (self.spoils or json.dumps(answers[request["do"]])).encode()
            said += b"\n"
        return said

    def run(self, commands: Any, stdin: Mapping[str, bytes], timeout: float) -> Any:
        self.turns.append(list(commands))
        return [
            NodeResult(node=name, exit_code=137, stdout=self.answer(name, stdin[name]))
            for name in commands
        ]

    def connect(self, names: Sequence[str], timeout: float) -> Any:
        errors = {name: "it does not answer" * (name == self.away) for name in names}
        return [NodeResult(node=name, error=error) for name, error in errors.items()]

    def call_each(self, action: Callable[[str], NodeResult], names: Sequence[str]) -> Any:
        return [action(name) for name in names]


def saved() -> Cluster:
    made = cluster()
    open_store().save(made)
    return made


def measure(made: Cluster, nodes: Any, seconds: float = 15.0) -> Measurements:
    return measure_over(open_store(), made, nodes, QUICK, lambda line: None, Deadline(seconds))


def test_nodes_and_links_are_measured_and_put_on_record() -> None:
    made = saved()
    found = measure(made, Nodes())
    assert [figures.name for figures in found.nodes] == ["worker-1", "worker-2"]
    assert [link.name for link in found.links] == ["worker-1 – worker-2"]
    assert found.low == ()
    assert open_store().read_measurements(made, "verify", Measurements) == found


@pytest.mark.parametrize("nodes", [Nodes({"worker-2": {"start": None}}), Nodes(away="worker-2")])
def test_a_node_that_does_not_answer_is_a_line_of_the_report(nodes: Nodes) -> None:
    found = measure(saved(), nodes)
    assert [(low.subject, low.what) for low in found.low] == [("worker-2", "node")]
    assert [figures.name for figures in found.nodes if not figures.error] == ["worker-1"]
    assert found.links == ()


def test_what_takes_the_probe_along_is_one_line() -> None:
    found = measure(saved(), Nodes({"worker-2": {"memory": None}}))
    assert [(low.subject, low.what) for low in found.low] == [("worker-2", "memory copy")]
    assert [figures.core for figures in found.nodes] == [1e9, 1e9]


def test_a_measurement_that_fails_is_one_line_and_the_rest_is_judged() -> None:
    """Of the same node, too: its disk does not hide that its processor is slow."""
    full = {"error": "No space left on device"}
    slow = {"core": 4e8, "share": 0.4, "together": 3e9, "steal": 0.0}
    found = measure(saved(), Nodes({"worker-2": {"disk": full, "processor": slow}}))
    low = {(v.subject, v.what, v.text) for v in found.low}
    assert ("worker-2", "disk write", "not measured: No space left on device") in low
    assert ("worker-2", "processor", "a thread gets 40% of a core: a cgroup limits it") in low
    of_second = {v.what for v in found.verdicts if v.subject == "worker-2"}
    assert {"cores", "core speed", "memory copy", "clock"} <= of_second
    assert [link.name for link in found.links] == ["worker-1 – worker-2"]


@rows("boots, state, turns", "verify.nodes_that_are_one_machine_do_not_disturb_each_other")
def test_nodes_that_are_one_machine_do_not_disturb_each_other(
    boots: tuple[str, str], state: str, turns: list[list[str]]
) -> None:
    """Containers, for example: they are measured one by one, and share what else runs there."""
    nodes = [node(f"worker-{n}", f"10.0.0.{n}", boot_id=boot) for n, boot in enumerate(boots, 1)]
    made = cluster(node("launcher", "10.0.0.9"), *nodes)
    open_store().save(made)
    busy = {"load": {"load": 7.0, "visible": 0.0, "busiest": ""}}
    pool = Nodes({"worker-1": busy, "worker-2": busy})
    found = measure(made, pool)
    assert {v.state for v in found.verdicts if v.what == "processor"} == {state}
    assert pool.turns == turns


def test_what_the_schedule_cuts_off_is_no_fault_of_the_node() -> None:
    late = {"error": "no answer in 1.2 s", "late": True}
    found = measure(saved(), Nodes({"worker-2": {"disk": late}}))
    assert found.low == ()
    [note] = [v for v in found.verdicts if v.state == "note"]
    assert (note.subject, note.what) == ("worker-2", "disk write")
    assert note.text == "not measured: no time left"


def test_a_clock_that_cannot_be_read_is_not_called_right() -> None:
    found = measure(saved(), Nodes(date=b"date: not found\n"))
    assert {(v.what, v.text) for v in found.low} == {("clock", "not measured: date: not found")}
    assert [figures.core for figures in found.nodes] == [1e9, 1e9]


def test_without_time_nothing_is_asked() -> None:
    nodes = Nodes()
    found = measure(saved(), nodes, seconds=0.0)
    assert (found.nodes, found.links, found.low) == ((), (), ())
    assert nodes.asked == []


def test_a_cluster_at_work_is_left_alone(tmp_path: Path, tree: Path) -> None:
    here = lab(tmp_path / "nodes")
    with here.running(here.job(tree)):
        with pytest.raises(RecordError, match="job 7 may be running") as caught:
            verify_action.require_measurable(here.store, here.where, print, now=False)
        assert "--now" in caught.value.hint
        verify_action.require_measurable(here.store, here.where, print, now=True)


def test_an_answer_that_cannot_be_read_is_a_line_of_the_report() -> None:
    found = measure(saved(), Nodes(spoils="{"))
    assert {(low.subject, low.what) for low in found.low} >= {("worker-1", "node")}
