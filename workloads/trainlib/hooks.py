"""DDP's communication hooks: what carries a bucket of gradients where torch's group does not.

`DistributedDataParallel.register_comm_hook(state, hook)` takes them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from trainlib import mpi

# GradBucket is public by torch's documentation, but not marked as exported, and type checkers see
# it or not depending on what else they have read.
_dist: Any = dist


class OverMpi(NamedTuple):
    """The state of `over_mpi`."""

    averager: mpi.Averager
    world: int
    half: torch.dtype | None
    """Carry the sums in that precision."""


def over_mpi(state: OverMpi, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the mean over the ranks, there when the hook returns.

    Each part is divided before they are added up, as torch does it without a hook: the same
    rounding, and no overflow. Waiting here costs the overlap with the rest of backward(), and
    saves what an asynchronous call costs more on small models: a thread that fights for the
    interpreter lock.
    """
    gradients = bucket.buffer()
    if gradients.layout != torch.strided:
        # An embedding's own rows, others on each rank. MPI has no operation for them, gloo has.
        return _over_torch(gradients / state.world)
    gradients.mul_(1 / state.world)
    if state.half is None:
        state.averager.reduce(gradients, average=False)
    else:
        state.averager.reduce_compressed(gradients, state.half)
    devices: list[int | str | torch.device] | None = None
    if gradients.is_cuda:
        devices = [gradients.device]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(gradients)
    return future


def _over_torch(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """The sum over the ranks, by torch's group."""
    future = dist.all_reduce(tensor, async_op=True).get_future()
    return cast("torch.futures.Future[torch.Tensor]", future.then(lambda done: done.value()[0]))


def compressed(half: torch.dtype, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the mean over ranks in half precision, over torch's group.

    torch's own hook for bfloat16 refuses every backend but NCCL.
    """
    gradients = bucket.buffer()
    narrow = gradients.div(dist.get_world_size()).to(half)

    def widen(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        return cast(torch.Tensor, gradients.copy_(done.value()))

    return _over_torch(narrow).then(widen)


# register_comm_hook compares annotations with the types themselves, and those of this file are
# text (PEP 563).
for _hook in (over_mpi, compressed):
    _hook.__annotations__.update(
        {"bucket": _dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    )
