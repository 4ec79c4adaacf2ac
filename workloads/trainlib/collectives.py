"""Small collectives beside the gradients, the same over torch.distributed and over MPI."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist


class Communicator(Protocol):
    """Small collectives beside the gradients; none of them is called per step."""

    def sum(self, values: list[float]) -> list[float]: ...
    def maximum(self, value: int) -> int: ...
    def broadcast(self, payload: bytes) -> bytes: ...
    def barrier(self) -> None: ...


class Alone:
    """A world of one rank."""

    def sum(self, values: list[float]) -> list[float]:
        return values

    def maximum(self, value: int) -> int:
        return value

    def broadcast(self, payload: bytes) -> bytes:
        return payload

    def barrier(self) -> None:
        return None


class OverTorch:
    """Over torch.distributed's default group, with tensors where that group wants them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def sum(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def maximum(self, value: int) -> int:
        tensor = torch.tensor([value], device=self._device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor.item())

    def broadcast(self, payload: bytes) -> bytes:
        size = torch.tensor([len(payload)], device=self._device)
        dist.broadcast(size, 0)
        content = torch.zeros(int(size.item()), dtype=torch.uint8)
        if dist.get_rank() == 0 and payload:
            content = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        content = content.to(self._device)
        if content.numel():
            dist.broadcast(content, 0)
        return content.cpu().numpy().tobytes()

    def barrier(self) -> None:
        self.maximum(0)


class OverMpi:
    """Over mpi4py."""

    def __init__(self, module: Any) -> None:
        self._mpi = module
        self._comm = module.COMM_WORLD

    def sum(self, values: list[float]) -> list[float]:
        # Not the pickled allreduce: it would add Python lists, that is, join them.
        tensor = torch.tensor(values, dtype=torch.float64)
        self._comm.Allreduce(self._mpi.IN_PLACE, tensor.numpy())
        return [float(value) for value in tensor.tolist()]

    def maximum(self, value: int) -> int:
        return int(self._comm.allreduce(value, op=self._mpi.MAX))

    def broadcast(self, payload: bytes) -> bytes:
        received: bytes = self._comm.bcast(payload, root=0)
        return received

    def barrier(self) -> None:
        self._comm.Barrier()
