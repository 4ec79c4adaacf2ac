"""The supervisor with a program instead of mpirun, on one host: queueing, ends, retries, stops.

Everything is real but the network: the files are those that a job is shipped with.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.batch.direct import Direct
from clusterctl.core import assets
from clusterctl.core.job import JobState
from tests.unit.supervised import BOTH, Site, site, until

__all__ = ["site"]

pytestmark = pytest.mark.timeout(60)


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


def test_of_nodes_with_different_clocks_the_earliest_failure_counts(site: Site) -> None:
    """The clock of worker-1 is an hour ahead, for its ranks and for who asks it."""
    later = """eval "$(sed 's/[$](date /&-d "1 hour" /' """
    site.connect()
    site.alter("import time; now = time.time; time.time = lambda: now() + 3600", "worker-1")
    site.change = lambda text: (
        re.sub(r"(?m)^\. (.*/rank\.sh)$", later + r'\1)"', text)
        if "cctl_node=worker-1\n" in text
        else text
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
    assert "mpirun on the launcher or its daemon on a node was killed by SIGKILL" in job.reason


@pytest.mark.parametrize(
    ("address", "named"), [("10.0.1.1", "worker-1"), ("10.0.0.11", "10.0.0.11")]
)
def test_a_node_whose_connections_are_lost_is_named(site: Site, address: str, named: str) -> None:
    """mpirun ends as its ssh does, and says nothing. The launcher has done nothing wrong, not even
    where all nodes have the name in common that ssh gives."""
    nodes = (replace(node, address=f"10.0.1.{at}") for at, node in enumerate(site.where.nodes))
    site.where = replace(site.where, nodes=tuple(nodes))
    site.connect()
    words = f"Connection to {address} closed by remote host."
    lost = f"rank 0 & rank 1 & sleep 1; echo {words} >&2; exit 255"
    job = site.ended(site.submit(1, "trap 'exit 143' TERM; while :; do sleep 0.1; done", lost))
    assert (job.state, job.failure) == (JobState.FAILED, None), site.story(job)
    assert job.reason == f"mpirun lost its daemon on {named}"


def test_a_node_whose_ssh_was_killed_is_named(site: Site) -> None:
    """Open MPI 5 says so on its stdout, and ends with 0."""
    words = "A daemon failed to report back after being spawned.\n\n  Remote host:   worker-2\n"
    lost = f"rank 0 & rank 1 & sleep 1; printf '{words}'; exit 0"
    job = site.ended(site.submit(1, "trap 'exit 143' TERM; while :; do sleep 0.1; done", lost))
    assert (job.state, job.failure) == (JobState.FAILED, None), site.story(job)
    assert job.reason == "mpirun lost its daemon on worker-2"


GIVES_UP = "echo x >>starts; echo 'A daemon failed to report back after being spawned.'; exit 213"
DEAF = 'echo x >>starts; echo "The PMIx server\'s listener thread failed to start." >&2; exit 1'

KILLED = "echo x >>starts; echo clusterctl: the MPI daemon on worker-2 was killed >&2; exit 137"


@pytest.mark.parametrize("failure", [GIVES_UP, DEAF, KILLED], ids=["daemon", "mpirun", "killed"])
def test_an_mpirun_that_gives_up_is_started_again(site: Site, failure: str) -> None:
    """No rank has run: no retry is spent on it."""
    job = site.ended(site.submit(1, "true", f"[ -e starts ] || {{ {failure}; }}; rank 0; rank 1"))
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1), site.story(job)


def test_an_mpirun_whose_daemons_always_give_up_is_started_again_once(site: Site) -> None:
    job = site.ended(site.submit(1, "true", GIVES_UP))
    assert (job.state, job.reason) == (JobState.FAILED, "no rank was started")
    assert (site.folder("launcher", 1) / "starts").read_text() == "x\nx\n"


def test_retries_count_where_daemons_are_killed_at_each_start(site: Site) -> None:
    job = site.ended(site.submit(1, "true", KILLED, retries=2))
    assert (job.state, job.attempt) == (JobState.FAILED, 3), site.story(job)
    assert job.reason == "no rank was started: mpirun lost its daemon on worker-2"
    assert (site.folder("launcher", 1) / "starts").read_text() == "x\n" * 4


