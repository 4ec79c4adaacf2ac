"""Time of a training step beside other work: gloo and MPI in one run. `bench/busy.py` starts it.

The step is that of `step_time.py`, with 30 k parameters. Rank 0 starts processes that compute
without a pause, each in a session of its own, as in another terminal. All loads and both backends
take turns in every round, so that other changes of the machine's load meet all of them; a round
counts with its slowest rank. Reported is the median of the rounds. Rank 0 prints one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workloads"))

import torch

from trainlib import models, optimizers
from trainlib.program import run_program
from trainlib.ranks import discover
from trainlib.session import Session
from trainlib.steps import train_epoch

FEATURES, CLASSES, BATCH, HIDDEN = 64, 10, 32, 400
BACKENDS = ("gloo", "mpi")

LOADS = {"idle": (0, 0), "1 niced": (1, 19), "1": (1, 0), "2": (2, 0)}
"""How many busy processes, and how nice they are."""

BUSY = "import os\nwhile os.getppid() == {parent}: sum(range(10000))"
"""It ends with the rank that started it, however that ends."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Step time over gloo and MPI beside other work.")
    parser.add_argument("--seconds", type=float, default=0.1, help="per backend, load and round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ranks = discover()
    torch.set_num_threads(1)
    with Session(ranks) as session:
        session.open("mpi")
        ms = measure(session, options.seconds, options.rounds)
        hosts = len(set(session.exchange(socket.gethostname())))
    if ranks.rank == 0:
        report = {
            "ranks": ranks.world,
            "hosts": hosts,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "ms_per_step": ms,
        }
        print(json.dumps(report), flush=True)
    return 0


def measure(session: Session, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds per step, by load and backend."""
    torch.manual_seed(0)
    batch = (torch.rand(BATCH, FEATURES), torch.randint(0, CLASSES, (BATCH,)))
    loss_of = torch.nn.functional.cross_entropy
    steppers = {}
    for backend in BACKENDS:
        model = models.mlp(FEATURES, CLASSES, HIDDEN)
        optimizer = optimizers.make_sgd(model.parameters(), lr=0.01)
        parallel = session.data_parallel(model, hook=backend == "mpi")
        steppers[backend] = (parallel, optimizer)

    def steps(backend: str, count: int) -> float:
        """Milliseconds per step of the slowest rank."""
        session.communicator.barrier()
        started = time.perf_counter_ns()
        train_epoch(*steppers[backend], loss_of, [batch] * count)
        return session.communicator.maximum(time.perf_counter_ns() - started) / 1e6 / count

    counts = {}
    for backend in BACKENDS:
        steps(backend, 5)  # DDP arranges its buckets, the allocator warms up
        counts[backend] = max(5, int(seconds * 1e3 / steps(backend, 10)))
    found: dict[str, dict[str, list[float]]] = {
        load: {backend: [] for backend in BACKENDS} for load in LOADS
    }
    for _ in range(rounds):
        for load, (number, nice) in LOADS.items():
            with busy(number if session.ranks.rank == 0 else 0, nice):
                for backend in BACKENDS:
                    found[load][backend].append(steps(backend, counts[backend]))
    return {
        load: {name: round(statistics.median(values), 3) for name, values in row.items()}
        for load, row in found.items()
    }


@contextlib.contextmanager
def busy(number: int, nice: int) -> Iterator[None]:
    """So many processes that use all the time they get, for as long as this lasts."""
    code = BUSY.format(parent=os.getpid())
    argv = ["nice", "-n", str(nice), sys.executable, "-c", code]
    processes = [subprocess.Popen(argv, start_new_session=True) for _ in range(number)]
    try:
        time.sleep(0.1 if number else 0)  # Python starts
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    run_program(main)
