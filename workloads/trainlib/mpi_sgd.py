"""SGD over MPI as a `torch.optim` class, for any script that mpirun or srun --mpi=pmix starts.

    from trainlib.mpi_sgd import MpiSGD

    optimizer = MpiSGD(model.parameters(), lr=0.01, momentum=0.9)
    ...
    loss.backward()
    optimizer.step()

After the SGD MPI of deephealthproject's EDDL (promort_pipeline, branch sgd_mpi).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from trainlib import backends, mpi, optimizers
from trainlib.ranks import discover


class MpiSGD(torch.optim.SGD):
    """SGD on W ranks, which all have to take the same steps.

    With `sync_iterations` 1 it is synchronous SGD (Chen et al., arXiv 1604.00981):

        g <- (1/W) sum of the ranks' gradients, then the step of torch.optim.SGD with g

    which is the step of one process on the rows of all ranks, whatever the options. With n above 1
    it is local SGD (Stich, ICLR 2019, arXiv 1805.09767): each rank steps with its own gradient, and
    after every n-th step

        w <- (1/W) sum of the ranks' weights

    while momentum stays with its rank. `synchronize` does that in between, before weights are
    tested or saved. Parameters are rank 0's at the beginning, those of `add_param_group` when they
    are added. The steps are counted in `state_dict`.

    Gradients are averaged in `step`, before the hooks of `register_step_pre_hook` are called, and
    weights before those of `register_step_post_hook`. To clip gradients, average them before:

        loss.backward()
        optimizer.average_gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    Args:
        sync_iterations: n.
        device_pointers: Give MPI the addresses of GPU memory, None asks the MPI library whether it
            takes them (CUDA-aware, ROCm-aware). Else messages go through host memory.

    The other arguments are those of torch.optim.SGD, without `differentiable`. Unless `foreach` or
    `fused` is given, one kernel steps all parameters of a group, where it does what torch's own
    loop does. With `sync_iterations` 1, a parameter without a gradient on some ranks has zeros
    there, as with DistributedDataParallel; one without a gradient on any rank keeps its value.

    Raises:
        StartError: MPI cannot be used: no mpi4py, or neither mpirun nor srun --mpi=pmix started
            the several ranks.
        ValueError: An argument is out of range, or `step` is called by a GradScaler: it skips steps
            by what one rank sees. bfloat16 needs none.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        sync_iterations: int = 1,
        device_pointers: bool | None = None,
    ) -> None:
        if sync_iterations < 1:
            raise ValueError(f"sync_iterations is {sync_iterations}, less than 1")
        self._averager: mpi.Averager | None = None  # add_param_group() looks at it
        # One kernel for all parameters, where there is one and nothing else is asked for.
        options: dict[str, Any] = {
            "fused": foreach is None if fused is None else fused,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            **options,
        )
        self.sync_iterations = sync_iterations
        self.steps = 0
        self._averaged = False
        self._watches: list[RemovableHandle] = []
        self._gradients, self._weights = _Buffers(), _Buffers()
        # Not around super().step(): torch may have wrapped that in the same hooks, too.
        self.register_step_pre_hook(self._begin_step)
        self.register_step_post_hook(self._end_step)
        ranks = discover()
        # A GradScaler shows itself in step() where that says that it takes scaled gradients. One
        # rank's step does not: a group may turn out not to be one for the fused kernel.
        self._step_supports_amp_scaling = ranks.world > 1
        if ranks.world == 1:
            return
        module = mpi.start(ranks)
        first = self._list_tensors()[0]
        pointers = False
        if first.is_cuda:
            vendor = backends.name_vendor(first.device)
            pointers = (
                mpi.takes_device_pointers(vendor) if device_pointers is None else device_pointers
            )
        self._averager = mpi.Averager(module, device_pointers=pointers)
        self._copy_from_rank0(self._list_tensors())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's own; all ranks call it, and the parameters become rank 0's."""
        super().add_param_group(param_group)
        if self._averager is not None:
            self._copy_from_rank0(self.param_groups[-1]["params"])

    def __getstate__(self) -> dict[str, Any]:
        """Neither copied nor pickled: torch would leave out what averages over the ranks."""
        raise TypeError(
            "MpiSGD cannot be copied; make one with the copied parameters and load state_dict()"
        )

    def average_gradients(self) -> None:
        """Make the gradients those of all ranks before `step` does it, which then leaves them.

        All ranks call it, after the last backward() of a step. With `sync_iterations` above 1 the
        gradients of a rank are its own, and stay so.
        """
        self._forget_averages()
        self._average_gradients()
        self._averaged = True
        # The step may be skipped, and backward() then makes other gradients.
        self._watches = [
            tensor.register_post_accumulate_grad_hook(self._note_accumulated)
            for tensor in self._list_tensors()
            if tensor.requires_grad
        ]

    def _note_accumulated(self, _: torch.Tensor) -> None:
        self._averaged = False

    def _forget_averages(self) -> None:
        self._averaged = False
        for watch in self._watches:
            watch.remove()
        self._watches = []

    @torch.no_grad()
    def _average_gradients(self) -> None:
        if self._averager is None or self.sync_iterations > 1:
            return
        gradients, own = [], []
        trained = [
            tensor
            for tensor in self._list_tensors()
            if tensor.requires_grad or tensor.grad is not None
        ]
        for tensor in trained:
            own.append(tensor.grad is not None)
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            elif tensor.grad.is_sparse:
                tensor.grad = tensor.grad.to_dense()  # other rows on each rank
            gradients.append(tensor.grad)
        if not trained:
            return
        # Which ranks have one travels in the same message. One that no rank has must not be zeros:
        # its parameter would decay, and move on with its momentum.
        owners = gradients[0].new_tensor(own)
        self._gradients.reduce([*gradients, owners], self._averager)
        for tensor, owned in zip(trained, owners.tolist(), strict=True):
            if not owned:
                tensor.grad = None

    def synchronize(self) -> None:
        """Average the weights now, if steps were made since they last were. All ranks call it."""
        if self.steps % self.sync_iterations:
            self._average_weights()

    def state_dict(self) -> dict[str, Any]:
        """torch's own, which torch.optim.SGD can load, and the number of steps."""
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what torch.optim.SGD has saved, too: its steps count from 0 here."""
        super().load_state_dict(state_dict)
        self.steps = int(state_dict.get("steps", 0))

    def _begin_step(
        self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What comes before torch's own step; replaces the closure, which comes after all hooks."""
        if self._averager is not None and getattr(self, "found_inf", None) is not None:
            raise ValueError("MpiSGD averages over ranks what a GradScaler has scaled for one")
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None and not self._averaged:
            self._average_gradients()

        def average_first() -> Any:
            loss = None
            if closure is not None:
                loss = closure()
                self._average_gradients()
            optimizers.prepare(self)
            return loss

        return (self, average_first), {}

    def _end_step(
        self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.steps += 1
        self._forget_averages()
        if self.sync_iterations > 1 and self.steps % self.sync_iterations == 0:
            self._average_weights()

    def _average_weights(self) -> None:
        if self._averager is not None:
            weights = [tensor.detach() for tensor in self._list_tensors()]
            self._weights.reduce(weights, self._averager)

    def _copy_from_rank0(self, tensors: list[torch.Tensor]) -> None:
        assert self._averager is not None
        weights = [tensor.detach() for tensor in tensors]
        if discover().rank:
            for weight in weights:
                weight.zero_()
        _Buffers().reduce(weights, self._averager, average=False)

    def _list_tensors(self) -> list[torch.Tensor]:
        return [tensor for group in self.param_groups for tensor in group["params"]]


class _Buffers:
    """One buffer for all tensors of a type and device, so that they take one message."""

    def __init__(self) -> None:
        self._layout: list[tuple[torch.Size, torch.dtype, torch.device]] = []
        self._parts: list[tuple[torch.Tensor, list[int], list[torch.Tensor]]] = []

    def reduce(
        self, tensors: list[torch.Tensor], averager: mpi.Averager, *, average: bool = True
    ) -> None:
        """Replace all tensors by their means over the ranks, or sums."""
        # Parameters may be added or unfrozen, and the model moved, between two steps.
        layout = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        if layout != self._layout:
            self._layout, self._parts = layout, _split_parts(tensors)
        for buffer, numbers, views in self._parts:
            own = [tensors[number] for number in numbers]
            torch._foreach_copy_(views, own)
            averager.reduce(buffer, average=average)
            torch._foreach_copy_(own, views)


def _split_parts(
    tensors: list[torch.Tensor],
) -> list[tuple[torch.Tensor, list[int], list[torch.Tensor]]]:
    """For each type and device a buffer, the tensors' places in the list, and their views of it."""
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(number)
    parts = []
    for (dtype, device), numbers in kinds.items():
        sizes = [tensors[number].numel() for number in numbers]
        buffer = torch.empty(sum(sizes), dtype=dtype, device=device)
        views = [
            part.view(tensors[number].shape)
            for part, number in zip(buffer.split(sizes), numbers, strict=True)
        ]
        parts.append((buffer, numbers, views))
    return parts
