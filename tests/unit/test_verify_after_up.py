"""The quick look at a cluster at the end of `up`, over connections that are open: nodes that answer
as the probe does, or do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from clusterctl.actions import verify
from clusterctl.actions.common import open_store
from clusterctl.actions.verify import measure_after_up
from clusterctl.core.clock import Deadline
from clusterctl.core.job import JobState
from clusterctl.core.model import Cluster, NodeResult
from clusterctl.errors import NodeUnreachable
from tests.unit.making import cluster, job, node, spec

SOUND = {
    "start": {"cores": 8, "device": "eth0", "speed": None, "shaping": ""},
    "load": {"load": 0.0, "visible": 0.0, "busiest": ""},
    "processor": {"one": 1e9, "share": 1.0, "all": 8e9, "steal": 0.0},
    "memory": {"memory": 1e10},
    "disk": {"disk": 1e9},
}


Failing = Mapping[str, Mapping[str, object]]
"""Answers in place of the sound ones, by what was asked."""


class Probe:
    """What runs on a node: answers each request, or is silent (`silent`) for as long as it may."""

    def __init__(self, silent: bool, spoils: str, failing: Failing, all_asked: list[str]) -> None:
        self.silent, self.spoils, self.failing = silent, spoils, failing
        self.asked, self.all_asked = list[str](), all_asked
        self._answers = bytearray()

    def send(self, data: bytes, timeout: float) -> None:
        if not data.startswith(b"{"):
            return  # the program itself
        request = json.loads(data)
        self.asked.append(request["do"])
        self.all_asked.append(request["do"])
        rates = {"rates": [1e9, 1e9]}
        links = {"serve": [{"port": 4711}, rates], "call": [{"latency": 1e-4, "back": 1e9}]}
        for answer in links.get(request["do"], [{**SOUND, **self.failing}.get(request["do"])]):
            text = self.spoils or json.dumps(answer)
            self._answers += b"@@probe " + text.encode() + b"\n"

    def receive(self, timeout: float) -> bytes:
        if self.silent or not self._answers:
            raise TimeoutError
        said = bytes(self._answers)
        self._answers.clear()
        return said

    def close(self) -> None:
        pass


class Nodes:
    """A pool with the transports of all nodes: connected, each with its probe."""

    def __init__(
        self,
        silent: Sequence[str] = (),
        spoils: str = "",
        away: str = "",
        failing: Mapping[str, Failing] = MappingProxyType({}),
        date: bytes = b"1700000000.0\n",
    ) -> None:
        self.silent, self.spoils, self.away, self.failing = silent, spoils, away, failing
        self.date = date
        self.asked: list[str] = []
        """Of all nodes, in order."""
        self.probes: dict[str, Probe] = {}

    def find_transport(self, name: str) -> Any:
        pool = self

        class Transport:
            def connect(self, timeout: float) -> None:
                if name == pool.away:
                    raise NodeUnreachable(f"{name} does not answer")

            def open(self, command: str, timeout: float) -> Probe:
                failing = pool.failing.get(name, {})
                probe = Probe(name in pool.silent, pool.spoils, failing, pool.asked)
                return pool.probes.setdefault(name, probe)

            def run(self, command: str, timeout: float) -> NodeResult:
                return NodeResult(node=name, exit_code=0, stdout=pool.date)

        return Transport()

    def call_each(self, action: Callable[[str], NodeResult], names: Sequence[str]) -> Any:
        found = []
        for name in names:
            try:
                found.append(action(name))
            except NodeUnreachable as error:
                found.append(NodeResult(node=name, error=error.message))
        return tuple(found)


def saved() -> Cluster:
    made = cluster()
    open_store().save(made)
    return made


def measure(made: Cluster, nodes: Any, seconds: float = 15.0) -> tuple[Any, list[str]]:
    told: list[str] = []
    return measure_after_up(open_store(), made, nodes, told.append, Deadline(seconds)), told


def test_nodes_and_links_are_measured_and_put_on_record() -> None:
    made = saved()
    found, _ = measure(made, Nodes())
    assert [figures.name for figures in found.nodes] == ["worker-1", "worker-2"]
    assert [link.name for link in found.links] == ["worker-1 – worker-2"]
    assert found.low == ()
    on_record = verify.load_last(open_store(), made)
    assert on_record is not None
    assert on_record.time == found.time
    again, _ = measure(made, Nodes())
    still = verify.load_last(open_store(), made)
    assert still is not None
    assert still.time == found.time != again.time, "an earlier `verify` was thrown away"


def test_a_node_that_is_silent_is_a_line_of_the_report() -> None:
    found, _ = measure(saved(), Nodes(silent=["worker-2"]), seconds=2.5)
    [low] = found.low
    assert (low.subject, low.what) == ("worker-2", "node")
    assert "no answer in" in low.text
    assert [figures.name for figures in found.nodes if not figures.error] == ["worker-1"]


def test_a_node_that_is_away_is_a_line_of_the_report() -> None:
    found, _ = measure(saved(), Nodes(away="worker-1"))
    assert [(low.subject, low.text) for low in found.low] == [
        ("worker-1", "worker-1 does not answer")
    ]


def test_a_measurement_that_fails_is_one_line_and_the_rest_is_judged() -> None:
    """Of the same node, too: its disk does not hide that its processor is slow."""
    full = {"error": "No space left on device"}
    slow = {"one": 4e8, "share": 0.4, "all": 3e9, "steal": 0.0}
    found, _ = measure(saved(), Nodes(failing={"worker-2": {"disk": full, "processor": slow}}))
    low = {(v.subject, v.what, v.text) for v in found.low}
    assert ("worker-2", "disk write", "not measured: No space left on device") in low
    assert ("worker-2", "processor", "a thread gets 40% of a core: a cgroup limits it") in low
    of_second = {v.what for v in found.verdicts if v.subject == "worker-2"}
    assert {"cores", "core speed", "memory copy", "clock"} <= of_second
    assert [link.name for link in found.links] == ["worker-1 – worker-2"]


@pytest.mark.parametrize(
    ("boots", "state", "order"),
    [
        (("one", "two"), "low", ["processor", "processor", "memory", "memory"]),
        (("one", "one"), "note", ["processor", "memory", "disk", "processor"]),
    ],
)
def test_nodes_that_are_one_machine_do_not_disturb_each_other(
    boots: tuple[str, str], state: str, order: list[str]
) -> None:
    """Containers, for example: they are measured one by one, and share what else runs there."""
    nodes = [node(f"worker-{n}", f"10.0.0.{n}", boot_id=boot) for n, boot in enumerate(boots, 1)]
    made = cluster(node("launcher", "10.0.0.9"), *nodes)
    open_store().save(made)
    busy = {"load": {"load": 7.0, "visible": 0.0, "busiest": ""}}
    pool = Nodes(failing={"worker-1": busy, "worker-2": busy})
    found, _ = measure(made, pool)
    assert {v.state for v in found.verdicts if v.what == "processor"} == {state}
    parts = [action for action in pool.asked if action in ("processor", "memory", "disk")]
    assert parts[:4] == order


def test_what_the_schedule_cuts_off_is_no_fault_of_the_node() -> None:
    late = {"error": "no answer in 1.2 s", "late": True}
    found, _ = measure(saved(), Nodes(failing={"worker-2": {"disk": late}}))
    assert found.low == ()
    [note] = [v for v in found.verdicts if v.state == "note"]
    assert (note.subject, note.what) == ("worker-2", "disk write")
    assert note.text == "not measured: no time left"


def test_a_clock_that_cannot_be_read_is_not_called_right() -> None:
    found, _ = measure(saved(), Nodes(date=b"date: not found\n"))
    assert {(v.what, v.text) for v in found.low} == {("clock", "not measured: date: not found")}
    assert [figures.core for figures in found.nodes] == [1e9, 1e9]


def test_without_time_nothing_is_asked() -> None:
    nodes = Nodes()
    found, _ = measure(saved(), nodes, seconds=0.0)
    assert (found.nodes, found.links, found.low) == ((), (), ())
    assert [probe.asked for probe in nodes.probes.values()] == [[], []]


@pytest.mark.parametrize("spoils", ["{", "{}"])
def test_an_answer_that_cannot_be_read_is_told(spoils: str) -> None:
    """The cluster is ready all the same: nothing is raised."""
    found, told = measure(saved(), Nodes(spoils=spoils))
    assert found is None
    assert "the nodes were not measured" in told[-1]
    assert "`clusterctl verify lab` tries again" in told[-1]


def test_a_cluster_at_work_is_left_alone() -> None:
    made, nodes = saved(), Nodes()
    running = job(made, spec(), state=JobState.RUNNING, started=1.0)
    open_store().save_job(running)
    found, told = measure(made, nodes)
    assert found is None
    assert f"job {running.id} may be running" in told[-1]
    assert nodes.probes == {}
