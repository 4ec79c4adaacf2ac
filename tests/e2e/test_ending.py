"""Ctrl-C, cancel and --timeout: everything is gone on all nodes within ten seconds, and checked."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from tests.e2e.cli import STUBBORN, Cli, Running, of_job, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.sshd, pytest.mark.mpi]

PROMISED = 30.0
"""Seconds within which a job has to be gone."""


def begin(cli: Cli, cluster_id: str, *options: object, **how: object) -> Running:
    """A job of four ranks that are deaf to signals, each with a child in its own session."""
    cli.script("stubborn.py", STUBBORN)
    started = cli.start("run", *options, "--ranks", 4, "stubborn.py", **how)  # type: ignore[arg-type]
    started.until("ready", times=4, seconds=40)
    assert len(of_job(cluster_id, started.now().job)) >= 8
    return started


def test_ctrl_c_ends_everything(cli: Cli, cluster_id: str) -> None:
    running = begin(cli, cluster_id)
    running.interrupt()
    began = time.monotonic()
    done = running.wait(PROMISED + 5)
    assert time.monotonic() - began < PROMISED
    assert of_job(cluster_id, done.job) == []
    assert done.code == 130
    assert "no processes left on 3 nodes" in done.err
    job = cli.job(done.job)
    assert job["state"] == "cancelled"
    assert set(job["survivors"].values()) == {0}
    assert len(job["survivors"]) == 3


def test_ctrl_c_on_a_terminal(cli: Cli, cluster_id: str) -> None:
    """The key itself: the terminal signals whoever is in the foreground."""
    ours, theirs = os.openpty()
    started = begin(cli, cluster_id, prefix=("setsid", "--ctty"), stdin=theirs)
    os.close(theirs)
    os.write(ours, b"\x03")
    done = started.wait(PROMISED + 5)
    os.close(ours)
    assert of_job(cluster_id, done.job) == []
    assert done.code == 130
    assert "no processes left on" in done.err


@pytest.mark.slow
def test_ctrl_c_twice_still_cleans_up(cli: Cli, cluster_id: str) -> None:
    """An impatient person does not leave processes behind."""
    started = begin(cli, cluster_id)
    started.interrupt()
    started.until("stopping job")
    started.interrupt()
    done = started.wait(PROMISED + 5)
    assert done.code == 130
    number = done.job
    wait_for(lambda: not of_job(cluster_id, number), PROMISED, "everything to be gone")
    cli.until_state(number, "cancelled", seconds=10)


def test_cancel_from_another_terminal(cli: Cli, cluster_id: str) -> None:
    """Also of torchrun's agents, which have opinions of their own about signals."""
    running = begin(cli, cluster_id, "--launcher", "torchrun")
    number = running.now().job
    began = time.monotonic()
    said = cli("cancel", number)
    assert time.monotonic() - began < PROMISED
    assert of_job(cluster_id, number) == []
    assert "no processes left on 3 nodes" in said.out
    assert running.wait(20).code == 130
    assert cli.job(number)["state"] == "cancelled"
    again = cli("cancel", number)
    assert "no processes left on" in again.out


def test_the_timeout_ends_everything(cli: Cli, cluster_id: str) -> None:
    """With exit code 124, as timeout(1)."""
    started = begin(cli, cluster_id, "--timeout", "4s")
    done = started.wait(4 + PROMISED)
    assert done.code == 124
    assert of_job(cluster_id, done.job) == []
    assert "--timeout" in done.err
    job = cli.job(done.job)
    assert job["state"] == "timeout"
    assert set(job["survivors"].values()) == {0}


@pytest.mark.slow
def test_a_timeout_that_is_not_reached_changes_nothing(cli: Cli, cluster_id: str) -> None:
    cli.script("quick.py", "print('done')")
    done = cli("run", "--timeout", "1h", "quick.py")
    assert done.of(0) == ["done"]
    wait_for(lambda: not of_job(cluster_id, done.job), 10, "the watchdog to be gone")
    launcher = cli("ssh", "launcher", "--", "ps -eo args 2>/dev/null || true").out
    assert "sleep 3600" not in launcher


def test_polite_ranks_have_time_to_save(cli: Cli) -> None:
    """SIGTERM comes first: a program has two seconds to finish a snapshot, and is heard."""
    cli.script(
        "polite.py",
        "import os, signal, sys, time\n"
        "def stop(*_):\n"
        "    time.sleep(2); open('saved', 'w').close(); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)\n",
    )
    started = cli.start("run", "polite.py")
    started.until("ready", times=2)
    number = started.now().job
    cli("cancel", number)
    done = started.wait(20)
    assert done.code == 130
    logs = cli("logs", number)
    assert [logs.of(rank) for rank in (0, 1)] == [["ready", "saved"]] * 2
    fetched = cli.json("fetch", number)
    assert [item["path"] for item in fetched["files"]] == ["saved", "saved"]


def test_ctrl_c_while_waiting_in_the_queue(cli: Cli, cluster_id: str) -> None:
    slots = cli.status()["nodes"][1]["slots"]
    cli.script("waits.py", "import time; print('on', flush=True); time.sleep(300)")
    first = cli.detach("--ranks-per-node", slots, "waits.py")
    cli.until_state(first, "running")
    second = cli.start("run", "--ranks-per-node", slots, "waits.py")
    second.until("is waiting")
    second.interrupt()
    done = second.wait(PROMISED)
    assert done.code == 130
    assert cli.job(done.job)["state"] == "cancelled"
    assert cli.job(first)["state"] == "running"
    cli("cancel", first)


BETWEEN = """
import signal
from clusterctl import actions
from clusterctl.actions import run
from clusterctl.job_model import JobSpec
store = actions.open_store()
resolved = run.resolve(["waits.py"], None, None)
number = run.choose_number(store, dry=False)
[where] = store.list_clusters()
prepared = run.prepare(where, JobSpec(program=resolved.program), resolved, {}, number=number)
run.run(
    store,
    prepared,
    on_start=lambda job: signal.raise_signal(signal.SIGINT),
    on_output=print,
    report=print,
)
"""


def test_ctrl_c_between_the_start_and_the_first_line(cli: Cli, cluster_id: str) -> None:
    """When the job runs, and nobody follows it yet."""
    cli.script("waits.py", "import time; time.sleep(300)")
    known = cli.jobs()
    done = subprocess.run(
        [cli.python, "-c", BETWEEN],
        cwd=cli.folder,
        env=cli.environment({}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "KeyboardInterrupt" in done.stderr
    [(number, job)] = (item for item in cli.jobs().items() if item[0] not in known)
    assert job["state"] == "cancelled", done
    wait_for(lambda: not of_job(cluster_id, number), PROMISED, "it to be gone")


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.2, 0.35, 0.5])
def test_ctrl_c_at_any_moment_of_the_start(cli: Cli, cluster_id: str, after: float) -> None:
    """Staging, starting, running: whenever it comes, nothing stays."""
    cli.script("waits.py", "import time; time.sleep(300)")
    known = cli.jobs()
    started = cli.start("run", "waits.py")
    time.sleep(after)
    started.interrupt()
    done = started.wait(PROMISED + 5)
    assert done.code == 130, done
    assert "Traceback" not in done.err
    for number, job in cli.jobs().items():
        if number not in known:
            assert job["state"] in ("cancelled", "failed"), job
            wait_for(lambda n=number: not of_job(cluster_id, n), PROMISED, "it to be gone")
