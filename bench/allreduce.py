"""An all-reduce as the programs make it, against gloo's and against a bare mpi4py loop, in one run.

    clusterctl run --nodes 1 --ranks-per-node 2 bench/allreduce.py   # one host: shared memory
    clusterctl run bench/allreduce.py                                # two nodes: TCP

Figures: bench/results/allreduce.json and bench/results/allreduce_nodes.json (`--out`).

The three take turns in short rounds, each time in another order, in memory of the same kind (NumPy
asks for huge pages, torch does not), and each call is timed by itself. The figure is the first
decile of the slowest rank, a call that nothing interrupts: a mean, and on a busy machine a median,
tells of the machine's other processes, since MPI's ranks wait by spinning, and one that has to wait
for a core makes a call a thousand times slower. Compare ratios, not machines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workloads"))

import torch
import torch.distributed as dist

from trainlib import mpi
from trainlib.program import run_program
from trainlib.ranks import discover
from trainlib.session import Session

SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 23)

SMALL = 1 << 16

#: Ours over gloo up to 64 KiB, and a bare loop's speed that ours has to reach above. The exit code
#: is 1 if one is not kept.
LIMITS = {"of_gloo": 0.1, "of_bare": 0.95}


def main() -> int:
    parser = argparse.ArgumentParser(description="All-reduce: ours, gloo, bare mpi4py.")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=0.02, help="per variant and round")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="in bytes")
    parser.add_argument(
        "--like-osu",
        action="store_true",
        help="measure as OSU's osu_allreduce -z10: a barrier after each call, and the first decile"
        " of the ranks' averages",
    )
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    ranks = discover()
    torch.set_num_threads(1)
    with Session(ranks) as session:
        session.open("mpi")  # gloo has set this up, and is there to be measured
        comm = mpi.find_running().COMM_WORLD  # type: ignore[union-attr]
        rows = [measure(session, comm, size, options) for size in options.sizes]
        hosts = set(session.exchange(socket.gethostname()))
    if ranks.rank == 0:
        report(rows, ranks.world, len(hosts), options.out)
        return 0 if all(map(keeps_limits, rows)) else 1
    return 0


def keeps_limits(row: dict[str, Any]) -> bool:
    if row["bytes"] <= SMALL:
        return bool(row["ours_to_gloo"] <= LIMITS["of_gloo"])
    return bool(row["speed_of_bare"] >= LIMITS["of_bare"])


def measure(session: Session, comm: Any, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of each variant for a message of `size` bytes, and their ratios."""
    tensor, other, third = (torch.zeros(size // 4) for _ in range(3))
    array = third.numpy()
    in_place = sys.modules["mpi4py.MPI"].IN_PLACE
    variants: dict[str, Callable[[], object]] = {
        "ours": lambda: session.reduce(tensor, average=False),
        "gloo": lambda: dist.all_reduce(other),
        "bare": lambda: comm.Allreduce(in_place, array),
    }

    def calls(variant: str, count: int) -> list[int]:
        """Nanoseconds of each."""
        call, took = variants[variant], []
        session.communicator.barrier()
        for _ in range(count):
            started = time.perf_counter_ns()
            call()
            took.append(time.perf_counter_ns() - started)
            if options.like_osu:
                session.communicator.barrier()
        return took

    counts = {}
    for variant in variants:
        usual = session.communicator.maximum(int(statistics.median(calls(variant, 9))))
        counts[variant] = max(5, min(2000, int(options.seconds * 1e9 / usual)))
    took: dict[str, list[int]] = {variant: [] for variant in variants}
    orders = itertools.cycle(itertools.permutations(variants))
    for order in itertools.islice(orders, options.rounds):
        for variant in order:
            took[variant] += calls(variant, counts[variant])
    us = {}
    for name, values in took.items():
        if options.like_osu:
            each = map(json.loads, session.exchange(json.dumps(values)))
            values = [int(statistics.mean(call)) for call in zip(*each, strict=True)]
        decile = int(statistics.quantiles(values, n=10)[0])
        us[name] = session.communicator.maximum(decile) / 1e3
    return {
        "bytes": size,
        "us": {name: round(value, 2) for name, value in us.items()},
        "ours_to_gloo": round(us["ours"] / us["gloo"], 4),
        "speed_of_bare": round(us["bare"] / us["ours"], 4),
    }


def report(rows: list[dict[str, Any]], world: int, hosts: int, out: Path | None) -> None:
    from mpi4py import MPI

    text = json.dumps(
        {
            "schema": 1,
            "benchmark": "allreduce",
            "limits": LIMITS,
            "ranks": world,
            "hosts": hosts,
            "cores": os.cpu_count(),
            "mpi_btl": os.environ.get("OMPI_MCA_btl", "default"),  # noqa: SIM112
            "torch": torch.__version__,
            "mpi": MPI.Get_library_version().split(",")[0],
            "python": platform.python_version(),
            "sizes": rows,
        },
        indent=2,
    )
    print(text, flush=True)
    if out is not None:
        out.write_text(text + "\n")


if __name__ == "__main__":
    run_program(main)
