"""What `MpiSGD` is used with: is a step that of torch's own SGD on the rows of all ranks?

    clusterctl run --nodes 1 --ranks-per-node 2 bench/mpi_sgd.py --out mpi_sgd.json

Each script trains on the ranks with MpiSGD, every rank on rows of its own, and once more in one
process: with torch.optim.SGD and the mean of all ranks' losses, or, where weights are averaged
after every n-th step, with one model and one torch.optim.SGD for each rank. Rank 0 prints one JSON
document: for each script the largest difference of a weight, in double precision unless said.
tests/workloads/test_sgd.py checks the same table.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workloads"))

from trainlib.mpi_sgd import MpiSGD
from trainlib.program import run_program
from trainlib.ranks import discover
from trainlib.session import Session


@dataclass(frozen=True)
class Setting:
    """One rank of several with MpiSGD, or all of them in one process with torch's own."""

    ranks: list[int]
    make: Callable[..., Any]
    whole: bool

    def loss(self, model: nn.Module, step: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """The mean over `ranks` of the losses of their rows."""
        return torch.stack([self.of(rank, model, step, dtype) for rank in self.ranks]).mean()

    def of(
        self, rank: int, model: nn.Module, step: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        generator = torch.Generator().manual_seed(100 * rank + step)
        rows = torch.randn(5, 6, generator=generator, dtype=torch.float64).to(dtype)
        output: Tensor = model(rows)
        return output.square().mean()


Script = Callable[[Setting], list[Tensor]]


def net(given: Setting, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same for all in one process; on the ranks rank 0's have to win."""
    torch.manual_seed(min(given.ranks))
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def options(**values: Any) -> Script:
    """Four steps with these arguments."""

    def script(given: Setting) -> list[Tensor]:
        model = net(given)
        optimizer = given.make(model.parameters(), lr=0.1, **values)
        train(given, model, optimizer, range(4))
        return list(model.parameters())

    return script


def train(given: Setting, model: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        given.loss(model, step).backward()
        optimizer.step()


def groups_with_rates_of_their_own(given: Setting) -> list[Tensor]:
    model = net(given)
    groups = [
        {"params": model[0].parameters(), "lr": 0.3, "dampening": 0.5},
        {"params": model[2].parameters(), "weight_decay": 0.1},
    ]
    train(given, model, given.make(groups, lr=0.1, momentum=0.9), range(4))
    return list(model.parameters())


def added_group(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model[0].parameters(), lr=0.1, momentum=0.9)
    train(given, model[0], optimizer, range(2))  # the rest is each rank's own yet
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.2})
    train(given, model, optimizer, range(2, 5))
    return list(model.parameters())


def unfrozen_later(given: Setting) -> list[Tensor]:
    model = net(given)
    model[0].requires_grad_(False)
    optimizer = given.make(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    train(given, model, optimizer, range(2))
    model[0].requires_grad_(True)
    train(given, model, optimizer, range(2, 5))
    return list(model.parameters())


def frozen_later(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model.parameters(), lr=0.1, momentum=0.9)
    train(given, model, optimizer, range(2))
    # Its gradients are still there, and torch's own takes one more step with them.
    given.loss(model, 2).backward()
    model[0].requires_grad_(False)
    optimizer.step()
    train(given, model, optimizer, range(3, 5))
    return list(model.parameters())


def moved_to_another_type(given: Setting) -> list[Tensor]:
    model = net(given, torch.float32)
    optimizer = given.make(model.parameters(), lr=0.1, momentum=0.9)
    model.double()
    train(given, model, optimizer, range(3))
    return list(model.parameters())


def moved_after_steps(given: Setting) -> list[Tensor]:
    """Momentum keeps its type, as torch leaves it: what differs is what single precision rounds."""
    model = net(given, torch.float32)
    optimizer = given.make(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        if step == 2:
            model.double()
        optimizer.zero_grad()
        given.loss(model, step, torch.float64 if step > 1 else torch.float32).backward()
        optimizer.step()
    return list(model.parameters())


def filters(given: Setting) -> nn.Sequential:
    torch.manual_seed(min(given.ranks))
    model = nn.Sequential(nn.Unflatten(1, (3, 2, 1)), nn.Conv2d(3, 4, (2, 1)), nn.Flatten())
    return model.double()


def channels_last_after_steps(given: Setting) -> list[Tensor]:
    model = filters(given)
    optimizer = given.make(model.parameters(), lr=0.1, momentum=0.9)
    train(given, model, optimizer, range(2))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    train(given, model, optimizer, range(2, 4))
    return list(model.parameters())


def state_of_channels_last(given: Setting) -> list[Tensor]:
    model = filters(given)
    first = given.make(model.parameters(), lr=0.1, momentum=0.9)
    train(given, model, first, range(2))
    state = first.state_dict()
    for values in state["state"].values():
        momentum = values["momentum_buffer"]
        if momentum.dim() == 4:
            values["momentum_buffer"] = momentum.contiguous(memory_format=torch.channels_last)
    second = given.make(model.parameters(), lr=0.1, momentum=0.9)
    second.load_state_dict(state)
    train(given, model, second, range(2, 4))
    return list(model.parameters())


def transposed(gradient: Tensor) -> Tensor:
    """The same numbers, by columns."""
    return gradient.t().contiguous().t()


def gradients_by_columns(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model.parameters(), lr=0.1)
    for step in range(3):

        def loss(step: int = step) -> Tensor:
            optimizer.zero_grad()
            value = given.loss(model, step)
            value.backward()
            model[0].weight.grad = transposed(model[0].weight.grad)
            return value

        optimizer.step(loss) if step else (loss(), optimizer.step())
    return list(model.parameters())


def gradients_replaced_by_a_step_hook(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model.parameters(), lr=0.1, momentum=0.9)

    def replace(optimizer: Any, args: Any, kwargs: Any) -> None:
        model[0].weight.grad = transposed(model[0].weight.grad)

    optimizer.register_step_pre_hook(replace)
    train(given, model, optimizer, range(3))
    return list(model.parameters())


def every_other_number_of_a_tensor(given: Setting) -> list[Tensor]:
    model = net(given)
    model[0].weight = nn.Parameter(torch.randn(8, 12, dtype=torch.float64)[:, ::2])
    optimizer = given.make(model.parameters(), lr=0.1, momentum=0.9)
    train(given, model, optimizer, range(3))
    return list(model.parameters())


def complex_weights(given: Setting) -> list[Tensor]:
    class Rotation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.turn = nn.Parameter(torch.randn(6, 3, dtype=torch.complex128))

        def forward(self, rows: Tensor) -> Tensor:
            return (rows.to(torch.complex128) @ self.turn).abs() * self.scale

    torch.manual_seed(min(given.ranks))
    model = Rotation()
    train(given, model, given.make(model.parameters(), lr=0.1, momentum=0.9), range(3))
    return list(model.parameters())


def sparse_gradients(given: Setting) -> list[Tensor]:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4, sparse=True, dtype=torch.float64)

        def forward(self, rows: Tensor) -> Tensor:
            output: Tensor = self.table((rows > 0).sum(1))
            return output

    torch.manual_seed(min(given.ranks))
    model = Words()
    train(given, model, given.make(model.parameters(), lr=0.1, momentum=0.9), range(3))
    return list(model.parameters())


def dampened_before_the_first_step(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.param_groups[0]["dampening"] = 0.5
    train(given, model, optimizer, range(3))
    return list(model.parameters())


def first_layer_in_bf16(given: Setting) -> list[Tensor]:
    """In single precision: bf16 would round the other layer's weights by a thousandth."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(6, 8).bfloat16(), nn.Linear(6, 3)

        def forward(self, rows: Tensor) -> Tensor:
            output: Tensor = self.low(rows.bfloat16()).sum().float() * 1e-3 + self.high(rows)
            return output

    torch.manual_seed(min(given.ranks))
    model = Two()
    optimizer = given.make(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        given.loss(model, step, torch.float32).backward()
        model.low.zero_grad()  # what bf16 rounds differently is none of this
        optimizer.step()
    return list(model.high.parameters())


def closure(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):

        def loss(step: int = step) -> Tensor:
            optimizer.zero_grad()
            value = given.loss(model, step)
            value.backward()
            return value

        optimizer.step(loss) if step else optimizer.step(closure=loss)
    return list(model.parameters())


def clipped(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        (10 * given.loss(model, step)).backward()
        if not given.whole:
            optimizer.average_gradients()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return list(model.parameters())


def skipped_after_averaging(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad(set_to_none=step < 3)
        given.loss(model, step).backward()
        if step in (0, 2):
            if not given.whole:
                optimizer.average_gradients()
            continue
        optimizer.step()
    return list(model.parameters())


def clipped_in_a_step_hook(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model.parameters(), lr=0.5, momentum=0.9)
    called = []

    def clip(optimizer: Any, args: Any, kwargs: Any) -> None:
        called.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))

    optimizer.register_step_pre_hook(clip)
    optimizer.register_step_post_hook(lambda *_: called.append(torch.ones(())))
    train(given, model, optimizer, range(3))
    return [*model.parameters(), torch.tensor([float(len(called))])]


def used_by(*ranks: int, steps: range = range(4), **values: Any) -> Script:
    """A parameter that has a gradient on these ranks alone, and in these steps alone. DDP counts
    zeros for the others; without any gradient, torch's own SGD leaves it as it is."""

    def script(given: Setting) -> list[Tensor]:
        model, extra = net(given), nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))
        optimizer = given.make([extra, *model.parameters()], lr=0.1, **values)
        for step in range(4):
            optimizer.zero_grad()
            losses = [given.of(rank, model, step) for rank in given.ranks]
            for index, rank in enumerate(given.ranks):
                if rank in ranks and step in steps:
                    losses[index] = losses[index] + (extra - rank).square().sum()
            torch.stack(losses).mean().backward()
            optimizer.step()
        return [*model.parameters(), extra]

    return script


def schedule(given: Setting) -> list[Tensor]:
    model = net(given)
    optimizer = given.make(model.parameters(), lr=0.5, momentum=0.9)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for step in range(3):
        train(given, model, optimizer, range(step, step + 1))
        rates.step()
    return list(model.parameters())


def resumed(given: Setting) -> list[Tensor]:
    model = net(given)
    settings = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    first = given.make(model.parameters(), **settings)
    train(given, model, first, range(2))
    second = given.make(model.parameters(), **settings)
    second.load_state_dict(first.state_dict())
    train(given, model, second, range(2, 4))
    return list(model.parameters())


def local(stop: int, *, resume: bool = False, **values: Any) -> Script:
    """Seven steps, weights averaged after every third; saved and resumed after `stop`."""

    def script(given: Setting) -> list[Tensor]:
        models = [net(given) for _ in given.ranks]
        made = [optimizer(given, model) for model in models]
        for step in range(7):
            for rank, model, one in zip(given.ranks, models, made, strict=True):
                one.zero_grad()
                given.of(rank, model, step).backward()
                one.step()
            if given.whole and (step + 1) % 3 == 0:
                meet(models)
            if step + 1 == stop:
                meet(models) if given.whole else made[0].synchronize()
                if resume:
                    states = [one.state_dict() for one in made]
                    made = [optimizer(given, model) for model in models]
                    for one, state in zip(made, states, strict=True):
                        one.load_state_dict(state)
        meet(models) if given.whole else made[0].synchronize()
        return list(models[0].parameters())

    def optimizer(given: Setting, model: nn.Module) -> Any:
        own = {} if given.whole else {"sync_iterations": 3}
        return given.make(model.parameters(), lr=0.1, **values, **own)

    return script


def meet(models: list[nn.Sequential]) -> None:
    """The mean of the weights, for all."""
    for tensors in zip(*(model.parameters() for model in models), strict=True):
        value = torch.stack([tensor.detach() for tensor in tensors]).mean(0)
        for tensor in tensors:
            tensor.data.copy_(value)


SCRIPTS: dict[str, Script] = {
    "plain": options(),
    "momentum": options(momentum=0.9),
    "momentum, dampening": options(momentum=0.9, dampening=0.5),
    "momentum, Nesterov, weight decay": options(momentum=0.9, nesterov=True, weight_decay=0.1),
    "maximize": options(momentum=0.9, maximize=True),
    "groups with rates of their own": groups_with_rates_of_their_own,
    "add_param_group after steps": added_group,
    "unfrozen after steps": unfrozen_later,
    "frozen after steps": frozen_later,
    "model moved to another type": moved_to_another_type,
    "model moved to another type after steps": moved_after_steps,
    "channels last after steps": channels_last_after_steps,
    "state of a model with channels last": state_of_channels_last,
    "gradients with other strides": gradients_by_columns,
    "gradients replaced by a step hook": gradients_replaced_by_a_step_hook,
    "parameter with gaps in memory": every_other_number_of_a_tensor,
    "complex parameter": complex_weights,
    "sparse gradients": sparse_gradients,
    "dampening set before the first step": dampened_before_the_first_step,
    "foreach": options(momentum=0.9, foreach=True),
    "not fused": options(momentum=0.9, fused=False),
    "first layer in bf16 (single precision)": first_layer_in_bf16,
    "closure": closure,
    "gradients averaged, then clipped": clipped,
    "gradients averaged, then the step skipped": skipped_after_averaging,
    "step hooks, one that clips": clipped_in_a_step_hook,
    "parameter in no loss": used_by(weight_decay=0.1),
    "parameter in the loss of one rank": used_by(1, momentum=0.9, weight_decay=0.1),
    "parameter in no loss after steps": used_by(0, 1, steps=range(2), momentum=0.9),
    "parameter in no loss at first": used_by(0, steps=range(2, 4), momentum=0.9, dampening=0.5),
    "schedule of rates": schedule,
    "resumed": resumed,
    "n = 3": local(0),
    "n = 3, momentum, weight decay": local(0, momentum=0.9, weight_decay=0.1),
    "n = 3, synchronize() after step 4": local(4, momentum=0.9),
    "n = 3, resumed after step 4": local(4, resume=True, momentum=0.9),
}

LIMITS = dict.fromkeys(SCRIPTS, 1e-12) | {
    "first layer in bf16 (single precision)": 1e-6,
    "model moved to another type after steps": 1e-6,
}


def compare(script: Script, rank: int, world: int) -> float:
    """The largest difference of a weight, infinity if none has changed or one is missing."""
    alone = Setting(list(range(world)), torch.optim.SGD, whole=True)
    expected = script(alone)
    found = script(Setting([rank], MpiSGD, whole=False))
    start = script(Setting([rank], lambda parameters, **_: Idle(parameters), whole=True))
    off = [(a - b).abs().max().item() for a, b in zip(expected, found, strict=True)]
    moved = [(a - b).abs().max().item() for a, b in zip(expected, start, strict=True)]
    return max(off) if max(moved) > 1e-3 else math.inf


class Idle(torch.optim.SGD):
    """Takes no step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.0)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group({**param_group, "lr": 0.0})


def main() -> int:
    parser = argparse.ArgumentParser(description="MpiSGD against torch's own SGD.")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ranks = discover()
    with Session(ranks, over_mpi=True) as session:
        found = {name: compare(one, ranks.rank, ranks.world) for name, one in SCRIPTS.items()}
        everyone = [json.loads(text) for text in session.exchange(json.dumps(found))]
    if ranks.rank == 0:
        document = {
            "schema": 1,
            "benchmark": "mpi_sgd",
            "ranks": ranks.world,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "largest_difference": {name: max(one[name] for one in everyone) for name in SCRIPTS},
        }
        print(json.dumps(document), flush=True)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    return int(any(one[name] > LIMITS[name] for one in everyone for name in SCRIPTS))


if __name__ == "__main__":
    run_program(main)
