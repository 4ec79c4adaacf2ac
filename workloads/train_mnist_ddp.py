"""Train a convolutional network on MNIST with DDP (DistributedTraining of bu-rcs/access-multi-gpu).

    mpirun -np 2 python train_mnist_ddp.py
    torchrun --nproc-per-node 2 train_mnist_ddp.py --epochs 2
    srun --kill-on-bad-exit=1 -n 4 --gpus-per-task 1 python train_mnist_ddp.py --save-model

The method is described in `trainlib.mnist_ddp`; network and defaults are those of pytorch/examples.
"""

from __future__ import annotations

from trainlib.options import parse_mnist_ddp
from trainlib.program import run_program


def main() -> int:
    options = parse_mnist_ddp()
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib import mnist_ddp

    return mnist_ddp.run(options)


if __name__ == "__main__":
    run_program(main)
