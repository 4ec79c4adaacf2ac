"""The supervisor with a program instead of mpirun, on one host: queueing, ends, retries, stops.

Everything is real but the network: the files are those that a job is shipped with.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl import assets, launch
from clusterctl.job_model import Job, JobState, ProgramKind
from clusterctl.jobs.start import node_files
from clusterctl.model import Cluster
from clusterctl.schedulers.direct import (
    ANSWER_LIMIT,
    GRACE,
    STACKS_LIMIT,
    START_LIMIT,
    Direct,
)
from tests.e2e.cli import wait_for
from tests.unit.making import cluster, node, program, request, spec
from tests.unit.uptime import SILENCE, Uptime

pytestmark = pytest.mark.timeout(60)


@dataclass
class Site:
    """A launcher and two workers with roots of their own on this host."""

    where: Cluster
    change: Callable[[str], str] = str
    """What the test changes in every file that is shipped."""

    def submit(
        self, number: int, script: str, launcher: str, before_launch: str = ":", **changes: Any
    ) -> Job:
        """A job whose ranks run `script`; `launcher` is sh that starts them: `rank N` starts one
        and waits for it."""
        what = spec(
            program=program("-c", script, kind=ProgramKind.BINARY, target="/bin/sh"), **changes
        )
        asked = request(self.where, what, number)
        plan = launch.load("mpirun").plan(asked)
        start = plan.argv[plan.argv.index("/bin/sh") :]
        stand_in = (
            "rank() { OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE=2"
            f" OMPI_COMM_WORLD_LOCAL_SIZE=1 MASTER_PORT=$MASTER_PORT {shlex.join(start)}; }}"
            "; export OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE"
            f" OMPI_COMM_WORLD_LOCAL_SIZE; {launcher}"
        )
        plan = replace(plan, argv=("/bin/sh", "-c", stand_in))
        job = Job(
            id=number,
            cluster="lab",
            cluster_id=self.where.id,
            spec=what,
            scheduler="direct",
            placement=asked.placement,
            stage="",
            created=time.time(),
        )
        for name, files in node_files(job, self.where, plan, {"SECRET": "hunter2"}).items():
            folder = self.folder(name, number)
            for sub in ("out", "work"):
                (folder / sub).mkdir(parents=True, exist_ok=True)
            (folder / ".staged").touch()
            for path, (text, mode) in files.items():
                (folder / path).write_text(
                    self.change(text).replace(f"cctl_grace={GRACE}\n", "cctl_grace=1\n")
                )
                (folder / path).chmod(mode)
        start_script = self.folder("launcher", number) / "launch.sh"
        start_script.write_text(f"{before_launch}\n{start_script.read_text()}")
        return Direct().parse_status(job, self.on_launcher(job, Direct().submit_argv(job)))

    def folder(self, name: str, number: int) -> Path:
        return Path(self.where.node(name).root) / "jobs" / str(number)

    def on_launcher(self, job: Job, argv: tuple[str, ...], path: str = "") -> str:
        folder = self.folder("launcher", job.id)
        env = {**os.environ, "PATH": f"{path}{os.environ['PATH']}"}
        return subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=30, env=env
        ).stdout

    def status(self, job: Job) -> Job:
        return Direct().parse_status(job, self.on_launcher(job, Direct().status_argv(job)))

    def until(self, job: Job, done: Callable[[Job], bool], seconds: float = 17) -> Job:
        found = job

        def there() -> bool:
            nonlocal found
            found = self.status(found)
            return done(found)

        wait_for(there, seconds, lambda: self.story(job))
        return found

    def ended(self, job: Job) -> Job:
        return self.until(job, lambda job: job.state.ended)

    def cancel(self, job: Job) -> None:
        self.on_launcher(job, Direct().cancel_argv(job))

    def story(self, job: Job) -> str:
        folder = self.folder("launcher", job.id)
        names = ("state", "supervise.log", "mpirun.err", "mpirun.out")
        return "\n".join((folder / name).read_text() for name in names if (folder / name).exists())

    def living(self, number: int) -> list[int]:
        """Processes that carry the job's tag."""
        tag = f"CLUSTERCTL_JOB={self.where.id}/{number};".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and tag in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def site(need: Callable[[str], str], tmp_path: Path) -> Iterator[Site]:
    for tool in ("flock", "setsid", "awk"):
        need(tool)
    nodes = []
    for name in ("launcher", "worker-1", "worker-2"):
        root = tmp_path / "it's here" / name
        (root / "bin").mkdir(parents=True)
        (root / "data").mkdir()
        (root / "bin" / "free-port").write_text(assets.render("bootstrap/free-port.sh.j2"))
        facts = {"hostname": os.uname().nodename, "boot_id": "one"}
        nodes.append(node(name, root=str(root), slots=1, **facts))
    where = cluster(*nodes, id=f"lab-{os.getpid()}-{time.time_ns()}", provider="local")
    made = Site(replace(where, one_host=True))
    yield made
    for folder in (Path(made.where.launcher.root) / "jobs").iterdir():
        if folder.name.isdigit():
            for pid in made.living(int(folder.name)):
                os.kill(pid, 9)
            pid_file = folder / "supervisor.pid"
            if pid_file.exists() and made_by(pid := int(pid_file.read_text()), folder):
                os.kill(pid, 9)


