"""What queues say of batch scripts of people's own, and what is noted of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.agent import scripts
from clusterctl.agent.scripts import ENDED, RUNNING, WAITING, Part
from clusterctl.batch import verdict

SLURM = """\
JobId=12 ArrayJobId=12 ArrayTaskId=3-5:2%2 JobName=my job JobState=PENDING \
StartTime=Unknown EndTime=Unknown ExitCode=0:0 StdErr=/home/a b/x_%a StdOut=/home/a b/x_%a
JobId=13 ArrayJobId=12 ArrayTaskId=2 JobName=my job JobState=RUNNING StartTime=2026-01-02T03:04:05 \
EndTime=2026-01-03T03:04:05 BatchHost=c1 ExitCode=0:0 StdErr=/home/a b/x_2 StdOut=/home/a b/x_2
JobId=14 ArrayJobId=12 ArrayTaskId=1 JobName=my job JobState=FAILED StartTime=2026-01-02T03:04:05 \
EndTime=2026-01-02T03:04:06 BatchHost=c2 ExitCode=0:9 StdErr=/home/a b/e_1 StdOut=/home/a b/x_1
"""

GRID = """\
job_number:                 7
owner:                      ann
sge_o_home:                 /home/ann
cwd:                        {cwd}
merge:                      {merge}
stdout_path_list:           NONE:NONE:{out}
job_name:                   job.sh
{tasks}
usage    2:                 cpu=00:00:01
"""


def test_slurm_tells_of_tasks_that_wait_run_and_have_ended() -> None:
    parts = {part.id: part for part in scripts.read_slurm_tasks(SLURM)}
    assert [parts[n].state for n in "1235"] == [ENDED, RUNNING, WAITING, WAITING]
    assert (parts["1"].code, parts["1"].err, parts["1"].node) == (137, "/home/a b/e_1", "c2")
    assert parts["1"].ended == parts["1"].began + 1
    assert (parts["3"].out, parts["3"].began, parts["2"].ended) == ("", 0, 0)


@pytest.mark.parametrize(
    ("given", "merge", "tasks", "out", "err"),
    [
        ("", "n", "", "work/job.sh.o7", "work/job.sh.e7"),
        ("", "y", "job-array tasks: 1-3:2", "work/job.sh.o7.3", ""),
        ("logs", "n", "", "work/logs/job.sh.o7", "work/job.sh.e7"),
        ("$JOB_NAME-$JOB_ID.$TASK_ID", "y", "job-array tasks: 3-3:1", "work/job.sh-7.3", ""),
    ],
)
def test_where_grid_engine_puts_output(
    given: str, merge: str, tasks: str, out: str, err: str, tmp_path: Path
) -> None:
    (tmp_path / "work" / "logs").mkdir(parents=True)
    text = GRID.format(cwd=tmp_path / "work", merge=merge, tasks=tasks, out=given)
    part = scripts.read_grid_tasks("7", text, "r|")[-1]
    assert part.out == str(tmp_path / out)
    assert part.err == (str(tmp_path / err) if err else "")


def make_parts(*codes: int, word: str = "FAILED", state: str = ENDED) -> list[Part]:
    made = []
    for n, code in enumerate(codes):
        how = word if code else "COMPLETED"
        made.append(Part(str(n), state, "c1", f"/x/{n}", "", 10.0, 20.0 + n, how, code))
    return made


def read(folder: Path) -> verdict.Attempt:
    return verdict.read_state((folder / "state").read_text()).last


def test_tasks_become_ranks(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    scripts.learn(str(tmp_path), make_parts(0, 0, 0, state=RUNNING))
    assert not scripts.note_end(str(tmp_path))
    scripts.learn(str(tmp_path), make_parts(0, 3, 0))
    scripts.learn(str(tmp_path), [])  # the queue forgets them
    assert scripts.note_end(str(tmp_path))
    last = read(tmp_path)
    assert {rank: code for rank, (_, code) in last.exits.items()} == {0: 0, 1: 3, 2: 0}
    assert (last.started, last.launcher_code, last.ended) == (3, 3, 22.0)
    assert os.readlink(tmp_path / "out" / "rank-1.out") == "/x/1"


def test_the_queue_says_more_of_what_it_has_ended(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    scripts.learn(str(tmp_path), make_parts(0, 1, word="TIMEOUT"))
    assert not scripts.note_end(str(tmp_path))


def test_a_word_to_end_counts(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "stop").write_text("cancelled\n")
    scripts.learn(str(tmp_path), make_parts(137))
    assert scripts.note_end(str(tmp_path))
    assert read(tmp_path).stop == "cancelled"
