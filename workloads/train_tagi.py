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

from trainlib.options import parse_tagi
from trainlib.program import run_program


def main() -> int:
    options = parse_tagi()
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib.tagi import training

    return training.run(options)


if __name__ == "__main__":
    run_program(main)
