"""A worker that dies under a job: the verdict names it, and what the others have is not lost."""

from __future__ import annotations

import hashlib
import subprocess

import pytest

from tests.e2e.cli import Cli, kill_node, tagged

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

WORKS = """
import os, time
open("made", "w").write(os.environ["RANK"])
print("here", flush=True)
time.sleep(300)
"""


@pytest.mark.all
def test_a_worker_that_dies(own: Cli) -> None:
    own("up")
    own.script("works.py", WORKS)
    running = own.start("run", "--retries", 3, "--on-node-loss", "fail", "works.py")
    running.until("here", times=2)
    number = running.now().job
    root = next(node["root"] for node in own.status()["nodes"] if node["name"] == "launcher")
    copy = f"{root}/jobs/{number}/mirror/worker-2/made"
    own("ssh", "--json", "launcher", "--", f"until [ -e {copy} ]; do sleep 1; done")
    kill_node(own, "worker-2")
    done = running.wait(90)
    assert done.code not in (0, 6, 130)
    assert "worker-2 does not answer, its output is missing: " in done.err
    assert "lost worker-2" in done.err
    assert "`clusterctl up default`, then `clusterctl rerun 1 --resume` continues" in done.err
    job = own.job(number)
    assert (job["state"], job["attempt"]) == ("failed", 1)
    assert job["reason"] == "lost worker-2: no answer from that address"
    logs = own("logs", number, code=4)
    assert logs.of(0) == ["here"]
    assert "worker-2" in logs.err
    fetched = own("fetch", number, code=4)
    assert fetched.out.split() == [f"job-{number}/worker-{n}/made" for n in (1, 2)]
    assert "worker-2 does not answer" in fetched.err
    assert "using the launcher's copies of the files of worker-2, as of " in fetched.err
    refused = own("rerun", "--resume", number, code=4)
    assert "worker-2" in refused.err


TRAINS = """
import hashlib, json, os, time
from mpi4py import MPI
world, state = MPI.COMM_WORLD, [0, ""]
if world.rank == 0 and os.path.exists("snapshot"):
    with open("snapshot") as file:
        state = json.load(file)
state = world.bcast(state)
print("from", state[0], flush=True)
while state[0] < 100:
    together = world.Ibarrier()  # who waits for a rank that is gone waits asleep
    while not together.Test():
        time.sleep(0.02)
    told = repr(world.allgather([world.rank, state]))
    state = [state[0] + 1, hashlib.sha256(told.encode()).hexdigest()]
    if world.rank == 0:
        with open("new", "w") as file:
            json.dump(state, file)
        os.replace("new", "snapshot")
    print("step", state[0], flush=True)
    time.sleep(0.1)
print(state[1], flush=True)
"""


ASKS = TRAINS.replace('os.path.exists("snapshot")', "sys.argv[1:] and sys.argv[1] == '--resume'")
ASKS = ASKS.replace('open("snapshot")', "open(sys.argv[2])").replace("json, os,", "json, os, sys,")
"""The same with an option for its snapshot, which it does not look for."""


def undisturbed(steps: int = 100) -> str:
    """What TRAINS prints at last."""
    state: list[object] = [0, ""]
    for step in range(steps):
        told = repr([[rank, state] for rank in range(2)])
        state = [step + 1, hashlib.sha256(told.encode()).hexdigest()]
    return str(state[1])


def test_a_job_goes_on_without_the_worker_it_has_lost(own: Cli) -> None:
    """On a new one the result is that of an undisturbed run, to the last bit; on those that are
    left it is not, but what was done is not done again."""
    own("up")
    own.script("trains.py", TRAINS)
    running = own.start("run", "trains.py")
    running.until("step 20", times=2)
    kill_node(own, "worker-1")
    done = running.wait(120)
    assert done.code == 0, done
    assert "lost worker-1: starting it again, then continuing job 1" in done.err
    assert done.of(0)[-1] == done.of(1)[-1] == undisturbed()
    begun = [int(line.split()[1]) for line in done.of(0) if line.startswith("from")]
    assert begun[0] == 0
    assert begun[1] >= 20
    assert (own.job(1)["state"], own.job(2)["state"]) == ("failed", "succeeded")
    assert own.job(2)["rerun_of"] == 1

    own.script("asks.py", ASKS)
    given = ("--keep-files", "snapshot", "--resume-args", "--resume {snapshot}")
    running = own.start("run", "--on-node-loss", "shrink", *given, "asks.py")
    running.until("step 20", times=2)
    kill_node(own, "worker-2")
    done = running.wait(120)
    assert done.code == 0, done
    assert "lost worker-2: continuing job 3 with 1 rank on the others" in done.err
    assert done.of(1)[-1].startswith("step")
    assert int([line for line in done.of(0) if line.startswith("from")][1].split()[1]) >= 20


EXCHANGES = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.barrier()
print("talks", flush=True)
while True:
    together = world.Ibarrier()
    while not together.Test():
        time.sleep(0.02)
    if world.allreduce(os.path.exists(sys.argv[1]), op=MPI.LOR):
        break
    time.sleep(0.2)
print("done", flush=True)
"""


@pytest.mark.all
def test_an_outage_that_passes_within_15_s_ends_no_job_and_is_told(own: Cli) -> None:
    own("up")
    own.script("exchanges.py", EXCHANGES)
    end = own.folder / "end"
    running = own.start("run", "exchanges.py", end)
    running.until("talks", times=2)
    mark = f"CLUSTERCTL_NODE={own.status()['id']}/worker-2"
    pid = next(line.split()[0] for line in tagged(mark))
    cable = ["nsenter", "-t", pid, "-n", "ip", "link", "set", "eth0"]
    subprocess.run([*cable, "down"], check=True)
    running.until("worker-2 has not answered for 8 s: ")
    subprocess.run([*cable, "up"], check=True)
    running.until("worker-2 answers again")
    end.touch()
    done = running.wait(90)
    assert done.code == 0, done
    assert done.of(0) == done.of(1) == ["talks", "done"]
