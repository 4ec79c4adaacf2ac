"""A batch system whose controller does not answer, while its commands are there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from clusterctl.actions import down
from clusterctl.actions.common import Unfetched, open_store
from clusterctl.core.job import JobState
from tests.unit import batch_here
from tests.unit.batch_here import Queue
from tests.unit.calling import Call
from tests.unit.scripts import write_program
from tests.unit.tables import read_rows

SILENCE = read_rows("silent_queue", "silence")


@pytest.fixture(params=["slurm", "sge"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    return batch_here.install(request.param, tmp_path / "queue", monkeypatch)


def attach(queue: Queue, call: Call, tmp_path: Path) -> tuple[int, str]:
    said = call("attach", "lab", f"--{queue.system}", "--workdir", str(tmp_path / "work"))
    return said.code, said.err


def test_a_batch_system_that_does_not_answer_is_not_attached(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    queue.break_down(*SILENCE[queue.system])
    code, said = attach(queue, call, tmp_path)
    assert code == 5
    title, command = {"slurm": ("Slurm", "sinfo"), "sge": ("Grid Engine", "qstat")}[queue.system]
    assert f"{title} on this machine does not answer: {SILENCE[queue.system][-1]}" in said
    assert f"`{command}` must work there" in said
    assert "is ready" not in said
    assert call("list", "--json").document["clusters"] == []


def test_a_cluster_stays_on_record_when_it_is_attached_again_in_vain(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    assert attach(queue, call, tmp_path)[0] == 0
    queue.break_down(*SILENCE[queue.system])
    assert attach(queue, call, tmp_path)[0] == 5
    [row] = call("list", "--json").document["clusters"]
    assert row["cluster"] == "lab"


def test_status_says_in_one_line_why_the_queue_does_not_answer(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    """Which is no fault of the login node."""
    assert attach(queue, call, tmp_path)[0] == 0
    complaints = SILENCE[queue.system]
    queue.break_down(*complaints)
    said = call("status", "lab", "--live", "--json")
    title = {"slurm": "Slurm", "sge": "Grid Engine"}[queue.system]
    assert said.document["warnings"] == [f"{title} does not answer: {complaints[-1]}"]
    assert (said.code, said.document["nodes"][0]["live"]) == (4, "answers")


def test_status_waits_for_the_queue_no_longer_than_for_the_login_node(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    """Commands of Slurm try for minutes."""
    assert attach(queue, call, tmp_path)[0] == 0
    write_program(queue.folder / "bin" / "timeout", '[ "$1" -lt 30 ] && exit 124')
    said = call("status", "lab", "--live")
    assert (said.code, "does not answer: no answer in 20 s" in said.out) == (4, True)


def test_a_job_that_the_queue_could_not_take_is_not_blamed_on_its_options(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    assert attach(queue, call, tmp_path)[0] == 0
    queue.break_down(*SILENCE[queue.system])
    said = call("run", "train.py")
    assert said.code == 6
    assert "the queue does not answer; `clusterctl status lab --live`" in said.err
    assert "options" not in said.err


@pytest.mark.parametrize("program", ["train.py", "job.sh"])
def test_no_job_counts_as_cancelled_while_the_queue_does_not_answer(
    program: str, queue: Queue, call: Call, tmp_path: Path
) -> None:
    """It may run, and cost. What is left of the attempt does not say either that it was."""
    assert attach(queue, call, tmp_path)[0] == 0
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH -n1\n#$ -cwd\n")
    [work] = (tmp_path / "work").glob("lab-*")
    assert call("run", "--detach", program).code == 0
    queue.break_down(*SILENCE[queue.system])
    said = call("cancel", "1")
    assert said.code == 4
    assert (
        f"could not be cancelled: login: the queue does not answer: {SILENCE[queue.system][-1]}"
        in (said.err)
    )
    assert open_store().read_job(1).state is JobState.QUEUED
    assert (work / "jobs" / "1" / "stop").exists() == (program == "train.py")
    said = call("detach", "--discard", "lab")
    assert (said.code, "job 1 may still be running; keeping cluster lab" in said.err) == (4, True)
    assert call("run", "train.py").code == 6
    assert "had already ended: failed" in call("cancel", "2").out  # the queue is not asked


def test_a_job_that_the_queue_refuses_is_blamed_on_its_options(
    queue: Queue, call: Call, tmp_path: Path
) -> None:
    assert attach(queue, call, tmp_path)[0] == 0
    queue.break_down("invalid partition specified: nowhere")
    said = call("run", "train.py")
    assert said.code == 6
    assert "check the options of the job; `clusterctl status lab --live`" in said.err


# ------------------------------------------------------------------------------------------------
# `run --interactive`: a terminal on the nodes of a batch system, which fakes stand for.


SIZE = {"slurm": ["--nodes", "1", "--partition", "gpu"], "sge": ["-pe", "mpi", "2"]}
PROGRAM = {"slurm": "salloc", "sge": "qrsh"}


@pytest.fixture(params=["slurm", "sge"])
def attached(
    request: pytest.FixtureRequest, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Queue:
    made = batch_here.install(request.param, tmp_path / "attached", monkeypatch)
    attached = call("attach", f"--{request.param}", "--workdir", str(tmp_path / "work"))
    assert attached.code == 0, attached
    made.forget()
    return made


def test_a_dry_run_asks_for_no_nodes(attached: Queue, call: Call) -> None:
    """It prints the command that the same line runs without it."""
    words = ["run", "--interactive", *SIZE[attached.system]]
    command = ("--", "hostname", "-f")
    said = call(*words, "--dry-run", *command)
    assert said.code == 0, said
    assert attached.calls() == []
    document = call(*words, "--dry-run", "--json", *command).document
    assert f"cd {shlex.quote(document['folder'])} && {shlex.join(document['argv'])}\n" in said.out
    assert attached.calls() == []
    assert call(*words, *command).code == 0
    assert attached.calls()[-1].split() == document["argv"]
    assert document["argv"][0] == PROGRAM[attached.system]
    assert document["argv"][-2:] == ["hostname", "-f"]


# ------------------------------------------------------------------------------------------------
# How two ranks are asked for, in the words of each batch system.


@pytest.mark.parametrize(("system", "size"), [("slurm", "--nodes 2"), ("sge", "-pe NAME 2")])
def test_attach_and_verify_ask_for_two_ranks_in_the_words_of_the_batch_system(
    system: str, size: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_here.install(system, tmp_path / "queue", monkeypatch)
    attached = call("attach", "lab", f"--{system}", "--workdir", str(tmp_path / "work"))
    assert f"clusterctl run -c lab {size} reduce_all.py" in attached.err
    refused = call("verify", "lab")
    assert refused.code == 2
    assert f"clusterctl run {size} reduce_all.py" in refused.err


# ------------------------------------------------------------------------------------------------
# What is asked before a cluster with a job goes, on a batch system that fakes stand for.


@pytest.mark.parametrize("system", ["slurm", "sge"])
def test_a_job_that_has_not_ended_is_not_ended_unasked(
    system: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = batch_here.install(system, tmp_path / "queue", monkeypatch)
    assert call("attach", "lab", f"--{system}", "--workdir", str(tmp_path / "work")).code == 0
    assert call("run", "--detach", "train.py").code == 0
    queue.forget()
    store, asked = open_store(), list[str]()

    def no(question: str) -> bool:
        asked.append(question)
        return False

    asks = Unfetched(ask=no)
    assert down.take_down(store, "lab", lambda line: None, no, asks, verb="detach") is None
    [question] = asked
    assert "job 1 is still running" in question
    assert [line for line in queue.calls() if line.startswith(("scancel", "qdel"))] == []
    assert store.read_job(1).state is JobState.QUEUED
    assert store.list_names() == ("lab",)
    assert list((tmp_path / "work").glob("lab-*/jobs/1/job.sh"))
