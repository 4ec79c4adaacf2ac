"""A worker that dies under a job: the verdict names it, and what the others have is not lost."""

from __future__ import annotations

import hashlib

import pytest

from tests.e2e.cli import Cli, kill_node

pytestmark = [pytest.mark.netns, pytest.mark.mpi]


TRAINS = """
import hashlib, json, os, time
from mpi4py import MPI
world, state = MPI.COMM_WORLD, [0, ""]
if world.rank == 0 and os.path.exists("snapshot"):
    with open("snapshot") as file:
        state = json.load(file)
state = world.bcast(state)
print("from", state[0], flush=True)
while state[0] < 50:
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


def undisturbed(steps: int = 50) -> str:
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
    root = own.home / "clusters/default/nodes/worker-1/root"
    with (root / "jobs/1/out/rank-0.out").open("a") as output:  # what nobody has read of it
        output.write("said at last\n")
    done = running.wait(120)
    assert done.code == 0, done
    assert done.of(0).count("said at last") == 1
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