def test_a_node_that_takes_no_daemon_is_named(site: Site) -> None:
    """It answers in the end: nothing else says which one it was."""
    said = "ssh: connect to host worker-2 port 22: Connection timed out"
    job = site.ended(site.submit(1, "true", f"echo {said} >&2; exit 255"))
    assert job.reason == "no rank was started: mpirun lost its daemon on worker-2", site.story(job)


AWAY = "sleep 2.1; exit 255"
"""A node that is gone for good: one that refuses at once is asked again for some seconds."""


def test_an_outage_that_is_over_when_mpirun_has_given_up_is_told(
    site: Site, tmp_path: Path
) -> None:
    """The supervisor's own connection was lost, too, as mpirun's, which has not said whose."""
    cut = tmp_path / "cut"
    look = f"while [ ! -e {cut} ] && kill -0 $!; do sleep 0.02; done 2>/dev/null; kill $!"
    first = f'[ -e {cut} ] || {{ : >{cut}.open; (eval "$2") <&3 3<&- & {look}; exit 255; }}'
    site.connect(f'exec 3<&0; [ "$1" != worker-2 ] || {first}\neval "$2"')
    lost = f"rank 0 & rank 1 & until [ -e {cut}.open ]; do sleep 0.1; done; : >{cut}; exit 255"
    job = site.ended(site.submit(1, "trap 'exit 143' TERM; while :; do sleep 0.1; done", lost))
    assert (job.state, job.failure) == (JobState.FAILED, None), site.story(job)
    assert job.reason == "worker-2 was away while the job ran", site.story(job)


def test_a_daemon_that_is_lost_later_is_not_waited_for(site: Site, tmp_path: Path) -> None:
    """Open MPI says the same of it. The nodes that answer know that ranks were started."""
    looks = tmp_path / "looks"
    site.connect(
        f'[ "$1" != worker-2 ] || [ -e {looks} ] || {{ echo >>{looks}; exec sleep 60; }}\n'
        '[ "$1" != worker-2 ] || {\n'
        '    printf "ssh: connect to host worker-2 port 22: No route to host\\r\\n" >&2\n'
        f'    {AWAY}\n}}\neval "$2"'
    )
    unheard = "rank 0 >/dev/null"  # mpirun did not pass on what the rank said at its start
    job = site.ended(site.submit(1, "exit 5", f"{unheard}; {GIVES_UP}"))
    assert (job.state, job.survivors["worker-2"]) == (JobState.FAILED, -1), site.story(job)
    assert job.reason == "lost worker-2: No route to host"
    assert "No route to host" in (site.folder("launcher", 1) / "mpirun.err").read_text()
    assert looks.exists()
    assert (site.folder("launcher", 1) / "starts").read_text() == "x\n"


def test_a_job_that_loses_all_of_its_nodes_was_started(site: Site, tmp_path: Path) -> None:
    """A cluster may have one worker. What its rank said through mpirun outlives it."""
    gone = tmp_path / "gone"
    cut = f"[ ! -e {gone} ] || {{ kill $! 2>/dev/null; : >{gone}-$1; {AWAY}; }}"
    look = f"while {cut}; kill -0 $! 2>/dev/null; do sleep 0.02; done"
    site.connect(f'exec 3<&0; (eval "$2") <&3 3<&- & {look}; wait $!')
    # mpirun gives up when they are gone, as it would, and not before.
    lost = f": >{gone}; until [ -e {gone}-worker-1 ] && [ -e {gone}-worker-2 ]; do sleep 0.02; done"
    job = site.ended(site.submit(1, "exit 5", f"rank 0; {lost}; {GIVES_UP}", retries=1))
    assert (job.state, job.attempt) == (JobState.FAILED, 1), site.story(job)
    assert job.reason == "lost worker-1, worker-2: no answer when the job ended"
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


