"""The scripts that a batch system runs, run here with an srun that starts ranks on this host."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl import launch, schedulers
from clusterctl.jobs import systems
from clusterctl.jobs.start import node_files
from clusterctl.launch import Request
from clusterctl.model import Cluster, Job, JobState, LaunchPlan, ProgramKind, Role
from clusterctl.schedulers import verdict
from tests.unit.making import cluster, job, node, program, spec
from tests.unit.scripts import HOSTILE, PLAIN, SEES, seen_by_program

FAKES = {
    "srun": """#!/bin/sh
case "$*" in *list*) echo pmix; exit ;; *true) exit ;; esac
while [ "$1" != /bin/sh ]; do shift; done
SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=2 "$@" &
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2 "$@"
wait $!
""",
    "scontrol": "#!/bin/sh\nuname -n\n",
}
SLURM = {"SLURM_JOB_NODELIST": "here", "SLURM_TASKS_PER_NODE": "2", "SLURM_JOB_ID": "4711"}


@pytest.fixture
def slurm(need: Callable[[str], str], tmp_path: Path) -> dict[str, str]:
    """The environment of a batch script; whoever handed it in has variables and functions."""
    need("bash")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in FAKES.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    own = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": "/root", **SLURM}
    return {**dict.fromkeys(PLAIN, "inherited"), "BASH_FUNC_cd%%": "() { exit 9; }", **own}


def made(tmp_path: Path, **changes: Any) -> tuple[Cluster, Job, LaunchPlan]:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "free-port").write_text("echo 29000\n")
    where = cluster(node("login", "10.0.0.9", role=Role.LOGIN, root=str(root)), provider="slurm")
    target, *args = SEES
    what = program(*args, kind=ProgramKind.BINARY, target=target)
    asked = spec(program=what, launcher="auto", nodes=1, ranks_per_node=2, **changes)
    asked, placement = systems.load(where).resolve(asked)
    one = replace(job(None, spec(), scheduler="slurm"), spec=asked, placement=placement)
    wanted = Request(id=7, spec=asked, cluster=where, placement=placement)
    return where, one, launch.load("batch").plan(wanted)


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("env", [HOSTILE, {}], ids=["set", "inherited"])
def test_a_batch_job_hands_on_any_variable(
    env: dict[str, str], shell: str, slurm: dict[str, str], tmp_path: Path
) -> None:
    where, one, plan = made(tmp_path, env=env)
    folder = tmp_path / "root" / "jobs" / "7"
    (folder / "out").mkdir(parents=True)
    (folder / "work").mkdir()
    for name, (text, mode) in node_files(one, where, plan, {})["login"].items():
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    subprocess.run([shell, folder / "job.sh"], env=slurm, check=True, timeout=60)
    found = verdict.judge(one, (folder / "state").read_text())
    assert (found.state, found.survivors) == (JobState.SUCCEEDED, {os.uname().nodename: 0})
    check(seen_by_program(folder / "work"), env)


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("env", [HOSTILE, {}], ids=["set", "inherited"])
def test_an_emitted_batch_script_hands_on_any_variable(
    env: dict[str, str], shell: str, slurm: dict[str, str], tmp_path: Path
) -> None:
    where, one, plan = made(tmp_path, env=env)
    script = tmp_path / "script"
    scheduler = schedulers.load("slurm")
    text = scheduler.emit(one, where, plan, version="1", secrets=[], beside="")
    script.write_text(text)
    subprocess.run([shell, script], env=slurm, cwd=tmp_path, check=True, timeout=60)
    check(seen_by_program(tmp_path), env)


def check(seen: dict[str, str], env: dict[str, str]) -> None:
    ours = ("MASTER_PORT", "CLUSTERCTL_DATA")
    wanted = {**{name: "inherited" for name in PLAIN if name not in ours}, **env}
    assert {name: seen.get(name) for name in wanted} == wanted
    assert seen["RANK"] in "01"
    assert seen["WORLD_SIZE"] == "2"
    # One device for all libraries; UCX chooses itself among those of a fast fabric.
    if not Path("/sys/class/infiniband").exists():
        assert seen.get("UCX_NET_DEVICES") == seen.get("GLOO_SOCKET_IFNAME")
