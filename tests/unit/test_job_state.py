"""What became of a job, from the facts that its scripts have noted: one file per case."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from clusterctl.actions.run import explain_failure
from clusterctl.batch import verdict
from clusterctl.batch.direct import Direct
from clusterctl.batch.verdict import RankEnd, sort_failures
from clusterctl.core.job import Job, JobState
from tests.unit.making import job, spec
from tests.unit.tables import rows

CASES = sorted((Path(__file__).parents[1] / "cases" / "job_state").glob("*.json"))


def told(found: Job, names: list[str]) -> dict[str, Any]:
    """Those fields, as a case has them."""
    values = {**to_builtins(found), "state": found.state.value}
    values["placement"] = [[place.node, place.first, place.count] for place in found.placement]
    return {name: values[name] for name in names}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case(path: Path) -> None:
    case = json.loads(path.read_text())
    given = job(scheduler=case["scheduler"])
    text = "".join(f"{line}\n" for line in case["facts"])
    found = verdict.judge(given, text)
    assert told(found, list(case["verdict"])) == case["verdict"]
    # As it is followed, line by line, and as it is asked for, all at once; once or again.
    step = given
    for length in (at for at, letter in enumerate(text) if letter == "\n"):
        step = verdict.judge(step, text[:length])
    assert step == found
    assert verdict.judge(found, text) == found


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_a_full_disk_cuts_off_is_no_exception(path: Path) -> None:
    text = "\n".join(json.loads(path.read_text())["facts"])
    for length in range(len(text)):
        verdict.judge(job(), text[:length])


@rows("line", "job_state.a_line_that_means_nothing_changes_nothing")
def test_a_line_that_means_nothing_changes_nothing(line: str) -> None:
    before = verdict.judge(job(), "running 12 1\nfull 13 worker-1\ndead 14")
    text = f"running 12 1\n{line}\nfull 13 worker-1\ndead 14"
    assert verdict.judge(job(), text) == before


def test_a_job_that_is_back_in_the_queue_keeps_its_attempt() -> None:
    found = verdict.judge(job(), "running 12 1\nrunning 20 2\nqueued 30")
    assert (found.state, found.attempt, found.started) == (JobState.QUEUED, 2, 12.0)


def test_a_job_that_waits_says_for_which_others() -> None:
    for ahead, why in (("5", "behind job 5"), ("5,6", "behind jobs 5, 6"), ("", "")):
        found = verdict.judge(job(), f"queued 30 {ahead}")
        assert (found.state, found.reason) == (JobState.QUEUED, why)
        assert (why or "other jobs use the slots") in Direct().describe_wait(found)
    assert verdict.judge(found, "queued 30 5\nrunning 31 1").reason == ""


def test_an_attempt_without_a_number_is_the_first() -> None:
    found = verdict.judge(replace(job(), reason="waits for slots"), "running 12")
    assert (found.state, found.attempt, found.started) == (JobState.RUNNING, 1, 12.0)
    assert found.reason == ""


@rows("after, survivors", "job_state.what_is_left_of_an_ended_job_is_told_by_a_whole_file")
def test_what_is_left_of_an_ended_job_is_told_by_a_whole_file(
    after: str, survivors: dict[str, int]
) -> None:
    ended = replace(job(), state=JobState.FAILED, survivors={"worker-1": 1})
    expected = replace(ended, survivors=survivors)
    assert verdict.judge(ended, f"running 12 1\n{after}") == expected


def test_a_running_job_that_loses_its_folder_may_still_run() -> None:
    runs = replace(job(), state=JobState.RUNNING, started=12.0)
    assert verdict.judge(runs, "absent 40") == runs


def test_a_running_job_is_lost_with_its_folder_and_its_supervisor() -> None:
    """Its launcher was made anew."""
    runs = replace(job(), state=JobState.RUNNING, started=12.0)
    found = verdict.judge(runs, "absent 40\ndead 40")
    assert (found.state, found.finished, found.reason) == (JobState.LOST, 40.0, verdict.NO_FOLDER)


@rows("facts, code, says, advice", "job_state.a_job_without_an_exit_code_of_its_program")
@pytest.mark.parametrize("scheduler", ["direct", "slurm"])
def test_a_job_without_an_exit_code_of_its_program(
    scheduler: str, facts: str, code: int, says: str, advice: str
) -> None:
    """The launcher's own is none, whoever runs the job."""
    text = "\n".join(["running 12 1", *facts.split(", "), "ended 31"])
    found = verdict.judge(job(scheduler=scheduler), text)
    assert found.program_exit_code is None
    error = explain_failure(found)
    assert error is not None
    assert error.exit_code == code
    assert says in error.message
    assert advice in error.hint


