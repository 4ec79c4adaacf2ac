"""What people see of a real queue, and what becomes of jobs where it, or a client, falls silent."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from tests.attach.conftest import ONE_SITE, Program, Site
from tests.e2e.cli import Cli, Running, wait_for

LONG = "echo started; exec sleep 300"


def test_people_see_the_queues_number_and_its_reason(
    cli: Cli, site: Site, program: Program
) -> None:
    started = cli("run", "--detach", "--json", *site.all_slots(), program("long", LONG))
    first = started.document()
    native = first["native_id"]
    assert native == cli.job(first["id"])["native_id"] != ""
    assert f"({site.system} {native})" in started.err
    cli.until_state(first["id"], "running")
    second = cli.detach(*site.all_slots(), "long")
    third = cli.start("run", *site.all_slots(), "long")
    fourth = cli.start("logs", second, "-f")
    reason = {"slurm": r"(Resources|Priority)", "sge": "waiting"}[site.system]
    for running in (third, fourth):
        running.until("is in the queue:")
        assert re.search(rf"\({site.system} \d+\) is in the queue: {reason}\n", running.err)
    table = cli("jobs").out.splitlines()
    assert "queue id" in table[0]
    [row] = [line for line in table if line.split()[0] == str(second)]
    assert re.search(rf" {cli.job(second)['native_id']} +queued +{reason} ", row)


@ONE_SITE
def test_a_client_that_dies_before_the_submit_leaves_a_lost_job(
    cli: Cli, site: Site, program: Program
) -> None:
    other = cli.detach(*site.size(2), program("quick", "echo $RANK"))
    slow, called, go = _in_the_way(cli, site, "mkdir")
    running = cli.start("run", *site.size(2), "quick", env=slow)
    try:
        wait_for(called.exists, 30, "it stages the job")
        number = max(cli.jobs())
        assert cli.job(number)["state"] == "queued"
        assert "still being submitted" in cli("logs", number, "-f", code=7).err
        _kill(running)
        job = cli.job(number)
        assert (job["state"], job["native_id"]) == ("lost", "")
        assert "ended before it was submitted" in job["reason"]
        assert "ended before it was submitted" in cli("logs", number, "-f").err
        assert "ended before it was submitted" in cli("cancel", number).out
        cli.until_state(other, "succeeded")
    finally:
        go.touch()


def test_a_submit_outlives_its_client(cli: Cli, site: Site, program: Program) -> None:
    name = program("quick", "echo $RANK")
    slow, called, go = _in_the_way(cli, site, {"slurm": "sbatch", "sge": "qsub"}[site.system])
    running = cli.start("run", *site.size(2), name, env=slow)
    try:
        wait_for(called.exists, 30, "it hands the job in")
        number = max(cli.jobs())
        _kill(running)
        assert cli.job(number)["state"] == "queued"
        go.touch()
        cli.until_state(number, "succeeded")
    finally:
        go.touch()


@ONE_SITE
def test_a_job_that_streams_is_on_record_as_running(cli: Cli, site: Site, program: Program) -> None:
    """For those who cannot ask: the login node may be away."""
    running = cli.start("run", *site.size(2), program("long", LONG))
    running.until("started")
    path = site.home / "jobs" / str(running.now().job) / "job.json"
    wait_for(lambda: json.loads(path.read_text())["state"] == "running", 20, "it is on record")


@ONE_SITE
def test_a_queue_that_is_silent_for_a_while_loses_no_job(
    cli: Cli, site: Site, program: Program
) -> None:
    first = cli.detach(*site.size(2), program("long", LONG))
    wait_for(lambda: "started" in cli("logs", first).out, 30, "the first job runs")
    [daemon] = _daemons(site)
    # nsenter stops with its child.
    parent = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(daemon, signal.SIGSTOP)
    try:
        running = cli.start("run", *site.size(2), program("quick", "echo $RANK"))
        running.until("the queue has not answered yet")
        wait_for(lambda: "the queue does not answer" in cli("jobs").err, 60, "`jobs` says so")
        states = {number: job["state"] for number, job in cli.jobs().items()}
        assert (states[first], states[max(states)]) == ("running", "queued")
    finally:
        for pid in (parent, daemon):
            os.kill(pid, signal.SIGCONT)
    done = running.wait(120)
    assert done.code == 0
    assert sorted(done.of(0) + done.of(1)) == ["0", "1"]
    wait_for(lambda: "the queue" not in cli("jobs").err, 60, "it answers again")


def _in_the_way(cli: Cli, site: Site, command: str) -> tuple[dict[str, str], Path, Path]:
    """A PATH on which `command` waits, and two files: one comes when it is called, the other makes
    it go on."""
    folder = cli.folder / f"slow-{command}"
    folder.mkdir()
    called, go = folder / "called", folder / "go"
    real = site.login.run("sh", "-c", f"command -v {command}").strip()
    (folder / command).write_text(
        f'#!/bin/sh\n: >"{called}"\nuntil [ -e "{go}" ]; do sleep 0.1; done\nexec {real} "$@"\n'
    )
    (folder / command).chmod(0o755)
    path = site.login.run("printenv", "PATH").strip()
    return {"PATH": f"{folder}:{path}"}, called, go


def _kill(running: Running) -> None:
    """`kill -9` of clusterctl itself: what we started is nsenter, its parent."""
    parent = running.process.pid
    [child] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    running.wait()


def _daemons(site: Site) -> list[int]:
    """The process that is this site's queue, and no other site's."""
    name = {"slurm": "slurmctld", "sge": "sge_qmaster"}[site.system]
    here = os.readlink(f"/proc/{site.login.pid}/ns/net")
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            comm = (path / "comm").read_text().strip()
            if comm == name and os.readlink(path / "ns" / "net") == here:
                found.append(int(path.name))
    return found
