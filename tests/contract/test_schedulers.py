"""What every scheduler promises, whatever it is: pure, quiet about secrets, sound sh.

`direct` runs jobs on a launcher and workers; a batch system knows one login node, and its job's
nodes are facts of the job.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.batch import scheduler as batch_scheduler
from clusterctl.batch.scheduler import SCHEDULERS, Scheduler
from clusterctl.core.job import Job, JobState, LaunchPlan
from clusterctl.core.model import Cluster, Role
from clusterctl.jobs.submit import make_node_files
from clusterctl.launch import launcher
from tests.conftest import Need
from tests.unit.making import cluster, job, node, program, request, spec

WEIRD = [
    "two words",
    "it's",
    'a "b" $HOME `id` \\',
    "-dash",
    "line\nbreak",
    "ü; exit 3",
    "%j",
    "#$",
]
PLAIN = "/home/u/.clusterctl/lab"


@pytest.fixture(params=SCHEDULERS)
def name(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def scheduler(name: str) -> Scheduler:
    return batch_scheduler.load_scheduler(name)


def make(name: str, root: str = PLAIN, **changes: Any) -> tuple[Job, Cluster, LaunchPlan]:
    """A job, where it runs, and how it is launched."""
    what = spec(program=program(*WEIRD), **changes)
    machines = cluster(
        node("launcher", "10.0.0.10", root=root),
        node("worker-1", "10.0.0.11", root=root),
        node("worker-2", "10.0.0.12", root=root),
    )
    made = job(machines, what, scheduler=name, native_id="4711")
    plan = launcher.load_launcher("points" if what.is_sweep else what.launcher).plan(
        request(machines, what)
    )
    if name == "direct":
        return made, machines, plan
    login = replace(machines.launcher, name="login", role=Role.LOGIN)
    where = replace(machines, nodes=(login,), spec=replace(machines.spec, provider=name))
    asked = launcher.Request(id=7, spec=what, cluster=where, placement=made.placement)
    return made, where, launcher.load_launcher("batch").plan(asked)


JOBS = {
    "plain": {},
    "timeout": {"timeout": 90.0},
    "retries": {"retries": 2},
    "now": {"now": True},
    "many ranks": {"ranks": 8},
    "sweep": {"sweep": ("lr=1,it's",)},
    "secrets": {"env": {"OPEN": "it's\n$HOME"}, "secret_names": ("TOKEN",)},
}


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("root", [PLAIN, *(f"/tmp/{word}" for word in WEIRD)], ids=ascii)
def test_scripts_are_sound(
    name: str, scheduler: Scheduler, root: str, changes: dict[str, Any]
) -> None:
    files = scheduler.script(*make(name, root, **changes))
    assert files
    for path, text in files.items():
        assert path == path.strip("/")
        assert ".." not in path.split("/")
        if path.endswith(".sh") or text.startswith("#!"):
            done = subprocess.run(["/bin/sh", "-n"], input=text, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), path


@pytest.mark.parametrize("changes", [{"retries": 1, "timeout": 5.0}, {"array": "0-3"}], ids=str)
def test_scripts_please_shellcheck(
    name: str, scheduler: Scheduler, need: Need, changes: dict[str, Any]
) -> None:
    shellcheck = need("shellcheck")
    made, where, plan = make(name, **changes)
    files = {
        path: text
        for files in make_node_files(made, where, plan, {}).values()
        for path, (text, _) in files.items()
    }
    made = replace(made, spec=replace(made.spec, secret_names=("KEY",)))
    if not made.spec.is_sweep:
        files["emitted"] = scheduler.emit(made, where, plan, beside="")
    assert {"rank.sh", "processes.sh"} <= set(files)
    for path, text in files.items():
        if path.endswith(".sh") or text.startswith("#!"):
            done = subprocess.run(
                [shellcheck, "-s", "sh", "-S", "warning", "-"],
                input=text,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{path}: {done.stdout}"


def test_it_is_pure(name: str, scheduler: Scheduler) -> None:
    made, where, plan = make(name)
    assert scheduler.script(made, where, plan) == batch_scheduler.load_scheduler(name).script(
        made, where, plan
    )
    for command in (scheduler.submit_argv, scheduler.status_argv, scheduler.cancel_argv):
        assert command(made) == command(made)


def test_commands_are_argv(name: str, scheduler: Scheduler) -> None:
    made, _, _ = make(name)
    for command in (scheduler.submit_argv, scheduler.status_argv, scheduler.cancel_argv):
        argv = command(made)
        assert argv
        assert all(isinstance(word, str) for word in argv)
        assert argv[0]
        if argv[:2] == ("/bin/sh", "-c"):
            done = subprocess.run(["/bin/sh", "-nc", argv[2]], capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, "")


def test_arguments_of_the_program_are_in_no_command(name: str, scheduler: Scheduler) -> None:
    """They are in files: a command line of ours is read by everybody on the machine."""
    made, _, _ = make(name, env={"OPEN": "visible-value"})
    for command in (scheduler.submit_argv, scheduler.status_argv, scheduler.cancel_argv):
        text = "\0".join(command(made))
        assert "visible-value" not in text
        assert not any(word in text for word in WEIRD if len(word) > 3)


GARBAGE = [
    "",
    "\n\n",
    "sh: 1: squeue: not found\n",
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
    "<?xml version='1.0'?><job_info></job_info>",
    "a b c d e f g\n" * 3,
    "running\n",
    "running soon\n",
    "ended 1 state=\n",
    "1|2|3\n",
    "\0\xff",
]


@pytest.mark.parametrize("text", GARBAGE, ids=ascii)
def test_an_answer_that_means_nothing_changes_nothing(
    name: str, scheduler: Scheduler, text: str
) -> None:
    """No exception, and above all no end: a job is not over because its queue did not answer."""
    made, _, _ = make(name)
    made = replace(made, state=JobState.RUNNING, started=12.0)
    found = scheduler.parse_status(made, text)
    assert found.id == made.id
    assert found.spec == made.spec
    assert found.started == 12.0
    assert not found.state.ended


def test_an_ended_job_stays_ended(name: str, scheduler: Scheduler) -> None:
    made, _, _ = make(name)
    ended = replace(made, state=JobState.SUCCEEDED, finished=30.0, program_exit_code=0)
    for text in GARBAGE:
        assert scheduler.parse_status(ended, text) == ended


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_row_can_be_loaded(kind: str) -> None:
    scheduler = batch_scheduler.load_scheduler(kind)
    promised = {item for item in vars(Scheduler) if not item.startswith("_")}
    assert promised | {"launchers"} <= set(dir(scheduler))
    assert scheduler.launchers
    assert scheduler.emits in ("sh", "sbatch", "qsub")
