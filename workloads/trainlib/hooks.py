"""DDP's communication hooks: what carries a bucket of gradients where torch's group does not.

`DistributedDataParallel.register_comm_hook(state, hook)` takes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
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

    Waiting here costs the overlap with the rest of backward(), and saves what an asynchronous call
    costs more on small models: a thread that fights for the interpreter lock.
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
    """Make DDP leave out the parameters with large gradients, for `OverMpi`; returns them.

    Not those of the model itself, which DDP cannot leave out, nor one with several names, nor one
    with gaps in memory; and DDP wants to keep at least one. Call it also where none is `wanted`:
    torch keeps with the model what was said of it before.
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
        and parameter.is_contiguous()
        and "." in name
    }
    if len(found) == len(named) > 0:
        found.pop(named[0][0])
    leave_out(model, list(found))
    return list(found.values())


class OverMpi:
    """Makes backward() through `parallel` leave the mean over the ranks, carried by MPI.

    Every rank's part is divided where backward() begins: dividing those few numbers divides all
    gradients, while dividing these would be one more pass over as many numbers as the model has.
    DDP's buckets are summed by `over_mpi`, the gradients that were `set_apart` where they lie, when
    backward() ends and nothing else needs them.

    Args:
        half: Carry the sums in that precision.
        apart: In the same order on all ranks.

    Raises:
        UsageError: In backward(), for a parameter of `apart` that had no part in the step. DDP
            refuses it for its own: the ranks would part unnoticed.
    """

    def __init__(
        self,
        averager: mpi.Averager,
        world: int,
        parallel: torch.nn.parallel.DistributedDataParallel,
        apart: Sequence[torch.nn.Parameter],
        half: torch.dtype | None = None,
    ) -> None:
        self._averager, self._half, self._share = averager, half, 1 / world
        self._apart = apart
        self._trained = [each for each in parallel.module.parameters() if each.requires_grad]
        self._summed = False  # what the gradients hold is already the mean
        self._queued = False
        parallel.register_comm_hook((averager, half), over_mpi)
        parallel.register_forward_hook(self._forward)

    def _forward(self, module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self._queued = False  # also after a backward() that raised
        if output.requires_grad:
            # As DDP, which looks here whether no_sync() is in force.
            output.register_hook(partial(self._begin, bool(module.require_backward_grad_sync)))

    def _begin(self, synchronize: bool, gradient: torch.Tensor) -> torch.Tensor:
        if self._summed:
            # Gradients that were not cleared are added to, and then summed again with the rest.
            self._summed = False
            for parameter in self._trained:
                if parameter.grad is not None:
                    parameter.grad.mul_(self._share)
        if synchronize and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        return gradient * self._share

    def _end(self) -> None:
        self._queued = False
        self._summed = True
        missing = sum(parameter.grad is None for parameter in self._apart)
        if missing:
            raise UsageError(
                f"a step left {missing} of the model's large parameters out",
                "use every parameter in every step, or freeze it before data_parallel()",
            )
        done = set()
        for parameter in self._apart:
            gradients = cast(torch.Tensor, parameter.grad)
            # Parameters that are only added to each other share one gradient.
            if gradients.data_ptr() not in done:
                done.add(gradients.data_ptr())
                _reduce(self._averager, gradients, self._half)


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
