"""What mpirun says of the end of a job: its own exit code, and what ranks have said through it."""

from __future__ import annotations

import subprocess

import pytest

from tests.conftest import Need
from tests.e2e.cli import Cli, tagged

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

LASTS = """
import os, sys, time
from mpi4py import MPI
MPI.COMM_WORLD.barrier()
print("talks", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
open("made", "w").write(os.environ["RANK"])
print("done", flush=True)
"""


def close(cli: Cli, node: str) -> None:
    """Its sshd takes no connection any more; those that there are stay."""
    mark = f"CLUSTERCTL_NODE={cli.status()['id']}/{node}"
    pid = next(line.split()[0] for line in tagged(mark))
    rule = ["-p", "tcp", "--dport", "22", "--syn", "-j", "REJECT", "--reject-with", "tcp-reset"]
    subprocess.run(["nsenter", "-t", pid, "-n", "iptables", "-I", "INPUT", *rule], check=True)


@pytest.mark.all
def test_a_worker_that_takes_no_connection_at_the_end_loses_no_job(own: Cli, need: Need) -> None:
    """Its ranks have said through mpirun how they ended. What they have made cannot be fetched."""
    need("iptables")
    own("up")
    own.script("lasts.py", LASTS)
    end = own.folder / "end"
    running = own.start("run", "--sync", "there", "lasts.py", end)
    running.until("talks", times=2)
    close(own, "worker-2")
    end.touch()
    done = running.wait(90)
    assert done.code == 0, done
    assert done.of(0) == done.of(1) == ["talks", "done"]
    assert own.job(1)["state"] == "succeeded"
    assert "lacks the last outputs of job 1: worker-2 did not answer when it had ended" in done.err
    assert (own.folder / "there" / "job-1" / "worker-1" / "made").read_text() == "0"
    fetched = own("fetch", 1, code=4)
    assert fetched.out.split() == ["job-1/worker-1/made"]
    assert "worker-2 does not answer; its files were not copied: nothing listens" in fetched.err


ABORTS = """
import signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
world.barrier()
if world.rank == 1:
    world.Abort(0)
time.sleep(300)
"""


def test_an_abort_with_exit_code_0_is_no_success(cli: Cli) -> None:
    """mpirun ends with 0, and so do ranks that save their work when they are told to end."""
    cli.script("aborts.py", ABORTS)
    done = cli("run", "aborts.py", code=6)
    assert "MPI_ABORT was invoked on rank 1" in done.err
    assert cli.job(done.job)["state"] == "failed"
