"""The program of `clusterctl drill`: each step depends on all earlier ones and on all ranks.

train.py STEPS SECONDS
"""

import hashlib
import json
import os
import sys
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
steps, pause = int(sys.argv[1]), float(sys.argv[2])
state = [0, ""]
if world.rank == 0 and os.path.exists("snapshot.pt"):
    with open("snapshot.pt") as file:
        state = json.load(file)
state = world.bcast(state)
print("from", state[0], flush=True)
while state[0] < steps:
    told = repr(world.allgather([world.rank, state]))
    state = [state[0] + 1, hashlib.sha256(told.encode()).hexdigest()]
    if world.rank == 0:
        with open("snapshot.pt.new", "w") as file:
            json.dump(state, file)
        os.replace("snapshot.pt.new", "snapshot.pt")
    print("step", state[0], flush=True)
    time.sleep(pause)
print("weights", state[1], flush=True)
