"""What queues say of batch scripts of people's own, and what is noted of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.agent import messages, queues, scripts, watch
from clusterctl.agent.scripts import ENDED, RUNNING, WAITING, Part
from clusterctl.batch import verdict
from tests.conftest import Need
from tests.unit.scripts import write_program
from tests.unit.tables import rows

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


@rows("given, merge, tasks, out, err", "agent_scripts.where_grid_engine_puts_output")
def test_where_grid_engine_puts_output(
    given: str, merge: str, tasks: str, out: str, err: str, tmp_path: Path
) -> None:
    (tmp_path / "work" / "logs").mkdir(parents=True)
    text = GRID.format(cwd=tmp_path / "work", merge=merge, tasks=tasks, out=given)
    part = scripts.read_grid_tasks("7", text, "r|")[-1]
    assert part.out == str(tmp_path / out)
    assert part.err == (str(tmp_path / err) if err else "")


def test_the_script_of_a_heterogeneous_job_runs_in_its_first_component() -> None:
    state = "JobState=RUNNING BatchHost={} StartTime=2026-01-02T03:04:05 StdOut=/x/{}"
    first = "JobId=30 HetJobId=30 HetJobOffset=0 " + state.format("c1", 30)
    second = "JobId=31 HetJobId=30 HetJobOffset=1 " + state.format("c2", 31)
    [part] = scripts.read_slurm_tasks(f"{first}\n{second}\n")
    assert (part.node, part.out) == ("c1", "/x/30")


def test_what_was_cancelled_while_it_waited_never_began(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    times = "StartTime=2026-01-02T03:04:05 EndTime=2026-01-02T03:04:05"
    line = f"JobId=7 JobState=CANCELLED {times} ExitCode=0:0 NodeList=(null) StdOut=/x/y"
    scripts.learn(str(tmp_path), scripts.read_slurm_tasks(line))
    assert not (tmp_path / "state").exists()


def test_an_output_file_that_cannot_be_made_is_no_exit_code(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path = tmp_path / "logs" / "x.out"
    line = "JobId=7 JobState=FAILED Reason=JobLaunchFailure ExitCode=0:53 BatchHost=c1 StartTime=x"
    line += f" StdErr={path} StdOut={path} Power="
    scripts.learn(str(tmp_path), scripts.read_slurm_tasks(line))
    assert not scripts.note_end(str(tmp_path))
    assert f"no folder {path.parent}" in queues.SYSTEMS["slurm"].read_end(line)
    line = line.replace(f"StdOut={path}", f"StdOut={tmp_path}/x")
    assert f"file {path} could not be created: there is no" in scripts.explain_slurm(
        scripts.read_fields(line)
    )


def test_grid_engine_says_why_a_job_is_in_error() -> None:
    said = (
        """job_number: 8\nerror reason    1:          11/29/2026 13:04:26 [0:97]: error: can't\n"""
    )
    assert scripts.explain_grid(said) == "can't"
    assert scripts.explain_grid("job_number: 8\n") == ""


