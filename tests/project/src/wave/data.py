"""The rows of this rank."""

from __future__ import annotations

import csv
from pathlib import Path

import torch


def load(path: str, rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    with Path(path).open(newline="") as file:
        rows = [[float(word) for word in row] for row in csv.reader(file)]
    table = torch.tensor(rows[rank::ranks])
    return table[:, :1], table[:, 1:]
