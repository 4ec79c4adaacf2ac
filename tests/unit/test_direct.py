"""Our own supervisor's state file, and the command lines around it."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.agent.supervise import CANCEL
from clusterctl.batch import direct
from clusterctl.batch.direct import Direct, render_command_line
from clusterctl.core import assets
from clusterctl.core.job import JobState, Program, ProgramKind
from clusterctl.core.model import Cluster
from clusterctl.errors import LaunchError
from clusterctl.jobs.submit import write_agent
from clusterctl.launch import launcher
from clusterctl.launch.environment import build_environment, list_program
from clusterctl.launch.hostfile import place_points
from clusterctl.launch.launcher import Request
from clusterctl.options.values import SNAPSHOTS
from tests.unit.making import cluster, job, request, spec
from tests.unit.scripts import WEIRD, place_agent, until
from tests.unit.tables import read_rows, rows


def test_command_line_keeps_words() -> None:
    line = render_command_line(("printf", "%s\\0", *WEIRD, "", "*", "~"))
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [*WEIRD, "", "*", "~"]


def test_command_line_fills_in_late_variables_alone() -> None:
    words = ("MASTER_PORT=$MASTER_PORT", "CLUSTERCTL_ATTEMPT=$CLUSTERCTL_ATTEMPT", "HOME=$HOME")
    line = render_command_line(("printf", "%s\\0", *words, "MASTER_PORT=$MASTER_PORT; id"))
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        capture_output=True,
        env={"MASTER_PORT": "1 2; exit", "CLUSTERCTL_ATTEMPT": "3", "HOME": "/"},
        check=True,
    )
    assert done.stdout.decode().split("\0")[:-1] == [
        "MASTER_PORT=1 2; exit",
        "CLUSTERCTL_ATTEMPT=3",
        "HOME=$HOME",
        "MASTER_PORT=$MASTER_PORT; id",
    ]


def scripts(where: Cluster | None = None, **wanted: Any) -> dict[str, str]:
    """The files of job 7 on the launcher."""
    where, what = where or cluster(), spec(**wanted)
    plan = launcher.plan_launch("mpirun", request(where, what))
    return Direct().script(job(where, what), where, plan)


def test_a_job_has_its_files() -> None:
    found = scripts()
    assert sorted(found) == ["alloc", "launch.sh", "plan.json"]
    assert found["alloc"] == "worker-1 1 4\nworker-2 1 4\n"
    assert found["launch.sh"].startswith("#!/bin/sh\n")
    assert subprocess.run(["/bin/sh", "-n"], input=found["launch.sh"], text=True).returncode == 0


def test_mpirun_is_started_in_the_container_of_the_launcher() -> None:
    where = cluster()
    assert "CLUSTERCTL_INSIDE" not in scripts(where)["launch.sh"]
    inside = replace(where.launcher, job_port=2222, machine="i-1")
    text = scripts(replace(where, nodes=(inside, *where.workers)))["launch.sh"]
    assert f"exec {inside.root}/bin/clusterctl-ssh launcher " in text
    assert f"exec /bin/sh {inside.root}/jobs/7/launch.sh" in text
    # A host of the user's own, whose port ssh_config says, or which is behind a forwarded one.
    for port in (0, 2201):
        own = replace(where.launcher, ssh_port=port, job_port=22)
        text = scripts(replace(where, nodes=(own, *where.workers)))["launch.sh"]
        assert "CLUSTERCTL_INSIDE" not in text


def test_what_starts_the_ranks_finds_our_programs_and_has_the_tag_of_the_job() -> None:
    where = cluster()
    plan = replace(Direct().plan(request(where)), argv=("/usr/bin/env",))
    text = Direct().script(job(), where, plan)["launch.sh"]
    assert text.endswith("\nexec /usr/bin/env\n")
    around = {"PATH": "/usr/bin", "OMPI_MCA_btl": "tcp"}
    done = subprocess.run("/bin/sh", input=text, env=around, text=True, capture_output=True)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert found["PATH"] == f"{where.launcher.root}/bin:/usr/bin"
    assert found["CLUSTERCTL_JOB"] == "lab-1a2b/7;"


def test_what_a_dry_run_shows() -> None:
    where, what = cluster(), job()
    plan = Direct().plan(request(where))
    shown = Direct().preview(what, where, plan)
    line = f"{render_command_line(plan.argv)}\n"
    hosts = plan.files["hostfile"]
    assert shown.sections == (("hostfile", hosts), ("on launcher", line))
    assert shown.document == {
        "argv": plan.argv,
        "node_env": plan.node_env,
        "agents": {},
        "files": {"hostfile": hosts},
        "placement": {"worker-1": [0], "worker-2": [1]},
    }
    shown = Direct().preview(what, where, replace(plan, files={}, agents={"a": "x", "b": "y"}))
    assert shown.sections == (("on launcher", line), ("torchrun, on each node", "a: x\nb: y\n"))


def test_ranks_are_placed_where_their_python_is() -> None:
    where = cluster()
    found, placement = Direct().resolve(spec(notice=60), where)
    assert (found.notice, placement) == (0, job().placement)
    points = spec(array="4-6")
    assert Direct().resolve(points, where)[1] == place_points(where, points)
    assert Direct().plan(request(where, points)).argv == ("/bin/sh", "./points.sh")
    without = replace(where.workers[1], python="")
    where = replace(where, nodes=(where.launcher, where.workers[0], without))
    with pytest.raises(LaunchError, match="no Python on worker-2"):
        Direct().resolve(spec(), where)


def test_a_job_is_handed_to_the_agent_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "agent.sh").write_text('echo "$@"\n')
    assert here(tmp_path, Direct().submit_argv(job())) == "submit\n"


def planned(where: Cluster | None = None, **wanted: Any) -> dict[str, Any]:
    """What the supervisor is told."""
    found: dict[str, Any] = json.loads(scripts(where, **wanted)["plan.json"])
    return {name: found[name] for name in PLAN}


MIRROR = {
    "largest": direct.SMALL,
    "interval": direct.INTERVAL,
    "always": False,
    "reserve": 1 << 30,
    "longest": 600,
}
JOBS = "/home/ubuntu/.clusterctl/lab-1a2b/jobs/7"
INVOLVED = [
    {"name": name, "aliases": [f"10.0.0.{end}"], "folder": JOBS, "here": end == 10}
    for name, end in (("launcher", 10), ("worker-1", 11), ("worker-2", 12))
]
PLAN: dict[str, Any] = {  # but for limits of the agent's own
    "id": 7,
    "tag": "CLUSTERCTL_JOB=lab-1a2b/7;",
    "root": "/home/ubuntu/.clusterctl/lab-1a2b",
    "launcher": "launcher",
    "nodes": INVOLVED,
    "holders": [
        {"name": "worker-1", "first": 0, "ranks": 1, "address": "10.0.0.11"},
        {"name": "worker-2", "first": 1, "ranks": 1, "address": "10.0.0.12"},
    ],
    "ranks": 2,
    "now": False,
    "timeout": 0,
    "retries": 0,
    "grace": 5,
    "hang_timeout": 0,
    "hang_poll": 0,
    "output": direct.OUTPUT,
    "least_output": direct.LEAST_OUTPUT,
    "kept": list(SNAPSHOTS),
    "resume": None,
    "restores": True,
    "rerun_of": None,
    "shrinks": False,
    "mirrored": True,
    "mirror": MIRROR,
}


def test_what_the_supervisor_is_told() -> None:
    assert planned() == PLAN


def test_small_outputs_and_snapshots_are_copied_unless_others_are_named() -> None:
    assert planned(keep_files=("*.h5", "runs/*")) == {
        **PLAN,
        "kept": ["*.h5", "runs/*"],
        "mirror": {**MIRROR, "largest": 0},
    }


def test_nodes_of_one_host_are_lost_together() -> None:
    """They have no other names, and their outputs need no copy unless --sync wants them."""
    where = replace(cluster(), one_host=True)
    nodes = [{**node, "aliases": [], "here": True} for node in INVOLVED]
    alone = {**PLAN, "nodes": nodes, "mirrored": False, "restores": False}
    assert planned(where) == alone
    often = {**MIRROR, "interval": direct.SYNC_INTERVAL, "always": True}
    synced = {**alone, "mirrored": True, "restores": True, "mirror": often}
    assert planned(where, sync="/there") == synced


def test_nodes_are_known_by_all_of_their_names() -> None:
    where = cluster()
    named = [replace(n, facts=replace(n.facts, hostname=f"ip-{n.name}")) for n in where.nodes[:2]]
    where = replace(where, nodes=(*named, *where.nodes[2:]))
    found = [one["aliases"] for one in planned(where)["nodes"]]
    assert found == [
        ["10.0.0.10", "ip-launcher"],
        ["10.0.0.11", "ip-worker-1"],
        ["10.0.0.12"],
    ]
    assert [Direct().expect_hostname(node, where) for node in named] == [
        "ip-launcher",
        "ip-worker-1",
    ]
    one_host = replace(where, one_host=True)
    assert Direct().expect_hostname(named[1], one_host) == "ip-launcher"


def test_limits_reach_the_supervisor() -> None:
    told = planned(timeout=5.0, retries=2, hang_timeout=20.0, now=True)
    wanted = {"timeout": 5.0, "retries": 2, "hang_timeout": 20.0, "hang_poll": 5.0, "now": True}
    assert told == {**PLAN, **wanted}
    assert planned(hang_timeout=600.0)["hang_poll"] == direct.HANG_POLL


def test_only_a_detached_job_goes_on_with_fewer_nodes_by_itself() -> None:
    alone = {"detach": True, "on_node_loss": "shrink"}
    assert planned(**alone) == {**PLAN, "shrinks": True}
    for other in ({"detach": False}, {"on_node_loss": "fail"}, {"launcher": "torchrun"}):
        assert not planned(**{**alone, **other})["shrinks"]
    assert not planned(replace(cluster(), one_host=True), **alone)["shrinks"]


def test_points_of_a_sweep_are_not_restored() -> None:
    where, what = cluster(), spec(sweep=("lr=1,2",))
    placement = place_points(where, what)
    started = Request(id=7, spec=what, cluster=where, placement=placement)
    swept = job(where, what, placement=placement)
    found = Direct().script(swept, where, Direct().plan(started))
    told = json.loads(found["plan.json"])
    assert (told["restores"], told["mirrored"], told["ranks"]) == (False, True, 2)
    agent = assets.locate_agent(where.launcher.root)
    assert found["points.sh"] == f"#!/bin/sh\nexec /bin/sh {agent} points {JOBS}\n"


def test_a_resumed_job_looks_for_what_its_arguments_name() -> None:
    for text, files, folders in read_rows("direct", "a_resumed_job_looks_for_what_its_arguments"):
        told = planned(resume_args=text)["resume"]
        assert (told["files"], told["folders"], told["resumes"]) == (files, folders, 0)
        assert told["nothing"].format(whole="whole ") == (
            f"starting without {text}: there is no whole snapshot among the outputs"
            f" ({', '.join(SNAPSHOTS)}; --keep-files names others)"
        )
    assert "`clusterctl rerun 7 --resume" in told["refusal"]
    where, what = cluster(), spec(resume_args="--resume")
    again = direct.make_plan(job(where, what, rerun_of=4), where)
    assert again.rerun_of == 4
    assert again.resume
    assert "rerun 4 --resume" in again.resume.refusal


def test_what_dry_run_shows() -> None:
    where, what = cluster(), spec()
    plan = launcher.plan_launch("mpirun", request(where, what))
    shown = Direct().preview(job(where, what), where, plan)
    assert shown.sections[0] == ("hostfile", plan.files["hostfile"])
    said = {name: getattr(plan, name) for name in ("argv", "node_env", "agents", "files")}
    assert shown.document == {**said, "placement": {"worker-1": [0], "worker-2": [1]}}


def test_what_is_said_without_a_snapshot_may_have_braces() -> None:
    said = planned(resume_args="--from {snapshot} {x}", keep_files=("a{b}",))["resume"]
    assert said["nothing"].format(whole="") == (
        "starting without --from {snapshot} {x}: there is no snapshot among the outputs (a{b})"
    )


def here(folder: Path, argv: tuple[str, ...]) -> str:
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a job without a supervisor, on its launcher."""
    place_agent(tmp_path)
    made = tmp_path / "jobs" / "7"
    made.mkdir(parents=True)
    (made / "agent.sh").write_text(write_agent(str(made), str(tmp_path)))
    return made


