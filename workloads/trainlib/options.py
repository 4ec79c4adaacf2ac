"""The command line that the training programs share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainlib.backends import ALLOW_CPU, NAMES, preset
from trainlib.errors import UsageError

#: Also in `trainlib.data`, which loads torch; a test holds them together.
DATASETS = ("digits", "synthetic")


@dataclass(frozen=True)
class Options:
    """What a person asked for."""

    total_epochs: int
    save_every: int
    batch_size: int
    backend: str
    snapshot: Path
    seed: int
    dataset: str
    allow_cpu: bool


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are a UsageError: one line, and from one rank only."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, "see --help", everywhere=True)


def parse(description: str, arguments: Sequence[str] | None = None, *, gpu: bool) -> Options:
    """Read the command line (`sys.argv` if None).

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description=description, allow_abbrev=False)
    parser.add_argument("total_epochs", type=_positive, help="epochs to train")
    parser.add_argument("save_every", type=_positive, help="epochs between two snapshots")
    parser.add_argument(
        "--batch-size",
        "--batch_size",
        type=_positive,
        default=32,
        metavar="N",
        help="rows per rank and step (default 32)",
    )
    parser.add_argument(
        "--backend",
        choices=NAMES,
        default=preset(),
        help="what carries the gradients (default auto: the fastest that works on all ranks)",
    )
    parser.add_argument(
        "--snapshot",
        type=_path,
        default=Path("snapshot.pt"),
        metavar="PATH",
        help="where rank 0 writes, and resumes from if it exists (default snapshot.pt)",
    )
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="weights and order of rows (default 0)"
    )
    parser.add_argument(
        "--dataset", choices=DATASETS, default="digits", help="what to learn (default digits)"
    )
    if gpu:
        parser.add_argument(
            "--allow-cpu",
            action="store_true",
            help=f"run on the CPU where there is no GPU (also {ALLOW_CPU}=1)",
        )
    return Options(**{"allow_cpu": False, **vars(parser.parse_args(arguments))})


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2147483647")
    return int(text)


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("a path is needed")
    return Path(text)