def made_by(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
    except OSError:
        return False


BOTH = "rank 0 & a=$!; rank 1 & b=$!; wait $a; x=$?; wait $b; y=$?; [ $x = 0 ] && exit $y; exit $x"


@pytest.mark.parametrize("retries", [0, 2])
def test_success(site: Site, retries: int) -> None:
    job = site.submit(1, 'echo "rank $RANK of $WORLD_SIZE $SECRET"', BOTH, retries=retries)
    assert job.state in (JobState.RUNNING, JobState.SUCCEEDED)
    job = site.until(job, lambda job: bool(job.survivors))
    assert (job.state, job.program_exit_code, job.failure) == (JobState.SUCCEEDED, 0, None)
    assert job.survivors == {"launcher": 0, "worker-1": 0, "worker-2": 0}
    assert job.started is not None
    assert job.finished is not None
    out = site.folder("worker-2", 1) / "out"
    assert (out / "rank-1.out").read_text() == "rank 1 of 2 hunter2\n"
    assert not (site.folder("worker-1", 1) / "out" / "rank-1.out").exists()
    # The secrets are gone with the job, on every node.
    assert not list(Path(site.where.launcher.root).parent.glob("*/jobs/1/env"))


def test_the_first_rank_that_failed_is_named(site: Site) -> None:
    """Rank 0 ends later and because of SIGTERM, as mpirun ends the others."""
    script = "if [ $RANK = 1 ]; then exit 3; fi; sleep 60"
    end = "rank 0 & a=$!; rank 1; c=$?; kill $a; wait $a; exit $c"
    job = site.ended(site.submit(1, script, end))
    assert (job.state, job.program_exit_code) == (JobState.FAILED, 3), site.story(job)
    assert job.failure is not None
    assert (job.failure.rank, job.failure.node, job.failure.exit_code) == (1, "worker-2", 3)
    assert set(job.survivors.values()) == {0}


@pytest.mark.parametrize(("first", "last"), [(0, 1), (1, 0)])
def test_of_several_failures_the_earliest_counts(site: Site, first: int, last: int) -> None:
    """With its own exit code, whatever mpirun makes of it."""
    end = f"rank {first}; sleep 0.05; rank {last}; exit 1"
    job = site.ended(site.submit(1, "exit $((RANK + 3))", end))
    assert job.failure is not None
    assert (job.failure.rank, job.failure.exit_code) == (first, first + 3), site.story(job)
    assert job.program_exit_code == first + 3


def test_of_nodes_with_different_clocks_the_earliest_failure_counts(site: Site) -> None:
    """The clock of worker-1 is an hour ahead, for its ranks and for who asks it."""
    ahead = "date -d '1 hour' "
    site.where = replace(site.where, one_host=False)
    agent = Path(site.where.launcher.root) / "bin" / "clusterctl-ssh"
    agent.write_text(
        f'#!/bin/sh\n[ "$1" != worker-1 ] || date() {{ command {ahead} "$@"; }}\neval "$2"\n'
    )
    agent.chmod(0o755)
    site.change = lambda text: (
        text.replace("$(date ", f"$({ahead}") if "on worker-1: finds" in text else text
    )
    job = site.ended(site.submit(1, "exit $((RANK + 3))", "rank 0; sleep 0.05; rank 1; exit 1"))
    assert job.failure is not None
    assert (job.failure.rank, job.failure.node) == (0, "worker-1"), site.story(job)
    ends = [line.split() for line in site.story(job).splitlines() if line.startswith("exit ")]
    assert max(float(when) for _, when, *_ in ends) > time.time() + 3000, "by its own clock"


def test_ranks_that_were_only_told_to_end_are_not_blamed(site: Site) -> None:
    """mpirun or a daemon was lost: the ranks that die of the clean-up did nothing wrong."""
    polite = "trap 'exit 143' TERM; while :; do sleep 0.1; done"
    lost = "rank 0 & rank 1 & sleep 1; exit 137"
    job = site.ended(site.submit(1, polite, lost))
    assert (job.state, job.failure) == (JobState.FAILED, None), site.story(job)
    assert job.program_exit_code is None, "137 is mpirun's"
    assert "mpirun on the launcher ended with 137" in job.reason


def test_nothing_was_started(site: Site) -> None:
    job = site.ended(site.submit(1, "true", "echo no such host >&2; exit 213"))
    assert (job.state, job.program_exit_code) == (JobState.FAILED, None)
    assert job.reason == "no rank was started"
    assert "no such host" in site.story(job)


GIVES_UP = "echo x >>starts; echo 'A daemon failed to report back after being spawned.'; exit 213"


def test_an_mpirun_whose_daemon_gives_up_is_started_again(site: Site) -> None:
    """No rank has run: no retry is spent on it."""
    job = site.ended(site.submit(1, "true", f"[ -e starts ] || {{ {GIVES_UP}; }}; rank 0; rank 1"))
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1), site.story(job)


def test_an_mpirun_whose_daemons_always_give_up_is_started_again_once(site: Site) -> None:
    job = site.ended(site.submit(1, "true", GIVES_UP))
    assert (job.state, job.reason) == (JobState.FAILED, "no rank was started")
    assert (site.folder("launcher", 1) / "starts").read_text() == "x\nx\n"


def test_a_daemon_that_is_lost_later_is_not_waited_for(site: Site, tmp_path: Path) -> None:
    """Open MPI says the same of it. The nodes that answer know that ranks were started."""
    site.where = replace(site.where, one_host=False)
    agent, looks = Path(site.where.launcher.root) / "bin" / "clusterctl-ssh", tmp_path / "looks"
    agent.write_text(
        "#!/bin/sh\n"
        f'case "$1 $2" in worker-2*look*) echo >>{looks}; exec sleep 60 ;; esac\n'
        '[ "$1" != worker-2 ] || exit 255\neval "$2"\n'
    )
    agent.chmod(0o755)
    job = site.ended(site.submit(1, "exit 5", f"rank 0; {GIVES_UP}"))
    assert (job.state, job.survivors["worker-2"]) == (JobState.FAILED, -1), site.story(job)
    assert looks.exists()
    assert (site.folder("launcher", 1) / "starts").read_text() == "x\n"


def test_what_a_program_leaves_behind_is_ended(site: Site) -> None:
    job = site.submit(1, "trap '' TERM; sleep 300 & :", "rank 0; rank 1")
    job = site.until(job, lambda job: bool(job.survivors))
    assert job.state is JobState.SUCCEEDED
    assert set(job.survivors.values()) == {0}
    assert site.living(1) == []