@rows("told, reason", "job_state.ranks_that_were_told_to_end_by_an_abort_with_0_have_not_finished")
def test_ranks_that_were_told_to_end_by_an_abort_with_0_have_not_finished(
    told: tuple[int, ...], reason: str
) -> None:
    facts = ["launcher 30 0", "started 30 2", "exit 29 0 0 1", "exit 29 1 0 1"]
    facts += [f"told 30 {rank} 1" for rank in told]
    found = verdict.judge(job(), "\n".join(["running 12 1", *facts, "ended 31"]))
    assert found.state is JobState.FAILED
    assert found.reason == reason


def test_a_job_with_an_exit_code_of_its_program_needs_no_other() -> None:
    facts = "running 12 1\nlauncher 30 1\nstarted 30 2\nexit 29 1 3 1\nended 31"
    assert explain_failure(verdict.judge(job(), facts)) is None


def test_a_job_that_was_cancelled_before_it_was_handed_in() -> None:
    waits = replace(job(), state=JobState.QUEUED, reason="waits for slots")
    ended = replace(waits, state=JobState.CANCELLED, finished=40.0, reason="")
    assert verdict.judge(waits, "stop 20 cancelled\nabsent 40\n") == ended


def test_an_attempt_that_hung_says_so_and_blames_no_rank() -> None:
    facts = "running 12 1\nhung 20 8\nexit 21 1 3 1\nlauncher 22 143\nstarted 22 2\nended 23"
    found = verdict.judge(job(), facts)
    assert (found.state, found.failure) == (JobState.FAILED, None)
    assert "no rank printed anything for 8 s" in found.reason


def note(*facts: str, stack: tuple[tuple[str, str, int], ...] = ()) -> str:
    """What a node writes down of a rank of an attempt that hangs."""
    frames = [{"name": name, "filename": file, "line": line} for name, file, line in stack]
    dump = json.dumps([{"pid": 9, "os_thread_id": 9, "frames": frames}]) if stack else ""
    text = "\n".join(["folder /root/work", *facts, dump])
    return b64encode(gzip.compress(text.encode())).decode()


C10D = "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
REDUCES = note(
    "process 9 (python) S 1",
    stack=(("all_reduce", C10D, 3), ("main", "/root/work/train.py", 12)),
)
SKIPS = note(
    "process 8 (python) S 1",
    stack=(("clock_nanosleep", "libc.so.6", 0), ("skip", "/root/work/train.py", 9)),
)
HANGING = "hung: no rank printed anything for 600 s"


@rows("notes, where", "job_state.where_the_ranks_of_an_attempt_stood_that_hung")
def test_where_the_ranks_of_an_attempt_stood_that_hung(notes: list[Any], where: str) -> None:
    """The one that stood elsewhere is named, with its node and line. The attempt is kept when the
    next one runs, and is its reason."""
    lines = ["running 10 1", "hung 11 600"]
    known = {"reduces": REDUCES, "skips": SKIPS}
    for rank, said in enumerate(notes):
        written = known.get(said, said) if isinstance(said, str) else note(*said)
        lines.append(f"stack 12 {rank} {written}")
    lines += ["launcher 13 137", "started 14 2"]
    ended = verdict.judge(job(), "\n".join([*lines, "ended 15"]))
    assert (ended.state, ended.reason) == (JobState.FAILED, f"{HANGING}; {where}")
    again = verdict.judge(
        job(), "\n".join([*lines, "launcher 13 137", "started 14 2", "running 15 2"])
    )
    assert (again.state, again.reason, again.hangs) == (JobState.RUNNING, ended.reason, ended.hangs)
    assert [hang.attempt for hang in ended.hangs] == [1]


def test_a_rank_whose_node_nobody_has_noted_may_fail() -> None:
    facts = "running 12 1\nexit 20 9 3 1\nlauncher 30 3\nstarted 30 10\nended 31"
    failure = verdict.judge(job(), facts).failure
    assert failure is not None
    assert (failure.rank, failure.node, failure.exit_code) == (9, "", 3)


def ended(*facts: str, scheduler: str = "slurm", **what: Any) -> Job:
    text = "\n".join(["running 12 1", *facts, "started 30 2", "ended 31"])
    return verdict.judge(job(what=spec(**what), scheduler=scheduler), text)


def test_a_line_that_says_more_than_the_end_is_not_the_end() -> None:
    assert verdict.judge(job(), "running 12 1\nended 31 7").state is JobState.RUNNING


def test_a_rank_that_sigterm_has_ended_may_be_the_first() -> None:
    """Nobody had told it to end: it did so itself, and the other one noticed."""
    failure = ended("launcher 30 143", "exit 20 0 143 1", "exit 29 1 3 1").failure
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (0, 143)
    right = ended("launcher 30 1", "clock 30 worker-2 0 0", "exit 20 1 3 1", "exit 20.5 0 4 1")
    assert right.failure is not None
    assert right.failure.rank == 1, "a clock that nobody has compared is taken for right"


