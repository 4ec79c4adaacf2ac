"""SGD as the trainers use it: one fused kernel, and what that needs at the first step and after a
snapshot was read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def sgd(parameters: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """SGD with momentum 0.9, one kernel for all parameters."""
    options: dict[str, Any] = {"momentum": 0.9, "fused": True}
    optimizer = torch.optim.SGD(parameters, lr=lr, **options)
    begin_momentum(optimizer)
    return optimizer


def begin_momentum(optimizer: torch.optim.SGD) -> None:
    """Momentum 0 for all parameters that have none, which makes the same first step.

    The fused kernel takes momentum for all parameters or for none, and finds memory of any content
    where a GradScaler leaves out the first step (torch 2.13: `_fused_sgd` makes the buffers with
    `empty_like`, the kernel returns early).
    """
    for group in optimizer.param_groups:
        if not group["momentum"] or not group["fused"]:
            continue
        for parameter in group["params"]:
            if parameter.grad is None and not parameter.requires_grad:
                continue
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


def load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`load_state_dict`, with momentum in the order in memory that the weights have here.

    Snapshots keep the order of where they were made, images' channels last on a GPU, and the fused
    kernels take both to be the same.
    """
    optimizer.load_state_dict(state)
    for parameter, values in optimizer.state.items():
        if values.get("momentum_buffer") is not None:
            own = torch.empty_like(parameter)
            values["momentum_buffer"] = own.copy_(values["momentum_buffer"])
