"""The command line of `multinode_ddp_mpi.py` and `multinode_ddp_mpi_gpu.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainlib.backends import ALLOW_CPU
from trainlib.options import (
    Parser,
    add_backend,
    add_data,
    add_metrics,
    add_seed,
    file_path,
    positive,
    positive_float,
)

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
    metrics: bool
    allow_cpu: bool


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
    _add_model(parser)
    _add_arithmetic(parser)
    add_metrics(parser)
    if gpu:
        parser.add_argument(
            "--allow-cpu",
            action="store_true",
            help=f"run on the CPU where there is no GPU (also {ALLOW_CPU}=1)",
        )
    return Options(**{"allow_cpu": False, **vars(parser.parse_args(arguments))})


def _add_model(parser: Parser) -> None:
    """What is trained, and on what."""
    parser.add_argument("--model", choices=MODELS, default="mlp", help="the network (default mlp)")
    add_data(parser, DATASETS, "digits")
    parser.add_argument(
        "--image-size",
        type=positive,
        default=0,
        metavar="N",
        help="side of synthetic images (default 32) and of those of an image folder (default 224)",
    )


def _add_arithmetic(parser: Parser) -> None:
    """How a step is computed, and its gradients exchanged."""
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
