"""SGD over MPI as a `torch.optim` class, for any script that mpirun or srun --mpi=pmix starts.

    from trainlib.mpi_sgd import MpiSGD

    optimizer = MpiSGD(model.parameters(), lr=0.01, momentum=0.9)
    ...
    loss.backward()
    optimizer.step()

After the SGD MPI of deephealthproject's EDDL (promort_pipeline, branch sgd_mpi).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainlib import backends, mpi, optimizers
from trainlib.ranks import discover


class MpiSGD(torch.optim.SGD):
    """SGD on W ranks, which all have to take the same steps.

    With `sync_iterations` 1 it is synchronous SGD (Chen et al., arXiv 1604.00981):

        g <- (1/W) sum of the ranks' gradients, then the step of torch.optim.SGD with g

    which is the step of one process on the rows of all ranks, momentum, weight decay and Nesterov
    included. With n above 1 it is local SGD (Stich, ICLR 2019, arXiv 1805.09767): each rank steps
    with its own gradient, and after every n-th step

        w <- (1/W) sum of the ranks' weights

    while momentum stays with its rank. `synchronize` does that in between, before weights are
    tested or saved. Parameters are rank 0's at the beginning.

    Args:
        sync_iterations: n.
        device_pointers: Give MPI the addresses of GPU memory, None asks the MPI library whether it
            takes them (CUDA-aware, ROCm-aware). Else messages go through host memory.

    The other arguments are those of torch.optim.SGD. With `sync_iterations` 1 and several ranks, a
    trained parameter without a gradient counts as one with a gradient of zeros.

    Raises:
        StartError: MPI cannot be used: no mpi4py, or neither mpirun nor srun --mpi=pmix started
            the several ranks.
        ValueError: An argument is out of range, or `step` is called by a GradScaler: it skips steps
            by what one rank sees. bfloat16 needs none.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        sync_iterations: int = 1,
        device_pointers: bool | None = None,
    ) -> None:
        if sync_iterations < 1:
            raise ValueError(f"sync_iterations is {sync_iterations}, less than 1")
        # One kernel for all parameters, where there is one.
        options: dict[str, Any] = {"fused": True}
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov,
            **options,
        )
        self.sync_iterations = sync_iterations
        self.steps = 0
        self._averager: mpi.Averager | None = None
        ranks = discover()
        if ranks.world == 1:
            return
        module = mpi.start(ranks)
        tensors = self._tensors()
        first = tensors[0]
        pointers = False
        if first.is_cuda:
            vendor = backends.vendor(first.device)
            pointers = (
                mpi.takes_device_pointers(vendor) if device_pointers is None else device_pointers
            )
        self._averager = mpi.Averager(module, device_pointers=pointers)
        # One buffer for all, so that a step is one message.
        self._flat = first.new_empty(sum(tensor.numel() for tensor in tensors))
        parts = self._flat.split([tensor.numel() for tensor in tensors])
        self._views = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        weights = [tensor.detach() for tensor in tensors]
        if ranks.rank == 0:
            _copy(self._views, weights)
        else:
            self._flat.zero_()
        self._averager.reduce(self._flat, average=False)
        _copy(weights, self._views)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; with n = 1 the gradients are those of all ranks afterwards.

        Args:
            closure: Computes the loss and its gradients, and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._averager is not None and getattr(self, "grad_scale", None) is not None:
            raise ValueError("MpiSGD averages over ranks what a GradScaler has scaled for one")
        if self.steps == 0:  # not before: the model may yet move to a GPU
            optimizers.begin_momentum(self)
        self.steps += 1
        if self._averager is not None and self.sync_iterations == 1:
            self._average_gradients(self._averager)
        super().step()
        if self.sync_iterations > 1 and self.steps % self.sync_iterations == 0:
            self._average_weights()
        return loss

    def synchronize(self) -> None:
        """Average the weights now, if steps were made since they last were. All ranks call it."""
        if self.steps % self.sync_iterations:
            self._average_weights()

    def _average_gradients(self, averager: mpi.Averager) -> None:
        views, gradients = [], []
        for view, tensor in zip(self._views, self._tensors(), strict=True):
            if not tensor.requires_grad:
                continue  # frozen: with a gradient, even of zeros, it would decay
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            views.append(view)
            gradients.append(tensor.grad)
        _copy(views, gradients)
        averager.reduce(self._flat)
        _copy(gradients, views)

    def _average_weights(self) -> None:
        if self._averager is None:
            return
        weights = [tensor.detach() for tensor in self._tensors()]
        _copy(self._views, weights)
        self._averager.reduce(self._flat)
        _copy(weights, self._views)

    def _tensors(self) -> list[torch.Tensor]:
        return [tensor for group in self.param_groups for tensor in group["params"]]


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    torch._foreach_copy_(targets, sources)
