"""Data sets as tensors in memory, and the same disjoint shards for everyone who asks.

No loader processes: at these sizes a permutation of row numbers once an epoch is all that a step
needs, and nothing is left behind by Ctrl-C.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainlib.errors import UsageError

#: Of `workloads/data/digits.csv.gz`; see the README beside that file for where it comes from.
DIGITS_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
_DIGITS_ROWS = 1797

#: Every fifth row is for testing, whatever the seed: accuracies of different runs can be compared.
_TEST_EVERY = 5

NAMES = ("digits", "synthetic")


@dataclass(frozen=True)
class Split:
    """Rows of inputs (N, features) float32 and targets (N,) int64 or (N, 1) float32."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def to(self, device: torch.device) -> Split:
        return Split(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True)
class Dataset:
    """A training and a test split; `classes` is 0 for regression."""

    name: str
    classes: int
    train: Split
    test: Split

    def to(self, device: torch.device) -> Dataset:
        return Dataset(self.name, self.classes, self.train.to(device), self.test.to(device))


def load(name: str, seed: int) -> Dataset:
    """One of `NAMES`; `seed` makes the synthetic data, and does not touch real data.

    Raises:
        UsageError: There is no such data set, or its file is missing or damaged.
    """
    if name == "digits":
        return digits()
    if name == "synthetic":
        return synthetic(seed)
    raise UsageError(f"there is no data set {name!r}", f"choose one of {', '.join(NAMES)}")


def digits(path: Path | None = None) -> Dataset:
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
        "digits", 10, Split(inputs[~test], targets[~test]), Split(inputs[test], targets[test])
    )


def synthetic(seed: int, train: int = 2048, test: int = 512, features: int = 20) -> Dataset:
    """A regression: a random two-layer network of inputs from -1 to 1, plus noise of 0.1.

    Targets have a variance near 1, of which the noise leaves 0.01 that nobody can predict.
    """
    generator = torch.Generator().manual_seed(_mix(seed, 0))
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


def shard(rows: int, rank: int, world: int, seed: int, epoch: int) -> torch.Tensor:
    """This rank's row numbers in this epoch: shuffled, disjoint, equally many on all ranks.

    Up to world - 1 rows are left out, other ones in each epoch: with equal shards the mean of the
    ranks' gradients is the gradient of all their rows together.

    Raises:
        UsageError: There are fewer rows than ranks.
    """
    if rows < world:
        raise UsageError(f"{rows} rows cannot be dealt to {world} ranks", "start fewer ranks")
    generator = torch.Generator().manual_seed(_mix(seed, epoch + 1))
    count = rows // world
    return torch.randperm(rows, generator=generator)[rank * count : (rank + 1) * count]


def batches(
    split: Split, batch_size: int, rank: int, world: int, seed: int, epoch: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The epoch's (inputs, targets) of this rank; the last batch may be shorter."""
    rows = shard(len(split), rank, world, seed, epoch).to(split.inputs.device)
    # One gather for the epoch, then views: nothing is copied per step.
    inputs, targets = split.inputs[rows], split.targets[rows]
    return zip(inputs.split(batch_size), targets.split(batch_size), strict=True)


def _mix(seed: int, stream: int) -> int:
    """A seed for each (seed, stream) that no other pair has; both are below 2**31."""
    return (seed << 31) + stream


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
