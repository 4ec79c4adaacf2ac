"""Train a network with the MPI SGD optimizer (deephealthproject's mnist_mlp).

    mpirun -np 2 python train_sgd_mpi.py
    mpirun -np 2 python train_sgd_mpi.py --sync-iterations 8 --gpu

The network is an MLP of three hidden layers of 1,024 units, the optimizer
`trainlib.mpi_sgd.MpiSGD`, which says what it computes. It talks through mpi4py: torchrun
cannot start it.
"""

from __future__ import annotations

from trainlib.options import parse_sgd_mpi
from trainlib.program import run_program


def main() -> int:
    options = parse_sgd_mpi()
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib import sgd_training

    return sgd_training.run_mnist(options)


if __name__ == "__main__":
    run_program(main)