def test_mpirun_and_its_daemons_leave_no_temporary_folder_when_they_are_killed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others have there stays."""
    tmp = tmp_path / "tmp"
    monkeypatch.setenv("TMPDIR", str(tmp))
    others = {"jf.8", "prted.1", "data", "ompi.1", "h"}
    for name in (*others, "jf.7"):
        (tmp / name).mkdir(parents=True)
    (tmp / f"ompi.{os.uname().nodename}.{os.getuid()}").symlink_to("h")
    at = f"export PMIX_SERVER_TMPDIR; PMIX_SERVER_TMPDIR={tmp}"
    both = f"mkdir {tmp}/ompi.$$ {tmp}/h/pid.$$; {at}/jf.7; rank 0 & {at}/data; rank 1 & wait"
    job = site.submit(1, "while :; do sleep 0.1; done", both)
    site.until_started(job)
    assert list((tmp / "h").iterdir())
    site.cancel(job)
    assert site.ended(job).state is JobState.CANCELLED, site.story(job)
    site.until(job, lambda job: bool(job.survivors))
    assert {path.name for path in tmp.iterdir() if not path.is_symlink()} == others
    assert not list((tmp / "h").iterdir())


def test_a_signal_to_the_supervisor_is_not_called_a_cancellation(site: Site) -> None:
    job = site.submit(1, "while :; do sleep 0.1; done", BOTH, retries=3)
    site.until_started(job)
    os.kill(int((site.folder("launcher", 1) / "supervisor.pid").read_text()), signal.SIGTERM)
    job = site.ended(job)
    assert (job.state, job.attempt) == (JobState.FAILED, 1), site.story(job)
    assert "a signal ended its supervisor" in job.reason
    assert (job.failure, site.living(1)) == (None, [])


@pytest.mark.parametrize("grace", [1.0, 9.0])
def test_ranks_have_as_long_to_save_as_they_were_given(site: Site, grace: float) -> None:
    job = site.submit(
        1,
        "trap 'sleep 2; echo saved; exit' TERM; echo here; while :; do sleep 0.1; done",
        BOTH,
        grace=grace,
    )
    outputs = [site.folder(f"worker-{n + 1}", 1) / "out" / f"rank-{n}.out" for n in (0, 1)]
    site.until(job, lambda _: all(out.exists() and "here" in out.read_text() for out in outputs))
    site.cancel(job)
    job = site.ended(job)
    assert job.state is JobState.CANCELLED, site.story(job)
    assert ["saved" in out.read_text() for out in outputs] == [grace > 2] * 2


@pytest.mark.parametrize("launcher", [BOTH, "sleep 300"], ids=["ranks", "mpirun hangs"])
def test_cancel_while_mpirun_starts(site: Site, launcher: str) -> None:
    """No process carries the tag yet: one look for it must not be all that ends the job."""
    job = site.submit(1, "sleep 300", launcher, before_launch="sleep 1")
    site.cancel(job)
    job = site.ended(job)
    assert job.state is JobState.CANCELLED, site.story(job)
    assert set(job.survivors.values()) == {0}
    assert site.living(1) == []


ENDS_MEANWHILE = """
import sys, time
from agent import supervise
if sys.argv[1] == "status":
    look = supervise.is_alive
    def is_alive(job):
        found = look(job)
        open({go!r}, "w").close()
        while look(job):
            time.sleep(0.02)
        return found
    supervise.is_alive = is_alive
"""
HELD = """
import os, time
from agent import processes
look = processes.list_living
def list_living(*words):
    open({looking!r}, "w").close()
    while not os.path.exists({go!r}):
        time.sleep(0.02)
    return look(*words)
