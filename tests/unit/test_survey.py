"""What is asked of a queue on the login node, and handed in there, with commands that are fakes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.agent import messages, queues, scripts
from clusterctl.batch import queue
from clusterctl.batch.system import load_system
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Role
from tests.unit.making import cluster, node
from tests.unit.scripts import place_agent, write_agent
from tests.unit.tables import rows
from tests.unit.test_batch import batch_job

SQUEUE = """#!/bin/sh
echo asked >>"$FAKE/asked"
[ ! -e "$FAKE/down" ] || { echo 'Unable to contact slurm controller' >&2; exit 1; }
cat "$FAKE/queue"
"""
SCONTROL = """#!/bin/sh
[ ! -e "$FAKE/deaf" ] || { echo 'Unable to contact slurm controller' >&2; exit 1; }
grep "^JobId=$4 " "$FAKE/known" && exit
echo 'slurm_load_jobs error: Invalid job id specified' >&2
exit 1
"""


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A login node's folder with three jobs, and commands that act on files."""
    fake = tmp_path / "fake"
    fake.mkdir()
    put(fake, squeue=SQUEUE, scontrol=SCONTROL)
    root = tmp_path / "two words"
    root.mkdir()
    place_agent(root)
    for name, value in (("PATH", f"{fake}:/usr/bin:/bin"), ("FAKE", str(fake))):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(root)
    for number in (1, 2, 3):
        folder = root / "jobs" / str(number)
        folder.mkdir(parents=True)
        (folder / "native").write_text(f"{number}0;cluster\n")
        (folder / "state").write_text("queued 100\n")
        for path in folder.iterdir():
            _age(path, 60)
    (fake / "queue").write_text("10|PENDING|Priority\n30|RUNNING|None\n")
    (fake / "known").write_text(
        "JobId=20 JobName=x JobState=OUT_OF_MEMORY Reason=None ExitCode=0:125\n"
    )
    return root


def put(folder: Path, **programs: str) -> None:
    """Programs of these names, from their texts."""
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def _age(path: Path, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(path, (when, when))


def survey(root: Path, numbers: Sequence[int] = (1, 2, 3)) -> dict[int, Job]:
    text = answer(root, numbers)
    scheduler = load_system("slurm")
    jobs = (replace(batch_job("slurm"), id=number, native_id="") for number in numbers)
    return {one.id: scheduler.parse_status(one, text) for one in jobs}


def answer(root: Path, numbers: Sequence[int] = (1, 2, 3)) -> str:
    return "".join(f"{line}\n" for line in queues.survey(".", "slurm", *map(str, numbers)))


def test_whoever_asks_finds_an_agent(login: Path) -> None:
    """Also one that another clusterctl has put there."""
    where = cluster(node("login", root=str(login), role=Role.LOGIN), provider="slurm")
    one = replace(batch_job("slurm"), id=3)
    [command] = load_system("slurm").status_commands([one], where)
    agents = (login / "agent").resolve()
    (login / "agent").unlink()
    (login / "agent").mkdir()
    [found] = agents.iterdir()
    (login / "agent" / "older").symlink_to(found)
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, cwd="/")
    assert (done.stdout, done.stderr) == (answer(login, [3]), "")


def test_one_question_for_all_jobs_and_everybody(login: Path) -> None:
    for _ in range(3):
        found = survey(login)
        assert [found[n].state for n in (1, 2, 3)] == [
            JobState.QUEUED,
            JobState.FAILED,
            JobState.QUEUED,
        ]
    assert found[1].reason == "Priority"
    assert "OUT_OF_MEMORY" in found[2].reason
    assert (login.parent / "fake" / "asked").read_text() == "asked\n"
    _age(login / "queue", 6)
    survey(login)
    assert (login.parent / "fake" / "asked").read_text() == "asked\nasked\n"


