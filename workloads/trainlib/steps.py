"""The steps of an epoch: forward, backward, exchange of gradients, optimizer."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Recipe:
    """How a step is made of batches. The defaults: one batch each, in fp32."""

    precision: str = "fp32"
    accumulate: int = 1
    scaler: torch.amp.GradScaler | None = None
    """Keeps small gradients of fp16 from becoming 0 (Micikevicius et al., ICLR 2018)."""

    @property
    def plain(self) -> bool:
        return self.accumulate == 1 and self.precision == "fp32"

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "fp32":
            return contextlib.nullcontext()
        kind = torch.bfloat16 if self.precision == "bf16" else torch.float16
        return torch.autocast(device.type, kind)


def train_epoch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Loss,
    batches: Iterable[Batch],
    recipe: Recipe | None = None,
) -> tuple[torch.Tensor, int, int]:
    """A step for every `accumulate` batches; returns (mean loss over the rows as a scalar tensor,
    steps, rows).

    The gradient of a step is the one of all its rows together, also where the last batch is
    shorter. Ranks exchange gradients once a step. Nothing here waits for the device: the losses
    are looked at once an epoch.
    """
    losses: list[torch.Tensor] = []
    sizes: list[int] = []
    steps = 0
    for group in _group_batches(batches, recipe.accumulate if recipe else 1):
        if recipe is None or recipe.plain:
            # The usual step with nothing around it: in a small network that would be felt.
            inputs, targets = group[0]
            loss = loss_of(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            sizes.append(len(inputs))
        else:
            _take_step(model, optimizer, loss_of, group, recipe, losses)
            sizes += [len(inputs) for inputs, _ in group]
        optimizer.zero_grad()
        steps += 1
    stacked = torch.stack(losses)
    weights = torch.tensor(sizes, dtype=stacked.dtype, device=stacked.device)
    return (stacked * weights).sum() / weights.sum(), steps, sum(sizes)


def _group_batches(batches: Iterable[Batch], size: int) -> Iterator[Sequence[Batch]]:
    rest = iter(batches)
    if size == 1:
        return ((batch,) for batch in rest)
    return iter(lambda: list(itertools.islice(rest, size)), [])


def _take_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Loss,
    group: Sequence[Batch],
    recipe: Recipe,
    losses: list[torch.Tensor],
) -> None:
    """One step from several batches, in mixed precision or not; adds their losses to `losses`."""
    rows = sum(len(inputs) for inputs, _ in group)
    for index, (inputs, targets) in enumerate(group):
        # DDP exchanges gradients in backward(): only the last one of a step may.
        silent = index + 1 < len(group) and isinstance(
            model, torch.nn.parallel.DistributedDataParallel
        )
        with model.no_sync() if silent else contextlib.nullcontext():  # type: ignore[operator]
            with recipe.autocast(inputs.device):
                loss = loss_of(model(inputs), targets)
            part = loss if len(group) == 1 else loss * (len(inputs) / rows)
            (recipe.scaler.scale(part) if recipe.scaler else part).backward()
        losses.append(loss.detach())
    if recipe.scaler:
        recipe.scaler.step(optimizer)
        recipe.scaler.update()
    else:
        optimizer.step()