@rows("code, own", "job_state.a_rank_that_has_lost_its_daemon_has_not_failed_itself")
def test_a_rank_that_has_lost_its_daemon_has_not_failed_itself(code: int, own: bool) -> None:
    found = ended("launcher 30 1", "daemon 29 worker-2", f"exit 29 0 {code} 1")
    assert (found.failure is not None) == own


TOLD = ("told 30 0 1", "told 30 1 1", "exit 29 0 143 1", "exit 29 1 143 1")


@rows("facts, what, reason", "job_state.what_took_the_ranks_from_their_launcher")
def test_what_took_the_ranks_from_their_launcher(
    facts: tuple[str, ...], what: dict[str, Any], reason: str
) -> None:
    found = ended(*facts, *TOLD, **what)
    assert found.failure is None
    assert found.reason.startswith(reason)


def test_what_ssh_says_is_said_where_nobody_knows_better() -> None:
    found = ended("launcher 30 1", *TOLD, "survivors 31 worker-2 ? 255 odd words")
    assert found.reason == "lost worker-2: odd words"
    later = ("survivors 31 worker-2 ? 255 Connection refused", "survivors 32 worker-2 ?")
    found = ended("launcher 30 1", *TOLD, *later)
    assert found.reason == "lost worker-2: no answer when the job ended"


@rows("facts, state", "job_state.ranks_that_all_ended_well_have_succeeded")
def test_ranks_that_all_ended_well_have_succeeded_unless_something_came_over_them(
    facts: list[str], state: str
) -> None:
    assert ended(*facts, "exit 29 0 0 1", "exit 29 1 0 1").state == state


def test_ranks_of_batch_jobs_are_named_where_they_are_few() -> None:
    text = "running 12 1\nplaced 12 c1:1,c2:4,\nlauncher 30 137\nexit 29 0 0 1\nstarted 30 5"
    four = verdict.judge(job(scheduler="slurm"), f"{text}\nended 31")
    assert "rank 3 on c2, rank 4 on c2 left no exit code: killed or lost" in four.reason
    many = ended("placed 12 c1:3,", "launcher 30 0", "told 29 0 1", "exit 29 0 0 1")
    assert many.reason.startswith("a rank ended the others, as MPI_Abort")
    one = ended("placed 12 c1:1,", "launcher 30 0", "exit 29 0 0 1", "alone 29 0 abc")
    assert (one.state, one.never_met) == (JobState.SUCCEEDED, False), "there is nobody to meet"


@rows("offset, doubt, found", "job_state.a_clock_is_corrected_where_it_is_surely_wrong")
def test_a_clock_is_corrected_where_it_is_surely_wrong(
    offset: float, doubt: float, found: float
) -> None:
    assert verdict.correct(100.0, offset, doubt) == found


AWAY = "running 12 1\naway 25 worker-1\ndaemon 29 worker-1\ntold 29 0 1\ntold 29 1 1"


def test_what_came_over_a_node_is_asked_of_the_verdict() -> None:
    facts = "running 12 1\nnode 20 worker-1 spot\nnode 20 worker-2 restarted\naway 25 worker-1"
    found = verdict.judge(job(), f"{facts}\nlauncher 30 1\nstarted 30 2\nended 31")
    names = ("worker-1", "worker-2")
    assert [verdict.is_reclaimed(found, name) for name in names] == [True, False]
    assert [verdict.has_restarted(found, name) for name in names] == [False, True]
    more = verdict.note_restart(found, names)
    assert more.reason == f"worker-1 restarted while the job ran, {found.reason}"
    assert verdict.note_restart(job(), names[:1]).reason == "worker-1 restarted while the job ran"
    away = verdict.judge(job(), f"{AWAY}\nlauncher 30 1\nstarted 30 2\nended 31")
    assert [verdict.is_cut_off(away, name) for name in names] == [True, False]
    both = verdict.judge(job(), f"{AWAY}\naway 26 worker-2\nlauncher 30 1\nstarted 30 2\nended 31")
    assert [verdict.is_cut_off(both, name) for name in names] == [True, True]
    assert not verdict.is_cut_off(replace(away, state=JobState.CANCELLED), "worker-1")


# ------------------------------------------------------------------------------------------------
# Which rank is named as the first that failed.


@rows("ends, order", "job_state.who_has_failed_first")
def test_who_has_failed_first(ends: list[tuple[int, int, float]], order: list[int]) -> None:
    assert [end.rank for end in sort_failures(RankEnd(*end) for end in ends)] == order
