"""SGD as the trainers use it: one fused kernel, and what that takes for granted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def make_sgd(parameters: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """SGD with momentum 0.9, one kernel for all parameters."""
    options: dict[str, Any] = {"momentum": 0.9, "fused": True}
    optimizer = torch.optim.SGD(parameters, lr=lr, **options)
    optimizer.register_step_pre_hook(_prepare)
    return optimizer


def _prepare(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    prepare(optimizer)


def prepare(optimizer: torch.optim.SGD) -> None:
    """Make a fused step that of torch's own loop. Called when the gradients are there.

    The fused kernel (torch 2.13: `_fused_sgd`)
    - walks through the memory of parameters, gradients and momentum side by side: they get the
      parameter's layout, and a group whose parameters have gaps is no longer fused, nor is one
      with complex parameters or sparse gradients, which the kernel refuses;
    - dampens the first step, too, which torch's loop does not: no longer fused;
    - takes momentum for all parameters or for none, and finds memory of any content where a
      GradScaler leaves out the first step: momentum 0 makes the same first step.
    """
    for group in optimizer.param_groups:
        if group["fused"]:
            group["fused"] = not group["dampening"] and all(
                _can_fuse(optimizer, tensor, bool(group["momentum"])) for tensor in group["params"]
            )


def _can_fuse(optimizer: torch.optim.SGD, tensor: torch.Tensor, moving: bool) -> bool:
    """Whether the kernel can step this parameter, after laying out its gradient and momentum so."""
    gradient = tensor.grad
    if gradient is None:
        return True
    if gradient.is_sparse or tensor.is_complex():
        return False
    # Only a dense tensor without overlaps hands its own strides on.
    if not tensor.is_contiguous() and (
        torch.empty_like(tensor, device="meta").stride() != tensor.stride()
    ):
        return False
    if not _are_alike(gradient, tensor):
        tensor.grad = _lay_out_as(tensor, gradient)
    if moving:
        state = optimizer.state[tensor]
        momentum = state.get("momentum_buffer")
        if momentum is None:
            state["momentum_buffer"] = torch.zeros_like(tensor)
        elif momentum.dtype is not tensor.dtype or not _are_alike(momentum, tensor):
            state["momentum_buffer"] = _lay_out_as(tensor, momentum)
    return True


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the same number lies at the same place in both; strides of 1-sized axes are free."""
    if one.is_contiguous() and other.is_contiguous():
        return True
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or own == wanted for size, own, wanted in strides)


def _lay_out_as(tensor: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor).copy_(numbers.detach())
