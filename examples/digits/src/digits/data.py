"""Images and labels, as tensors."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset


def load(name: str) -> TensorDataset:
    stored = np.load(Path("data") / f"{name}.npz")
    return TensorDataset(
        torch.from_numpy(stored["images"])[:, None], torch.tensor(stored["labels"])
    )
