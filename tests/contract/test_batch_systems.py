"""What every batch system promises, whatever it is: pure, quiet about secrets, sound sh.

`direct` runs jobs on a launcher and workers; a batch system knows one login node, and its job's
nodes are facts of the job.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions.run import plan_job
from clusterctl.batch.system import SYSTEMS, BatchSystem, load_system
from clusterctl.core.job import Job, JobState, LaunchPlan
from clusterctl.core.model import Cluster, Role
from clusterctl.errors import UsageError
from clusterctl.jobs.submit import make_node_files
from clusterctl.launch import launcher
from tests.conftest import Need
from tests.unit.making import cluster, job, node, program, request, spec
from tests.unit.tables import read_rows

WEIRD = read_rows("batch_systems", "weird")
PLAIN = "/home/u/.clusterctl/lab"


@pytest.fixture(params=SYSTEMS)
def name(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def system(name: str) -> BatchSystem:
    return load_system(name)


def site(name: str) -> Cluster:
    if name == "direct":
        return cluster()
    return cluster(node("login", role=Role.LOGIN), provider=name)


def plan(name: str) -> tuple[Job, LaunchPlan]:
    return plan_job(site(name), spec(launcher="auto"), number=7)


def make(name: str, root: str = PLAIN, **changes: Any) -> tuple[Job, Cluster, LaunchPlan]:
    """A job, where it runs, and how it is launched."""
    what = spec(program=program(*WEIRD), **changes)
    machines = cluster(
        node("launcher", "10.0.0.10", root=root),
        node("worker-1", "10.0.0.11", root=root),
        node("worker-2", "10.0.0.12", root=root),
    )
    made = job(machines, what, scheduler=name, native_id="4711")
    plan = launcher.plan_launch(
        "points" if what.is_sweep else what.launcher, request(machines, what)
    )
    if name == "direct":
        return made, machines, plan
    login = replace(machines.launcher, name="login", role=Role.LOGIN)
    where = replace(machines, nodes=(login,), spec=replace(machines.spec, provider=name))
    asked = launcher.Request(id=7, spec=what, cluster=where, placement=made.placement)
    return made, where, launcher.plan_launch("batch", asked)


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
    name: str, system: BatchSystem, root: str, changes: dict[str, Any]
) -> None:
    files = system.script(*make(name, root, **changes))
    assert files
    for path, text in files.items():
        assert path == path.strip("/")
        assert ".." not in path.split("/")
        if path.endswith(".sh") or text.startswith("#!"):
            done = subprocess.run(["/bin/sh", "-n"], input=text, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), path


@pytest.mark.parametrize("changes", [{"retries": 1, "timeout": 5.0}, {"array": "0-3"}], ids=str)
def test_scripts_please_shellcheck(
    name: str, system: BatchSystem, need: Need, changes: dict[str, Any]
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
        files["emitted"] = system.emit(made, where, plan, beside="")
    assert {"rank.sh", "agent.sh"} <= set(files)
    for path, text in files.items():
        if path.endswith(".sh") or text.startswith("#!"):
            done = subprocess.run(
                [shellcheck, "-s", "sh", "-S", "warning", "-"],
                input=text,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{path}: {done.stdout}"


def test_it_is_pure(name: str, system: BatchSystem) -> None:
    made, where, plan = make(name)
    assert system.script(made, where, plan) == load_system(name).script(made, where, plan)
    assert commands(system, made, where) == commands(load_system(name), made, where)


def commands(system: BatchSystem, made: Job, where: Cluster) -> list[str]:
    """In sh, what it is asked and told."""
    argvs = (system.submit_argv(made), system.cancel_argv(made), system.end_argv(made))
    return [*(argv[-1] for argv in argvs if argv), *system.status_commands([made], where)]


def test_commands_are_sound_and_hold_no_arguments_of_the_program(
    name: str, system: BatchSystem
) -> None:
    """They are in files: a command line of ours is read by everybody on the machine."""
    made, where, _ = make(name, env={"OPEN": "visible-value"})
    secret = [*(word for word in WEIRD if len(word) > 3), "visible-value"]
    for command in commands(system, made, where):
        assert not any(word in command for word in secret)
        done = subprocess.run(["/bin/sh", "-nc", command], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    assert not system.status_commands([], where)


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
    name: str, system: BatchSystem, text: str
) -> None:
    """No exception, and above all no end: a job is not over because its queue did not answer."""
    made, _, _ = make(name)
    made = replace(made, state=JobState.RUNNING, started=12.0)
    found = system.parse_status(made, text)
    assert found.id == made.id
    assert found.spec == made.spec
    assert found.started == 12.0
    assert not found.state.ended


def test_an_ended_job_stays_ended(name: str, system: BatchSystem) -> None:
    made, _, _ = make(name)
    ended = replace(made, state=JobState.SUCCEEDED, finished=30.0, program_exit_code=0)
    for text in GARBAGE:
        assert system.parse_status(ended, text) == ended


def test_it_declares_all_facts(system: BatchSystem) -> None:
    assert {item for item in BatchSystem.__annotations__ if not hasattr(system, item)} == set()
    assert 0 < system.poll < system.limit_end(spec()) < system.start_limit


def test_a_job_has_its_sizes_its_launcher_and_a_home(name: str, system: BatchSystem) -> None:
    made, planned = plan(name)
    assert (made.scheduler, made.spec.launcher) == (name, system.launchers[0])
    assert made.ranks > 0
    where = system.locate(made, site(name))
    assert set(where) == set(planned.programs)
    assert all(site(name).has(node) for node in where)
    text = system.describe_wait(replace(made, state=JobState.QUEUED, native_id="99"))
    assert text.startswith("job 7 ")


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "mpiexec"])
def test_a_launcher_that_it_does_not_have_is_refused(
    name: str, system: BatchSystem, launcher: str
) -> None:
    if launcher in system.launchers:
        return
    with pytest.raises(UsageError) as caught:
        system.resolve(spec(launcher=launcher), site(name))
    assert launcher in caught.value.message
    assert all(word in str(caught.value.hint) for word in system.launchers)


def test_a_preview_is_a_document(name: str, system: BatchSystem) -> None:
    made, planned = plan(name)
    shown = system.preview(made, site(name), planned)
    assert shown.sections
    assert all(title and text for title, text in shown.sections)
    assert "files" in shown.document


def test_a_terminal_is_given_or_refused(name: str, system: BatchSystem) -> None:
    if name == "direct":
        with pytest.raises(UsageError, match="no batch system"):
            system.interactive_argv(spec(), site(name), ["true"])
    else:
        assert system.interactive_argv(spec(), site(name), ["true"])[-1] == "true"
