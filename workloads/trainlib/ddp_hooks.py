"""DDP's communication hooks: what carries a bucket of gradients where torch's group does not.

`DistributedDataParallel.register_comm_hook(state, hook)` takes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook
from torch.nn.parallel import DistributedDataParallel

from trainlib import mpi

# GradBucket is public by torch's documentation, but not marked as exported, and type checkers see
# it or not depending on what else they have read.
_dist: Any = dist


@dataclass
class Uneven:
    """What `join()` says of the inputs of the ranks; a hook cannot ask DDP's reducer."""

    by_active: bool = False
    """Divide by the number of ranks that still have inputs, not by that of all."""
    joined: bool = False
    """This rank has no more inputs, and only answers the others."""

    def find_divisor(self, world: int, add_up: Callable[[torch.Tensor], object]) -> int:
        """By what a sum over the ranks is divided; `add_up` all-reduces a tensor of float32."""
        if not self.by_active:
            return world
        active = torch.zeros(1) if self.joined else torch.ones(1)
        add_up(active)
        return int(active.item())


class _JoinHook(JoinHook):
    """DDP's own, which tells `Uneven` when this rank has joined."""

    def __init__(self, usual: JoinHook, uneven: Uneven) -> None:
        self._usual, self._uneven = usual, uneven

    def main_hook(self) -> None:
        self._uneven.joined = True
        self._usual.main_hook()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._uneven.by_active = self._uneven.joined = False
        self._usual.post_hook(is_last_joiner)


class Parallel(DistributedDataParallel):
    """DistributedDataParallel whose hook knows the divisor within `join()`."""

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.uneven = Uneven()

    def join_hook(self, **kwargs: Any) -> JoinHook:
        self.uneven.by_active = not kwargs.get("divide_by_initial_world_size", True)
        self.uneven.joined = False
        usual = super().join_hook(**kwargs)  # type: ignore[no-untyped-call]
        return _JoinHook(usual, self.uneven)

    def leave_group(self) -> None:
        """Let go of the process group. Afterwards only `module` is of use.

        A wrapper that keeps the group beyond destroy_process_group() ends it in a destructor, which
        holds Python's lock while it waits for a thread of gloo that may want this lock.
        """
        for name in ("reducer", "logger", "process_group"):
            setattr(self, name, None)


class Alone(torch.nn.Module):
    """The wrapper of a world of one rank, for scripts that use more of it than its call."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.module(*inputs, **options)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def join(self, *_: bool, **__: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class OverMpi(NamedTuple):
    """The state of `over_mpi`."""

    averager: mpi.Averager
    world: int
    uneven: Uneven
    half: torch.dtype | None
    """Carry the sums in that precision."""


def average_over_mpi(state: OverMpi, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the mean over the ranks, there when the hook returns.

    Each part is divided before they are added up, as torch does it without a hook: the same
    rounding, and no overflow. Waiting here costs the overlap with the rest of backward(), and
    saves what an asynchronous call costs more on small models: a thread that fights for the
    interpreter lock.
    """
    gradients = bucket.buffer()
    world = state.uneven.find_divisor(
        state.world, lambda count: state.averager.reduce(count, average=False)
    )
    if gradients.layout != torch.strided:
        # An embedding's own rows, others on each rank. MPI has no operation for them, gloo has.
        return _sum_over_torch(gradients / world)
    gradients.mul_(1 / world)
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


def _sum_over_torch(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """The sum over the ranks, by torch's group."""
    future = dist.all_reduce(tensor, async_op=True).get_future()
    return cast("torch.futures.Future[torch.Tensor]", future.then(lambda done: done.value()[0]))


class Compressed(NamedTuple):
    """The state of `compressed`."""

    half: torch.dtype
    uneven: Uneven


def average_compressed(state: Compressed, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the mean over ranks in half precision, over torch's group.

    torch's own hook for bfloat16 refuses every backend but NCCL.
    """
    gradients = bucket.buffer()

    def add_up(count: torch.Tensor) -> None:
        carried = count.to(gradients.device)
        dist.all_reduce(carried)
        count.copy_(carried)

    world = state.uneven.find_divisor(dist.get_world_size(), add_up)
    narrow = gradients.div(world).to(state.half)

    def widen(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        return cast(torch.Tensor, gradients.copy_(done.value()))

    return _sum_over_torch(narrow).then(widen)


# register_comm_hook compares annotations with the types themselves, and those of this file are
# text (PEP 563).
for _hook in (average_over_mpi, average_compressed):
    _hook.__annotations__.update(
        {"bucket": _dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    )