@pytest.mark.parametrize("stubborn", [False, True], ids=["obedient", "ignores SIGTERM"])
def test_cancel(site: Site, stubborn: bool) -> None:
    trap = "trap '' TERM;" if stubborn else ""
    job = site.submit(1, f"{trap} echo here; while :; do sleep 0.1; done", BOTH)
    out = site.folder("worker-1", 1) / "out" / "rank-0.out"
    site.until(job, lambda _: out.exists() and out.read_text() == "here\n")
    site.cancel(job)
    job = site.ended(job)
    assert (job.state, job.program_exit_code) == (JobState.CANCELLED, None), site.story(job)
    assert set(job.survivors.values()) == {0}
    assert site.living(1) == []


@pytest.mark.parametrize("launcher", [BOTH, "sleep 300"], ids=["ranks", "mpirun hangs"])
def test_cancel_while_mpirun_starts(site: Site, launcher: str) -> None:
    """No process carries the tag yet: one look for it must not be all that ends the job."""
    job = site.submit(1, "sleep 300", launcher, before_launch="sleep 1")
    site.cancel(job)
    job = site.ended(job)
    assert job.state is JobState.CANCELLED, site.story(job)
    assert set(job.survivors.values()) == {0}
    assert site.living(1) == []


def test_a_job_that_ends_while_it_is_asked_for_is_not_lost(site: Site, tmp_path: Path) -> None:
    """Between reading its state and looking for its supervisor both may change."""
    go, tools = tmp_path / "go", tmp_path / "tools"
    tools.mkdir()
    (tools / "cat").write_text(
        f'#!/bin/sh\n/bin/cat "$@"\ntouch "{go}"\n'
        "until grep -q '^survivors' state; do sleep 0.02; done\nflock alive true\n"
    )
    (tools / "cat").chmod(0o755)
    job = site.submit(1, f"until [ -e '{go}' ]; do sleep 0.02; done", "rank 0; rank 1")
    seen = site.on_launcher(job, Direct().status_argv(job), path=f"{tools}:")
    assert Direct().parse_status(job, seen).state in (JobState.RUNNING, JobState.SUCCEEDED)
    assert site.ended(job).state is JobState.SUCCEEDED


def test_a_signal_while_the_end_is_looked_at_changes_nothing(site: Site, tmp_path: Path) -> None:
    """`wait` returns early then: what the nodes have not yet said must not count as no."""
    looking, look = tmp_path / "looking", "set -- $(living)"
    site.change = lambda text: text.replace(look, f"touch {looking}; sleep 1; {look}")
    job = site.submit(1, ":", BOTH)
    site.until(job, lambda _: looking.exists())
    site.cancel(job)
    job = site.ended(job)
    assert (job.state, job.program_exit_code) == (JobState.SUCCEEDED, 0), site.story(job)


def test_a_launch_that_starts_no_rank_is_ended(site: Site) -> None:
    """mpirun on the wrong network waits for ever; what it said goes with the error."""
    limit = f"later {START_LIMIT} "
    site.change = lambda text: text.replace(limit, "later 0.5 ")
    job = site.ended(site.submit(1, ":", "echo no route >&2; sleep 300"))
    assert (job.state, job.program_exit_code) == (JobState.FAILED, None), site.story(job)
    assert job.reason == "no rank was started"
    assert "no route" in site.story(job)
    assert site.living(1) == []


def test_a_slow_job_is_left_alone_by_the_start_limit(site: Site) -> None:
    site.change = lambda text: text.replace(f"later {START_LIMIT} ", "later 0.3 ")
    job = site.ended(site.submit(1, "sleep 1.5", BOTH))
    assert job.state is JobState.SUCCEEDED, site.story(job)


def test_timeout(site: Site) -> None:
    job = site.ended(site.submit(1, "sleep 300", BOTH, timeout=0.3))
    assert job.state is JobState.TIMEOUT, site.story(job)
    assert set(job.survivors.values()) == {0}
    assert site.living(1) == []


@pytest.mark.parametrize("code", [0, 3])
def test_an_mpirun_that_misses_the_end_of_its_ranks_is_ended(site: Site, code: int) -> None:
    """PRRTE does now and then: the job would run, and be paid for, for ever."""
    site.change = lambda text: text.replace("pause 20 &&", "pause 0.2 &&").replace(
        "pause 5\n", "pause 0.1\n"
    )
    job = site.ended(site.submit(1, f"exit {code}", "rank 0; rank 1; sleep 300"))
    assert job.program_exit_code == code, site.story(job)
    assert job.state is (JobState.FAILED if code else JobState.SUCCEEDED)
    job = site.until(job, lambda job: bool(job.survivors))
    assert site.living(1) == []


def test_retries(site: Site) -> None:
    """The second attempt finds the files of the first, and the secrets."""
    script = "echo $CLUSTERCTL_ATTEMPT $SECRET >>tries; [ $(wc -l <tries) = 2 ] || exit 5"
    job = site.ended(
        site.submit(
            1, script, "export CLUSTERCTL_ATTEMPT; rank 0; a=$?; rank 1 && [ $a = 0 ]", retries=3
        )
    )
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2), site.story(job)
    tries = site.folder("worker-1", 1) / "work" / "tries"
    assert tries.read_text() == "1 hunter2\n2 hunter2\n"


def test_on_a_node_that_restarted_there_is_no_other_attempt(site: Site) -> None:
    """Its secrets are gone, and so is what the program had in memory there."""
    end = "echo another >../out/boot; exit 5"
    job = site.ended(site.submit(1, end, "rank 0; rank 1", retries=3))
    assert (job.state, job.attempt) == (JobState.FAILED, 1), site.story(job)
    assert "worker-2 restarted while the job ran" in job.reason