processes.list_living = list_living
"""


def test_a_job_that_ends_while_it_is_asked_for_is_not_lost(site: Site, tmp_path: Path) -> None:
    """Between reading its state and looking for its supervisor both may change."""
    go = tmp_path / "go"
    site.alter(ENDS_MEANWHILE.format(go=str(go)), "launcher")
    job = site.submit(1, f"until [ -e '{go}' ]; do sleep 0.02; done", "rank 0; rank 1")
    seen = site.on_launcher(job, Direct().status_argv())
    assert Direct().parse_status(job, seen).state in (JobState.RUNNING, JobState.SUCCEEDED)
    assert site.ended(job).state is JobState.SUCCEEDED


def test_a_signal_while_the_end_is_looked_at_changes_nothing(site: Site, tmp_path: Path) -> None:
    """`wait` returns early then: what the nodes have not yet said must not count as no."""
    looking, go = tmp_path / "looking", tmp_path / "go"
    site.alter(HELD.format(looking=str(looking), go=str(go)), "launcher")
    job = site.submit(1, ":", BOTH)
    site.until(job, lambda _: looking.exists())
    site.cancel(job)
    go.touch()
    job = site.ended(job)
    assert (job.state, job.program_exit_code) == (JobState.SUCCEEDED, 0), site.story(job)


def test_a_launch_that_starts_no_rank_is_ended(site: Site) -> None:
    """mpirun on the wrong network waits for ever; what it said goes with the error."""
    site.planned = {"start_limit": 0.5}
    job = site.ended(site.submit(1, ":", "echo no route >&2; sleep 300"))
    assert (job.state, job.program_exit_code) == (JobState.FAILED, None), site.story(job)
    assert job.reason == "no rank was started"
    assert "no route" in site.story(job)
    assert site.living(1) == []


def test_a_slow_job_is_left_alone_by_the_start_limit(site: Site) -> None:
    site.planned = {"start_limit": 0.3}
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
    site.planned = {"end_poll": 0.2, "confirm": 0.1}
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
    away = tmp_path / "away"
    site.connect(
        f'[ "$1" != worker-2 ] || [ ! -e {away} ] || {{ rm {away}; exit 255; }}\neval "$2"'
    )
    restart = "echo another >../out/boot;" * code
    end = f"[ $RANK = 0 ] || {{ touch {away}; {restart} }}; exit {code}"
    job = site.ended(site.submit(1, end, "rank 0; rank 1"))
    job = site.until(job, lambda job: "worker-2" in job.survivors)
    assert job.survivors["worker-2"] == 0, site.story(job)
    assert job.state is (JobState.FAILED if code else JobState.SUCCEEDED)
    assert job.reason == "worker-2 restarted while the job ran" * code


def test_a_cancel_between_two_attempts_is_a_cancel(site: Site, tmp_path: Path) -> None:
    looking, go = tmp_path / "looking", tmp_path / "go"
    site.alter(HELD.format(looking=str(looking), go=str(go)), "launcher")
    job = site.submit(1, "exit 5", "rank 0; rank 1", retries=3)
    site.until(job, lambda _: looking.exists())
    site.cancel(job)
    go.touch()
    job = site.ended(job)
    assert (job.state, job.attempt) == (JobState.CANCELLED, 1), site.story(job)


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
    secrets = [site.folder(name, 2) / "env" for name in ("worker-1", "worker-2")]
    until(lambda: not any(path.exists() for path in secrets))  # whoever looks on, or nobody
    go.touch()
    assert site.ended(first).state is JobState.SUCCEEDED
    assert site.ended(third).state is JobState.SUCCEEDED


def test_the_next_job_does_not_wait_for_the_last_look_after_a_success(
    site: Site, tmp_path: Path
) -> None:
    look = tmp_path / "look"
    left = f"(trap '' TERM; until [ -e '{look}' ]; do sleep 0.05; done) & exit"
    first = site.submit(1, left, BOTH, grace=30.0)
    assert site.ended(first).state is JobState.SUCCEEDED
    try:
        assert site.ended(site.submit(2, "true", BOTH)).state is JobState.SUCCEEDED
    finally:
        look.touch()
    first = site.until(first, lambda job: bool(job.survivors))
    assert set(first.survivors.values()) == {0}


def test_a_success_waits_for_no_node(site: Site) -> None:
    """mpirun has brought all that there is to say of it, also that no rank met another one."""
    site.connect('[ "$1" != worker-2 ] || exec sleep 60; eval "$2"')
    job = site.submit(1, "echo 7 >../out/rank-$RANK.alone", BOTH, grace=30.0)
    job = site.ended(job)
    assert (job.state, job.started is None) == (JobState.SUCCEEDED, False), site.story(job)
    assert job.never_met


def kill_supervisor(site: Site, number: int) -> None:
    os.kill(int((site.folder("launcher", number) / "supervisor.pid").read_text()), 9)


def test_a_supervisor_that_was_killed(site: Site) -> None:
    """Its job is lost when its ranks are gone, and the secrets with them."""
    job = site.submit(1, "trap '' TERM; while :; do sleep 0.1; done", BOTH)
    site.until_started(job)
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
    site.until_started(job)
    (site.folder("launcher", 1) / "boot").write_text("another\n")
    kill_supervisor(site, 1)
    job = site.ended(job)
    assert job.state is JobState.LOST
    assert job.reason == (
        "launcher restarted while the job ran, its supervisor on the launcher is gone"
    )


def test_a_copy_that_ended_with_the_launcher_is_removed(site: Site) -> None:
    job = site.submit(1, "while :; do sleep 0.1; done", BOTH)
    site.until_started(job)
    broken, going = (site.folder("launcher", 1) / "mirror" / f".worker-{n}.part" for n in (1, 2))
    for part in (broken, going):
        (part / "files").mkdir(parents=True)
        (part / "files" / "model.pt").write_text("half of it")
    with open(going.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kill_supervisor(site, 1)
        job = site.ended(job)
        assert job.state is JobState.LOST, site.story(job)
        assert not broken.exists()
        assert going.exists(), "whoever writes it removes it"


def test_a_running_job_keeps_its_agent_beside_a_newer_one(site: Site, tmp_path: Path) -> None:
    new, go = assets.pack_agent()[0], tmp_path / "go"
    old = "0" * len(new)
    site.connect()
    site.alter("")
    agents = [Path(node.root) / "agent" for node in site.where.nodes]
    for agent in agents:
        (agent / new).rename(agent / old)
        os.utime(agent / old, (1_000_000_000, 1_000_000_000))
    site.change = lambda text: text.replace(new, old)
    job = site.submit(1, f"until [ -e {go} ]; do sleep 0.05; done", BOTH)
    site.until_started(job)
    site.change = str
    for agent in agents:
        script = assets.render_agent(sys.executable).encode()
        subprocess.run(["/bin/sh", "-es"], cwd=agent.parent, input=script, check=True)
        assert {path.name for path in agent.iterdir()} == {old, new}
    following = site.submit(2, "true", BOTH)
    assert following.state is JobState.QUEUED
    go.touch()
    assert site.ended(job).state is JobState.SUCCEEDED, site.story(job)
    assert site.ended(following).state is JobState.SUCCEEDED, site.story(following)


@pytest.mark.parametrize("apart", [False, True], ids=["one host", "machines"])
def test_a_job_whose_folders_were_removed_ends(site: Site, apart: bool) -> None:
    """Nobody could ask after it: its ranks end, and its supervisor."""
    if apart:
        site.connect()
    job = site.submit(1, "trap '' TERM; while :; do sleep 0.1; done", BOTH)
    site.until_started(job)
    pid = int((site.folder("launcher", 1) / "supervisor.pid").read_text())
    for name in ("launcher", "worker-1", "worker-2"):
        shutil.rmtree(site.folder(name, 1))
    until(lambda: not site.living(1) and not Path(f"/proc/{pid}").exists())


def test_the_next_job_ends_what_a_dead_supervisor_left(site: Site) -> None:
    """Whether or not anybody has asked after the lost job."""
    job = site.submit(1, "while :; do sleep 0.1; done", BOTH)
    site.until_started(job)
    kill_supervisor(site, 1)
    alone = f"[ $(grep -lsF CLUSTERCTL_JOB={site.where.id}/1';' /proc/*/environ | wc -l) = 0 ]"
    following = site.ended(site.submit(2, alone, "rank 0 && rank 1"))
    assert following.state is JobState.SUCCEEDED, site.story(following)
    assert "\ndead " in site.story(job)


def test_slots_stay_taken_until_nothing_is_left_there(site: Site, tmp_path: Path) -> None:
    """A node that does not answer when its job is cleaned up may still be computing."""
    site.planned = {"clean_poll": 0.5}
    away, tries = tmp_path / "away", tmp_path / "tries"
    lost = f'[ "$1" != worker-2 ] || [ ! -e {away} ] || {{ echo >>{tries}; exit 255; }}'
    site.connect(f'{lost}\neval "$2"')
    job = site.submit(1, "sleep 300", BOTH)
    site.until_started(job)
    away.touch()
    kill_supervisor(site, 1)
    job = site.ended(job)
    assert (job.state, job.survivors["worker-2"]) == (JobState.LOST, -1)
    assert "worker-2" in job.reason
    before = len(tries.read_text())
    following = site.submit(2, "true", "rank 0; rank 1")
    site.until(following, lambda _: len(tries.read_text()) > before + 1)
    assert site.status(following).state is JobState.QUEUED
    away.unlink()
    assert site.ended(following).state is JobState.SUCCEEDED
    assert site.living(1) == []


def list_programs(folder: Path) -> list[str]:
    """The processes that run in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(process.name)
    return found


