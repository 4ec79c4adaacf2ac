"""The scripts that a batch system runs, run here with an srun that starts ranks on this host."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.agent import processes
from clusterctl.batch import verdict
from clusterctl.batch.system import load_system
from clusterctl.core import assets
from clusterctl.core.job import Job, JobState, LaunchPlan, ProgramKind, RankFailure
from clusterctl.core.model import Cluster, Role
from clusterctl.jobs.submit import make_node_files
from clusterctl.launch import launcher
from clusterctl.launch.launcher import Request
from tests.unit.making import cluster, job, node, program, spec
from tests.unit.scripts import (
    HOSTILE,
    OF_ANOTHER,
    PLAIN,
    SEES,
    place_agent,
    seen_by_program,
    until,
    write_program,
)
from tests.unit.tables import rows

FAKES = {
    "srun": """#!/bin/sh
case "$*" in *list*) [ -e "$0.lacks-pmix" ] || echo pmix; exit ;; *true) exit ;; esac
echo "$*" >"$0.called"
while [ "${1##*/}" != sh ]; do shift; done
SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=2 "$@" &
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2 "$@"
zero=$?
wait $!
one=$?
[ ! -e "$0.misses" ] || sleep 300
[ ! -e "$0.forgets" ] || exit 0
exit $((zero > one ? zero : one))
""",
    "scontrol": "#!/bin/sh\nuname -n\n",
}
SLURM = {"SLURM_JOB_NODELIST": "here", "SLURM_TASKS_PER_NODE": "2", "SLURM_JOB_ID": "4711"}


@pytest.fixture
def slurm(need: Callable[[str], str], tmp_path: Path) -> dict[str, str]:
    """The environment of a batch script; whoever handed it in has variables and functions."""
    need("bash")
    tools = tmp_path / "tools"
    for name, text in FAKES.items():
        write_program(tools / name, text)
    own = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": "/root", **SLURM}
    return {**dict.fromkeys(PLAIN, "inherited"), "BASH_FUNC_cd%%": "() { exit 9; }", **own}


def made(
    tmp_path: Path, words: Sequence[str] = SEES, **changes: Any
) -> tuple[Cluster, Job, LaunchPlan]:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "free-port").write_text("echo 29000\n")
    login = node("login", "10.0.0.9", role=Role.LOGIN, root=str(root))
    # Its own, for the job's processes are found by it on the whole machine.
    where = cluster(login, provider="slurm", id=f"lab-{os.getpid()}-{time.time_ns()}")
    target, *args = words
    what = program(*args, kind=ProgramKind.BINARY, target=target)
    changes = {"launcher": "auto", **changes}
    asked = spec(program=what, nodes=1, ranks_per_node=2, **changes)
    asked, placement = load_system(where.system).resolve(asked, where)
    one = replace(job(None, spec(), scheduler="slurm"), spec=asked, placement=placement)
    wanted = Request(id=7, spec=asked, cluster=where, placement=placement)
    return where, one, launcher.plan_launch("batch", wanted)


def staged(tmp_path: Path, where: Cluster, one: Job, plan: LaunchPlan) -> Path:
    """The job's folder, as it is when the queue gets the job."""
    folder = tmp_path / "root" / "jobs" / "7"
    (folder / "out").mkdir(parents=True)
    (folder / "work").mkdir()
    (folder / ".staged").touch()
    place_agent(tmp_path / "root")
    for name, (text, mode) in make_node_files(one, where, plan, {})["login"].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    return folder


EMITS = pytest.mark.parametrize("emits", [False, True], ids=["job", "emitted"])


def run_script(
    tmp_path: Path, made: tuple[Cluster, Job, LaunchPlan], emits: bool, env: dict[str, str]
) -> Path:
    """Runs a job's script, or the one that needs no clusterctl; the folder of its ranks."""
    where, one, plan = made
    folder = staged(tmp_path, where, one, plan)
    script, work = folder / "job.sh", folder / "work"
    if emits:
        script, work = tmp_path / "script", tmp_path
        script.write_text(load_system("slurm").emit(one, where, plan, beside=""))
        (work / ".code-4711").write_text("3\n")  # of an attempt that was preempted
    subprocess.run([env.get("WITH", "sh"), script], env=env, cwd=work, check=True, timeout=60)
    return work


