"""What is wrong with machines, how long they may take to answer, whose processes they show."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.actions.doctor import ask_nodes
from clusterctl.agent import stacks
from clusterctl.core.clock import Deadline
from clusterctl.core.model import Cluster, NodeResult, Phase
from clusterctl.core.stacks import explain_kernel
from clusterctl.insight import node_views
from clusterctl.insight.doctor import causes, findings
from clusterctl.insight.node_views import NodeView
from clusterctl.machines.local.provider import LocalProvider
from clusterctl.transport.pool import LocalTransport, Pool
from clusterctl.transport.protocol import OnStdout, Transport
from tests.unit.calling import Call
from tests.unit.diagnosed import START, failed, kinds, reduces, seen, sleeps, two_ranks, view
from tests.unit.making import cluster, job, node
from tests.unit.provided import provide
from tests.unit.scripts import until
from tests.unit.tables import read_rows, rows

CLOCK = 'echo "uptime $(cut -d" " -f1 /proc/uptime) $(date +%s.%N)"\n'
SHORT = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'


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
        return super().run(command, stdin=stdin, timeout=max(timeout, 30), on_stdout=on_stdout)


def test_machines_that_never_came_up_show_the_end_of_their_logs(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named cluster needs no job for that; what answers is not shown."""

    class Gone(LocalProvider):
        def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
            return {"launcher": "gone: it has no process", "worker-1": "gone"}

    provide(monkeypatch, "local", Gone())
    store = open_store()
    store.save(replace(cluster(provider="local"), nodes=(), phase=Phase.CREATING))
    log = store.locate_folder("lab") / "nodes/worker-1/sshd.log"
    log.parent.mkdir(parents=True)
    log.write_text("its tag\nno host keys\x1b[1m available\n")
    assert call("doctor", "-c", "lab").out.splitlines() == [
        "launcher: gone: it has no process",
        "",
        "worker-1: gone",
        "  the end of its console:",
        "    no host keys available",
    ]
    shown = call("doctor", "-c", "lab", "--json").document
    assert shown["machines"][1]["console"] == ["no host keys available"]
    assert shown["job"] is None
    # Nor does the all-reduce of `up` count as one.
    store.save(cluster(provider="local"))
    store.save_job(replace(job(), cluster="lab", cluster_id="lab-1a2b", purpose="all-reduce"))
    assert call("doctor", "-c", "lab", "--json").document["job"] is None


