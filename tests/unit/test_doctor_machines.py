"""What is wrong with machines, how long they may take to answer, whose processes they show."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterctl.actions.doctor import read_clocks
from clusterctl.insight import doctor
from clusterctl.insight.node_views import NodeView
from clusterctl.model import NodeResult
from clusterctl.timeouts import Deadline
from clusterctl.transport import OnStdout, Transport
from clusterctl.transport.local import LocalTransport
from clusterctl.transport.pool import Pool
from tests.unit.diagnosed import START, kinds, reduces, seen, sleeps, two_ranks, view
from tests.unit.making import node


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("disk 12 10000000 /data", "disk", "/data of worker-1 is full: 12 KiB free"),
        ("inodes 0 65536 /data", "disk", "/data of worker-1 has no inodes left"),
        ("peer worker-2 No route to host", "network", "worker-1 cannot reach worker-2: No route"),
        ('spot {"action": "terminate"}', "spot", "taking back the spot instance worker-1"),
        ("kernel [ 5000.0] NVRM: Xid (PCI:0000:00:1e): 79, GPU has", "gpu", "a GPU of worker-1"),
    ],
)
def test_what_is_wrong_with_a_machine(line: str, kind: str, said: str) -> None:
    [finding] = doctor.judge(seen(view("worker-1", line)))
    assert finding.kind == kind
    assert said in finding.text


class Slow(LocalTransport):
    """A node that is connected when the time for it is up."""

    def __init__(self, name: str, given: list[float]) -> None:
        super().__init__(node(name, ""))
        self._given = given

    def connect(self, timeout: float) -> None:
        self._given.append(timeout)
        time.sleep(timeout)

    def run(
        self, command: str, *, stdin: bytes = b"", timeout: float, on_stdout: OnStdout | None = None
    ) -> NodeResult:
        self._given.append(timeout)
        return super().run(command, timeout=max(timeout, 30))


def test_no_node_has_more_time_to_answer_than_is_left(tmp_path: Path) -> None:
    """The connection and what is asked over it share it."""
    given: list[float] = []

    class Nodes(Pool):
        def find_transport(self, name: str) -> Transport:
            return Slow(name, given)

    nodes = [node("worker-1", "")]
    with Nodes(nodes, identity=None, known_hosts=tmp_path / "known_hosts") as pool:
        [view] = read_clocks(["worker-1"], pool, Deadline(0.5))
    assert len(given) == 2
    assert sum(given) <= 0.5
    assert (view.name, view.error) == ("worker-1", "")
    assert abs(view.offset) <= view.uncertainty


def test_a_broken_network_counts_before_the_ranks_that_wait() -> None:
    found = two_ranks(reduces(), sleeps())
    found.nodes["worker-1"].peers = {"worker-2": "no answer in 5 s"}
    assert kinds(doctor.judge(found)) == ["network", "missing"]


def test_a_node_that_does_not_answer() -> None:
    [finding] = doctor.judge(seen(NodeView("worker-1", error="no route to host")))
    assert (finding.kind, finding.nodes) == ("unreachable", ("worker-1",))


def test_ranks_that_were_ended_with_a_lost_node_are_no_cause() -> None:
    [finding] = doctor.judge(
        seen(
            view("worker-1", "rank 0", f"exit 0 143 {START + 9} 1"),
            NodeView("worker-2", error="no answer within 4 s"),
        )
    )
    assert finding.kind == "unreachable"


def test_little_memory_is_only_noted() -> None:
    [finding] = doctor.judge(
        seen(view("worker-1", "memory MemTotal: 16000000", "memory MemAvailable: 100000"))
    )
    assert (finding.kind, finding.serious) == ("little-memory", False)
