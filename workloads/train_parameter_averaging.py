"""Train a network on several workers, an epoch each, and average their weights.

    mpirun -np 4 python train_parameter_averaging.py
    srun --mpi=pmix -n 4 python train_parameter_averaging.py --shard

Rank 0 is the master: it averages and validates; the others train. The method, paultsw/mnist_mpi's,
is described in `trainlib.averaging`. It talks MPI point-to-point through
mpi4py: torchrun cannot start it.
"""

from __future__ import annotations

from trainlib.options import parse_averaging
from trainlib.program import run_program


def main() -> int:
    options = parse_averaging()
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib import averaging

    return averaging.run(options)


if __name__ == "__main__":
    run_program(main)
