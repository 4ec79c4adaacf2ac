"""DDP's communication hooks: what carries a bucket of gradients where torch's group does not.

`DistributedDataParallel.register_comm_hook(state, hook)` takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist

from trainlib import mpi

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
    if half is None:
        averager.reduce(gradients, average=False)
    else:
        averager.reduce_compressed(gradients, half)
    devices: list[int | str | torch.device] | None = None
    if gradients.is_cuda:
        devices = [gradients.device]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(gradients)
    return future


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
