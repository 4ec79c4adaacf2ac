"""Train a small network data-parallel on CPUs over gloo or MPI.

    mpirun -np 2 python multinode_ddp_mpi.py 1000 1000
    torchrun --nproc-per-node 2 multinode_ddp_mpi.py 1000 1000
    srun --mpi=pmix -n 2 python multinode_ddp_mpi.py 1000 1000

The first number is the epochs to train, the second the epochs between two snapshots, as in the
program of that name of RafalSiwek/distributed-mlops-overview. The method is PyTorch's
DistributedDataParallel (Li et al., VLDB 2020), described in `trainlib.trainer`.
"""

from __future__ import annotations

from trainlib.ddp_options import parse
from trainlib.program import run_program


def main() -> int:
    options = parse("Train data-parallel on CPUs; global rank 0 writes snapshots.", gpu=False)
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib import trainer

    return trainer.run(options, trainer.CPU)


if __name__ == "__main__":
    run_program(main)
