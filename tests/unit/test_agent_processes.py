"""How the processes of a job are told to end, in the agent's own words, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.agent.processes import Processes, list_living, list_programs
from clusterctl.agent.ranks import heed
from tests.e2e.cli import wait_for

TAG = f"CLUSTERCTL_JOB=test-{os.getpid()}/1;"

SAVES = (  # a shell that notes each SIGTERM, and ends a moment later
    'trap "echo TERM >>$0; sleep 0.2; exit 3" TERM; echo ready >>$0; while :; do sleep 0.05; done'
)
IGNORES = 'trap "echo TERM >>$0" TERM; echo ready >>$0; while :; do sleep 0.05; done'


class Ranks:
    """Programs of ranks, as their wrappers would have started them."""

    def __init__(self, job: Path) -> None:
        self.job = job
        self.processes = Processes(str(job), TAG)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, rank: int, *argv: str) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "CLUSTERCTL_JOB": TAG.partition("=")[2],
            "CLUSTERCTL_RANK": str(rank),
        }
        process = subprocess.Popen(argv, env=environ, start_new_session=True)
        self.started.append(process)
        (self.job / "out" / f"rank-{rank}.pid").write_text(f"{process.pid}\n")
        return process

    def shell(self, rank: int, script: str) -> subprocess.Popen[bytes]:
        said = self.job / f"said-{rank}"
        process = self.start(rank, "/bin/bash", "-c", script, str(said))
        wait_for(said.exists, 10, lambda: "the shell did not start")
        return process

    def said(self, rank: int) -> list[str]:
        return (self.job / f"said-{rank}").read_text().split()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    (tmp_path / "out").mkdir()
    (tmp_path / ".staged").touch()
    made = Ranks(tmp_path)
    yield made
    for pid in list_living(TAG):
        os.kill(pid, signal.SIGKILL)
    for process in made.started:
        process.wait()


def test_each_program_is_told_once(ranks: Ranks) -> None:
    first, second = ranks.shell(0, SAVES), ranks.shell(1, IGNORES)
    ranks.processes.tell()
    ranks.processes.tell()
    assert not ranks.processes.ask(1)
    assert first.wait() == 3
    assert ranks.said(0) == ranks.said(1) == ["ready", "TERM"]
    assert second.poll() is None
    ranks.processes.stop(0.1)
    assert second.wait() == -signal.SIGKILL


def test_one_rank_alone_is_told_and_killed(ranks: Ranks) -> None:
    first, second = ranks.shell(0, SAVES), ranks.shell(1, SAVES)
    ranks.processes.tell("1")
    assert second.wait() == 3
    ranks.processes.kill("0")
    assert first.wait() == -signal.SIGKILL
    assert ranks.said(0) == ["ready"]


CHILD = (
    "import os, signal, subprocess, sys, time\n"
    "def note(*_):\n"
    "    open(sys.argv[1], 'a').write(sys.argv[2] + '\\n')\n"
    "    if sys.argv[2] == 'child': sys.exit()\n"
    "signal.signal(signal.SIGTERM, note)\n"
    "if sys.argv[2] == 'parent':\n"
    "    child = subprocess.Popen([sys.executable, *sys.orig_argv[1:-1], 'child'])\n"
    "open(sys.argv[1], 'a').write('ready\\n')\n"
    "while True: time.sleep(0.05)\n"
)


def test_what_a_program_has_started_is_left_to_it_until_it_has_ended(ranks: Ranks) -> None:
    """torchrun passes SIGTERM on; a training that saves must not lose its DataLoader workers."""
    said = ranks.job / "said-0"
    parent = ranks.start(0, sys.executable, "-c", CHILD, str(said), "parent")
    wait_for(lambda: said.exists() and ranks.said(0).count("ready") == 2, 20, lambda: "no child")
    ranks.processes.tell()
    wait_for(lambda: "parent" in ranks.said(0), 10, lambda: "no SIGTERM")
    time.sleep(0.3)
    assert "child" not in ranks.said(0)
    parent.kill()
    parent.wait()
    assert ranks.processes.ask(10)
    assert ranks.said(0).count("child") == 1


def test_a_shell_is_told_before_what_it_waits_for(ranks: Ranks) -> None:
    ranks.shell(0, "echo ready >>$0; sleep 60; echo went-on >>$0")
    wait_for(lambda: len(list_programs(TAG)) == 2, 10, lambda: "no sleep")
    programs = list_programs(TAG)
    assert [program.due for program in programs] == [True, True]
    assert programs[0].pid == ranks.started[0].pid
    ranks.processes.tell()
    assert ranks.started[0].wait() == -signal.SIGTERM
    assert ranks.said(0) == ["ready"]


def test_the_end_leaves_nothing(ranks: Ranks) -> None:
    """Also what was stopped, ignores SIGTERM or bears no rank's number."""
    stopped = ranks.shell(0, SAVES)
    os.kill(stopped.pid, signal.SIGSTOP)
    ranks.shell(1, IGNORES)
    environ = {**os.environ, "CLUSTERCTL_JOB": TAG.partition("=")[2]}
    daemon = subprocess.Popen(["sleep", "60"], env=environ, start_new_session=True)
    ranks.started.append(daemon)
    wait_for(lambda: len(list_living(TAG)) >= 3, 10, lambda: "not there")
    ranks.processes.end(1)
    assert list_living(TAG) == []
    assert ("survivors", 0) in list(ranks.processes.look())


def test_it_tells_what_ranks_have_left(ranks: Ranks) -> None:
    out = ranks.job / "out"
    for name, text in {
        "rank-0.pid": "1\n",
        "rank-0.exit": "3 1700000000.25 2\n",
        "rank-0.oom": "2\n",
        "rank-1.alone": "123\n",
        "rank-1.exit": "",
        "rank-1.oom": "",
        "rank-2.alone": "123\n",
        "rank-2.met": "",
        "boot": "another\n",
    }.items():
        (out / name).write_text(text)
    facts = list(ranks.processes.look())
    assert set(facts) == {
        ("survivors", 0),
        ("node", "restarted"),
        ("oom", 0, 2),
        ("alone", 1, "123"),
        ("started", 0),
        ("exit", 0, 3, 1700000000.25, 2),
    }


@pytest.mark.parametrize(("newer", "told"), [(True, True), (False, False)])
def test_an_end_of_the_machine_counts_for_the_job_that_it_came_over(
    tmp_path: Path, newer: bool, told: bool
) -> None:
    job = tmp_path / "jobs" / "1"
    (job / "out").mkdir(parents=True)
    (job / ".staged").touch()
    (tmp_path / "ending").write_text("spot\n")
    os.utime(tmp_path / "ending", (2e9, 2e9) if newer else (1e9, 1e9))
    assert (("node", "spot") in list(Processes(str(job), TAG).look())) is told


def test_who_waits_for_word_ends_with_its_rank(tmp_path: Path) -> None:
    """Also where the rank has ended while Python was starting."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    heed(str(tmp_path), "X=1;", "0", 1, 1.0, gone.pid)