def test_a_task_that_ran_again_has_ended_as_it_did_the_last_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See `man accounting`: Grid Engine accounts for each time that a job ran."""
    row = "taskid undefined\nhostname c1\nfailed {}\nexit_status {}\n"
    records = ("=" * 62 + "\n").join(["", row.format("25 : rescheduling", 99), row.format(0, 0)])
    (tmp_path / "records").write_text(records)
    commands = {"qstat": "echo do not exist; exit 1", "qacct": f"cat {tmp_path}/records"}
    for name, text in commands.items():
        write_program(tmp_path / name, text)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    grid = queues.SYSTEMS["sge"]
    [part] = grid.describe("7", "")
    assert (part.code, part.word) == (0, "COMPLETED")
    assert grid.find_end("7", str(tmp_path)) == "COMPLETED|0|"
    (tmp_path / "records").write_text(row.format("25 : rescheduling", 0))
    assert grid.describe("7", "") == []  # its end is not accounted for yet
    assert grid.find_end("7", str(tmp_path)) == "UNKNOWN||"


def test_a_job_that_qdel_was_seen_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "qacct", "printf 'failed 100 : x\\nexit_status 137\\n'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert queues.SYSTEMS["sge"].find_end("7", str(tmp_path)) == f"CANCELLED|137|{queues.AS_QDEL}"
    (tmp_path / scripts.ROW).write_text("7_|dr|")
    assert queues.SYSTEMS["sge"].find_end("7", str(tmp_path)) == "CANCELLED|137|"


def test_a_copy_of_the_tree_has_the_folders_for_output(tmp_path: Path) -> None:
    lines = [
        "#SBATCH -o logs/%j.out --error=deep/er/%x",
        "#$ -o grid/",
        "#SBATCH -J named -o %x/%j.out -e 'two words/err %x.txt' # -o no/x",
        "#SBATCH -o %N/x -o more/$JOB_ID/x",
        "#SBATCH -e ../x/y",
        "#SBATCH -o ../work2/y",
    ]
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "job.sh").write_text("\n".join(["#!/bin/sh", *lines, "true"]))
    words = ("--nodes=2", "-o", "typed/x", "job.sh", "-o", "args/x")
    read = scripts.read_directives(f"{tmp_path}/work/.", words)
    scripts.make_output_folders(f"{tmp_path}/work/.", words, read)
    assert {path.name for path in (tmp_path / "work").iterdir()} == {
        "job.sh",
        "logs",
        "deep",
        "grid",
        "two words",
        "typed",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


@rows("shell, file, lines", "agent_scripts.what_a_login_sets")
def test_what_a_login_sets(
    file: str, lines: str, need: Need, monkeypatch: pytest.MonkeyPatch, shell: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(f"{lines}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = scripts.read_login(str(tmp_path), need(shell))
    assert found["MINE"] == "a\nb"
    assert ("BASH_FUNC_module%%" in found) == (shell == "bash")
    assert "PWD" not in found
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_a_login_that_does_not_end(tmp_path: Path) -> None:
    shell = write_program(tmp_path / "shell", "exit 1")
    assert scripts.read_login(str(tmp_path), str(shell)) == {}
    assert scripts.read_login(str(tmp_path), "/no/shell") == {}


@rows("options, adds", "agent_scripts.grid_engine_starts_in_the_copy")
def test_grid_engine_starts_in_the_copy(options: str, adds: list[str]) -> None:
    assert queues.SYSTEMS["sge"].choose_options(options, copied=True, fresh=True) == adds
    assert queues.SYSTEMS["sge"].choose_options(options, copied=False, fresh=True) == []


@rows("options, fresh, adds", "agent_scripts.a_second_attempt_on_slurm_adds_to_the_output")
def test_a_second_attempt_on_slurm_adds_to_the_output(
    options: str, fresh: bool, adds: list[str]
) -> None:
    assert queues.SYSTEMS["slurm"].choose_options(options, copied=True, fresh=fresh) == adds


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


def test_a_file_of_several_tasks_is_shown_once(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    shared = [Part(str(n), RUNNING, "c1", "/x/all", "/x/all", 10.0) for n in range(2)]
    scripts.learn(str(tmp_path), shared)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rank-0.out"]


class Output:
    """Of a script for Slurm whose output goes to x.out, as a follower gets it."""

    def __init__(self, tmp_path: Path, system: str = "slurm", option: str = "-o=x.out") -> None:
        self.job, self.path = tmp_path / "job", tmp_path / "x.out"
        (self.job / "out").mkdir(parents=True)
        own = messages.OwnScript([], "", {}, system)
        (self.job / "own.json").write_text(messages.dump(own))
        (tmp_path / "job.sh").touch()
        self.words, self.appends = [option, "job.sh"], queues.SYSTEMS[system].appends
        self.known: dict[str, int] = {}

    def hand_in(self) -> None:
        where = str(self.path.parent)
        scripts.note_earlier(str(self.job), where, self.words, [" -o x.out"], self.appends)
        self.learn(WAITING)

    def learn(self, state: str, began: float = 0.0) -> None:
        path = str(self.path)
        scripts.learn(str(self.job), [Part("0", state, "c1" if began else "", path, path, began)])

    def write(self, text: str, at: float = 0.0, mode: str = "w") -> None:
        with self.path.open(mode) as file:
            file.write(text)
        if at:
            os.utime(self.path, (at, at))

    def look(self) -> str:
        """What is new."""
        found = ""
        for piece in watch.find_news(str(self.job), self.known):
            data = watch.read_piece(str(self.job), piece, 1 << 20)
            self.known[piece.name] = piece.start + len(data)
            found += data.decode() if piece.name != "state" else ""
        return found


@pytest.mark.parametrize("system", ["slurm", "sge"])
@pytest.mark.parametrize("option", ["-o=x.out", "--open-mode=append"])
def test_what_lay_in_the_output_file_is_of_an_earlier_job(
    system: str, option: str, tmp_path: Path
) -> None:
    """Slurm makes the file anew when the job starts, and Grid Engine adds to it: until then there
    is nothing to show, also of a job whose output is the same."""
    output = Output(tmp_path, system, option)
    output.write("old\nold\n", at=1)
    output.hand_in()
    output.learn(RUNNING, 10.0)
    assert output.look() == ""
    adds = system == "sge" or "append" in option
    output.write("old\nnew\n", mode="a" if adds else "w")
    assert output.look() == "old\nnew\n"


def test_what_another_job_writes_there_before_the_start_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs may be handed in one after the other, before there is such a file. The queue is
    asked when that changes, so that nothing is lost of a job that is put back at once."""
    monkeypatch.setattr(queues, "AGE", 0)
    write_program(tmp_path / "scontrol", f"echo >>{tmp_path}/asked; cat {tmp_path}/said")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    said = "JobId=7 JobState={} StartTime=2026-01-02T03:04:05 StdOut={} BatchHost={} ExitCode=0:0"
    output = Output(tmp_path)
    output.hand_in()
    (tmp_path / "asked").unlink(missing_ok=True)
    (tmp_path / "said").write_text(said.format("PENDING", output.path, ""))
    output.write("of another\n")
    assert [output.look(), output.look()] == ["", ""]
    (tmp_path / "said").write_text(said.format("RUNNING", output.path, "c1"))
    output.write("mine\n")
    assert output.look() + output.look() == "mine\n"
    assert (tmp_path / "asked").read_text() == "\n" * 2