def test_status_of_a_job_without_a_supervisor(folder: Path) -> None:
    asked = Direct().status_argv()
    assert here(folder, asked).startswith("absent ")
    (folder / "state").write_text("queued 1\nstop 2 cancelled\nended 3\n")
    assert Direct().parse_status(job(), here(folder, asked)).state is JobState.CANCELLED


def test_cancel_tells_the_supervisor(folder: Path) -> None:
    with (folder / "alive").open("w") as lock, subprocess.Popen(["sleep", "60"]) as supervisor:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "supervisor.pid").write_text(f"{supervisor.pid}\n")
        here(folder, Direct().cancel_argv(job()))
        assert supervisor.wait(30) == -CANCEL
    assert (folder / "stop").read_text() == "cancelled\n"


BEFORE_AGENTS = """
trap 'echo "stop 2 $(cat stop)" >>state; echo ended 3 >>state; exit' TERM
exec 9>alive
flock 9
echo $$ >supervisor.pid
echo running 1 1 >>state
while :; do sleep 0.05 9>&-; done
"""
"""A supervisor of clusterctl 0.1: the files that it shares with who asks after its job."""


def test_a_job_that_was_started_before_there_was_an_agent(tmp_path: Path) -> None:
    """By its own scripts it is looked at, cancelled, and ended where its supervisor is dead."""
    (tmp_path / "clean.sh").write_text("echo dead 4 >>state\n")

    def ask(argv: tuple[str, ...]) -> JobState:
        return Direct().parse_status(job(), here(tmp_path, argv)).state

    for last, state in ((signal.SIGTERM, JobState.CANCELLED), (signal.SIGKILL, JobState.LOST)):
        (tmp_path / "state").write_text("")
        with subprocess.Popen(["/bin/sh", "-c", BEFORE_AGENTS], cwd=tmp_path) as supervisor:
            until((tmp_path / "state").read_text)
            assert ask(Direct().status_argv()) is JobState.RUNNING
            if last == signal.SIGTERM:
                here(tmp_path, Direct().cancel_argv(job()))
            else:
                supervisor.kill()
        assert ask(Direct().status_argv()) is state


