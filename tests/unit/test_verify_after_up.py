"""The quick look at a cluster at the end of `up`, over connections that are open: nodes that answer
as the probe does, or do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from clusterctl.actions import open_store, verify
from clusterctl.actions.verify import measure_after_up
from clusterctl.errors import NodeUnreachable
from clusterctl.job_model import JobState
from clusterctl.model import Cluster, NodeResult
from clusterctl.timeouts import Deadline
from tests.unit.making import cluster, job, spec

SOUND = {
    **{"cores": 8, "load": 0.0, "steal": 0.0, "share": 1.0},
    **{"one": 1e9, "all": 8e9, "memory": 1e10, "disk": 1e9},
}


class Probe:
    """What runs on a node: answers each request, or is silent (`silent`) for as long as it may."""

    def __init__(self, silent: bool, spoils: str = "") -> None:
        self.silent, self.spoils, self.asked = silent, spoils, list[str]()
        self._answers = bytearray()

    def send(self, data: bytes, timeout: float) -> None:
        if not data.startswith(b"{"):
            return  # the program itself
        request = json.loads(data)
        self.asked.append(request["do"])
        rates = {"rates": [1e9, 1e9]}
        for answer in {
            "node": [SOUND],
            "serve": [{"port": 4711}, rates],
            "call": [{"latency": 1e-4, "back": 1e9}],
        }[request["do"]]:
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

    def __init__(self, silent: Sequence[str] = (), spoils: str = "", away: str = "") -> None:
        self.silent, self.spoils, self.away = silent, spoils, away
        self.probes: dict[str, Probe] = {}

    def transport(self, name: str) -> Any:
        pool = self

        class Transport:
            def connect(self, timeout: float) -> None:
                if name == pool.away:
                    raise NodeUnreachable(f"{name} does not answer")

            def open(self, command: str, timeout: float) -> Probe:
                return pool.probes.setdefault(name, Probe(name in pool.silent, pool.spoils))

            def run(self, command: str, timeout: float) -> NodeResult:
                return NodeResult(node=name, exit_code=0, stdout=b"1700000000.0\n")

        return Transport()

    def each(self, action: Callable[[str], NodeResult], names: Sequence[str]) -> Any:
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
    assert (low.subject, low.text[:12]) == ("worker-2", "no answer in")
    assert [figures.name for figures in found.nodes if not figures.error] == ["worker-1"]


def test_a_node_that_is_away_is_a_line_of_the_report() -> None:
    found, _ = measure(saved(), Nodes(away="worker-1"))
    assert [(low.subject, low.text) for low in found.low] == [
        ("worker-1", "worker-1 does not answer")
    ]


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
