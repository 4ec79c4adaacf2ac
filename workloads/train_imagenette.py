"""Train ResNet-50 or VGG-16 on an image folder with the MPI SGD optimizer (deephealthproject).

    python make_dataset_yaml.py $CLUSTERCTL_DATA/imagenette/train $CLUSTERCTL_DATA/imagenette/val
    mpirun -np 2 python train_imagenette.py --yml-in dataset.yaml --augs-on --gpu

The images are those of a data set YAML (see `make_dataset_yaml.py`), the optimizer is
`trainlib.mpi_sgd.MpiSGD`. With --patience the training ends early; the weights that did best in
validation are saved with --save-weights, the course of the training in history.json.
It talks through mpi4py: torchrun cannot start it.
"""

from __future__ import annotations

from trainlib.options import parse_imagenette
from trainlib.program import run_program


def main() -> int:
    options = parse_imagenette()
    # Only now: wrong arguments are refused without the second that torch takes.
    from trainlib import sgd_training

    return sgd_training.run_imagenette(options)


if __name__ == "__main__":
    run_program(main)