@pytest.mark.parametrize("code", [0, 1])
def test_a_node_whose_sshd_is_just_starting_is_asked_again(
    site: Site, tmp_path: Path, code: int
) -> None:
    """A reload of sshd loses no job that has ended well, and a quick restart is told as what it
    is."""
    site.where = replace(site.where, one_host=False)
    agent, away = Path(site.where.launcher.root) / "bin" / "clusterctl-ssh", tmp_path / "away"
    agent.write_text(
        f'#!/bin/sh\n[ "$1" != worker-2 ] || [ ! -e {away} ] || {{ rm {away}; exit 255; }}\n'
        'eval "$2"\n'
    )
    agent.chmod(0o755)
    restart = "echo another >../out/boot;" * code
    end = f"[ $RANK = 0 ] || {{ touch {away}; {restart} }}; exit {code}"
    job = site.ended(site.submit(1, end, "rank 0; rank 1"))
    job = site.until(job, lambda job: "worker-2" in job.survivors)
    assert job.survivors["worker-2"] == 0, site.story(job)
    assert job.state is (JobState.FAILED if code else JobState.SUCCEEDED)
    assert job.reason == "worker-2 restarted while the job ran" * code


def test_a_cancel_between_two_attempts_is_a_cancel(site: Site) -> None:
    site.change = lambda text: text.replace("set -- $(living)", "sleep 1; set -- $(living)")
    job = site.submit(1, "exit 5", "rank 0; rank 1", retries=3)
    site.until(job, lambda job: "\nlauncher " in site.story(job))
    site.cancel(job)
    job = site.ended(job)
    assert (job.state, job.attempt) == (JobState.CANCELLED, 1), site.story(job)


def test_an_mpirun_that_says_0_is_not_believed(site: Site) -> None:
    """Open MPI 5.0.11 may exit 0 when it has lost a node, and the ranks on it."""
    job = site.ended(site.submit(1, "exit 0", "rank 0; exit 0"))
    assert (job.state, job.program_exit_code) == (JobState.FAILED, None), site.story(job)


def test_ranks_that_go_on_to_their_end_without_mpirun_have_ended_well(site: Site) -> None:
    """It has lost its connections to them: the job is not run again."""
    job = site.ended(site.submit(1, "true", "rank 0; rank 1; exit 255", retries=2))
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1), site.story(job)


def test_retries_end(site: Site) -> None:
    job = site.ended(site.submit(1, "exit 5", "export CLUSTERCTL_ATTEMPT; rank 0", retries=1))
    assert (job.state, job.attempt, job.program_exit_code) == (JobState.FAILED, 2, 5)


def test_a_second_job_waits_its_turn(site: Site, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = site.submit(1, f"until [ -e '{go}' ]; do sleep 0.05; done", "rank 0; rank 1")
    assert first.state is JobState.RUNNING
    second = site.submit(2, "true", "rank 0; rank 1")
    assert second.state is JobState.QUEUED
    third = site.submit(3, "true", "rank 0; rank 1")
    assert third.state is JobState.QUEUED
    beside = site.submit(4, "true", "rank 0; rank 1", now=True)
    assert site.ended(beside).state is JobState.SUCCEEDED
    assert site.status(second).state is site.status(third).state is JobState.QUEUED
    site.cancel(second)
    second = site.ended(second)
    assert (second.state, second.started) == (JobState.CANCELLED, None)
    go.touch()
    assert site.ended(first).state is JobState.SUCCEEDED
    assert site.ended(third).state is JobState.SUCCEEDED


def test_the_next_job_does_not_wait_for_the_last_look_after_a_success(
    site: Site, tmp_path: Path
) -> None:
    end, look = tmp_path / "end", tmp_path / "look"
    first = site.submit(1, f"until [ -e '{end}' ]; do sleep 0.05; done", BOTH)
    script = site.folder("worker-2", 1) / "processes.sh"
    wait = f"[ \"$1\" != end ] || until [ -e '{look}' ]; do sleep 0.05; done\n"
    script.write_text(wait + script.read_text())
    end.touch()
    assert site.ended(first).state is JobState.SUCCEEDED
    try:
        assert site.ended(site.submit(2, "true", BOTH)).state is JobState.SUCCEEDED
    finally:
        look.touch()
    first = site.until(first, lambda job: bool(job.survivors))
    assert set(first.survivors.values()) == {0}


def kill_supervisor(site: Site, number: int) -> None:
    os.kill(int((site.folder("launcher", number) / "supervisor.pid").read_text()), 9)


def test_a_supervisor_that_was_killed(site: Site) -> None:
    """Its job is lost when its ranks are gone, and the secrets with them."""
    job = site.submit(1, "trap '' TERM; while :; do sleep 0.1; done", BOTH)
    site.until(job, lambda _: (site.folder("worker-2", 1) / "out" / "rank-1.pid").exists())
    kill_supervisor(site, 1)
    job = site.ended(job)
    assert (job.state, set(job.survivors.values())) == (JobState.LOST, {0}), site.story(job)
    assert site.living(1) == []
    assert not list(Path(site.where.launcher.root).parent.glob("*/jobs/1/env"))
    assert job.finished is not None
    assert site.status(job).finished == job.finished
    following = site.ended(site.submit(2, "true", "rank 0; rank 1"))
    assert following.state is JobState.SUCCEEDED


def test_a_launcher_that_restarted_is_the_reason_of_a_lost_job(site: Site) -> None:
    job = site.submit(1, "while :; do sleep 0.1; done", BOTH)
    site.until(job, lambda _: (site.folder("worker-2", 1) / "out" / "rank-1.pid").exists())
    (site.folder("launcher", 1) / "boot").write_text("another\n")
    kill_supervisor(site, 1)
    job = site.ended(job)
    assert job.state is JobState.LOST
    assert job.reason == (
        "launcher restarted while the job ran, its supervisor on the launcher is gone"
    )


def test_the_next_job_ends_what_a_dead_supervisor_left(site: Site) -> None:
    """Whether or not anybody has asked after the lost job."""
    job = site.submit(1, "while :; do sleep 0.1; done", BOTH)
    site.until(job, lambda _: (site.folder("worker-2", 1) / "out" / "rank-1.pid").exists())
    kill_supervisor(site, 1)
    alone = f"[ $(grep -lsF CLUSTERCTL_JOB={site.where.id}/1';' /proc/*/environ | wc -l) = 0 ]"
    following = site.ended(site.submit(2, alone, "rank 0 && rank 1"))
    assert following.state is JobState.SUCCEEDED, site.story(following)
    assert "\ndead " in site.story(job)


def test_slots_stay_taken_until_nothing_is_left_there(site: Site, tmp_path: Path) -> None:
    """A node that does not answer when its job is cleaned up may still be computing."""
    site.change = lambda text: text.replace("turns % 10", "turns % 2")
    job = site.submit(1, "sleep 300", BOTH)
    site.until(job, lambda _: (site.folder("worker-2", 1) / "out" / "rank-1.pid").exists())
    script = site.folder("worker-2", 1) / "processes.sh"
    text = script.read_text()
    tries = tmp_path / "tries"
    script.write_text(f"echo >>{tries}\nexit 255\n")
    kill_supervisor(site, 1)
    job = site.ended(job)
    assert (job.state, job.survivors["worker-2"]) == (JobState.LOST, -1)
    assert "worker-2" in job.reason
    before = len(tries.read_text())
    following = site.submit(2, "true", "rank 0; rank 1")
    site.until(following, lambda _: len(tries.read_text()) > before + 1)
    assert site.status(following).state is JobState.QUEUED
    script.write_text(text)
    assert site.ended(following).state is JobState.SUCCEEDED
    assert site.living(1) == []


def shells(folder: Path) -> list[str]:
    """The processes that run a script in this folder: a supervisor's timers are copies of it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if words.startswith(b"/bin/sh") and (process / "cwd").readlink() == folder:
                found.append(process.name)
    return found


def test_the_watchdog_of_a_dead_supervisor_kills_nobody(site: Site) -> None:
    """Its pid may be another process's by then."""
    job = site.submit(1, "sleep 300", BOTH, timeout=5)
    folder = site.folder("launcher", 1)
    kill_supervisor(site, 1)
    assert site.ended(job).state is JobState.LOST
    site.until(job, lambda _: len(shells(folder)) < 2)  # the limit for the first rank is far off
    assert not (folder / "stop").exists()


def test_a_job_that_was_staged_and_never_handed_in(site: Site) -> None:
    """There was no supervisor that could be gone."""
    job = site.submit(1, "true", "rank 0; rank 1")
    folder = site.folder("launcher", 1)
    site.until(job, lambda _: not (folder / "../active/1").exists())
    (folder / "state").unlink()
    with (folder / "alive").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)  # the supervisor that we had has gone
    lost = site.status(replace(job, state=JobState.QUEUED, finished=None))
    assert lost.state is JobState.LOST
    assert "before it was submitted" in lost.reason
    assert lost.finished is not None
    # Ctrl-C, twice: nobody was left who could write that into its record.
    (folder / "stop").write_text("cancelled\n")
    given_up = site.status(replace(job, state=JobState.QUEUED, finished=None))
    assert (given_up.state, given_up.reason) == (JobState.CANCELLED, "")
    assert given_up.finished is not None


