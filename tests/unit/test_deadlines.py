"""The deadline of a node: the file that says it, and the agent that keeps it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.actions import show
from clusterctl.actions.up_bootstrap import find_troubles
from clusterctl.model import Cluster, ClusterSpec, NodeGroup, Phase, clock
from clusterctl.providers.local.provider import LocalProvider
from clusterctl.providers.protocol import Features
from clusterctl.providers.shared import deadlines
from tests.unit.making import cluster
from tests.unit.provided import provide
from tests.unit.staged import lab

SPEC = ClusterSpec(name="lab", provider="docker", groups=(NodeGroup(count=1),))


def test_what_the_file_says() -> None:
    """A time, and five minutes of warning: less where the whole life is short."""
    assert deadlines.render_file(None) == ""
    assert deadlines.render_file(1000.9, 8 * 3600) == "1000\n300\n"
    assert deadlines.render_file(1000.0, 600) == "1000\n60\n"
    assert deadlines.render_file(1100.0, clock=lambda: 1000.0) == "1100\n10\n"


def test_the_one_that_is_armed_stays() -> None:
    now = 1.7e9

    def asked(spec: ClusterSpec, current: Cluster | None) -> float | None:
        return deadlines.choose_deadline(spec, current, clock=lambda: now)

    cluster = Cluster(id="lab-1", spec=SPEC, phase=Phase.READY, created=now, deadline=now + 50)
    wish = replace(SPEC, ttl=1000.0)
    assert asked(SPEC, None) is None
    assert asked(SPEC, cluster) == now + 50
    assert asked(wish, cluster) == now + 50
    # One that is over, even just now, is no deadline.
    assert asked(wish, replace(cluster, deadline=now)) == now + 1000
    assert asked(wish, replace(cluster, deadline=now - 1)) == now + 1000


def test_no_node_ends_before_the_record_says() -> None:
    """Nodes keep whole seconds."""
    end = deadlines.choose_deadline(replace(SPEC, ttl=30.0), None, clock=lambda: 1000.75)
    assert deadlines.parse_answer(deadlines.render_file(end, 30.0).splitlines()) == (end, True)


def test_an_agent_ends_its_own_node() -> None:
    script = deadlines.render_agent(root="/home/it's me", end="power it off")
    assert f"file={deadlines.FILE}\n" in script
    assert "root='/home/it'\"'\"'s me'\n" in script
    assert "    power it off\n" in script
    assert "spot" not in script
    assert "spot/instance-action" in deadlines.render_agent(root="/r", end=":", spot=True)


Agent = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Starts the agent of a node with one job; what it does ends up in `tmp_path`/story."""
    monkeypatch.setattr(deadlines, "FILE", str(tmp_path / "deadline"))
    story = tmp_path / "story"
    script = tmp_path / "root" / "jobs" / "1" / "processes.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f'echo "$@" >>{story}\n')
    script = deadlines.render_agent(root=str(tmp_path / "root"), end=f"echo end >>{story}; exit 0")
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sh", "-c", script], start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_it_warns_and_then_ends(agent: Agent, tmp_path: Path) -> None:
    at = int(time.time()) + 12  # a machine that stands still for ten seconds would end unwarned
    (tmp_path / "deadline").write_text(f"{at}\n10\n")
    assert agent().wait(60) == 0
    assert time.time() >= at
    assert (tmp_path / "story").read_text() == "ask 8\nend\n"
    assert (tmp_path / "root" / "ending").read_text() == "deadline\n"


def test_it_follows_the_file(agent: Agent, tmp_path: Path) -> None:
    """Which may be half-written, or without the seconds that it warns ahead."""
    file, story = tmp_path / "deadline", tmp_path / "story"
    file.write_text("17x\n")
    process = agent()
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    file.write_text(f"{int(time.time()) + 200}\n")
    until = time.monotonic() + 60
    while not story.exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    file.write_text("17\n")
    assert process.wait(60) == 0
    assert story.read_text() == "ask 240\nend\n"


class Running(LocalProvider):
    """Its nodes run, whatever the processes of this machine are."""

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return {node.name: "running" for node in cluster.nodes}


def test_a_live_status_names_nodes_whose_agent_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = lab(tmp_path / "nodes")
    name = f"agent-{os.getpid()}.sh"
    monkeypatch.setattr(deadlines, "AGENT", name)
    monkeypatch.setattr(deadlines, "FILE", str(tmp_path / "deadline"))
    provide(monkeypatch, "local", Running())
    (tmp_path / name).write_text("read line\n")

    def told() -> show.ClusterStatus:
        return show.status(where.store, where.where, live=True)

    assert told().warnings == (), "they have no deadline"
    (tmp_path / "deadline").write_text("1700000000\n300\n")
    with subprocess.Popen(["/bin/sh", tmp_path / name], stdin=subprocess.PIPE):
        kept = told()
    assert [node.deadline for node in kept.nodes] == [1.7e9] * 3
    assert kept.warnings == ()
    [said] = told().warnings
    assert said == (
        "the deadline agent on launcher,worker-[1-2] has died, and the deadline ends nothing"
        " there: `clusterctl down lab` removes the cluster"
    )


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["1700000000", "300"], (1.7e9, True)),
        (["1700000000", "300", "dead"], (1.7e9, False)),
        (["1700000000"], (1.7e9, True)),  # a full disk has cut it off
        (["", "300"], (None, True)),
        ([], (None, True)),
    ],
)
def test_what_a_node_keeps_as_its_deadline(
    lines: list[str], answer: tuple[float | None, bool]
) -> None:
    assert deadlines.parse_answer(lines) == answer


def test_a_node_that_an_extend_did_not_reach_is_named() -> None:
    """It was killed when it had told some of them: the record has the later end."""
    made = cluster(deadline=2000.0)
    assert deadlines.describe_difference(made, {"launcher": 2000.0, "worker-1": 2000.0}) == ""
    said = deadlines.describe_difference(made, {"launcher": 2000.0, "worker-1": 1000.0})
    assert said.startswith(f"worker-1 ends at {clock(1000.0)}, and the record says {clock(2000.0)}")
    assert "`clusterctl extend lab --ttl …` sets it everywhere" in said
    assert deadlines.describe_difference(cluster(), {"worker-1": 1000.0}) == ""


def test_up_names_nodes_that_keep_another_deadline_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a machine image does that was made from a node, or that keeps no files of user data."""
    staged = lab(tmp_path / "nodes")
    monkeypatch.setattr(deadlines, "FILE", str(tmp_path / "deadline"))

    def troubles(deadline: float | None) -> tuple[str, ...]:
        made = replace(staged.where, deadline=deadline)
        with staged.pool() as pool:
            features = Features(fresh_machines=True)
            return find_troubles(pool, made, made.nodes, made.nodes, features)

    [none] = troubles(2000.0)
    assert none.startswith("launcher,worker-[1-2] does not know its deadline")
    assert "`clusterctl extend lab --ttl …` sets it everywhere" in none
    (tmp_path / "deadline").write_text("1000\n300\n")
    [other] = troubles(2000.0)
    assert other.startswith(f"launcher,worker-[1-2] end at {clock(1000.0)}, and the record says")
    assert troubles(1000.0) == troubles(None) == ()
