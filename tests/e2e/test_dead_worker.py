"""A worker that dies under a job: the verdict names it, and what the others have is not lost."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from tests.e2e.cli import Cli, tagged

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
    kill(own, "worker-2")
    done = running.wait(90)
    assert done.code not in (0, 6, 130)
    assert "lost worker-2" in done.err
    job = own.job(number)
    assert (job["state"], job["attempt"]) == ("failed", 1)
    assert job["reason"].startswith("lost worker-2")
    logs = own("logs", number, code=4)
    assert logs.of(0) == ["here"]
    assert "worker-2" in logs.err
    fetched = own("fetch", number, code=4)
    assert fetched.out.split() == [f"job-{number}/worker-1/made"]
    assert "worker-2 does not answer" in fetched.err
    refused = own("rerun", "--resume", number, code=4)
    assert "worker-2" in refused.err
