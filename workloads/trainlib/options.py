"""Options and types of options that several training programs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from trainlib.backends import NAMES, read_preset
from trainlib.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are a UsageError: one line, and from one rank only."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, "see --help", everywhere=True)


def add_mpi_sgd(parser: Parser, *, epochs: int, batch_size: int, lr: float) -> None:
    add = parser.add_argument
    add("--epochs", type=positive, default=epochs, metavar="N", help=f"default {epochs}")
    add(
        "--batch-size",
        type=positive,
        default=batch_size,
        metavar="N",
        help=f"rows per rank and step (default {batch_size})",
    )
    add("--lr", type=positive_float, default=lr, metavar="X", help=f"default {lr:g}")
    add(
        "--sync-iterations",
        type=positive,
        default=1,
        metavar="N",
        help="1 averages gradients at each step, more averages weights after each N (default 1)",
    )
    add_seed(parser)
    add_snapshot(parser)
    add_metrics(parser)


def add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=NAMES,
        default=read_preset(),
        help="what the ranks talk over (default auto: the fastest that works on all ranks)",
    )


def add_seed(parser: argparse.ArgumentParser, default: int = 0) -> None:
    parser.add_argument(
        "--seed",
        type=seed,
        default=default,
        metavar="N",
        help=f"weights and order of rows (default {default})",
    )


def add_data(parser: argparse.ArgumentParser, names: Sequence[str], default: str) -> None:
    """--dataset and --data, which all training programs have."""
    parser.add_argument(
        "--dataset", choices=names, default=default, help=f"what to learn (default {default})"
    )
    parser.add_argument(
        "--data",
        type=file_path,
        metavar="DIR",
        help="folder of the data set's files (default $CLUSTERCTL_DATA/NAME)",
    )


def add_metrics(parser: argparse.ArgumentParser, each: str = "epoch") -> None:
    parser.add_argument(
        "--metrics",
        action="store_true",
        help=f"print one line of JSON with metrics per {each}, for clusterctl logs --metrics",
    )


def add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--snapshot",
        type=file_path,
        default=Path("snapshot.pt"),
        metavar="PATH",
        help="where rank 0 saves an unfinished training, which the next run goes on with"
        " (default snapshot.pt)",
    )


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def at_least(smallest: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        value = positive(text)
        if value < smallest:
            raise argparse.ArgumentTypeError(f"{value} is less than {smallest}")
        return value

    return whole


def positive_float(text: str) -> float:
    value = number(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def number(text: str) -> float:
    """A number of 0 or more, whose square float32 can hold."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1e18")
    return value


def seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2147483647")
    return int(text)


def file_path(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("a path is needed")
    return Path(text)