def test_no_attempt_starts_on_a_node_that_does_not_answer(site: Site) -> None:
    lose = "echo exit 255 >../../../worker-2/jobs/1/processes.sh"
    job = site.ended(site.submit(1, "exit 5", f"{lose}; rank 0", retries=3))
    assert (job.state, job.attempt) == (JobState.FAILED, 1), site.story(job)
    assert job.reason.startswith("lost worker-2")
    assert not (site.folder("worker-1", 1) / "env").exists()


def test_a_full_disk_is_called_that(site: Site) -> None:
    site.change = lambda text: text.replace("-lt 64 ]", "-lt 1000000000000 ]")
    job = site.ended(site.submit(1, "exit 1", BOTH))
    assert job.state is JobState.FAILED
    assert job.reason == "disk full on launcher, worker-1, worker-2"


def test_a_job_has_one_supervisor(site: Site) -> None:
    job = site.submit(1, "sleep 300", BOTH)
    pid = (site.folder("launcher", 1) / "supervisor.pid").read_text()
    site.on_launcher(job, Direct().submit_argv(job))
    assert (site.folder("launcher", 1) / "supervisor.pid").read_text() == pid
    site.cancel(job)
    assert site.ended(job).state is JobState.CANCELLED


def test_a_port_for_the_ranks(site: Site) -> None:
    job = site.submit(1, "echo $MASTER_PORT >port", "export MASTER_PORT; rank 0 && rank 1")
    assert site.ended(job).state is JobState.SUCCEEDED, site.story(job)
    port = int((site.folder("worker-1", 1) / "work" / "port").read_text())
    assert 1024 < port < 65536


@pytest.fixture
def uptime(site: Site, tmp_path: Path) -> Uptime:
    made = Uptime(tmp_path, until)
    site.change = made.change
    return made


def printed(site: Site, rank: int) -> list[str]:
    file = site.folder(f"worker-{rank + 1}", 1) / "out" / f"rank-{rank}.out"
    return file.read_text().split() if file.exists() else []


def test_an_attempt_that_hangs_is_ended_and_the_next_goes_on(site: Site, uptime: Uptime) -> None:
    """As long as one rank prints, nothing hangs."""
    script = (
        "[ -e made ] && { echo resumed; exit; }; touch made; echo started; [ $RANK = 0 ] ||"
        " for n in 1 2 3; do until [ -e $n ]; do sleep 0.05; done; echo $n; done; sleep 60"
    )
    job = site.submit(1, script, BOTH, hang_timeout=SILENCE, retries=1)
    until(lambda: printed(site, 0) == printed(site, 1) == ["started"])
    for number in "123":
        uptime.settle()
        uptime.go_on(SILENCE / 2)
        (site.folder("worker-2", 1) / "work" / number).touch()
        until(lambda number=number: number in printed(site, 1))
    uptime.fall_silent()
    job = site.ended(job)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2), site.story(job)
    assert printed(site, 1) == ["started", "1", "2", "3", "resumed"]


