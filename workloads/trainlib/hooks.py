"""DDP's communication hooks: what carries a bucket of gradients where torch's group does not.

`DistributedDataParallel.register_comm_hook(state, hook)` takes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist

from trainlib import mpi
from trainlib.errors import UsageError

# GradBucket is public by torch's documentation, but not marked as exported, and type checkers see
# it or not depending on what else they have read.
_dist: Any = dist


def over_mpi(
    state: tuple[mpi.Averager, torch.dtype | None], bucket: Any
) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the sum over ranks, there when the hook returns.

    It is the mean if the module has `shared` for a forward hook. Waiting here costs the overlap
    with the rest of backward(), and saves what an asynchronous call costs more on small models: a
    thread that fights for the interpreter lock.
    """
    averager, half = state
    gradients = bucket.buffer()
    _reduce(averager, gradients, half)
    devices: list[int | str | torch.device] | None = None
    if gradients.is_cuda:
        devices = [gradients.device]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(gradients)
    return future


def _reduce(averager: mpi.Averager, gradients: torch.Tensor, half: torch.dtype | None) -> None:
    """The sum over ranks in place, carried in half precision if one is given."""
    if half is None:
        averager.reduce(gradients, average=False)
    else:
        averager.reduce_compressed(gradients, half)


_LARGE = 1 << 20
"""Bytes of a gradient from which a copy of it costs more than an all-reduce of its own."""


def set_apart(model: torch.nn.Module, *, wanted: bool) -> list[torch.nn.Parameter]:
    """Make DDP leave out the parameters with large gradients, for `InPlace`; returns them.

    Not those of the model itself, which DDP cannot leave out, nor one with several names; and DDP
    wants to keep at least one. Call it also where none is `wanted`: torch keeps with the model
    what was said of it before.
    """
    wrap = torch.nn.parallel.DistributedDataParallel
    # Not a promise of torch's: without it, all gradients go through buckets.
    leave_out = getattr(wrap, "_set_params_and_buffers_to_ignore_for_model", None)
    if leave_out is None:
        return []
    named = [
        (name, parameter)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    ]
    names = Counter(id(parameter) for _, parameter in named)
    found = {
        name: parameter
        for name, parameter in named
        if wanted
        and parameter.numel() * parameter.element_size() >= _LARGE
        and names[id(parameter)] == 1
        and "." in name
    }
    if len(found) == len(named) > 0:
        found.pop(named[0][0])
    leave_out(model, list(found))
    return list(found.values())


class InPlace:
    """All-reduces large gradients where they lie; DDP would copy each into a bucket first.

    It does so when the last of them is there, in one order on all ranks, however autograd came to
    them. The sum, as `over_mpi`.
    """

    def __init__(
        self,
        averager: mpi.Averager,
        half: torch.dtype | None,
        parallel: torch.nn.parallel.DistributedDataParallel,
        parameters: Sequence[torch.nn.Parameter],
    ) -> None:
        self._averager, self._half, self._parallel = averager, half, parallel
        self._parameters = parameters
        self._missing = len(parameters)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)
        parallel.register_forward_pre_hook(self._check)

    def _arrived(self, parameter: torch.Tensor) -> None:
        self._missing -= 1
        if self._missing:
            return
        self._missing = len(self._parameters)
        # What no_sync() switches off; it is decided in forward().
        if self._parallel.require_forward_param_sync:
            for each in self._parameters:
                assert each.grad is not None
                _reduce(self._averager, each.grad, self._half)

    def _check(self, module: torch.nn.Module, inputs: Any) -> None:
        """As DDP refuses it for its own parameters: the ranks would part unnoticed."""
        if self._missing < len(self._parameters):
            raise UsageError(
                f"the last step left {self._missing} of the model's large parameters out",
                "use every parameter in every step, or freeze it (requires_grad_(False))",
            )


def shared(world: int) -> Callable[[torch.nn.Module, Any, torch.Tensor], None]:
    """Forward hook: makes backward() leave this rank's share of the mean over `world` ranks.

    Dividing the few numbers that enter backward() divides all gradients; dividing the buckets
    would be one more pass over as many numbers as the model has.
    """
    share = 1 / world

    def hook(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * share)

    return hook


def compressed(half: torch.dtype, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the mean over ranks in half precision, over torch's group.

    torch's own hook for bfloat16 refuses every backend but NCCL.
    """
    gradients = bucket.buffer()
    narrow = gradients.div(dist.get_world_size()).to(half)

    def widen(done: torch.futures.Future[Any]) -> torch.Tensor:
        gradients.copy_(done.value()[0])
        return cast(torch.Tensor, gradients)

    future = dist.all_reduce(narrow, async_op=True).get_future()
    return cast("torch.futures.Future[torch.Tensor]", future.then(widen))


# register_comm_hook compares annotations with the types themselves, and those of this file are
# text (PEP 563).
for _hook in (over_mpi, compressed):
    _hook.__annotations__.update(
        {"bucket": _dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    )
