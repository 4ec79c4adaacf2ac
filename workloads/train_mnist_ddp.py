"""Train a convolutional network on MNIST with DDP (DistributedTraining of bu-rcs/access-multi-gpu).

    mpirun -np 2 python train_mnist_ddp.py
    torchrun --nproc-per-node 2 train_mnist_ddp.py --epochs 2
    srun --kill-on-bad-exit=1 -n 4 --gpus-per-task 1 python train_mnist_ddp.py --save-model

The method is described in `trainlib.mnist_ddp`; network and defaults are those of pytorch/examples.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trainlib.options import (
    Parser,
    add_backend,
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
    from trainlib import mnist_ddp

    return mnist_ddp.run(options)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of `train_mnist_ddp.py`, its seed's but for --dataset, --data, --backend.

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description="MNIST with DDP.", allow_abbrev=False)
    add = parser.add_argument
    add("--batch-size", type=positive, default=64, metavar="N", help="per rank (default 64)")
    add("--test-batch-size", type=positive, default=1000, metavar="N", help="default 1000")
    add("--epochs", type=positive, default=14, metavar="N", help="default 14")
    add("--lr", type=positive_float, default=1.0, metavar="X", help="default 1.0")
    add("--gamma", type=number, default=0.7, metavar="X", help="of the lr per epoch (default 0.7)")
    add("--no-cuda", action="store_true", help="do not use GPUs")
    add("--dry-run", action="store_true", help="one step and one test")
    add("--log-interval", type=positive, default=10, metavar="N", help="steps (default 10)")
    add("--save-model", action="store_true", help="rank 0 writes mnist_cnn.pt at the end")
    add_snapshot(parser)
    add_metrics(parser)
    add_seed(parser, 1)
    add_data(parser, ("mnist", "digits", "cifar10"), "mnist")
    add_backend(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
