"""The deadline of a node: the file that says it, and the agent that keeps it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions import status
from clusterctl.actions.up import find_troubles
from clusterctl.core.model import Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.core.text import format_time
from clusterctl.machines import deadlines
from clusterctl.machines.protocol import Features
from tests.unit.making import cluster
from tests.unit.provided import Running, provide
from tests.unit.scripts import until, write_program
from tests.unit.staged import lab

SPEC = ClusterSpec(name="lab", provider="docker", groups=(NodeGroup(count=1),))


def test_what_the_file_says() -> None:
    """A time, and five minutes of warning: less where the whole life is short."""
    assert deadlines.render_file(None) == ""
    assert deadlines.render_file(1000.9, 8 * 3600) == "1000\n300\n"
    assert deadlines.render_file(1000.0, 600) == "1000\n60\n"
    assert deadlines.render_file(1100.0, clock=lambda: 1000.0) == "1100\n10\n"
    assert format_time(1000.0) in "".join(deadlines.describe_deadline(1000.0))
    assert deadlines.describe_deadline(None) == ()


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
    assert "for root in '/home/it'\"'\"'s me'; do\n" in script
    assert "    power it off\n" in script
    assert "spot" not in script
    assert "imds" not in script
    on_spot = deadlines.render_agent(root="/r", end=":", spot=True)
    assert "spot/instance-action" in on_spot
    assert "\nimds=" in on_spot


@dataclass
class Agent:
    """The agent of a node with one job, by a clock that the test sets. What it does ends up in
    `story`."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def story(self) -> str:
        file = self.folder / "story"
        return file.read_text() if file.exists() else ""

    def show(self, seconds: int) -> None:
        """What the clock shows from now on."""
        (self.folder / "new").write_text(f"{seconds}\n")
        (self.folder / "new").replace(self.folder / "clock")

    def say(self, text: str) -> None:
        """What the file of the deadline says from now on."""
        (self.folder / "new").write_text(text)
        (self.folder / "new").replace(self.folder / "deadline")

    def start(self) -> subprocess.Popen[bytes]:
        end = f"echo end >>{self.folder}/story; exit 0"
        script = deadlines.render_agent(
            root=str(self.folder / "root"), end=end, file=str(self.folder / "deadline")
        )
        env = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        self.process = subprocess.Popen(["sh", "-c", script], env=env, start_new_session=True)
        return self.process

    def settle(self) -> None:
        """Waits until the agent has acted on what clock and file say: it looks at the clock once in
        each turn, and the second turn from here begins when the first has ended."""
        looks = self.folder / "looks"
        wanted = 3 + (len(looks.read_text()) if looks.exists() else 0)
        until(lambda: looks.exists() and len(looks.read_text()) >= wanted)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(deadlines, "FILE", str(tmp_path / "deadline"))
    made = Agent(tmp_path)
    made.show(1_000_000)
    programs = {
        "bin/date": f"echo >>{tmp_path}/looks\nexec cat {tmp_path}/clock",
        "bin/sleep": f"exec {shutil.which('sleep')} 0.02",
        "root/jobs/1/agent.sh": f'echo "$@" >>{tmp_path}/story',
    }
    for name, text in programs.items():
        write_program(tmp_path / name, text)
    yield made
    if made.process:
        made.process.kill()
        made.process.wait()


def test_it_warns_and_then_ends(agent: Agent, tmp_path: Path) -> None:
    agent.say("1000012\n10\n")
    process = agent.start()
    agent.show(1_000_001)
    agent.settle()
    assert agent.story == ""
    agent.show(1_000_002)
    until(lambda: agent.story == "ask 8\n")
    assert (tmp_path / "root" / "ending").read_text() == "deadline\n"
    agent.show(1_000_011)
    agent.settle()
    assert agent.story == "ask 8\n"
    agent.show(1_000_012)
    assert process.wait(60) == 0
    assert agent.story == "ask 8\nend\n"


def test_it_follows_the_file(agent: Agent) -> None:
    """Which may be half-written, or without the seconds that it warns ahead."""
    agent.say("17x\n")
    process = agent.start()
    agent.settle()
    assert agent.story == ""
    agent.say("1000200\n")
    until(lambda: agent.story == "ask 240\n")
    agent.say("17\n")
    assert process.wait(60) == 0
    assert agent.story == "ask 240\nend\n"


def test_a_live_status_names_nodes_whose_agent_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = lab(tmp_path / "nodes")
    monkeypatch.setattr(deadlines, "FILE", str(tmp_path / "deadline"))
    name = f"agent-{os.getpid()}.sh"
    monkeypatch.setattr(deadlines, "AGENT", name)
    provide(monkeypatch, "local", Running())
    (tmp_path / name).write_text("read line\n")

    def told() -> status.ClusterStatus:
        return status.read_status(where.store, where.where, live=True)

    assert told().warnings == (), "they have no deadline"
    (tmp_path / "deadline").write_text("1700000000\n300\n")
    with subprocess.Popen(["/bin/sh", tmp_path / name], stdin=subprocess.PIPE):
        kept = told()
        late = replace(where.where, deadline=1.7e9 + 600)
        other = status.read_status(where.store, late, live=True).warnings
    assert any("and the record says" in line for line in other)
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
    assert deadlines.describe_difference(made, {"launcher": 2001.0, "worker-1": 1999.0}) == ""
    assert deadlines.describe_difference(made, {"worker-1": 1998.0}) != ""
    assert deadlines.describe_difference(made, {"worker-1": 2002.0}) != "", "it costs more"
    said = deadlines.describe_difference(made, {"launcher": 2000.0, "worker-1": 1000.0})
    assert said.startswith(
        f"the deadline of worker-1 is {format_time(1000.0)}, and the record says"
        f" {format_time(2000.0)}"
    )
    assert "`clusterctl extend lab --ttl …` sets it everywhere" in said
    assert deadlines.describe_difference(cluster(), {"worker-1": 1000.0}) == ""


def test_a_clock_that_differs_by_more_than_a_minute_is_named() -> None:
    assert deadlines.read_clock("memory 7\nclock 1700000000\ncores 2\n") == 1.7e9
    assert deadlines.read_clock("clock soon\n") is None
    now = 1.7e9
    shown = {"silent": None, "right": now + 60, "early": now - 7200, "late": now + 120}
    assert deadlines.describe_clocks(shown, now) == (
        "the clock of early is 2 h behind this machine's: the times of its jobs are wrong",
        "the clock of late is 2 min ahead of this machine's: the times of its jobs are wrong",
    )


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
    assert none.startswith("the deadline of launcher,worker-[1-2] is unknown")
    assert "`clusterctl extend lab --ttl …` sets it everywhere" in none
    (tmp_path / "deadline").write_text("1000\n300\n")
    [other] = troubles(2000.0)
    assert other.startswith(
        f"the deadline of launcher,worker-[1-2] is {format_time(1000.0)}, and the record"
    )
    assert troubles(1000.0) == troubles(None) == ()
