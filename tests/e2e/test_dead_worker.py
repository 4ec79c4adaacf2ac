"""A worker that dies under a job: the verdict names it, and what the others have is not lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from tests.e2e.cli import Cli, tagged, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.mpi]

WORKS = """
import os, time
open("made", "w").write(os.environ["RANK"])
print("here", flush=True)
time.sleep(300)
"""


def kill(cli: Cli, node: str) -> None:
    """The machine is gone, with all that ran there."""
    mark = f"CLUSTERCTL_NODE={cli.status()['id']}/{node}"
    for line in tagged(mark):
        with suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)


def test_a_worker_that_dies(own: Cli) -> None:
    own("up")
    own.script("works.py", WORKS)
    running = own.start("run", "--retries", 3, "works.py")
    running.until("here", times=2)
    number = running.now().job
    root = next(node["root"] for node in own.status()["nodes"] if node["name"] == "launcher")
    copy = f"{root}/jobs/{number}/mirror/worker-2/made"
    own("ssh", "--json", "launcher", "--", f"until [ -e {copy} ]; do sleep 1; done")
    kill(own, "worker-2")
    done = running.wait(90)
    assert done.code not in (0, 6, 130)
    assert "worker-2 does not answer, its output is missing: " in done.err
    assert "lost worker-2" in done.err
    job = own.job(number)
    assert (job["state"], job["attempt"]) == ("failed", 1)
    assert job["reason"].startswith("lost worker-2")
    logs = own("logs", number, code=4)
    assert logs.of(0) == ["here"]
    assert "worker-2" in logs.err
    fetched = own("fetch", number, code=4)
    assert fetched.out.split() == [f"job-{number}/worker-{n}/made" for n in (1, 2)]
    assert "worker-2 does not answer" in fetched.err
    assert "using the launcher's copies of the files of worker-2, as of " in fetched.err
    refused = own("rerun", "--resume", number, code=4)
    assert "worker-2" in refused.err


EXCHANGES = """
import os, time
from mpi4py import MPI
end = time.time() + 45
while MPI.COMM_WORLD.allreduce(time.time(), op=MPI.MAX) < end:
    time.sleep(0.2)
print("done", flush=True)
"""


def cable(cli: Cli, node: str, state: str) -> None:
    """Pulls the node's network cable, or puts it back."""
    mark = f"CLUSTERCTL_NODE={cli.status()['id']}/{node}"
    pid = next(line.split()[0] for line in tagged(mark))
    command = ["nsenter", "-t", pid, "-n", "ip", "link", "set", "eth0", state]
    subprocess.run(command, check=True)


def test_an_outage_that_passes_within_15_s_ends_no_job_and_is_told(own: Cli) -> None:
    own("up")
    own.script("exchanges.py", EXCHANGES)
    running = own.start("run", "exchanges.py")
    wait_for(lambda: own.jobs() and own.job(1)["state"] == "running", 30, "the job to run")
    time.sleep(5)  # until the ranks talk to each other
    cable(own, "worker-2", "down")
    time.sleep(14)
    cable(own, "worker-2", "up")
    done = running.wait(90)
    assert done.code == 0, done
    assert done.of(0) == done.of(1) == ["done"]
    assert "worker-2 has not answered for 8 s: " in done.err
    assert "worker-2 answers again" in done.err
