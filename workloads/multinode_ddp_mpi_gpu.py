"""Train a small network data-parallel on NVIDIA or AMD GPUs over NCCL/RCCL, MPI or gloo.

    mpirun -np 2 python multinode_ddp_mpi_gpu.py 1000 1000
    torchrun --nproc-per-node 2 multinode_ddp_mpi_gpu.py 1000 1000
    srun --mpi=pmix -n 2 --gpus-per-task 1 python multinode_ddp_mpi_gpu.py 1000 1000

As `multinode_ddp_mpi.py`, with one GPU per rank. Without a GPU it ends with exit code 6, unless
--allow-cpu or CLUSTERCTL_ALLOW_CPU=1 lets it use the CPU. Ranks on AMD and NVIDIA GPUs in one job
need `--backend mpi` (NCCL and RCCL cannot talk to each other).
"""

from __future__ import annotations

from trainlib.ddp_options import parse
from trainlib.program import run_program


def main() -> int:
    options = parse("Train data-parallel on GPUs; global rank 0 writes snapshots.", gpu=True)
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib import trainer

    return trainer.run(options, trainer.GPU)


if __name__ == "__main__":
    run_program(main)
