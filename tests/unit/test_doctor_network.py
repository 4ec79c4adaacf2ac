"""What `doctor` makes of connections that get no answer."""

from __future__ import annotations

import pytest

from clusterctl.insight.doctor import causes
from clusterctl.insight.doctor.findings import Evidence
from tests.unit.diagnosed import process, reduces, seen, sleeps, view

WORKER_1 = "0200000A"
"""10.0.0.2, as /proc/net/tcp has it."""


def cut(line: str, *more: str) -> Evidence:
    found = seen(
        view("worker-1", "rank 0", process(0, 100)),
        view("worker-2", "rank 1", process(1, 200), line, *more),
    )
    found.nodes["worker-1"].address, found.nodes["worker-2"].address = "10.0.0.2", "10.0.0.3"
    found.ranks[0].stack, found.ranks[1].stack = reduces(), reduces()
    return found


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"silent 1 {WORKER_1}:7530 02 00000003", "it tries to connect to port 30000 of worker-1"),
        (f"silent 1 {WORKER_1}:7530 01 0000000A", "its connection to port 30000 of worker-1"),
        (
            f"silent 1 0000000000000000FFFF0000{WORKER_1}:7530 02 00000001",
            "it tries to connect to port 30000 of worker-1",
        ),
    ],
)
def test_a_firewall_that_lets_only_ssh_pass(line: str, said: str) -> None:
    found = cut(line, "peer worker-1 ok")
    [finding] = causes.judge(found)
    assert (finding.kind, finding.ranks, finding.serious) == ("network", (1,), True)
    assert finding.nodes == ("worker-2", "worker-1")
    assert finding.text == f"rank 1 on worker-2 gets no answer: {said}"
    assert "security group" in finding.advice


def test_a_server_that_does_not_answer_is_told_beside_the_rank_that_waits_for_it() -> None:
    """Something in the background may try that, too."""
    found = cut("silent 1 0000000000000000000000000100007F:01BB 02 00000002", "silent 1 nonsense")
    found.ranks[1].stack = sleeps()
    cause, note = causes.judge(found)
    assert (cause.kind, note.kind, note.serious) == ("missing", "network", False)
    assert note.text.endswith("it tries to connect to port 443 of ::7f00:1")


def test_nodes_that_cannot_reach_each_other_are_told_once() -> None:
    found = cut(f"silent 1 {WORKER_1}:7530 02 00000003", "peer worker-1 no answer in 5 s")
    [finding] = causes.judge(found)
    assert finding.text == "worker-2 cannot reach worker-1: no answer in 5 s"