def test_accounting_knows_what_the_controller_has_forgotten(login: Path) -> None:
    fake = login.parent / "fake"
    (fake / "known").write_text("")
    assert survey(login)[2].state is JobState.LOST
    asked = '[ "$*" = "-X -n -P -o State,ExitCode,Reason -j 20" ] || exit 1'
    put(fake, sacct=f"#!/bin/sh\n{asked}\necho 'CANCELLED by 1000|0:15|None'\n")
    assert survey(login)[2].state is JobState.CANCELLED


def test_the_secrets_of_a_job_that_is_gone_go_too(login: Path) -> None:
    for number in (1, 2, 3):
        (login / "jobs" / str(number) / "env").write_text("MY_TOKEN=x\n")
    survey(login)
    assert [path.parent.name for path in sorted(login.glob("jobs/*/env"))] == ["1", "3"]


def test_many_jobs_take_one_question(login: Path) -> None:
    many = range(1, 201)
    for number in many[3:]:
        shutil.copytree(login / "jobs" / "3", login / "jobs" / str(number))
        (login / "jobs" / str(number) / "native").write_text(f"{number}0\n")
    fake = login.parent / "fake"
    (fake / "queue").write_text("".join(f"{number}0|RUNNING|None\n" for number in many))
    (login / "jobs" / "3" / "state").write_text("queued 100\nrunning 101 1")
    found = survey(login, many)
    assert {one.state for one in found.values()} == {JobState.QUEUED, JobState.RUNNING}
    assert (fake / "asked").read_text() == "asked\n"


def test_a_queue_that_does_not_answer_ends_no_job(login: Path) -> None:
    (login.parent / "fake" / "down").touch()
    assert {one.state for one in survey(login).values()} == {JobState.QUEUED}


def test_an_old_answer_says_nothing_of_a_newer_job(login: Path) -> None:
    survey(login)
    (login / "jobs" / "2" / "state").write_text("queued 100\nrunning 200 1\n")
    _age(login / "queue.asked", 2)
    assert survey(login)[2].state is JobState.RUNNING


@rows("ago, said", "survey.a_silent_queue_is_told_and_asked_once")
def test_a_silent_queue_is_told_and_asked_once(login: Path, ago: int | None, said: str) -> None:
    if ago:
        survey(login)
        _age(login / "queue", ago)
        (login.parent / "fake" / "asked").unlink()
    (login.parent / "fake" / "down").touch()
    (login / "jobs" / "3" / "state").write_text("queued 100\nrunning 101 1\n")
    for _ in range(2):
        assert survey(login)[3].state is JobState.RUNNING
    assert (login.parent / "fake" / "asked").read_text() == "asked\n"
    text = answer(login)
    why = "(Unable to contact slurm controller)"
    assert re.sub("4[0-9] s", "40 s", load_system("slurm").describe_silence(text)) == (
        f"the queue does not answer {why}: {said}"
    )
    (login.parent / "fake" / "down").unlink()
    _age(login / "queue.silent", 10)
    assert load_system("slurm").describe_silence(answer(login)) == ""