def test_a_job_that_ends_while_its_stacks_are_read_did_not_hang(site: Site) -> None:
    site.change = lambda text: text.replace(
        '[ "$1" != stacks ] ||', '[ "$1" != stacks ] || sleep 2.5;[ "$1" != stacks ] ||'
    )
    job = site.ended(site.submit(1, "echo started; sleep 2; exit 3", BOTH, hang_timeout=1))
    assert (job.state, job.program_exit_code, job.hangs) == (JobState.FAILED, 3, ())


def test_a_job_that_prints_while_its_stacks_are_read_goes_on(site: Site) -> None:
    # The launcher is asked as well, and has no ranks.
    waits = '[ ! -e "$out/boot" ] || until [ -e "$out/said" ]; do sleep 0.05; done'
    reads = '[ "$1" != stacks ] || { : >"$out/reading"; ' + waits + "; }"
    looks = 'if [ "$1" = written ]; then [ ! -e "$out/said" ] || : >"$out/looked"'
    site.change = lambda text: text.replace(
        '[ "$1" != stacks ] ||', f'{reads}; [ "$1" != stacks ] ||'
    ).replace('if [ "$1" = written ]; then', looks)
    script = (
        "cd ../out; echo started; until [ -e reading ]; do sleep 0.05; done;"
        " echo on; : >said; until [ -e looked ]; do sleep 0.05; done"
    )
    job = site.ended(site.submit(1, script, BOTH, hang_timeout=1))
    assert (job.state, job.hangs) == (JobState.SUCCEEDED, ()), site.story(job)


def test_a_job_whose_machine_was_asleep_did_not_hang(site: Site, uptime: Uptime) -> None:
    """A laptop with a local cluster: its uptime goes on while the lid is closed."""
    script = "echo started; until [ -e end ]; do sleep 0.1; done"
    job = site.submit(1, script, BOTH, hang_timeout=SILENCE)
    until(lambda: printed(site, 0) == printed(site, 1) == ["started"])
    uptime.settle()
    uptime.go_on(3600)
    uptime.settle()
    for name in ("worker-1", "worker-2"):
        (site.folder(name, 1) / "work" / "end").touch()
    job = site.ended(job)
    assert (job.state, job.hangs) == (JobState.SUCCEEDED, ()), site.story(job)


def test_a_job_that_hangs_is_failed_and_says_so(site: Site, uptime: Uptime) -> None:
    job = site.submit(1, "echo started; sleep 60", BOTH, hang_timeout=SILENCE)
    until(lambda: printed(site, 0) == printed(site, 1) == ["started"])
    uptime.fall_silent()
    job = site.ended(job)
    assert (job.state, job.failure) == (JobState.FAILED, None), site.story(job)
    assert job.reason == (
        f"hung: no rank printed anything for {SILENCE:g} s;"
        " no stack of ranks 0, 1: sh is not a Python program"
    )
    assert job.program_exit_code is None, "it was not the program that ended"
    assert site.living(1) == []


HANGS = """
import os, time
def skip():
    time.sleep(60)
def wait_for_all():
    time.sleep(60)
print("ready", flush=True)
skip() if os.environ["RANK"] == "1" else wait_for_all()
"""


