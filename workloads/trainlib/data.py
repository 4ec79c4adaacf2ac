"""Data sets as rows that can be drawn, and the same disjoint shards for everyone who asks.

No loader processes: at these sizes a permutation of row numbers once an epoch is all that a step
needs (image files are decoded by threads, see `trainlib.images`), and nothing is left behind by
Ctrl-C.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from trainlib import images as image_files
from trainlib import readers
from trainlib.errors import UsageError
from trainlib.rows import CIFAR10_SCALE, MNIST_SCALE, Batch, Dataset, Rows, Split

#: Of `workloads/data/digits.csv.gz`; see the README beside that file for where it comes from.
DIGITS_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
_DIGITS_ROWS = 1797

#: Every fifth row is for testing, whatever the seed: accuracies of different runs can be compared.
_TEST_EVERY = 5

NAMES = ("digits", "mnist", "cifar10", "imagefolder", "synthetic")

_CLASSES = 10


def load(
    name: str, seed: int, *, folder: Path | None = None, image_size: int = 0, images: bool = False
) -> Dataset:
    """One of `NAMES`.

    Args:
        seed: Makes the synthetic data, and does not touch real data.
        folder: Where the files are, instead of the node's data folder.
        image_size: Side in pixels of synthetic images (0: 32), and of those of an image folder
            (0: 224).
        images: Whether synthetic data are to be images.

    Raises:
        UsageError: There is no such data set, its files are missing or damaged, or it has none.
    """
    if folder is not None and name in ("digits", "synthetic"):
        raise UsageError(
            f"--data is not for {name}, which needs no files",
            "name what is there with --dataset mnist, cifar10 or imagefolder",
        )
    if name == "digits":
        return load_digits()
    if name == "synthetic":
        return make_synthetic_images(seed, image_size or 32) if images else make_synthetic(seed)
    if name == "mnist":
        path = readers.find_folder(name, folder)
        parts = (readers.read_mnist(path, part) for part in ("train", "t10k"))
        train, test = (Split(rows, labels.long(), MNIST_SCALE) for rows, labels in parts)
        return Dataset(name, _CLASSES, train, test, _find_image_shape(train))
    if name == "cifar10":
        path = readers.find_folder(name, folder)
        parts = (readers.read_cifar10(path, part) for part in ("train", "test"))
        train, test = (Split(rows, labels.long(), CIFAR10_SCALE) for rows, labels in parts)
        return Dataset(name, _CLASSES, train, test, _find_image_shape(train))
    if name == "imagefolder":
        size = image_size or 224
        shown, held_back, classes = image_files.read_folder(
            readers.find_folder("imagenette", folder), size
        )
        return Dataset(name, len(classes), shown, held_back, (3, size, size))
    raise UsageError(f"no data set named {name!r}", f"choose one of {', '.join(NAMES)}")


def _find_image_shape(split: Split) -> tuple[int, int, int]:
    channels, height, width = split.shape
    return channels, height, width


def load_digits(path: Path | None = None) -> Dataset:
    """Optical digits of the UCI repository: 8x8 pixels of 0..16, ten classes.

    Each pixel is scaled to 0..1, then centred and divided by its deviation, both of the training
    rows, plus 0.1 (pixels of the border hardly ever vary).

    Raises:
        UsageError: The file is missing or is not the one that was shipped.
    """
    content = _read_digits(path or _find("digits.csv.gz"))
    rows = np.array(content.replace(b"\n", b",").rstrip(b",").split(b","), dtype=np.uint8)
    rows = rows.reshape(_DIGITS_ROWS, 65)
    inputs = torch.from_numpy(rows[:, :64].astype(np.float32) / 16)
    targets = torch.from_numpy(rows[:, 64].astype(np.int64))
    test = torch.arange(_DIGITS_ROWS) % _TEST_EVERY == _TEST_EVERY - 1
    mean, deviation = inputs[~test].mean(dim=0), inputs[~test].std(dim=0)
    inputs = (inputs - mean) / (deviation + 0.1)
    return Dataset(
        "digits",
        _CLASSES,
        Split(inputs[~test], targets[~test]),
        Split(inputs[test], targets[test]),
        (1, 8, 8),
    )


def make_synthetic(seed: int, train: int = 2048, test: int = 512, features: int = 20) -> Dataset:
    """A regression: a random two-layer network of inputs from -1 to 1, plus noise of 0.1.

    Targets have a variance near 1, of which the noise leaves 0.01 that nobody can predict.
    """
    generator = torch.Generator().manual_seed(mix(seed, 0))
    inputs = 2 * torch.rand(train + test, features, generator=generator) - 1
    first = torch.randn(features, 16, generator=generator)
    second = torch.randn(16, 1, generator=generator)
    noise = torch.randn(train + test, 1, generator=generator)
    targets = torch.tanh(inputs @ first / features**0.5) @ second / 2 + 0.1 * noise
    return Dataset(
        "synthetic",
        0,
        Split(inputs[:train], targets[:train]),
        Split(inputs[train:], targets[train:]),
    )


def make_synthetic_images(seed: int, size: int, train: int = 1024, test: int = 256) -> Dataset:
    """Ten classes: a random pattern of 4 x 4 coloured patches each, under noise.

    Images are (3, size, size); a network that sees anything tells them apart within an epoch.
    """
    generator = torch.Generator().manual_seed(mix(seed, 0))
    patterns = torch.rand(_CLASSES, 3, 4, 4, generator=generator)
    patterns = torch.nn.functional.interpolate(patterns, size)
    targets = torch.arange(train + test) % _CLASSES
    inputs = torch.empty(train + test, 3, size, size, dtype=torch.uint8)
    for row, label in enumerate(targets.tolist()):  # one by one: as floats they would take 4 times
        noise = torch.rand(3, size, size, generator=generator)
        inputs[row] = (127.5 * (patterns[label] + noise)).to(torch.uint8)
    scale = ((0.5,) * 3, (0.25,) * 3)
    return Dataset(
        "synthetic images",
        _CLASSES,
        Split(inputs[:train], targets[:train], scale),
        Split(inputs[train:], targets[train:], scale),
        (3, size, size),
    )


def shard(rows: int, rank: int, world: int, seed: int, epoch: int) -> torch.Tensor:
    """This rank's row numbers in this epoch: shuffled, disjoint, equally many on all ranks.

    Up to world - 1 rows are left out, other ones in each epoch: with equal shards the mean of the
    ranks' gradients is the gradient of all their rows together.

    Raises:
        UsageError: There are fewer rows than ranks.
    """
    _check_split(rows, world)
    generator = torch.Generator().manual_seed(mix(seed, epoch + 1))
    count = rows // world
    return torch.randperm(rows, generator=generator)[rank * count : (rank + 1) * count]


def require_rows(dataset: Dataset, world: int) -> Dataset:
    """The data set, if its training rows can be split among so many ranks.

    Raises:
        UsageError: There are fewer rows than ranks.
    """
    _check_split(len(dataset.train), world)
    return dataset


def _check_split(rows: int, world: int) -> None:
    if rows < world:
        raise UsageError(f"{rows} rows cannot be split among {world} ranks", "start fewer ranks")


def iterate_batches(
    split: Rows, batch_size: int, rank: int, world: int, seed: int, epoch: int
) -> Iterator[Batch]:
    """The epoch's (inputs, targets) of this rank; the last batch may be shorter."""
    return split.select(shard(len(split), rank, world, seed, epoch), batch_size)


def mix(seed: int, stream: int) -> int:
    """A seed for each (seed, stream).

    A hash, because torch's generator for processors takes no more than 32 bits of it, the lowest.
    """
    digest = hashlib.sha256(f"{seed} {stream}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _find(file: str) -> Path:
    """Beside this package, else in the node's data folder $CLUSTERCTL_DATA."""
    shipped = Path(__file__).resolve().parent.parent / "data" / file
    pushed = os.environ.get("CLUSTERCTL_DATA")
    if not shipped.exists() and pushed:
        return Path(pushed) / file
    return shipped


def _read_digits(path: Path) -> bytes:
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the digits data {path} cannot be read ({error.strerror})",
            "restore workloads/data beside the program, or pass --dataset synthetic",
        ) from error
    if hashlib.sha256(packed).hexdigest() != DIGITS_SHA256:
        raise UsageError(
            f"the digits data {path} is damaged: its checksum is not the shipped file's",
            "restore the file, or pass --dataset synthetic",
        )
    with gzip.open(io.BytesIO(packed)) as stream:
        return stream.read()
