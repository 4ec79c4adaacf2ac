"""Does every rank reach every other one? The smallest all-reduce that would show it.

    mpirun -np 4 python reduce_all.py

Each rank contributes a vector of ones times its rank; the sum has to be W(W-1)/2 in every element
on all W ranks (after DistributedReduceAll of bu-rcs/access-multi-gpu). One line per rank, then
`ok: ...` from rank 0; a wrong sum on any rank ends with exit code 1.

Then a table as the OSU micro-benchmarks and nccl-tests print it: how long an all-reduce of that
many bytes takes, and the bandwidth that makes (`trainlib.allreduce_benchmark`). `allreduce.cpp`
prints the same.

Over MPI on CPUs torch is not even loaded. `auto` is MPI where mpi4py and the launcher offer it,
else what `trainlib.backends` finds; `nccl` reduces on the GPUs.
"""

from __future__ import annotations

import argparse
import socket
from array import array
from collections.abc import Sequence
from typing import Any

from trainlib import allreduce_benchmark, mpi
from trainlib.backends import NAMES, read_preset
from trainlib.errors import StartError, WorkloadError
from trainlib.options import Parser, add_metrics, at_least
from trainlib.program import print_line, print_metrics, run_program
from trainlib.ranks import Ranks, discover

#: Elements of the vector.
LENGTH = 4


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(description="All-reduce rank x ones and check the sum.", allow_abbrev=False)
    parser.add_argument("--backend", choices=NAMES, default=read_preset(), help="default auto")
    parser.add_argument(
        "--max-bytes",
        type=at_least(8),
        default=2 << 20,
        metavar="N",
        help="of the largest message in the table (default 2097152)",
    )
    parser.add_argument("--no-table", action="store_true", help="only check the sum")
    add_metrics(parser, "size")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    wanted: str = options.backend
    sizes = [] if options.no_table else allreduce_benchmark.list_sizes(options.max_bytes)
    ranks = discover()
    over_mpi = wanted in ("auto", "mpi") and ranks.world > 1
    if over_mpi and not mpi.find_launch_problem(ranks) and not mpi.find_import_problem():
        try:
            module = mpi.start(ranks)
        except StartError:
            # mpi4py belongs to another MPI: so it does on every rank, all take the other way.
            if wanted == "mpi":
                raise
        else:
            return with_mpi4py(module, ranks, sizes, options.metrics)
    return with_session(wanted, ranks, sizes, options.metrics)


def with_mpi4py(module: Any, ranks: Ranks, sizes: Sequence[int], metrics: bool) -> int:
    """Over `mpi4py.MPI`; MPI runs already."""
    comm = module.COMM_WORLD
    vector = array("d", [float(ranks.rank)] * LENGTH)
    before = list(vector)
    comm.Allreduce(module.IN_PLACE, vector)
    show(ranks, before, list(vector))
    wrong = comm.allgather(not is_right(list(vector), ranks.world))
    hosts = comm.allgather(socket.gethostname())
    conclude(ranks, wrong, hosts, "mpi")

    def prepare(size: int) -> allreduce_benchmark.Prepared:
        zeros = array("f", bytes(size))
        message = [zeros, module.FLOAT]
        return lambda: comm.Allreduce(module.IN_PLACE, message), lambda: None

    def find_slowest(value: int) -> int:
        return int(comm.allreduce(value, op=module.MAX))

    rows = allreduce_benchmark.measure(sizes, prepare, find_slowest, ranks.world)
    show_table(ranks, rows, metrics)
    mpi.finish()
    return 0


def with_session(wanted: str, ranks: Ranks, sizes: Sequence[int], metrics: bool) -> int:
    """Over any backend of the shared package."""
    import torch

    from trainlib.session import Session

    with Session(ranks) as session:
        if wanted == "nccl":
            session.use_gpus(allow_cpu=True)  # open() says what is missing where
        session.open(wanted)
        before = [float(ranks.rank)] * LENGTH
        after = session.communicator.sum(before)
        show(ranks, before, after)
        wrong = session.exchange("" if is_right(after, ranks.world) else "wrong")
        hosts = session.exchange(socket.gethostname())
        conclude(ranks, [bool(text) for text in wrong], hosts, session.backend)
        device = session.device if session.backend == "nccl" else torch.device("cpu")

        def prepare(size: int) -> allreduce_benchmark.Prepared:
            zeros = torch.zeros(size // 4, device=device)
            wait = torch.cuda.synchronize if zeros.is_cuda else lambda: None
            return lambda: session.reduce(zeros, average=False), wait

        rows = allreduce_benchmark.measure(
            sizes, prepare, session.communicator.maximum, ranks.world
        )
        show_table(ranks, rows, metrics)
    return 0


def is_right(after: Sequence[float], world: int) -> bool:
    """Whether every element is 0 + 1 + ... + (W - 1)."""
    return len(after) == LENGTH and all(value == world * (world - 1) / 2 for value in after)


def show(ranks: Ranks, before: Sequence[float], after: Sequence[float]) -> None:
    texts = ("[" + ", ".join(f"{value:g}" for value in values) + "]" for values in (before, after))
    print_line(
        f"[Rank{ranks.rank}] {socket.gethostname()} | before: {next(texts)} | after: {next(texts)}"
    )


def show_table(ranks: Ranks, rows: Sequence[allreduce_benchmark.Row], metrics: bool) -> None:
    if ranks.rank == 0 and rows:
        print_line(allreduce_benchmark.render_table(rows))
        for step, row in enumerate(rows) if metrics else ():
            print_metrics(
                step=step, bytes=row.size, seconds=row.seconds, bus_gb_per_second=row.bus_gb_s
            )


def conclude(ranks: Ranks, wrong: Sequence[bool], hosts: Sequence[str], backend: str) -> None:
    """Rank 0's verdict.

    Raises:
        WorkloadError: On every rank, if any rank's sum is wrong.
    """
    expected = ranks.world * (ranks.world - 1) // 2
    if any(wrong):
        bad = [f"{rank} on {hosts[rank]}" for rank, is_wrong in enumerate(wrong) if is_wrong]
        raise WorkloadError(
            f"the sum over {ranks.world} ranks is not {expected} on rank {', '.join(bad)}",
            "do not train on these machines before their MPI or network is repaired",
            everywhere=True,
        )
    if ranks.rank == 0:
        count = len(set(hosts))
        print_line(
            f"ok: {ranks.world} ranks on {count} host{'s' * (count > 1)}, each holds {expected} = "
            f"W(W-1)/2, over {backend}"
        )


if __name__ == "__main__":
    run_program(main)
