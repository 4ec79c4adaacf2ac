"""Rows that a program trains on, in memory or elsewhere, and how pixels become floats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch

#: Mean and deviation of the training pixels, of 0 to 1, per channel; as used by pytorch/examples
#: for MNIST and ImageNet, and by the ResNet paper's followers for CIFAR-10.
MNIST_SCALE = ((0.1307,), (0.3081,))
CIFAR10_SCALE = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
IMAGENET_SCALE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

Scale = tuple[tuple[float, ...], tuple[float, ...]]
Batch = tuple[torch.Tensor, torch.Tensor]


class Rows(Protocol):
    """Samples with targets, drawn in whatever order."""

    def __len__(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""

    def select(self, rows: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        """The samples of these numbers in batches; the last one may be shorter."""

    def to(self, device: torch.device) -> Rows:
        """The same rows, whose batches are on `device`."""


@dataclass(frozen=True)
class Split:
    """Rows in memory: inputs (N, ...) float32, or uint8 with a `scale`; targets (N,) int64 or
    (N, 1) float32."""

    inputs: torch.Tensor
    targets: torch.Tensor
    scale: Scale | None = None
    """Mean and deviation per channel, of pixels from 0 to 1: bytes become floats batch by batch,
    since a quarter of the memory matters more than the time."""

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])

    def select(self, rows: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        # One gather for all, then views: nothing is copied per step.
        rows = rows.to(self.inputs.device)
        inputs, targets = self.inputs[rows].split(batch_size), self.targets[rows].split(batch_size)
        if self.scale is None:
            return zip(inputs, targets, strict=True)
        mean, deviation = (
            255 * torch.tensor(values, device=self.inputs.device).view(-1, 1, 1)
            for values in self.scale
        )
        scaled = ((images.float() - mean) / deviation for images in inputs)
        return zip(scaled, targets, strict=True)

    def to(self, device: torch.device) -> Split:
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


@dataclass(frozen=True)
class Dataset:
    """A training and a test split; `classes` is 0 for regression."""

    name: str
    classes: int
    train: Rows
    test: Rows
    image: tuple[int, int, int] | None = None
    """What a sample is as an image (channels, height, width), None if it is none."""

    def to(self, device: torch.device) -> Dataset:
        return replace(self, train=self.train.to(device), test=self.test.to(device))