@pytest.mark.timeout(150)
def test_the_ranks_of_a_job_that_hangs_are_looked_at_before_they_are_ended(
    site: Site, uptime: Uptime, need: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By py-spy, also those that are stopped; nothing is left of that on the nodes."""
    need("gzip")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    script = f"printf %s {shlex.quote(HANGS)} >it.py; exec {sys.executable} it.py"
    job = site.submit(1, script, BOTH, hang_timeout=SILENCE)
    until(lambda: printed(site, 0) == printed(site, 1) == ["ready"])
    pid = site.folder("worker-1", 1) / "out" / "rank-0.pid"
    os.kill(int(pid.read_text()), signal.SIGSTOP)
    uptime.fall_silent()
    job = site.until(job, lambda job: job.state.ended, 100)
    assert job.reason == (
        f"hung: no rank printed anything for {SILENCE:g} s; rank 1 on worker-2 at skip, it.py:4,"
        " sleeping, while rank 0 stopped by SIGSTOP or a debugger (wait_for_all, it.py:6)"
    )
    [hang] = job.hangs
    assert [place.ranks for place in hang.places] == [(0,), (1,)]
    assert site.living(1) == []
    for name in ("worker-1", "worker-2"):
        assert not list(site.folder(name, 1).glob(".stacks-*"))


def test_a_node_whose_disk_hangs_does_not_keep_a_job_that_hangs(site: Site) -> None:
    """Its sshd answers, and what is started there never does."""
    change = site.change
    site.change = lambda text: (
        change(text)
        .replace(f"cctl_grace + {ANSWER_LIMIT}", "cctl_grace")
        .replace(f"stacks) echo {STACKS_LIMIT}", "stacks) echo 2")
    )
    site.where = replace(site.where, one_host=False)
    agent = Path(site.where.launcher.root) / "bin" / "clusterctl-ssh"
    agent.write_text('#!/bin/sh\nexec /bin/sh -c "$2"\n')
    agent.chmod(0o755)
    hang = "echo 'sleep 300' >../../../worker-2/jobs/1/processes.sh"
    job = site.submit(1, "echo started; sleep 60", f"{hang}; {BOTH}", hang_timeout=1, retries=3)
    job = site.until(job, lambda job: job.state.ended, 50)
    assert (job.state, job.attempt) == (JobState.FAILED, 1), site.story(job)
    assert job.reason.startswith("lost worker-2"), site.story(job)
    assert [hang.attempt for hang in job.hangs] == [1]


# ---------------------------------------------------------------- copies of outputs on the launcher


@pytest.fixture
def apart(site: Site) -> Site:
    """Nodes that are machines of their own, and a mesh between them; looks follow quickly."""
    agent = Path(site.where.launcher.root) / "bin" / "clusterctl-ssh"
    agent.write_text('#!/bin/sh\nexec /bin/sh -c "$2"\n')
    agent.chmod(0o755)
    site.where = replace(site.where, one_host=False)
    site.change = lambda text: text.replace("cctl_nap=30", "cctl_nap=0.2")
    return site


def mirrored(site: Site, number: int = 1) -> dict[str, str]:
    """What the launcher has of the outputs."""
    folder = site.folder("launcher", number) / "mirror"
    found = {}
    for path in folder.glob("[!.]*/**/*"):
        with suppress(FileNotFoundError, IsADirectoryError):  # it may be removed meanwhile
            found[str(path.relative_to(folder))] = path.read_text()
    return found


def until(condition: Callable[[], bool]) -> None:
    wait_for(condition, 17, "it")


def test_the_launcher_has_outputs_while_the_job_runs(apart: Site) -> None:
    """Whole ones, also of a program that replaces its snapshot again and again, and none of those
    that the program has removed since."""
    script = (
        "mkdir -p 'a  b'; echo x >'a  b/it'\"'\"'s'; echo old >old;"
        " while [ ! -e end ]; do for i in 1 2 3; do echo $RANK; done >new; mv new snapshot;"
        " [ ! -e remove ] || rm -f old; sleep 0.02; done; echo last >last"
    )
    job = apart.submit(1, script, BOTH)
    whole = {
        "worker-1/a  b/it's": "x\n",
        "worker-1/old": "old\n",
        "worker-1/snapshot": "0\n0\n0\n",
        "worker-2/a  b/it's": "x\n",
        "worker-2/old": "old\n",
        "worker-2/snapshot": "1\n1\n1\n",
    }
    until(lambda: mirrored(apart) == whole)
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "remove").touch()
    until(lambda: "worker-1/old" not in mirrored(apart))
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    until(lambda: mirrored(apart).get("worker-2/last") == "last\n")


LATER = """#!/bin/sh
echo >>{calls}
exec {date} -d "+$(wc -l <{calls}) hours" "$@"
"""
"""A clock that is set an hour ahead whenever somebody looks."""


def test_outputs_are_copied_on_while_the_launchers_clock_is_set(
    apart: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause between two looks is measured, and does not become an hour by that."""
    place = tmp_path / "clock"
    place.mkdir()
    text = LATER.format(calls=shlex.quote(str(place / "calls")), date=shutil.which("date"))
    (place / "date").write_text(text)
    (place / "date").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    job = apart.submit(1, "until [ -e end ]; do echo it >>saved; sleep 0.1; done", BOTH)
    seen = set()
    until(lambda: seen.add(mirrored(apart).get("worker-1/saved", "")) or len(seen) > 3)
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)


def test_what_is_saved_on_a_spot_notice_is_copied_also_before_the_first_look(apart: Site) -> None:
    apart.change = lambda text: text
    job = apart.submit(1, "until [ -e end ]; do sleep 0.1; done; echo it >saved; exit 1", BOTH)
    until(lambda: (apart.folder("worker-1", 1) / "work").is_dir())
    (apart.folder("worker-1", 1).parent.parent / "ending").write_text("spot\n")
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    assert "EC2 reclaimed the spot instance worker-1" in apart.ended(job).reason
    until(lambda: mirrored(apart).get("worker-1/saved") == "it\n")


def test_a_file_that_grows_without_a_pause_is_copied_as_far_as_it_has_come(apart: Site) -> None:
    script = "echo quiet >quiet; n=0; while [ ! -e end ]; do echo $((n+=1)) >>busy; sleep 0.1; done"
    job = apart.submit(1, script, BOTH)
    seen = set()
    until(lambda: seen.add(mirrored(apart).get("worker-1/busy", "")) or len(seen) > 3)
    assert mirrored(apart)["worker-1/quiet"] == "quiet\n"
    for text in seen:
        lines = text.split()
        assert lines == [str(n + 1) for n in range(len(lines))]
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    whole = (apart.folder("worker-1", 1) / "work" / "busy").read_text()
    until(lambda: mirrored(apart).get("worker-1/busy") == whole)


def test_a_file_that_never_stays_as_it_is_keeps_its_last_copy(apart: Site) -> None:
    """One that is truncated and written again may be seen empty: the copy is not."""
    script = (
        "echo first >it; until [ -e go ]; do sleep 0.05; done;"
        " while [ ! -e end ]; do : >it; sleep 0.02; done; echo last >it"
    )
    job = apart.submit(1, script, BOTH)
    until(lambda: mirrored(apart).get("worker-1/it") == "first\n")
    (apart.folder("worker-1", 1) / "work" / "go").touch()
    (apart.folder("worker-1", 1) / "work" / "later").touch()
    until(lambda: "worker-1/later" in mirrored(apart))
    assert mirrored(apart)["worker-1/it"] == "first\n"
    for name in ("worker-1", "worker-2"):
        for mark in ("go", "end"):
            (apart.folder(name, 1) / "work" / mark).touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    until(lambda: mirrored(apart).get("worker-1/it") == "last\n")


def test_with_sync_a_job_that_ends_before_the_first_look_is_copied(apart: Site) -> None:
    apart.change = lambda text: text
    job = apart.submit(1, "echo it >saved", BOTH, sync="/there")
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    until(lambda: mirrored(apart).get("worker-1/saved") == "it\n")


def test_a_node_that_is_made_anew_leaves_the_copies_as_they_are(apart: Site) -> None:
    script = "echo it >it; until [ -e end ]; do sleep 0.1; done"
    job = apart.submit(1, script, BOTH)
    until(lambda: "worker-1/it" in mirrored(apart))
    shutil.rmtree(apart.folder("worker-1", 1))
    began = time.time()
    (apart.folder("worker-2", 1) / "work" / "news").touch()
    until(lambda: "worker-2/news" in mirrored(apart))
    assert mirrored(apart)["worker-1/it"] == "it\n"
    lost, there = (apart.folder("launcher", 1) / "mirror" / f".worker-{n}.time" for n in (1, 2))
    until(lambda: int(there.read_text()) >= began)
    assert int(lost.read_text()) <= began
    apart.cancel(job)
    apart.ended(job)


