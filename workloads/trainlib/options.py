"""The command line that the training programs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainlib.backends import ALLOW_CPU, NAMES, preset
from trainlib.errors import UsageError

#: Also in `trainlib.data` and `trainlib.models`, which load torch; a test holds them together.
DATASETS = ("digits", "mnist", "cifar10", "imagefolder", "synthetic")
MODELS = ("mlp", "cnn", "resnet18", "resnet50")
PRECISIONS = ("fp32", "bf16", "fp16")
COMPRESSIONS = ("none", "bf16", "fp16")


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
    data: Path | None
    image_size: int
    model: str
    lr: float
    precision: str
    accumulate: int
    compress: str
    compile: bool
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
    parser.add_argument("total_epochs", type=positive, help="epochs to train")
    parser.add_argument("save_every", type=positive, help="epochs between two snapshots")
    parser.add_argument(
        "--batch-size",
        "--batch_size",
        type=positive,
        default=32,
        metavar="N",
        help="rows per rank, step and accumulated part (default 32)",
    )
    add_backend(parser)
    parser.add_argument(
        "--snapshot",
        type=file_path,
        default=Path("snapshot.pt"),
        metavar="PATH",
        help="where rank 0 writes, and resumes from if it exists (default snapshot.pt)",
    )
    add_seed(parser)
    parser.add_argument("--model", choices=MODELS, default="mlp", help="the network (default mlp)")
    add_data(parser, DATASETS, "digits")
    parser.add_argument(
        "--image-size",
        type=positive,
        default=0,
        metavar="N",
        help="side of synthetic images (default 32) and of those of an image folder (default 224)",
    )
    parser.add_argument(
        "--lr", type=positive_float, default=0.1, metavar="X", help="learning rate (default 0.1)"
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="of the matrix products; weights stay fp32, fp16 needs a GPU (default fp32)",
    )
    parser.add_argument(
        "--accumulate",
        type=positive,
        default=1,
        metavar="N",
        help="batches whose gradients are added up before a step (default 1)",
    )
    parser.add_argument(
        "--compress",
        choices=COMPRESSIONS,
        default="none",
        help="what gradients are rounded to on their way between ranks (default none)",
    )
    parser.add_argument(
        "--compile", action="store_true", help="let torch.compile fuse the network's kernels"
    )
    if gpu:
        parser.add_argument(
            "--allow-cpu",
            action="store_true",
            help=f"run on the CPU where there is no GPU (also {ALLOW_CPU}=1)",
        )
    return Options(**{"allow_cpu": False, **vars(parser.parse_args(arguments))})


def parse_tagi(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of `train_tagi.py`; what is None follows from the data set.

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description="Train by Bayes' rule (TAGI).", allow_abbrev=False)
    add_data(parser, ("digits", "mnist", "cifar10"), "digits")
    add_backend(parser)
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
    parser.add_argument("--cpu", action="store_true", help="leave GPUs alone")
    return parser.parse_args(arguments)


def parse_mnist_ddp(arguments: Sequence[str] | None = None) -> argparse.Namespace:
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
    add("--no-cuda", action="store_true", help="leave GPUs alone")
    add("--dry-run", action="store_true", help="one step and one test")
    add("--log-interval", type=positive, default=10, metavar="N", help="steps (default 10)")
    add("--save-model", action="store_true", help="rank 0 writes mnist_cnn.pt at the end")
    add_seed(parser, 1)
    add_data(parser, ("mnist", "digits", "cifar10"), "mnist")
    add_backend(parser)
    return parser.parse_args(arguments)


def parse_averaging(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of `train_parameter_averaging.py`.

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description="A master that averages, workers that train.", allow_abbrev=False)
    add = parser.add_argument
    add("--lr", type=positive_float, default=0.001, metavar="X", help="default 0.001")
    add("--momentum", type=number, default=0.9, metavar="X", help="default 0.9")
    add("--batch_size", "--batch-size", type=positive, default=16, metavar="N", help="default 16")
    add("--nepochs", "--epochs", type=positive, default=10, metavar="N", help="default 10")
    add("--shard", action="store_true", help="deal the rows out instead of giving all to each")
    add_seed(parser)
    add_data(parser, ("mnist", "digits"), "mnist")
    return parser.parse_args(arguments)


def parse_sgd_mpi(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of `train_sgd_mpi.py`.

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description="MNIST with the MPI SGD optimizer.", allow_abbrev=False)
    _add_mpi_sgd(parser, epochs=10, batch_size=200, lr=0.01)
    add = parser.add_argument
    add("--momentum", type=number, default=0.9, metavar="X", help="default 0.9")
    add("--weight-decay", type=number, default=0.0, metavar="X", help="default 0")
    add("--nesterov", action="store_true", help="Nesterov's momentum")
    add("--hidden", type=positive, default=1024, metavar="N", help="units a layer (default 1024)")
    add("--gpu", action="store_true", help="one GPU per rank")
    add_data(parser, ("mnist", "digits", "cifar10", "synthetic"), "mnist")
    return parser.parse_args(arguments)


def parse_imagenette(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of `train_imagenette.py`.

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description="Image folders with the MPI SGD optimizer.", allow_abbrev=False)
    _add_mpi_sgd(parser, epochs=10, batch_size=32, lr=1e-3)
    add = parser.add_argument
    add(
        "--yml-in",
        type=file_path,
        required=True,
        metavar="PATH",
        help="the data set's YAML, here or in $CLUSTERCTL_DATA",
    )
    add("--net-name", choices=("resnet50", "vgg16", "resnet18"), default="resnet50")
    add("--patch-size", type=positive, default=224, metavar="N", help="pixels (default 224)")
    add("--augs-on", action="store_true", help="change the training images at random")
    add("--patience", type=positive, default=20, metavar="N", help="epochs (default 20)")
    add(
        "--dropout",
        type=number,
        metavar="X",
        help="before the last layers (default: the network's)",
    )
    add("--l2-reg", type=number, default=0.0, metavar="X", help="weight decay (default 0)")
    add("--momentum", type=number, default=0.9, metavar="X", help="default 0.9")
    add(
        "--gpu",
        type=int,
        nargs="*",
        metavar="N",
        help="one GPU per rank, of those with these numbers (none named: of all)",
    )
    add("--save-weights", action="store_true", help="write the best weights to OUT_DIR/weights.pt")
    add("--out-dir", type=file_path, default=Path(), metavar="DIR", help="default: here")
    return parser.parse_args(arguments)


def _add_mpi_sgd(parser: Parser, *, epochs: int, batch_size: int, lr: float) -> None:
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


def add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=NAMES,
        default=preset(),
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