@pytest.mark.parametrize("mode", [0o2770, 0o700])
def test_a_new_folder_in_that_of_a_group_is_the_group_s(mode: int, tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group").chmod(mode)
    script = assets.render(
        "batch/attach.sh.j2",
        **{"name": "s", "id": "s-1", "marker": "@@", "questions": {}, "agent": ""},
        workdir=str(tmp_path / "group" / "new" / "w"),
    )
    subprocess.run(["/bin/sh", "-s"], input=script, text=True, check=True, capture_output=True)
    made = [path for path in (tmp_path / "group").rglob("*") if path.is_dir()]
    assert len(made) == 5
    assert {path.stat().st_mode & 0o7777 for path in made} == {0o2750 if mode & 0o2000 else 0o700}


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("env", [HOSTILE, {}], ids=["set", "inherited"])
@EMITS
def test_a_batch_job_hands_on_any_variable(
    emits: bool, env: dict[str, str], shell: str, slurm: dict[str, str], tmp_path: Path
) -> None:
    where, one, plan = made(tmp_path, env=env, launcher="srun" if emits else "auto")
    work = run_script(tmp_path, (where, one, plan), emits, {**slurm, "WITH": shell})
    check(seen_by_program(work), env)
    if not emits:
        found = verdict.judge(one, (work.parent / "state").read_text())
        assert (found.state, found.survivors) == (JobState.SUCCEEDED, {os.uname().nodename: 0})


def test_no_rank_takes_itself_for_one_of_another_job(slurm: dict[str, str], tmp_path: Path) -> None:
    """A batch system may hand on what the job has that a job is handed in from."""
    setting = {"OMPI_MCA_btl": "self", "PMIX_MCA_gds": "hash"}
    work = run_script(tmp_path, made(tmp_path), False, OF_ANOTHER | setting | slurm)
    seen = seen_by_program(work)
    known = {name: value for name, value in seen.items() if OF_ANOTHER.get(name) == value}
    assert known == {}
    assert {name: seen.get(name) for name in setting} == setting


@pytest.mark.parametrize(("site", "found"), [({}, "ring"), ({"SLURM_PMIX_FENCE": "tree"}, "tree")])
@EMITS
def test_no_fence_of_pmix_ends_early(
    emits: bool, site: dict[str, str], found: str, slurm: dict[str, str], tmp_path: Path
) -> None:
    """Slurm's plug-in is told so unless the site has decided otherwise."""
    job = made(tmp_path, ("/bin/sh", "-c", 'echo "$SLURM_PMIX_FENCE" >fence'), launcher="srun")
    work = run_script(tmp_path, job, emits, slurm | site)
    assert (work / "fence").read_text() == f"{found}\n"


FAILS = """
if [ "$RANK" = 0 ]; then touch failed; exit 3; fi
until [ -e failed ]; do sleep 0.05; done
kill -TERM "$PPID"
sleep 0.5
exit 143
"""


def test_an_emitted_script_ends_with_the_code_of_the_rank_that_failed_first(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    """Not with the largest, as srun does, which ends the other ranks. One that is told to end may
    take its time to save."""
    where, one, plan = made(tmp_path, ("/bin/sh", "-c", FAILS), launcher="srun")
    script = load_system("slurm").emit(one, where, plan, beside="")
    done = subprocess.run(["bash", "-c", script], env=slurm, cwd=tmp_path, timeout=60)
    assert done.returncode == 3
    assert not list(tmp_path.glob(".code*"))


@rows("changes, mpi", "batch_scripts.a_slurm_without_pmix")
def test_a_slurm_without_pmix(
    changes: dict[str, Any], mpi: str, slurm: dict[str, str], tmp_path: Path
) -> None:
    """And without an mpirun. What may use MPI does not start: each rank would be alone."""
    tools = tmp_path / "tools"
    (tools / "srun.lacks-pmix").touch()
    write_program(tools / "mpirun", "exit 127")
    where, one, plan = made(tmp_path, **changes)
    folder = staged(tmp_path, where, one, plan)
    subprocess.run(["sh", folder / "job.sh"], env=slurm, timeout=60)
    found = verdict.judge(one, (folder / "state").read_text())
    if mpi in ("mpirun", "--mpi"):
        assert found.state is JobState.FAILED
        assert mpi in (folder / "mpirun.err").read_text()
        assert not (tools / "srun.called").exists()
    else:
        assert found.state is JobState.SUCCEEDED
        assert f"--mpi={mpi} " in (tools / "srun.called").read_text()


@pytest.mark.timeout(60)
def test_a_job_ends_whose_launcher_cannot_be_chosen(slurm: dict[str, str], tmp_path: Path) -> None:
    for name, said in (("ip", "odd"), ("mpirun", "mpirun (Open MPI) 5.0.1")):
        (tmp_path / "tools" / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (tmp_path / "tools" / name).chmod(0o755)
    where, one, plan = made(tmp_path, launcher="mpirun")
    folder = staged(tmp_path, where, one, plan)
    subprocess.run(["sh", folder / "job.sh"], env=slurm, timeout=50)
    assert verdict.judge(one, (folder / "state").read_text()).state is JobState.FAILED


@dataclass
class Batch:
    """A job that the queue has started here."""

    job: Job
    folder: Path
    process: subprocess.Popen[bytes]

    def wait_for_ranks(self) -> None:
        out = self.folder / "out"
        until(lambda: all((out / f"rank-{n}.out").exists() for n in (0, 1)))
        until(lambda: all((out / f"rank-{n}.out").read_text() for n in (0, 1)))

    def end(self) -> Job:
        """The job after its script's end."""
        self.process.wait(timeout=120)
        return verdict.judge(self.job, (self.folder / "state").read_text())


@pytest.fixture(params=["sh", pytest.param("bash", marks=pytest.mark.all)])
def start(
    request: pytest.FixtureRequest, slurm: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., Batch]]:
    """Starts a job whose ranks run some lines of sh."""
    started: list[subprocess.Popen[bytes]] = []

    def one(
        script: str, planned: Mapping[str, float] = {}, agent: str = "", **changes: Any
    ) -> Batch:
        where, job, plan = made(tmp_path, ("/bin/sh", "-c", script), **changes)
        folder = staged(tmp_path, where, job, plan)
        whole = json.loads((folder / "plan.json").read_text())
        whole["job"].update({"confirm": 0.2, **planned})  # no note is late on this disk
        (folder / "plan.json").write_text(json.dumps(whole))
        (folder / "agent.sh").write_text(f"{agent}\n{(folder / 'agent.sh').read_text()}")
        argv = [request.param, folder / "job.sh"]
        started.append(subprocess.Popen(argv, env=slurm, start_new_session=True))
        return Batch(job, folder, started[-1])

    yield one
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


SAVES = "trap 'echo saved >saved-$RANK; exit 0' TERM; echo up; while :; do sleep 0.1; done"
HERE = {os.uname().nodename: 0}


def test_a_batch_job_is_cancelled_by_a_word_in_its_folder(start: Callable[..., Batch]) -> None:
    """Its programs save, and end with 0: that is no success."""
    batch = start(SAVES)
    batch.wait_for_ranks()
    (batch.folder / "stop").write_text("cancelled\n")
    found = batch.end()
    assert (found.state, found.program_exit_code) == (JobState.CANCELLED, None)
    assert found.survivors == HERE
    assert batch.process.returncode != 0
    assert len(list((batch.folder / "work").glob("saved-*"))) == 2
    assert not (batch.folder / "env").exists()


def test_a_batch_job_has_a_time_limit_of_its_own(start: Callable[..., Batch]) -> None:
    found = start(SAVES, timeout=1.0).end()
    assert (found.state, found.survivors) == (JobState.TIMEOUT, HERE)


@pytest.mark.parametrize("requeue", [True, False])
def test_a_batch_job_that_is_warned_saves(start: Callable[..., Batch], requeue: bool) -> None:
    """It goes back into the queue where that was asked for, and keeps its secrets for that."""
    batch = start(SAVES, native={"requeue": ""} if requeue else {})
    batch.wait_for_ranks()
    batch.process.send_signal(signal.SIGUSR1)
    found = batch.end()
    assert found.state is (JobState.QUEUED if requeue else JobState.TIMEOUT)
    assert (batch.process.returncode == 0) == requeue
    assert (batch.folder / "env").exists() == requeue
    assert len(list((batch.folder / "work").glob("saved-*"))) == 2


def test_a_warning_is_not_lost_while_the_agent_starts(start: Callable[..., Batch]) -> None:
    warned = '[ "$1" != batch ] || kill -USR1 $$'
    assert start(SAVES, agent=warned).end().state is JobState.TIMEOUT


def test_a_batch_job_that_the_system_ends_leaves_the_verdict_to_it(
    start: Callable[..., Batch],
) -> None:
    batch = start(SAVES)
    batch.wait_for_ranks()
    batch.process.terminate()
    assert batch.end().state is JobState.RUNNING
    assert batch.process.returncode != 0
    said = "@@job 7 4711\n" + (batch.folder / "state").read_text() + "gone COMPLETED|0:0||130\n"
    assert load_system("slurm").parse_status(batch.job, said).state is JobState.CANCELLED


def test_a_batch_job_that_runs_again_elsewhere_hears_nothing_of_its_last_attempt(
    start: Callable[..., Batch],
) -> None:
    """Grid Engine starts a job that `qmod -rj` has put back before it warns what still runs."""
    batch = start(SAVES)
    batch.wait_for_ranks()
    before = (batch.folder / "state").read_text()
    (batch.folder / "attempt").write_text("2\n")
    batch.process.send_signal(signal.SIGTERM)
    assert batch.process.wait(timeout=60) == 1
    assert (batch.folder / "state").read_text() == before
    assert not (batch.folder / "stopping").exists()
    tag = (batch.folder / "tag").read_text().strip()
    until(lambda: processes.list_living(tag) == [])
    assert list((batch.folder / "work").glob("saved-*")) == []


def test_a_batch_job_tries_again(start: Callable[..., Batch]) -> None:
    script = 'echo "$CLUSTERCTL_ATTEMPT"; [ "$CLUSTERCTL_ATTEMPT$RANK" != 11 ] || exit 3'
    found = start(script, retries=2).end()
    assert (found.state, found.attempt, found.failure) == (JobState.SUCCEEDED, 2, None)


def test_a_launcher_that_says_0_is_not_believed(
    start: Callable[..., Batch], tmp_path: Path
) -> None:
    """Some miss how a rank has ended: what counts is what each has left."""
    (tmp_path / "tools" / "srun.forgets").touch()
    found = start("exit $((RANK * 3))").end()
    assert (found.state, found.program_exit_code) == (JobState.FAILED, 3)


def test_a_batch_job_that_hangs_is_ended_and_tried_again(start: Callable[..., Batch]) -> None:
    script = 'echo started; [ "$CLUSTERCTL_ATTEMPT" = 2 ] || sleep 60'
    found = start(script, {"hang_poll": 0.1}, hang_timeout=2.0, retries=1).end()
    assert (found.state, found.attempt) == (JobState.SUCCEEDED, 2)
    [hang] = found.hangs
    assert (hang.attempt, hang.seconds) == (1, 2.0)
    assert "sh is not a Python program" in verdict.describe_hang(found, hang)


@pytest.mark.parametrize("code", [0, 3])
def test_a_launcher_that_misses_the_end_of_its_ranks_is_ended(
    start: Callable[..., Batch], code: int, tmp_path: Path
) -> None:
    (tmp_path / "tools" / "srun.misses").touch()

    found = start(f"exit {code}", {"end_poll": 0.2, "confirm": 0.1}).end()
    assert found.state is (JobState.FAILED if code else JobState.SUCCEEDED)
    assert found.program_exit_code == code


def test_a_batch_job_fails_with_its_first_failure(start: Callable[..., Batch]) -> None:
    batch = start("[ $RANK = 1 ] && exit 3; sleep 0.5; exit 4", retries=1)
    found = batch.end()
    assert (found.state, found.attempt, found.program_exit_code) == (JobState.FAILED, 2, 3)
    assert found.failure == RankFailure(rank=1, node=os.uname().nodename, exit_code=3)


STEP = """#!/bin/sh
while [ "${1##*/}" != sh ]; do shift; done
setsid sh -c 'tail -s 0.1 --pid="$1" -f /dev/null
    kill -KILL $(grep -lsF -e "STEP=$0;" /proc/[0-9]*/environ | cut -d / -f 3)' "$0" $$ &
STEP="$0;" "$@"
"""
"""An srun of a Slurm that tracks processes by cgroup: nothing of a step outlives its first process,
nor srun."""


def test_programs_of_other_nodes_save_after_mpirun_has_killed_its_agents(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    """Their daemon ends, too. What starts it stays for no longer than they do."""
    where, one, plan = made(tmp_path)
    folder = staged(tmp_path, where, one, plan)
    (tmp_path / "tools" / "srun").write_text(STEP)
    program = "trap 'sleep 1; echo >saved; exit' TERM; echo $$ >pid; while :; do sleep 0.1; done"
    daemon = f"setsid sh -c {shlex.quote(program)} & until [ -s pid ]; do sleep 0.01; done"
    agent = subprocess.Popen(
        [folder / "clusterctl-agent", "here", f"{daemon}; until [ -e over ]; do sleep 0.01; done"],
        env=slurm | {"CLUSTERCTL_JOB": f"{where.id}/7;"},
        cwd=tmp_path,
    )
    found = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    os.kill(found, signal.SIGTERM)
    agent.kill()
    agent.wait()
    (tmp_path / "over").touch()
    until(lambda: not Path(f"/proc/{found}").exists())
    assert (tmp_path / "saved").exists()
    step = f"STEP={tmp_path}/tools/srun;".encode()
    until(lambda: not any(step in read_environment(path) for path in Path("/proc").glob("[0-9]*")))


def read_environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def check(seen: dict[str, str], env: dict[str, str]) -> None:
    ours = ("MASTER_PORT", "CLUSTERCTL_DATA")
    wanted = {**{name: "inherited" for name in PLAIN if name not in ours}, **env}
    assert {name: seen.get(name) for name in wanted} == wanted
    assert seen["RANK"] in "01"
    assert seen["WORLD_SIZE"] == "2"
    # One device for all libraries; UCX chooses itself among those of a fast fabric.
    if not Path("/sys/class/infiniband").exists():
        assert seen.get("UCX_NET_DEVICES") == seen.get("GLOO_SOCKET_IFNAME")


def announce(batch: Batch) -> None:
    """As Slurm does it for the script's --signal."""
    batch.wait_for_ranks()
    batch.process.send_signal(signal.SIGUSR1)


SLOW = "trap 'sleep 6; echo saved >saved-$RANK; exit 0' TERM; echo up; while :; do sleep 0.1; done"


@pytest.mark.parametrize(
    "native", [{}, pytest.param({"signal": "B:TERM@120"}, marks=pytest.mark.all)]
)
def test_ranks_have_the_time_of_a_notice_to_save(
    start: Callable[..., Batch], native: dict[str, str]
) -> None:
    """More than the five seconds that they have when the job is cancelled."""
    batch = start(SLOW, native=native)
    announce(batch)
    assert batch.end().state is JobState.TIMEOUT
    assert len(list((batch.folder / "work").glob("saved-*"))) == 2


COUNTS = (
    "trap 'echo $SIGNAL >>got-$RANK' $SIGNAL; trap 'echo TERM >>got-$RANK' TERM;"
    " echo up; until [ -e over ]; do sleep 0.1; done"
)


def test_ranks_get_the_site_s_own_signal(start: Callable[..., Batch]) -> None:
    """Once, and no other; the job goes on until its time is up. That of a site which names none is
    in tests/attach/test_sites.py."""
    native = {"signal": "USR2@120"}
    batch = start(COUNTS, native=native, pass_signal=True, env={"SIGNAL": "USR2"})
    announce(batch)
    work = batch.folder / "work"
    until(lambda: len(list(work.glob("got-*"))) == 2)
    time.sleep(2.5)
    assert batch.process.poll() is None
    (work / "over").touch()
    assert batch.end().state is JobState.SUCCEEDED
    assert [path.read_text() for path in sorted(work.glob("got-*"))] == ["USR2\n"] * 2