def test_each_machine_of_an_unfinished_cluster_shows_whether_it_answers_ssh(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Half(LocalProvider):
        def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
            return {"launcher": "running", "worker-1": "pending"}

    provide(monkeypatch, "local", Half())
    made = cluster(provider="local", phase=Phase.CREATING)
    open_store().save(replace(made, nodes=()))
    assert call("doctor", "-c", "lab").out.splitlines()[::2] == [
        "launcher: running; its address is not on record yet, so SSH was not tried",
        "worker-1: pending",
    ]
    closed = node("launcher", "127.0.0.1", ssh_port=1)
    open_store().save(replace(made, nodes=(closed,)))
    [line] = call("doctor", "-c", "lab").out.splitlines()
    assert line.startswith("launcher: machine runs, SSH does not answer: ")


def test_no_node_has_more_time_to_answer_than_is_left(tmp_path: Path) -> None:
    """The connection and what is asked over it share it."""
    given: list[float] = []

    class Nodes(Pool):
        def find_transport(self, name: str) -> Transport:
            return Slow(name, given)

    nodes = [node("worker-1", "")]
    with Nodes(nodes, identity=None, known_hosts=tmp_path / "known_hosts") as pool:
        view = ask_nodes({"worker-1": CLOCK}, pool, Deadline(0.5))["worker-1"]
    assert len(given) == 2
    assert sum(given) <= 0.5
    assert (view.name, view.error) == ("worker-1", "")
    assert abs(view.offset) <= view.uncertainty


@pytest.mark.parametrize(
    ("script", "late", "code"),
    [
        (f"{CLOCK}echo rank 1\necho exit 1 3 5 1\nsleep 600", False, 3),  # what it has counts
        ("sleep 600", True, None),
        ("exit 1", False, None),  # no answer is not the same as none in time
    ],
)
def test_what_a_node_has_said_when_the_time_is_up(
    tmp_path: Path, script: str, late: bool, code: int | None
) -> None:
    nodes = [node("worker-1", "")]
    with Pool(nodes, identity=None, known_hosts=tmp_path / "known_hosts") as pool:
        view = ask_nodes({"worker-1": script}, pool, Deadline(1.0))["worker-1"]
    assert (view.late, view.listed, bool(view.error)) == (late, False, code is None)
    assert [rank.exit_code for rank in view.ranks.values()] == [code] * (code is not None)


def test_what_a_job_has_left_counts_before_nodes_that_are_late() -> None:
    """On a busy machine no time is left to look at more than that."""
    quick = NodeView("worker-2", clock=START)
    quick.ranks = view("worker-2", *failed(1, START + 9, f"{SHORT}KeyError: 'lr'\n")).ranks
    late = NodeView("worker-1", error="did not end within 5 s", late=True)
    found = findings.note_missed(seen(quick, late), "list", ["worker-2"])
    assert [(f.kind, f.serious) for f in causes.judge(found)] == [
        ("error", True),
        ("unreachable", True),
        ("time", False),
    ]


def test_ranks_on_a_node_that_had_no_time_to_list_processes_are_not_gone() -> None:
    found = two_ranks(reduces(), sleeps())
    found.nodes["worker-2"].listed, found.ranks[1].processes = False, ()
    found.ranks[1].stack = None
    found = findings.note_missed(found, "list", ["worker-2"])
    assert kinds(causes.judge(found)) == ["time"]
    assert "worker-2" in causes.judge(found)[0].text
    assert "nothing is wrong" not in causes.summarize(found, causes.judge(found))


def test_what_the_kernel_says_where_there_was_no_time_for_stacks() -> None:
    found = two_ranks(reduces(), sleeps())
    found.ranks[0].stack = found.ranks[1].stack = None
    [finding] = causes.judge(findings.note_missed(found, "stacks", ["worker-1", "worker-2"]))
    assert (finding.kind, finding.lines) == ("time", ("rank 1 is sleeping",))


def test_output_that_is_stored_here_counts_for_nodes_that_do_not_answer() -> None:
    late = NodeView("worker-2", error="did not end within 5 s", late=True)
    stored = view("worker-2", *failed(1, START + 9, f"{SHORT}KeyError: 'lr'\n"))
    found = findings.fill_in(seen(view("worker-1"), late), seen(stored))
    assert kinds(causes.judge(found)) == ["error", "unreachable"]


# ------------------------------------------------------------------------------------------------
# What looks at waiting ranks once more, on a node of its own: real processes, and a py-spy that
# finds the same of all.


SPY = """#!/bin/sh
echo '[{"pid": 1, "os_thread_id": 1, "frames": [{"name": "f", "filename": "a.py", "line": 1}]}]'
"""


@rows("kinds, looked", "doctor_machines.which_ranks_are_looked_at_again")
def test_which_ranks_are_looked_at_again(
    tmp_path: Path, kinds: tuple[str, ...], looked: tuple[int, ...]
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(SPY)
    spy.chmod(0o700)
    sleepers = [subprocess.Popen(["sleep", "300"]) for _ in kinds]
    ranks = [(p.pid, kind) for p, kind in zip(sleepers, kinds, strict=True)]
    try:
        waits = [Path(f"/proc/{pid}/wchan") for pid, _ in ranks]
        until(lambda: all("nanosleep" in path.read_text() for path in waits))
        facts = stacks.show_moves(
            str(tmp_path / "jobs" / "7"), ranks, False, 1, limit=60, python_folder=str(tmp_path)
        )
        said = [" ".join(map(str, fact)) for fact in facts]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
    found = node_views.read_spied("\n".join(said))
    looks = [len(found[p.pid].looks) if p.pid in found else 0 for p in sleepers]
    assert looks == [2 if number in looked else 0 for number in range(len(kinds))]


# ------------------------------------------------------------------------------------------------
# What a rank waits for, by the function of the kernel that it is in: their names change from one
# version to the next.


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (name, what)
        for what, names in read_rows("doctor_machines", "functions").items()
        for name in names.split()
    ],
)
def test_functions_of_linux_4_to_6(function: str, what: str) -> None:
    found = explain_kernel(function)
    assert found
    assert found.text.removeprefix("waiting for ") == what


@pytest.mark.parametrize("function", ["", "0", "do_exit", "do_wait_intr_irq", "msleep", "my_wait"])
def test_functions_that_say_nothing(function: str) -> None:
    assert explain_kernel(function) is None