def test_who_follows_jobs_shares_an_older_answer(
    login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a note of the job is newer than the answer, which then says nothing of it."""
    asked = login.parent / "fake" / "asked"
    survey(login)
    for name in ("queue", "queue.asked"):
        _age(login / name, 40)
    monkeypatch.setenv(queues.QUEUE_AGE, "50")
    assert survey(login)[1].reason == "Priority"
    assert asked.read_text() == "asked\n"
    (login / "jobs" / "1" / "state").write_text("queued 101\n")
    survey(login)
    assert asked.read_text() == "asked\n" * 2
    for name in ("queue", "queue.asked"):
        _age(login / name, 40)
    _age(login / "jobs" / "1" / "state", 60)
    monkeypatch.delenv(queues.QUEUE_AGE)
    survey(login)
    assert asked.read_text() == "asked\n" * 3


def test_the_parts_of_a_script_are_asked_for_when_its_row_has_changed(login: Path) -> None:
    """Of a thousand jobs that wait, none is asked for one by one."""
    fake, folder = login.parent / "fake", login / "jobs" / "1"
    put(fake, scontrol=f'#!/bin/sh\necho "$4" >>"$FAKE/parts"\n{SCONTROL[10:]}')
    (folder / messages.OWN).write_text("{}")
    (folder / scripts.PARTS).write_text("{}")
    row = "JobId=10 JobState={} StdOut=/dev/null StartTime=Unknown ExitCode=0:0 BatchHost=c1\n"
    (fake / "known").write_text(row.format("RUNNING"))
    for state, times in (("PENDING", 0), ("RUNNING", 1), ("RUNNING", 1), ("SUSPENDED", 2)):
        (fake / "queue").write_text(f"10|{state}|None\n")
        (login / "queue").unlink(missing_ok=True)
        survey(login, [1])
        _age(folder / "state", 60)
        parts = fake / "parts"
        assert (parts.read_text() if parts.exists() else "") == "10\n" * times, state


def test_a_thousand_jobs_read_their_survey_once(login: Path) -> None:
    class Text(str):
        read = 0

        def splitlines(self, keepends: bool = False) -> list[str]:
            Text.read += 1
            return super().splitlines(keepends)

    text = Text(answer(login))
    for number in (1, 2, 3):
        load_system("slurm").parse_status(replace(batch_job("slurm"), id=number), text)
    assert Text.read == 1


SBATCH = """#!/bin/sh
echo asked >>"$FAKE/submits"
if [ -e "$FAKE/refused" ]; then
    rm "$FAKE/refused"
    echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2
    exit 1
fi
[ ! -e "$FAKE/wrong" ] || { echo 'sbatch: error: invalid partition specified: x' >&2; exit 1; }
[ ! -e "$FAKE/hangs" ] || sleep 60
[ ! -e "$FAKE/cancels" ] || echo cancelled >stop
echo '77;cluster'
"""


SCANCEL = '#!/bin/sh\necho "$@" >"$FAKE/ended"\n'


def submit(
    login: Path, *behaviours: str, job: Job | None = None
) -> subprocess.CompletedProcess[str]:
    fake = login.parent / "fake"
    put(fake, sbatch=SBATCH, scancel=SCANCEL)
    for name in behaviours:
        (fake / name).touch()
    folder = login / "jobs" / "1"
    (folder / "native").unlink()
    write_agent(folder)
    return subprocess.run(
        load_system("slurm").submit_argv(replace(job or batch_job("slurm"), id=1)),
        cwd=folder,
        env={"PATH": f"{fake}:/usr/bin:/bin", "FAKE": str(fake), "HOME": str(login.parent)},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_a_queue_that_is_down_for_a_moment_gets_the_job(login: Path) -> None:
    done = submit(login, "refused")
    assert (done.returncode, done.stderr) == (0, "")
    assert "@@job 1 77\n" in done.stdout
    assert (login.parent / "fake" / "submits").read_text() == "asked\n" * 2


def test_a_queue_that_hangs_is_given_up_in_time(
    login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "HAND_IN", 1)
    done = submit(login, "hangs")
    assert done.returncode != 0
    assert "no answer from the queue in 1 s" in done.stderr
    assert queue.make_job_name(batch_job("slurm").spec, 1) in done.stderr
    assert not (login / "jobs" / "1" / "native").exists()


def test_what_the_queue_refuses_is_not_handed_in_again(login: Path) -> None:
    done = submit(login, "wrong")
    assert done.returncode != 0
    assert done.stderr == "sbatch: error: invalid partition specified: x\n"
    assert (login.parent / "fake" / "submits").read_text() == "asked\n"


def test_a_job_that_was_cancelled_while_it_was_handed_in_is_ended(login: Path) -> None:
    assert submit(login, "cancels").returncode == 0
    assert (login.parent / "fake" / "ended").read_text() == "77\n"


@rows("facts, ended", "survey.a_cancelled_job_is_taken_from_the_queue_unless_its_script_runs")
def test_a_cancelled_job_is_taken_from_the_queue_unless_its_script_runs(
    login: Path, facts: str, ended: bool
) -> None:
    """A script that runs ends its ranks itself, which leaves them time to save."""
    fake, folder = login.parent / "fake", login / "jobs" / "1"
    put(fake, scancel=SCANCEL)
    (folder / "state").write_text(facts)
    subprocess.run(
        load_system("slurm").cancel_argv(replace(batch_job("slurm"), id=1)),
        cwd=folder,
        env={"PATH": f"{fake}:/usr/bin:/bin", "FAKE": str(fake)},
        check=True,
    )
    assert (folder / "stop").read_text() == "cancelled\n"
    assert (fake / "ended").exists() == ended


def test_what_came_while_the_queue_answered_is_not_gone(login: Path) -> None:
    """Its submit was slow: `state` is older than the answer, the number is not."""
    (login / "jobs" / "2" / "native").write_text("20\n")
    survey(login)
    _age(login / "queue.asked", 2)
    assert survey(login)[2].state is JobState.QUEUED


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_job_that_the_controller_still_has_is_not_gone(login: Path, state: str) -> None:
    fake = login.parent / "fake"
    (fake / "known").write_text(f"JobId=20 JobName=x JobState={state} Reason=None ExitCode=0:0\n")
    assert survey(login)[2].state is JobState.QUEUED


def test_a_controller_that_falls_silent_ends_no_job(login: Path) -> None:
    (login.parent / "fake" / "deaf").touch()
    assert survey(login)[2].state is JobState.QUEUED
    assert (login / "jobs" / "2" / "state").is_file()


def test_a_job_that_was_never_handed_in_is_lost(login: Path) -> None:
    """Whether its client died before there was a folder, before the submit, or in it."""
    jobs = login / "jobs"
    shutil.rmtree(jobs / "1")
    for number in (2, 3):
        (jobs / str(number) / "native").unlink()
        (jobs / str(number) / "env").write_text("MY_TOKEN=x\n")
    (jobs / "3" / "state").unlink()
    _age(jobs / "3", 25)
    found = survey(login)
    assert found[1].state is JobState.LOST
    assert (
        found[1].reason == "its clusterctl ended, or lost its connection, before it was submitted"
    )
    assert found[1].finished is not None
    # These two may still come: the submit outlives its client.
    assert (found[2].state, found[3].state) == (JobState.QUEUED, JobState.QUEUED)
    _age(jobs / "2" / "state", queues.HAND_IN + 31)
    _age(jobs / "3", 31)
    found = survey(login)
    assert {found[number].state for number in (1, 2, 3)} == {JobState.LOST}
    assert not list(jobs.glob("*/env"))
    assert not (jobs / "1").exists()


def test_a_job_that_was_given_up_before_it_was_handed_in_is_cancelled(login: Path) -> None:
    """Ctrl-C, twice: nobody was left who could write that into its record."""
    jobs = login / "jobs"
    (jobs / "2" / "native").unlink()
    (jobs / "2" / "stop").write_text("cancelled\n")
    (jobs / "2" / "env").write_text("MY_TOKEN=x\n")
    _age(jobs / "2" / "state", queues.HAND_IN + 31)
    found = survey(login)[2]
    assert (found.state, found.reason) == (JobState.CANCELLED, "")
    assert found.finished is not None
    assert not list(jobs.glob("*/env"))


def test_a_job_that_runs_before_its_number_is_known_is_not_lost(login: Path) -> None:
    (login / "jobs" / "2" / "native").unlink()
    (login / "jobs" / "2" / "state").write_text("queued 100\nrunning 200 1\n")
    _age(login / "jobs" / "2" / "state", 1000)
    assert survey(login)[2].state is JobState.RUNNING
