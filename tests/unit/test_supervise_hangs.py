"""Attempts that print nothing any more: when the supervisor ends them, what it keeps of them."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.core.job import JobState
from tests.unit.supervised import BOTH, Site, site, until
from tests.unit.uptime import SILENCE, Uptime

__all__ = ["site"]

pytestmark = pytest.mark.timeout(60)


CLOCK = """
import sys, time
from agent import supervise
monotonic = time.monotonic
class Clock:
    def __getattr__(self, name):
        return getattr(time, name)
    def monotonic(self):
        if sys._getframe(1).f_code.co_name in ("_watch_output", "pass_time"):
            open({looks!r}, "a").write("x")
            return float(open({file!r}).read().split()[0])
        return monotonic()
supervise.time = Clock()
"""


@pytest.fixture
def uptime(site: Site, tmp_path: Path) -> Uptime:
    made = Uptime(tmp_path, until)
    site.alter(
        CLOCK.format(looks=str(tmp_path / "looks"), file=str(tmp_path / "uptime")), "launcher"
    )
    site.planned = {"hang_poll": 0.1, "hang_slack": SILENCE + 0.7}
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


def change_stacks(site: Site, code: str) -> None:
    """What a node does before it reads the stacks of its ranks, in `job`."""
    site.alter(f"""
import os, time
from agent import stacks
look = stacks.list_stacks
def slow(job, tag):
    {code}
    return look(job, tag)
stacks.list_stacks = slow
""")


def test_a_job_that_ends_while_its_stacks_are_read_did_not_hang(site: Site) -> None:
    change_stacks(site, "time.sleep(2.5)")
    job = site.ended(site.submit(1, "echo started; sleep 2; exit 3", BOTH, hang_timeout=1))
    assert (job.state, job.program_exit_code, job.hangs) == (JobState.FAILED, 3, ())


def test_a_job_that_prints_while_its_stacks_are_read_goes_on(site: Site) -> None:
    # The launcher is asked as well, and has no ranks.
    waits = "while os.path.exists(job + '/out/boot') and not os.path.exists(job + '/out/said'):"
    change_stacks(site, f"open(job + '/out/reading', 'w').close()\n    {waits} time.sleep(0.05)")
    script = (
        "cd ../out; echo started; until [ -e reading ]; do sleep 0.05; done;"
        " echo on; : >said; sleep 0.9"
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
    site.planned = {"answer_limit": 0.5, "stacks_limit": 2}
    site.connect('exec /bin/sh -c "$2"')
    stuck = "import os, sys, time; sys.argv[1] != 'attend' or time.sleep(300)"
    site.alter(stuck, "worker-2")
    job = site.submit(1, "echo started; sleep 60", BOTH, hang_timeout=1, retries=3)
    job = site.until(job, lambda job: job.state.ended, 50)
    assert (job.state, job.attempt) == (JobState.FAILED, 1), site.story(job)
    assert job.reason == "lost worker-2: connected, but no reply in time", site.story(job)
    assert [hang.attempt for hang in job.hangs] == [1]