@rows("text, remarks", "direct.what_the_launcher_says_beyond_exit_codes")
def test_what_the_launcher_says_beyond_exit_codes(text: str, remarks: str) -> None:
    assert direct.drop_known_remarks(text) == remarks


def test_all_jobs_are_asked_for_in_their_folders(tmp_path: Path) -> None:
    launcher = replace(cluster().launcher, root=f"{tmp_path}/it's me")
    where = replace(cluster(), nodes=(launcher, *cluster().workers))
    jobs = [replace(job(), id=7), replace(job(), id=8)]
    (tmp_path / "it's me" / "jobs" / "7").mkdir(parents=True)
    (tmp_path / "it's me" / "jobs" / "7" / "state").write_text("running 1 1\nended 3\n")
    asked = Direct().status_commands(jobs, where)
    assert list(asked.values()) == [(jobs[0],), (jobs[1],)]
    said = [here(tmp_path, ("/bin/sh", "-c", command)) for command in asked]
    assert said[0].splitlines()[:2] == ["running 1 1", "ended 3"]
    assert said[1].startswith("absent ")
    (gone := tmp_path / "it's me" / "jobs" / "8").mkdir()
    with subprocess.Popen(["sleep", "60"], cwd=gone) as left:
        gone.rmdir()
        assert "dead" not in here(tmp_path, ("/bin/sh", "-c", list(asked)[1])), "its supervisor"
        left.kill()
    assert "dead" in here(tmp_path, ("/bin/sh", "-c", list(asked)[1]))
    assert 0 < Direct.poll < Direct().limit_end(spec()) < Direct.start_limit
    assert Direct().limit_end(spec(grace=60.0)) > 60.0


def test_a_program_gets_its_local_rank_and_one_process_nothing_about_others() -> None:
    program = Program(kind=ProgramKind.PYTHON, target="t.py", args=("a", "$b"), local_rank="--at")
    asked = request(cluster(), spec(program=program, once=True))
    argv = list_program(asked, replace(cluster().workers[0], python="echo"))
    done = subprocess.run(argv, env={"LOCAL_RANK": "3"}, capture_output=True, text=True, check=True)
    assert done.stdout == "t.py --at=3 a $b\n"
    env, _ = build_environment(asked)
    assert env["PYTHONUNBUFFERED"] == "1"
    assert not {"MASTER_ADDR", "CLUSTERCTL_WORLD_SIZE"} & set(env)
