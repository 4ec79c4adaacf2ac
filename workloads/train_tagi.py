"""Train by Bayes' rule instead of gradients (TAGI), on any number of ranks.

    mpirun -np 2 python train_tagi.py
    mpirun -np 2 python train_tagi.py --dataset cifar10 --sum
    torchrun --nproc-per-node 2 train_tagi.py --dataset mnist

Digits take a small network, MNIST a convolutional one, CIFAR-10 a ResNet-18. The method is
Tractable Approximate Gaussian Inference (Goulet, Nguyen and Amiri, JMLR 22, 2021) as cuTAGI of
lhnguyen102 computes it, described in `trainlib.tagi`. With --average (cuTAGI's default) the ranks'
updates are averaged, with --sum they add up to those of one process with the rows of all ranks.
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
    positive,
    positive_float,
)
from trainlib.program import run_program


def main() -> int:
    options = parse()
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib.tagi import training

    return training.run(options)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of `train_tagi.py`; what is None follows from the data set.

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description="Train by Bayes' rule (TAGI).", allow_abbrev=False)
    add_data(parser, ("digits", "mnist", "cifar10"), "digits")
    add_backend(parser)
    add_snapshot(parser)
    add_metrics(parser)
    add_seed(parser)
    parser.add_argument("--epochs", "--num_epochs", type=positive, metavar="N")
    parser.add_argument(
        "--batch-size", "--batch_size", type=positive, metavar="N", help="rows per rank and step"
    )
    parser.add_argument(
        "--sigma-v",
        "--sigma_v",
        type=positive_float,
        metavar="X",
        help="deviation of the noise in what is observed",
    )
    parser.add_argument(
        "--gain", type=positive_float, metavar="X", help="scale of the weights' first deviations"
    )
    parser.add_argument("--activation", choices=("relu", "mixture"))
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--average",
        action="store_true",
        default=True,
        help="mean of the ranks' updates (default)",
    )
    how.add_argument(
        "--sum",
        dest="average",
        action="store_false",
        help="their sum, as one process with all rows would make them",
    )
    parser.add_argument("--cpu", action="store_true", help="do not use GPUs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
