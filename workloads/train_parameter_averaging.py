"""Train a network on several workers, an epoch each, and average their weights.

    mpirun -np 4 python train_parameter_averaging.py
    srun --mpi=pmix -n 4 python train_parameter_averaging.py --shard

Rank 0 is the master: it averages and validates; the others train. The method, paultsw/mnist_mpi's,
is described in `trainlib.averaging`. It talks MPI point-to-point through
mpi4py: torchrun cannot start it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trainlib.options import (
    Parser,
    add_data,
    add_metrics,
    add_seed,
    add_snapshot,
    number,
    positive,
    positive_float,
)
from trainlib.program import run_program


def main() -> int:
    options = parse()
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib import parameter_averaging

    return parameter_averaging.run(options)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of `train_parameter_averaging.py`.

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description="A master that averages, workers that train.", allow_abbrev=False)
    add = parser.add_argument
    add("--lr", type=positive_float, default=0.001, metavar="X", help="default 0.001")
    add("--momentum", type=number, default=0.9, metavar="X", help="default 0.9")
    add("--batch_size", "--batch-size", type=positive, default=16, metavar="N", help="default 16")
    add("--nepochs", "--epochs", type=positive, default=10, metavar="N", help="default 10")
    add(
        "--shard",
        action="store_true",
        help="split the rows among the workers instead of giving all to each",
    )
    add_snapshot(parser)
    add_metrics(parser)
    add_seed(parser)
    add_data(parser, ("mnist", "digits"), "mnist")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
