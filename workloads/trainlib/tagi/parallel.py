"""TAGI on many ranks: the updates of all of them become one, before it is applied.

After `DDPSequential` of cuTAGI, which all-reduces over NCCL alone, and the outermost layers alone:
here any backend will do, and every nested layer takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from trainlib import mpi
from trainlib.ranks import discover
from trainlib.session import Session
from trainlib.tagi.base import Layer, Moments, cap
from trainlib.tagi.layers import BatchNorm2d

AllReduce = Callable[[torch.Tensor, bool], None]
"""Replaces a tensor by its sum over the ranks; by the mean if the second argument is True."""


class DDPConfig:
    """How the ranks talk to each other.

    Args:
        device_ids: The GPUs of a node, by local rank: for nccl.
        backend: gloo or nccl, which meet at MASTER_ADDR and MASTER_PORT, or mpi.
        all_reduce: Instead of these.

    Raises:
        ValueError: The backend is none of them.
        StartError: MPI cannot be used.
    """

    def __init__(
        self,
        device_ids: Sequence[int] = (),
        backend: str = "gloo",
        rank: int = 0,
        world_size: int = 1,
        all_reduce: AllReduce | None = None,
    ) -> None:
        self.device_ids, self.backend = tuple(device_ids), backend
        self.rank, self.world_size = rank, world_size
        self.all_reduce = all_reduce or self._connect()

    @staticmethod
    def of(session: Session) -> DDPConfig:
        """Over the backend that the session has opened."""

        def all_reduce(tensor: torch.Tensor, average: bool) -> None:
            session.reduce(tensor, average=average)

        ranks = session.ranks
        return DDPConfig((), session.backend, ranks.rank, ranks.world, all_reduce)

    def _connect(self) -> AllReduce:
        if self.backend not in ("gloo", "nccl", "mpi"):
            raise ValueError(f"backend is {self.backend!r}, not gloo, nccl or mpi")
        if self.world_size == 1:
            return lambda tensor, average: None
        if self.backend == "mpi":
            averager = mpi.Averager(mpi.start(discover()), device_pointers=False)
            return lambda tensor, average: averager.reduce(tensor, average=average)
        if self.backend == "nccl":
            local = discover().local_rank
            torch.cuda.set_device(self.device_ids[local] if self.device_ids else local)
        if not dist.is_initialized():
            dist.init_process_group(self.backend, rank=self.rank, world_size=self.world_size)

        def all_reduce(tensor: torch.Tensor, average: bool) -> None:
            dist.all_reduce(tensor)
            if average:
                tensor.div_(self.world_size)

        return all_reduce


class DDPSequential:
    """A model whose copies on all ranks start equal and stay equal.

    Args:
        average: True takes the mean of the ranks' updates, which is cuTAGI's default and damps each
            step by the number of ranks. False takes the sum: the step that one process would make
            on the rows of all ranks, since updates are sums over rows from the same prior.

    Batch norm takes the rows of all ranks as its batch.
    """

    def __init__(self, model: Layer, config: DDPConfig, average: bool = True) -> None:
        self.model = model
        self.config = config
        self.average = average
        parameters = model.parameters()
        if config.world_size > 1:
            self._copy_from_rank0([t for p in parameters for t in (p.mean, p.var)])
            for layer in model.modules():
                if isinstance(layer, BatchNorm2d):
                    layer.sum_over_ranks = lambda tensor: config.all_reduce(tensor, False)
        # All updates are views of one tensor: they need one message, and nothing is copied.
        deltas = [(p, name) for p in parameters for name in ("delta_mean", "delta_var")]
        sizes = [getattr(p, name).numel() for p, name in deltas]
        self._deltas = parameters[0].mean.new_zeros(sum(sizes))
        for (parameter, name), part in zip(deltas, self._deltas.split(sizes), strict=True):
            setattr(parameter, name, part.view(parameter.mean.shape))

    def forward(self, mean: torch.Tensor, var: torch.Tensor | None = None) -> Moments:
        return self.model.forward(mean, var)

    def backward(self, d_mean: torch.Tensor, d_var: torch.Tensor) -> None:
        """Sets the updates from this rank's rows; nothing is sent before `step`."""
        self.model.backward(d_mean, d_var, first=True)

    def step(self, rows: int) -> None:
        """Bring the ranks' updates together and apply them.

        Args:
            rows: Rows of this rank's batch, the same number on all ranks. The cap follows the rows
                that make up the update: those of all ranks for the sum, else this rank's.
        """
        if self.config.world_size > 1:
            self.config.all_reduce(self._deltas, self.average)
        factor = cap(rows if self.average else rows * self.config.world_size)
        for parameter in self.model.parameters():
            parameter.step(factor)

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        """All moments, and what batch norm has seen."""
        return {"tensors": self._list_tensors()}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        for tensor, value in zip(self._list_tensors(), state["tensors"], strict=True):
            tensor.copy_(value)

    def _list_tensors(self) -> list[torch.Tensor]:
        seen = [
            tensor
            for layer in self.model.modules()
            if isinstance(layer, BatchNorm2d)
            for tensor in (layer.running_mean, layer.running_var)
        ]
        return [t for p in self.model.parameters() for t in (p.mean, p.var)] + seen

    def _copy_from_rank0(self, tensors: list[torch.Tensor]) -> None:
        together = torch.cat([tensor.flatten() for tensor in tensors])
        if self.config.rank:
            together.zero_()
        self.config.all_reduce(together, False)
        for tensor, part in zip(
            tensors, together.split([tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(part.view_as(tensor))
