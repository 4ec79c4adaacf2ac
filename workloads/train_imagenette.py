"""Train ResNet-50 or VGG-16 on an image folder with the MPI SGD optimizer (deephealthproject).

    python make_dataset_yaml.py $CLUSTERCTL_DATA/imagenette/train $CLUSTERCTL_DATA/imagenette/val
    mpirun -np 2 python train_imagenette.py --yml-in dataset.yaml --augs-on --gpu

The images are those of a data set YAML (see `make_dataset_yaml.py`), the optimizer is
`trainlib.mpi_sgd.MpiSGD`. With --patience the training ends early; the weights that did best in
validation are saved with --save-weights, the course of the training in history.json.
It talks through mpi4py: torchrun cannot start it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainlib.options import Parser, add_mpi_sgd, file_path, number, positive
from trainlib.program import run_program


def main() -> int:
    options = parse()
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib import sgd_training

    return sgd_training.run_imagenette(options)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of `train_imagenette.py`.

    Raises:
        UsageError: An argument is wrong.
    """
    parser = Parser(description="Image folders with the MPI SGD optimizer.", allow_abbrev=False)
    add_mpi_sgd(parser, epochs=10, batch_size=32, lr=1e-3)
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


if __name__ == "__main__":
    run_program(main)
