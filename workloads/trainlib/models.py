"""The networks of the bundled programs."""

from __future__ import annotations

import torch


def mlp(inputs: int, outputs: int, hidden: int = 64) -> torch.nn.Module:
    """inputs -> hidden -> outputs with ReLU; maps (B, inputs) to (B, outputs)."""
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs)
    )


def signature(model: torch.nn.Module) -> str:
    """The layout of the parameters and buffers as text: equal for models that can swap weights."""
    return ", ".join(f"{name}{list(value.shape)}" for name, value in model.state_dict().items())
