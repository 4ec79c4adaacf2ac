"""Ctrl-C, cancel and --timeout: everything is gone on all nodes within ten seconds, and checked."""

from __future__ import annotations

import time

import pytest

from tests.e2e.cli import STUBBORN, Cli, Running, of_job

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

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
    assert "no processes of it found on 3 nodes" in done.err
    assert done.job not in cli.status()["jobs"], "its end is not on record"
    job = cli.job(done.job)
    assert job["state"] == "cancelled"
    assert set(job["survivors"].values()) == {0}
    assert len(job["survivors"]) == 3


def test_cancel_from_another_terminal(cli: Cli, cluster_id: str) -> None:
    """Also of torchrun's agents, which have opinions of their own about signals."""
    running = begin(cli, cluster_id, "--launcher", "torchrun")
    number = running.now().job
    began = time.monotonic()
    said = cli("cancel", number)
    assert time.monotonic() - began < PROMISED
    assert of_job(cluster_id, number) == []
    assert "no processes of it found on 3 nodes" in said.out
    assert running.wait(20).code == 130
    assert cli.job(number)["state"] == "cancelled"
    again = cli("cancel", number)
    assert "no processes of it found on" in again.out


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


def test_somebody_is_told_how_a_job_ended(cli: Cli) -> None:
    """Whoever cannot be told changes no exit code."""
    note = cli.folder / "note"
    tell = f'echo "$CLUSTERCTL_NOTE" >>{note}; exit 1'
    assert (
        "--notify" in cli("run", "--once", "--notify", tell, "--", "sh", "-c", "exit 3", code=3).err
    )
    assert "exited 3" in note.read_text()
