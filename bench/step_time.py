"""Time of one training step: without communication, over gloo, over the MPI hook, in one run.

    clusterctl run --nodes 1 --ranks-per-node 2 bench/step_time.py   # one host: shared memory
    clusterctl run bench/step_time.py                                # two nodes: TCP

Figures: bench/results/step_time.json and bench/results/step_time_nodes.json (bench/local.py).

The step is the one of `workloads/multinode_ddp_mpi.py` (its loop, optimizer and loss; batch 32 of
64 features). The three variants take turns in short rounds, so that a change of the machine's load
meets all of them; a round counts with its slowest rank. Reported is the median of the rounds, and
for what is added that of the differences within a round. Rank 0 prints one JSON document. Compare
ratios, not machines.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workloads"))

import torch

from trainlib import models, optimizers, trainer
from trainlib.program import run_program
from trainlib.ranks import discover
from trainlib.session import Session
from trainlib.steps import train_epoch

VARIANTS = ("none", "gloo", "mpi")
FEATURES, CLASSES, BATCH = 64, 10, 32

LIMIT = 1.0
"""A step over MPI ÷ one over gloo, for every model. The exit code is 1 if one is over it."""


def main() -> int:
    options = parse()
    ranks = discover()
    torch.set_num_threads(trainer.count_threads(ranks))
    with Session(ranks) as session:
        session.open("mpi")
        results = [measure(session, hidden, options) for hidden in options.hidden]
        hosts = sorted(set(session.exchange(socket.gethostname())))
    if ranks.rank == 0:
        report(results, hosts, ranks.world, options.out)
        return 0 if all(row["mpi_to_gloo"] <= LIMIT for row in results) else 1
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Step time without DDP, over gloo, over MPI.")
    parser.add_argument(
        "--hidden",
        type=int,
        nargs="+",
        default=[64, 400, 6667, 26667],
        help="hidden width; parameters = 75 x width + 10 (default: 5 k, 30 k, 0.5 M, 2 M)",
    )
    parser.add_argument("--seconds", type=float, default=0.25, help="per variant and round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    return parser.parse_args()


def measure(session: Session, hidden: int, options: argparse.Namespace) -> dict[str, Any]:
    """Median milliseconds per step of each variant, and their ratios."""
    torch.manual_seed(0)
    batch = (torch.rand(BATCH, FEATURES), torch.randint(0, CLASSES, (BATCH,)))
    loss_of = torch.nn.functional.cross_entropy
    steppers = {}
    for variant in VARIANTS:
        model = models.mlp(FEATURES, CLASSES, hidden)
        optimizer = optimizers.make_sgd(model.parameters(), lr=0.01)
        if variant != "none":
            model = session.data_parallel(model, hook=variant == "mpi")
        steppers[variant] = (model, optimizer)

    def steps(variant: str, count: int) -> float:
        """Seconds of the slowest rank for `count` steps."""
        session.communicator.barrier()
        started = time.perf_counter_ns()
        train_epoch(*steppers[variant], loss_of, [batch] * count)
        return session.communicator.maximum(time.perf_counter_ns() - started) / 1e9

    counts = {}
    for variant in VARIANTS:
        steps(variant, 10)  # DDP arranges its buckets, the allocator warms up
        counts[variant] = max(10, int(options.seconds * 20 / steps(variant, 20)))
    rounds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(options.rounds):
        for variant in VARIANTS:
            rounds[variant].append(steps(variant, counts[variant]) / counts[variant] * 1e3)
    ms = {variant: statistics.median(values) for variant, values in rounds.items()}
    added = {
        variant: statistics.median(map(operator.sub, rounds[variant], rounds["none"]))
        for variant in ("gloo", "mpi")
    }
    return {
        "hidden": hidden,
        "parameters": sum(p.numel() for p in models.mlp(FEATURES, CLASSES, hidden).parameters()),
        "ms_per_step": {name: round(value, 4) for name, value in ms.items()},
        "rounds_ms": {name: [round(v, 4) for v in values] for name, values in rounds.items()},
        "mpi_to_gloo": round(ms["mpi"] / ms["gloo"], 3),
        "mpi_added_to_gloo_added": round(added["mpi"] / added["gloo"], 3),
    }


def report(results: list[dict[str, Any]], hosts: list[str], world: int, out: Path | None) -> None:
    from mpi4py import MPI

    text = json.dumps(
        {
            "schema": 1,
            "benchmark": "step_time",
            "limit": LIMIT,
            "ranks": world,
            "hosts": len(hosts),
            "cores_of_first_host": os.cpu_count(),
            "threads_per_rank": torch.get_num_threads(),
            "mpi_btl": os.environ.get("OMPI_MCA_btl", "default"),  # noqa: SIM112
            "torch": torch.__version__,
            "mpi": MPI.Get_library_version().split(",")[0],
            "python": platform.python_version(),
            "batch": BATCH,
            "models": results,
        },
        indent=2,
    )
    print(text, flush=True)
    if out is not None:
        out.write_text(text + "\n")


if __name__ == "__main__":
    run_program(main)