@rows("first, second, looks", "agent_scripts.slurm_empties_the_file_when_it_starts_a_job_again")
@pytest.mark.parametrize("told", ["before", "after"])
def test_slurm_empties_the_file_when_it_starts_a_job_again(
    first: str, second: str, looks: bool, told: str, tmp_path: Path
) -> None:
    """Each attempt's lines are shown once, whether the queue says first that it has begun, or its
    output comes first. A follower that has read nothing since does not take it for the same."""
    output = Output(tmp_path)
    output.write("old\nold\n", at=1)
    output.hand_in()
    output.write(first, at=20)
    output.learn(RUNNING, 10.0)
    assert output.look() == first
    output.learn(WAITING)
    assert output.look() == ""
    if looks:  # at the moment when it is empty
        output.write("", at=130)
        assert output.look() == ""
    if told == "before":
        output.learn(RUNNING, 130.0)
    output.write(second, at=131)
    assert output.look() == second
    output.write("end\n", at=132, mode="a")
    output.learn(RUNNING, 130.0)
    assert output.look() == "end\n"
    output.learn(ENDED, 130.0)
    assert output.look() == ""
    again, output.known = output.known, {}
    assert output.look() == second + "end\n"  # to a follower that comes late
    assert output.known == again


def test_what_was_not_read_when_slurm_emptied_the_file_is_known_to_be_left_out(
    tmp_path: Path,
) -> None:
    output = Output(tmp_path)
    output.hand_in()
    output.write("one\n", at=20)
    output.learn(RUNNING, 10.0)
    assert output.look() == "one\n"
    output.write("two\n", at=21, mode="a")
    watch.list_files(str(output.job))  # another follower has seen it
    output.write("1\n", at=140)
    [piece] = watch.find_news(str(output.job), output.known)
    assert (piece.start, piece.length, piece.size) == (8, 2, 10)


def test_the_next_attempt_may_write_to_a_file_of_another_name(tmp_path: Path) -> None:
    """As with %N or $HOSTNAME in it, on another node."""
    output = Output(tmp_path, option="--open-mode=append")
    output.words.append("--output=x-%j-%N.out")
    output.path = tmp_path / "x-7-c1.out"
    output.write("first\n")
    output.learn(RUNNING, 10.0)
    assert output.look() == "first\n"
    output.path = tmp_path / "x-7-c2.out"
    output.write("second\n")
    output.learn(RUNNING, 130.0)
    assert output.look() == "second\n"
    output.write("more\n", mode="a")
    output.learn(RUNNING, 130.0)
    assert output.look() == "more\n"


@rows("words, waiting, running", "agent_scripts.words_in_the_name_of_an_output_file")
def test_words_in_the_name_of_an_output_file(words: str, waiting: str, running: str) -> None:
    line = (
        "JobId=5 ArrayJobId=4 ArrayTaskId=2 JobName=my job UserId=ann(7) JobState={}"
        f" StartTime=2026-01-02T03:04:05 {{}} ExitCode=0:0 StdOut=/x/{words}"
    )
    (waits,) = scripts.read_slurm_tasks(line.format("PENDING", "NodeList="))
    (runs,) = scripts.read_slurm_tasks(line.format("RUNNING", "BatchHost=c1"))
    assert (waits.out, runs.out) == (waiting and f"/x/{waiting}", f"/x/{running}")


def test_only_the_file_knows_the_host_of_a_task_of_grid_engine(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    words = "$HOSTNAME-$USER-$JOB_NAME-$JOB_ID"
    text = GRID.format(cwd=tmp_path, merge="y", tasks="", out=words)
    scripts.learn(str(tmp_path), scripts.read_grid_tasks("7", text, "qw|"))
    assert not list((tmp_path / "out").iterdir())
    file = tmp_path / "c2-ann-job.sh-7"
    file.touch()
    earlier = tmp_path / "c1-ann-job.sh-7"  # of an attempt before
    earlier.touch()
    os.utime(earlier, (1, 1))
    scripts.learn(str(tmp_path), [Part("1", ENDED, "c2", "", "", 1.0, 2.0, "COMPLETED", 0)])
    assert (tmp_path / "out" / "rank-0.out").readlink() == file