def test_only_files_of_the_given_patterns_are_copied(apart: Site) -> None:
    script = "mkdir -p runs/a; touch x.pt y.pt.partial runs/a/z log; sleep 60"
    job = apart.submit(1, script, BOTH, keep_files=("*.pt", "runs/*"))
    until(lambda: len(mirrored(apart)) >= 4)
    assert {name for name in mirrored(apart) if "worker-1" in name} == {
        "worker-1/x.pt",
        "worker-1/runs/a/z",
    }
    apart.cancel(job)
    apart.ended(job)


COUNTING = """#!/bin/sh
case $2 in
*" mirror "*) /bin/sh -c "$2" | tee -a {sent} ;;
*) exec /bin/sh -c "$2" ;;
esac
"""
MIB = 1 << 20


def sent(site: Site) -> int:
    """Bytes that have come to the launcher for copies of outputs so far."""
    return (Path(site.where.launcher.root) / "sent").stat().st_size


@pytest.fixture
def counted(apart: Site) -> Site:
    """Two workers, of which the first is to have outputs."""
    root = Path(apart.where.launcher.root)
    text = COUNTING.format(sent=shlex.quote(str(root / "sent")))
    (root / "bin" / "clusterctl-ssh").write_text(text)
    return apart


def copied(site: Site, name: str) -> bytes:
    path = site.folder("launcher", 1) / "mirror" / "worker-1" / name
    return path.read_bytes() if path.exists() else b""


def save(site: Site, name: str, data: bytes) -> None:
    """As a program does that replaces its snapshot."""
    path = site.folder("worker-1", 1) / "work" / name
    path.with_name("new").write_bytes(data)
    path.with_name("new").replace(path)


def noted(site: Site, name: str) -> bool:
    return (site.folder("launcher", 1) / "mirror/.worker-1.sums" / name).exists()


def test_only_the_blocks_of_a_large_file_that_have_changed_are_copied(counted: Site) -> None:
    """In the middle, at the end, and of one that becomes longer or shorter, under an odd name."""
    name = "it's  $a\nsnap=shot.pt"
    job = counted.submit(1, "until [ -e end ]; do sleep 0.1; done", BOTH)
    until(lambda: (counted.folder("worker-1", 1) / "work").is_dir())
    data = os.urandom(8 * MIB + 4711)
    save(counted, name, data)
    until(lambda: copied(counted, name) == data and noted(counted, name))
    for change in (
        lambda data: data[: 3 * MIB] + b"changed" + data[3 * MIB + 7 :],
        lambda data: data + os.urandom(100_000),
        lambda data: data[: 6 * MIB + 815],
        lambda data: data[: 5 * MIB],
    ):
        before, data = sent(counted), change(data)
        save(counted, name, data)
        until(lambda data=data: copied(counted, name) == data)
        assert sent(counted) - before < MIB
    state = (counted.folder("worker-1", 1) / "work" / name).stat()
    copy = (counted.folder("launcher", 1) / "mirror" / "worker-1" / name).stat()
    assert (copy.st_mode, int(copy.st_mtime)) == (state.st_mode, int(state.st_mtime))
    counted.cancel(job)
    counted.ended(job)


def test_a_file_that_changes_throughout_is_summed_up_once(counted: Site) -> None:
    """From then on it is copied as a whole, and its node computes nothing for it."""
    job = counted.submit(1, "until [ -e end ]; do sleep 0.1; done", BOTH)
    until(lambda: (counted.folder("worker-1", 1) / "work").is_dir())
    for _ in range(3):
        data = os.urandom(2 * MIB)
        save(counted, "weights", data)
        until(lambda data=data: copied(counted, "weights") == data and noted(counted, "weights"))
    note = counted.folder("launcher", 1) / "mirror/.worker-1.sums" / "weights"
    assert note.read_bytes() == b""
    save(counted, "weights", b"small")
    until(lambda: copied(counted, "weights") == b"small")
    counted.cancel(job)
    counted.ended(job)


def test_a_copy_of_blocks_that_do_not_fit_is_replaced_by_the_whole_file(counted: Site) -> None:
    """The launcher's copy is not what it has noted: nothing is made of old and new parts."""
    job = counted.submit(1, "until [ -e end ]; do sleep 0.1; done", BOTH)
    until(lambda: (counted.folder("worker-1", 1) / "work").is_dir())
    data = os.urandom(4 * MIB)
    save(counted, "weights", data)
    until(lambda: copied(counted, "weights") == data and noted(counted, "weights"))
    seen = {data}
    path = counted.folder("launcher", 1) / "mirror/worker-1/weights"
    damaged = os.urandom(MIB) + data[MIB:]
    path.with_name("damaged").write_bytes(damaged)
    path.with_name("damaged").replace(path)
    seen.add(damaged)
    data = data[: 3 * MIB] + b"changed" + data[3 * MIB + 7 :]
    save(counted, "weights", data)
    until(lambda: seen.add(copied(counted, "weights")) or copied(counted, "weights") == data)
    assert len(seen) == 3
    counted.cancel(job)
    counted.ended(job)


def test_a_node_that_cannot_sum_up_blocks_sends_whole_files(
    counted: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "broken"
    place.mkdir()
    (place / "split").write_text("#!/bin/sh\nexit 1\n")
    (place / "split").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    job = counted.submit(1, "until [ -e end ]; do sleep 0.1; done", BOTH)
    until(lambda: (counted.folder("worker-1", 1) / "work").is_dir())
    for _ in range(2):
        data = os.urandom(2 * MIB)
        save(counted, "weights", data)
        until(lambda data=data: copied(counted, "weights") == data and noted(counted, "weights"))
    counted.cancel(job)
    counted.ended(job)