def test_the_watchdog_of_a_dead_supervisor_kills_nobody(site: Site) -> None:
    """Its pid may be another process's by then."""
    job = site.submit(1, "sleep 300", BOTH, timeout=5)
    folder = site.folder("launcher", 1)
    kill_supervisor(site, 1)
    assert site.ended(job).state is JobState.LOST
    site.until(job, lambda _: not list_programs(folder))
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
    (folder / "out" / "boot").write_text("another\n")
    lost = site.status(replace(job, state=JobState.QUEUED, finished=None))
    assert lost.reason == "launcher restarted before it was submitted"
    # Ctrl-C, twice: nobody was left who could write that into its record.
    (folder / "stop").write_text("cancelled\n")
    given_up = site.status(replace(job, state=JobState.QUEUED, finished=None))
    assert (given_up.state, given_up.reason) == (JobState.CANCELLED, "")
    assert given_up.finished is not None


def test_no_attempt_starts_on_a_node_that_does_not_answer(site: Site, tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    cut = f"[ ! -e {lost} ] || {{ kill $!; exit 255; }}; sleep 0.02"
    site.connect(
        f'[ "$1" = worker-2 ] || {{ eval "$2"; exit; }}\n[ ! -e {lost} ] || {{ {AWAY}; }}\n'
        f'exec 3<&0; (eval "$2") <&3 &\nwhile kill -0 $! 2>/dev/null; do {cut}; done; wait $!'
    )
    job = site.ended(site.submit(1, "exit 5", f": >{lost}; rank 0", retries=3))
    assert (job.state, job.attempt) == (JobState.FAILED, 1), site.story(job)
    assert job.reason.startswith("lost worker-2")
    assert not (site.folder("worker-1", 1) / "env").exists()


def test_a_full_disk_is_called_that(site: Site) -> None:
    site.alter("import os; os.statvfs = lambda path: os.statvfs_result((1, 1, 9) + (0,) * 7)")
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
    start = "export MASTER_PORT; rank 0 && rank 1"
    job = site.submit(1, "echo $MASTER_PORT >port", start, port="")
    assert site.ended(job).state is JobState.SUCCEEDED, site.story(job)
    port = int((site.folder("worker-1", 1) / "work" / "port").read_text())
    assert 1024 < port < 65536


def test_a_full_disk_keeps_no_job_from_its_end(site: Site) -> None:
    """How a rank ended could not be noted, nor why the job is to stop."""
    full = """eval "$(sed '/^echo ..cctl_code/s/.*>/: >/' """
    site.change = lambda text: re.sub(r"(?m)^\. (.*/rank\.sh)$", full + r'\1)"', text)
    job = site.ended(site.submit(1, "exit 0", f"{BOTH}; exit 1"))
    assert job.state is JobState.FAILED, site.story(job)
    assert (site.folder("worker-1", 1) / "out" / "rank-0.exit").read_text() == ""
    site.change = str
    site.alter(
        "import builtins, errno\n"
        "def full(path, mode='r', *more, real=open, **named):\n"
        "    if str(path).endswith(('/stop', '/stop.new', '.term')) and mode != 'rb':\n"
        "        raise OSError(errno.ENOSPC, 'No space left on device', path)\n"
        "    return real(path, mode, *more, **named)\n"
        "builtins.open = full"
    )
    late = site.ended(site.submit(2, "sleep 300", BOTH, timeout=1.0))
    assert late.state is JobState.TIMEOUT, site.story(late)
    job = site.submit(3, "sleep 300", BOTH)
    site.cancel(job)
    assert site.ended(job).state is JobState.CANCELLED
