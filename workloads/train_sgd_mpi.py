"""Train a network with the MPI SGD optimizer (deephealthproject's mnist_mlp).

    mpirun -np 2 python train_sgd_mpi.py
    mpirun -np 2 python train_sgd_mpi.py --sync-iterations 8 --gpu
    mpirun -np 2 python train_sgd_mpi.py --optimizer cpp

The network is an MLP of three hidden layers of 1,024 units, the optimizer
`trainlib.mpi_sgd.MpiSGD`, which says what it computes. It talks through mpi4py: torchrun
cannot start it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trainlib.options import Parser, add_data, add_mpi_sgd, number, positive
from trainlib.program import run_program


def main() -> int:
    options = parse()
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib import sgd_training

    return sgd_training.run_mnist(options)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of `train_sgd_mpi.py`.

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description="MNIST with the MPI SGD optimizer.", allow_abbrev=False)
    add_mpi_sgd(parser, epochs=10, batch_size=200, lr=0.01)
    add = parser.add_argument
    add("--momentum", type=number, default=0.9, metavar="X", help="default 0.9")
    add("--weight-decay", type=number, default=0.0, metavar="X", help="default 0")
    add("--nesterov", action="store_true", help="Nesterov's momentum")
    add(
        "--optimizer",
        choices=("python", "cpp"),
        default="python",
        help="cpp: the one in C++, which is compiled on each node first (default python)",
    )
    add("--hidden", type=positive, default=1024, metavar="N", help="units a layer (default 1024)")
    add("--gpu", action="store_true", help="one GPU per rank")
    add_data(parser, ("mnist", "digits", "cifar10", "synthetic"), "mnist")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
