"""What the agent reads of batch systems' answers, and how a task of an array runs a point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from clusterctl.agent import granted, messages, queues, scripts, tasks
from tests.unit.scripts import until, write_agent, write_program
from tests.unit.tables import rows

slurm, sge = queues.SlurmQueue(), queues.GridQueue()
START = messages.BatchStart("auto", 5, False, "", (), {}, {}, "", (), "")
"""Of five ranks."""


@rows("text, found", "queues.the_tasks_of_an_array_are_one_job")
def test_the_tasks_of_an_array_are_one_job(text: str, found: dict[str, str]) -> None:
    """It waits while all of them do."""
    assert queues.parse_rows(text) == found


@rows("text, found", "queues.how_slurm_says_that_a_job_has_ended")
def test_how_slurm_says_that_a_job_has_ended(text: str, found: str) -> None:
    assert slurm.read_end(text) == found


@rows("text, found", "queues.how_grid_engine_says_that_a_job_has_ended")
def test_how_grid_engine_says_that_a_job_has_ended(text: str, found: str) -> None:
    assert sge.read_end(scripts.read_columns(text)) == found


def test_grid_engine_answers_whole_or_not_at_all() -> None:
    one = "<job_list state='running'>\n<JB_job_number>{}</JB_job_number>\n<state>{}</state>\n"
    task = one.format(42, "r") + "<tasks>3</tasks>\n"
    text = f"<job_info>{one.format(41, 'qw')}{task}</job_info>\n"
    assert sge.parse_queue(text) == "41_|qw|\n42_3|r|\n"
    assert sge.parse_queue(text[:-15]) is None


def test_slurm_says_when_each_attempt_has_started() -> None:
    """A job that was put back and runs again is asked for anew, and one whose start is guessed is
    not."""
    text = "7|RUNNING|None|2026-01-02T03:04:05\n8_[1-9]|PENDING|Priority|2026-01-03T00:00:00\n"
    said = slurm.parse_queue(text)
    assert said == "7|RUNNING|None|2026-01-02T03:04:05\n8_[1-9]|PENDING|Priority\n"
    assert slurm.explain("7", queues.parse_rows(said)["7"], "") == "RUNNING|None"


def test_a_task_finds_its_point(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = ["0", "4", "7"]
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    assert slurm.find_point(todo) == ("4", {})
    monkeypatch.setenv("SGE_TASK_ID", "2")
    ids = {"SGE_TASK_ID": "4", "SGE_TASK_FIRST": "0", "SGE_TASK_LAST": "7"}
    assert sge.find_point(todo) == ("4", ids)


def test_ranks_find_their_place_among_the_nodes_of_a_slurm_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are folded; of fewer ranks than slots, each node has its share."""
    write_program(tmp_path / "scontrol", "printf '%s\\n' a b c d")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x3),4")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "8,4(x2)")
    assert slurm.list_nodes() == [("a", 2, 8), ("b", 2, 4), ("c", 2, 4), ("d", 4, 0)]
    plan = messages.BatchPlan("slurm", (), 60, ".", "", "", START)
    granted.find_nodes(str(tmp_path), plan)
    assert granted.read_hosts(str(tmp_path)) == {"a": 1, "b": 1, "c": 1, "d": 2}
    told = "cctl_rank=4; . ./placed; echo $cctl_node $cctl_local_world $cctl_hosts $cctl_nodes"
    done = subprocess.run(["/bin/sh", "-c", told], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "3 2 a,b,c,d 4\n"
    assert "cctl_node=0 cctl_local_world=1 cctl_threads=8" in (tmp_path / "placed").read_text()


def test_a_host_of_several_queues_of_grid_engine_is_one_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts").write_text("a 2 all.q x\nb 1 all.q x\na 1 long.q x\n")
    monkeypatch.setenv("PE_HOSTFILE", str(tmp_path / "hosts"))
    assert sge.list_nodes() == [("a", 3, 3), ("b", 1, 1)]


@pytest.mark.parametrize(
    ("said", "seconds"), [("notify  00:01:20", 80), ("notify 0:0:5,[@a=0:1:0]", 5), ("", 45)]
)
def test_a_queue_of_grid_engine_says_how_long_a_job_has(
    said: str, seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"[ \"$*\" = '-sq main.q' ] && printf 'qname main.q\\n{said}\\n'"
    write_program(tmp_path / "qconf", text)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", "main.q")
    assert sge.find_time_to_end(45) == seconds


def test_what_tasks_note_is_told_as_of_other_jobs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert list(tasks.tell(str(tmp_path))) == []
    notes = {"0.node": "9.5 c2\n", "3.node": "10.25 c1\n", "0.exit": "0 12.5 1\n", "0.out": "4 5 6"}
    for name, text in {**notes, "3.exit": "", "7.node": "11"}.items():
        (out / f"rank-{name}").write_text(text)
    (tmp_path / "stop").write_text("cancelled\n")
    *told, stop = tasks.tell(str(tmp_path))
    facts = ["running 9.5 1", "point 9.5 0 c2", "point 10.25 3 c1", "exit 12.5 0 0 1"]
    assert told == facts
    assert (stop.split()[0], stop.split()[2]) == ("stop", "cancelled")
    ends = ["launcher 13 0", "started 13 2", "ended 13"]
    assert tasks.list_facts(str(tmp_path), "13") == [*facts, *ends]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a job whose array has the points 3 and 5."""
    job = tmp_path / "jobs" / "7"
    (job / "out").mkdir(parents=True)
    write_agent(job)
    plan = {"system": "slurm", "notice": 45, "signals": [["USR1", "checkpoint", ""]]}
    plan |= {"folder": "", "compile": "", "built": "", "start": messages.spell_out(START)}
    for name, text in {
        "plan.json": json.dumps(plan),
        "tag": "CLUSTERCTL_JOB=lab/7;",
        "todo": "3\n5\n",
        "state": "queued 1\n",
        "env": "MY_TOKEN=x\n",
    }.items():
        (job / name).write_text(text)
    return job


def start(folder: Path, point: int, script: str, *early: str) -> subprocess.Popen[bytes]:
    """A task whose rank wrapper is that script, which knows where it is to leave its note."""
    note = f"cd {folder}/out; end() {{ echo $1 100.5 1 >rank-$point.exit; exit $1; }}; point=$1"
    (folder / "rank.sh").write_text(f"{note}\n{script}\n")
    return subprocess.Popen(
        ["/bin/sh", folder / "agent.sh", "batch", *early],
        env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": str(point)},
    )


def test_the_last_point_to_end_well_says_that_all_have(folder: Path) -> None:
    assert start(folder, 3, "end 0").wait() == 0
    assert ((folder / "state").read_text(), (folder / "env").exists()) == ("queued 1\n", True)
    seen = "env >../environment; "  # a Python would add to it
    tag = '[ "$CLUSTERCTL_JOB$CLUSTERCTL_ATTEMPT" = "lab/7;1" ] || end 9; '
    assert start(folder, 5, f"{seen}{tag}end 0").wait() == 0
    *_, state = (folder / "state").read_text().rpartition("running")
    assert [line.split()[0] for line in state.splitlines()[1:]] == [
        *("point", "point", "exit", "exit"),
        *("launcher", "started", "ended"),
    ]
    assert not (folder / "env").exists()
    assert "LC_CTYPE" not in (folder / "environment").read_text()


def test_a_point_that_fails_leaves_the_end_to_the_queue(folder: Path) -> None:
    (folder / "out" / "rank-3.exit").write_text("0 100 1\n")
    assert start(folder, 5, "end 99").wait() == 1  # which Grid Engine would start again
    assert (folder / "state").read_text() == "queued 1\n"


def test_a_point_that_is_warned_is_told_once_it_listens(folder: Path) -> None:
    """Also of what came before there was a program."""
    saves = "sleep 0.3; trap 'end 0' TERM; echo >up; while :; do sleep 0.1; done"
    task = start(folder, 3, saves, "USR1")
    assert task.wait(timeout=20) == 0
    assert (folder / "out" / "rank-3.saving").read_text() == "45\n"
    task = start(folder, 5, saves.replace("sleep 0.3", "rm -f up"))
    until((folder / "out" / "up").exists)
    until((folder / "out" / "rank-5.node").exists)
    task.send_signal(signal.SIGTERM)
    assert task.wait(timeout=20) == 0
    assert not (folder / "out" / "rank-5.saving").exists()


def test_a_point_that_could_not_be_made_ready_has_failed(folder: Path) -> None:
    assert start(folder, 3, "end 0", "failed").wait() == 6
    assert (folder / "out" / "rank-3.exit").read_text().split()[0] == "6"
    (folder / "stop").write_text("cancelled\n")
    assert start(folder, 5, "end 0").wait() == 1
    assert not (folder / "out" / "rank-5.node").exists()


def test_the_tasks_of_an_array_make_a_program_once(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "work" / "src").mkdir(parents=True)
    plan |= {"compile": "echo made >>prog", "folder": "src", "built": "src/prog"}
    (folder / "plan.json").write_text(json.dumps(plan))
    for point in (3, 5):
        assert start(folder, point, "end 0").wait() == 0
    assert (folder / "work" / "src" / "prog").read_text() == "made\n"
    assert b"src/prog\0" in (folder / ".staged").read_bytes()
