"""Kinds of training scripts: are their gradients those of torch's own DistributedDataParallel?

    clusterctl run --nodes 1 --ranks-per-node 2 bench/gradients.py --out gradients.json

Each is run on the same ranks with torch's own wrapper over gloo, and with `Session.data_parallel`
over MPI and over gloo. Rank 0 prints one JSON document: for each kind and backend "" where all
ranks have the same bits as torch, else what differs. With two ranks all are equal: a half of a
number is exact, and a sum of two the same in either order. With more, gloo and MPI add in different
orders, and the last bits differ. tests/workloads/test_gradients.py checks the same table.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workloads"))

from trainlib.program import run_program
from trainlib.ranks import discover
from trainlib.session import Session

BACKENDS = ("mpi", "gloo")

Found = Sequence[Tensor | None]


@dataclass(frozen=True)
class Setting:
    """What a kind of script is given."""

    wrap: Callable[..., Any]
    rank: int
    wrapped: list[Any] = field(default_factory=list)

    def parallel(self, model: nn.Module, **options: Any) -> Any:
        """The model wrapped with these options of DistributedDataParallel.

        Kept alive, as by a variable of a script: a wrapper that is gone averages nothing.
        """
        self.wrapped.append(self.wrap(model, **options))
        return self.wrapped[-1]

    def rows(self, *shape: int) -> Tensor:
        """Other data on each rank, the same each time."""
        generator = torch.Generator().manual_seed(10 + self.rank)
        return torch.randn(*shape, generator=generator)


Kind = Callable[[Setting], Found]


def net(inputs: int = 6, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def gradients(*models: nn.Module) -> list[Tensor | None]:
    return [one.grad for model in models for one in model.parameters()]


def plain(given: Setting) -> Found:
    model = net()
    given.parallel(model)(given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def steps_of_an_optimizer(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        parallel(given.rows(5, 6)).square().mean().backward()
        optimizer.step()
    return [*gradients(model), *model.parameters()]


def chained_models(given: Setting) -> Found:
    encoder, decoder = net(), net(3)
    first, second = given.parallel(encoder), given.parallel(decoder)
    second(first(given.rows(5, 6))).square().mean().backward()
    return gradients(encoder, decoder)


def generator_and_discriminator(given: Setting) -> Found:
    maker, judge = net(), net(3, 1)
    makes, judges = given.parallel(maker), given.parallel(judge)
    for _ in range(2):
        judge.zero_grad()
        judges(makes(given.rows(5, 6)).detach()).mean().backward()
        judged = gradients(judge)
        maker.zero_grad()
        judges(makes(given.rows(5, 6))).square().mean().backward()
    return [*judged, *gradients(maker)]


def penalty_on_the_parameters(given: Setting) -> Found:
    model = net()
    loss = given.parallel(model)(given.rows(5, 6)).square().mean()
    for parameter in model.parameters():
        loss = loss + 0.1 * parameter.square().sum()
    loss.backward()
    return gradients(model)


def gradients_of_the_inputs(given: Setting) -> Found:
    model, rows = net(), given.rows(5, 6).requires_grad_()
    given.parallel(model)(rows).square().mean().backward()
    return [*gradients(model), rows.grad]


def layer_before_the_wrapped_model(given: Setting) -> Found:
    model, before = net(), nn.Linear(6, 6)
    given.parallel(model)(before(given.rows(5, 6))).square().mean().backward()
    return gradients(model, before)


def gradient_of_a_hidden_unit(given: Setting) -> Found:
    model = net()
    output = given.parallel(model)(given.rows(5, 6))
    output.retain_grad()
    output.square().mean().backward()
    return [*gradients(model), output.grad]


def gradient_penalty(given: Setting) -> Found:
    model, rows = net(), given.rows(5, 6).requires_grad_()
    output = given.parallel(model)(rows)
    (slope,) = torch.autograd.grad(output.sum(), rows, create_graph=True)
    (output.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
    return gradients(model)


def accumulated_without_sync(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model)
    found: list[Tensor | None] = []
    for _ in range(2):
        model.zero_grad()
        with parallel.no_sync():
            for part in (1, 2):
                parallel(part * given.rows(5, 6)).square().mean().backward()
            found += [one.grad.clone() for one in model.parameters() if one.grad is not None]
        parallel(3 * given.rows(5, 6)).square().mean().backward()
        found += [one.grad.clone() for one in model.parameters() if one.grad is not None]
    return found


def accumulated_with_sync(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model)
    for part in (1, 2, 3):
        parallel(part * given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def zeroed_in_place(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model)
    for part in (1, 2, 3):
        model.zero_grad(set_to_none=False)
        parallel(part * given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def several_backwards(given: Setting) -> Found:
    model = net()
    output = given.parallel(model)(given.rows(5, 6))
    output.mean().backward(retain_graph=True)
    output.square().mean().backward()
    return gradients(model)


def several_forwards(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model)
    one, other = parallel(given.rows(5, 6)), parallel(-given.rows(5, 6))
    with torch.no_grad():
        parallel(given.rows(2, 6))
    (one - 2 * other).square().mean().backward()
    return gradients(model)


def backward_that_raised(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model)
    for attempt in range(2):
        output = parallel(given.rows(5, 6))
        if attempt == 0:
            output.register_hook(lambda gradient: 1 / 0)
        try:
            output.square().mean().backward()
        except ZeroDivisionError:
            model.zero_grad()
    return gradients(model)


def hooks_on_parameters(given: Setting) -> Found:
    model = net()
    model[0].weight.register_hook(lambda gradient: 3 * gradient)
    given.parallel(model)(given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def clipped(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        (10 * parallel(given.rows(5, 6)).square().mean()).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [*gradients(model), *model.parameters(), norm]


def scaled_loss(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(parallel(given.rows(5, 6)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return [*gradients(model), *model.parameters()]


def autocast_to_bf16(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = parallel(given.rows(5, 6)).square().mean()
    loss.backward()
    return gradients(model)


def weights_in(dtype: torch.dtype) -> Kind:
    def kind(given: Setting) -> Found:
        model = net().to(dtype)
        given.parallel(model)(given.rows(5, 6).to(dtype)).square().mean().backward()
        return gradients(model)

    return kind


def weights_of_two_types(given: Setting) -> Found:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(6, 8).bfloat16(), nn.Linear(8, 3).double()

        def forward(self, rows: Tensor) -> Tensor:
            output: Tensor = self.high(self.low(rows.bfloat16()).double())
            return output

    model = Two()
    given.parallel(model)(given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def complex_weights(given: Setting) -> Found:
    class Rotation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))

        def forward(self, rows: Tensor) -> Tensor:
            return (rows.to(torch.complex64) @ self.turn).abs()

    model = Rotation()
    given.parallel(model)(given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def sparse_gradients(given: Setting) -> Found:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    words = torch.tensor([[1, 2, 2], [3, 3, 8]])[given.rank]
    given.parallel(model)(words).square().mean().backward()
    return [one if one is None else one.to_dense() for one in gradients(model)]


class Heads(nn.Module):
    """Two outputs, in any form."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.one, self.other = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 2)
        self.form = form

    def forward(self, rows: Tensor) -> Any:
        hidden = self.body(rows).tanh()
        return self.form(self.one(hidden), self.other(hidden))


def outputs_in_a_tuple(given: Setting) -> Found:
    model = Heads(lambda one, other: (one, (other,)))
    one, (other,) = given.parallel(model)(given.rows(5, 6))
    (one.square().mean() + 3 * other.mean()).backward()
    return gradients(model)


def outputs_in_a_dict(given: Setting) -> Found:
    model = Heads(lambda one, other: {"loss": one.square().mean(), "more": [other]})
    output = given.parallel(model)(given.rows(5, 6))
    (output["loss"] + output["more"][0].mean()).backward()
    return gradients(model)


class Branches(nn.Module):
    """Each row goes through one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, rows: Tensor, left: bool) -> Tensor:
        output: Tensor = (self.left if left else self.right)(self.body(rows))
        return output


def parameters_unused_in_some_steps(given: Setting) -> Found:
    model = Branches()
    parallel = given.parallel(model, find_unused_parameters=True)
    found: list[Tensor | None] = []
    for step in range(4):  # both the same, each another, and one that none has used yet
        model.zero_grad()
        left = step < 2 and not (step == 1 and given.rank == 1)
        parallel(given.rows(5, 6), left).square().mean().backward()
        found += [None if one is None else one.clone() for one in gradients(model)]
    return found


def parameters_never_used(given: Setting) -> Found:
    model = Branches()
    parallel = given.parallel(model, static_graph=True)
    for _ in range(3):
        model.zero_grad()
        parallel(given.rows(5, 6), True).square().mean().backward()
    return gradients(model.body, model.left)


def static_graph(given: Setting) -> Found:
    model = net()
    parallel = given.parallel(model, static_graph=True)
    for part in (1, 2, 3):
        model.zero_grad()
        parallel(part * given.rows(5, 6)).square().mean().backward()
    return gradients(model)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = net(6, 6), net(6, 3)
        self.reentrant = reentrant

    def forward(self, rows: Tensor) -> Tensor:
        hidden = checkpoint(self.first, rows, use_reentrant=self.reentrant)
        output: Tensor = checkpoint(self.second, hidden, use_reentrant=self.reentrant)
        return output


def checkpointed(given: Setting) -> Found:
    model = Checkpointed(reentrant=False)
    given.parallel(model)(given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def checkpointed_reentrant(given: Setting) -> Found:
    model = Checkpointed(reentrant=True)
    rows = given.rows(5, 6).requires_grad_()
    parallel = given.parallel(model, static_graph=True)
    for _ in range(2):
        model.zero_grad()
        parallel(rows).square().mean().backward()
    return [*gradients(model), rows.grad]


def tied_weights(given: Setting) -> Found:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    given.parallel(model)(given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def frozen_weights(given: Setting) -> Found:
    model = net()
    model[0].requires_grad_(False)
    given.parallel(model)(given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def recurrent(given: Setting) -> Found:
    model = nn.LSTM(6, 4, num_layers=2)
    output, _ = given.parallel(model)(given.rows(7, 2, 6))
    output.square().mean().backward()
    return gradients(model)


def images(given: Setting) -> Found:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rows = given.rows(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    given.parallel(model)(rows).square().mean().backward()
    return gradients(model)


def dropout(given: Setting) -> Found:
    torch.manual_seed(given.rank)
    model = nn.Sequential(nn.Linear(6, 50), nn.Dropout(), nn.Linear(50, 3))
    given.parallel(model)(given.rows(5, 6)).square().mean().backward()
    return gradients(model)


def uneven_inputs(**joining: bool) -> Kind:
    def kind(given: Setting) -> Found:
        model = net()
        parallel = given.parallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with parallel.join(**joining):
            for _ in range(2 + given.rank):
                optimizer.zero_grad()
                parallel(given.rows(5, 6)).square().mean().backward()
                optimizer.step()
        return list(model.parameters())

    return kind


def other_weights_on_each_rank(given: Setting) -> Found:
    torch.manual_seed(given.rank)
    model = net()
    given.parallel(model)(given.rows(5, 6)).square().mean().backward()
    return [*model.parameters(), *gradients(model)]


class Large(nn.Module):
    """Parameters of more than 1 MiB: of the model itself, with two names, frozen, with gaps in
    memory, and two whose gradients are one."""

    def __init__(self) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.randn(520, 520) / 20)
        self.tied = nn.Linear(520, 520, bias=False)
        self.alike = nn.Linear(520, 520, bias=False)
        self.alike.weight = self.tied.weight
        self.frozen = nn.Linear(520, 520).requires_grad_(False)
        self.gap = nn.Linear(520, 520)
        self.gap.weight = nn.Parameter(torch.randn(520, 1040)[:, :520] / 20)
        self.added = nn.ParameterDict({name: torch.randn(520, 520) / 9 for name in "ab"})

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.frozen(self.alike(self.tied(rows @ self.root)).tanh())
        rows = self.gap(rows)
        return rows.unsqueeze(1) + self.added["a"] + self.added["b"]


def large_parameters(given: Setting) -> Found:
    model = Large()
    parallel = given.parallel(model)
    for _ in range(2):
        model.zero_grad()
        with parallel.no_sync():
            parallel(given.rows(2, 520)).mean().backward()
        parallel(given.rows(2, 520)).square().mean().backward()
    return gradients(model)


def wrapped_again(given: Setting) -> Found:
    first = net()
    parallel = given.parallel(first)
    parallel(given.rows(5, 6)).square().mean().backward()
    second = copy.deepcopy(first)
    second.zero_grad()
    given.parallel(second)(given.rows(5, 6)).mean().backward()
    return gradients(first, second)


KINDS: dict[str, Kind] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        plain,
        steps_of_an_optimizer,
        chained_models,
        generator_and_discriminator,
        penalty_on_the_parameters,
        gradients_of_the_inputs,
        layer_before_the_wrapped_model,
        gradient_of_a_hidden_unit,
        gradient_penalty,
        accumulated_without_sync,
        accumulated_with_sync,
        zeroed_in_place,
        several_backwards,
        several_forwards,
        backward_that_raised,
        hooks_on_parameters,
        clipped,
        scaled_loss,
        autocast_to_bf16,
        weights_of_two_types,
        complex_weights,
        sparse_gradients,
        outputs_in_a_tuple,
        outputs_in_a_dict,
        parameters_unused_in_some_steps,
        parameters_never_used,
        static_graph,
        checkpointed,
        checkpointed_reentrant,
        tied_weights,
        frozen_weights,
        recurrent,
        images,
        dropout,
        other_weights_on_each_rank,
        large_parameters,
        wrapped_again,
    )
} | {
    "uneven inputs": uneven_inputs(),
    "uneven inputs, divided by the active ranks": uneven_inputs(divide_by_initial_world_size=False),
    "weights in bf16": weights_in(torch.bfloat16),
    "weights in fp64": weights_in(torch.float64),
}


def difference(expected: Found, found: Found) -> str:
    """What differs between two lists of tensors, "" if nothing does."""
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one is None or other is None:
            if one is not other:
                return f"tensor {number} is {other}, not {one}"
        elif not torch.equal(one, other):
            least = (one - other).abs().max().item()
            return f"tensor {number} is off by {least:.3g}, e.g. {other.flatten()[0].item()}"
    return ""


def outcome(kind: Kind, wrap: Callable[..., Any], rank: int) -> Found | str:
    torch.manual_seed(0)
    try:
        # Copies: what one wrapper leaves behind must not be changed by the other.
        found = kind(Setting(wrap, rank))
        return [one if one is None else one.detach().clone() for one in found]
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def unwrapped(model: nn.Module, **options: Any) -> nn.Module:
    return model


def torchs_own(model: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(model, **options)


def compare(kind: Kind, ours: dict[str, Callable[..., Any]], rank: int) -> dict[str, str]:
    """What differs from torch's own, by backend."""
    expected, alone = outcome(kind, torchs_own, rank), outcome(kind, unwrapped, rank)
    if isinstance(expected, str):
        return dict.fromkeys(ours, f"torch: {expected}")
    if not isinstance(alone, str) and difference(expected, alone) == "":
        return dict.fromkeys(ours, "says nothing: torch's own wrapper makes no difference")
    found = {name: outcome(kind, wrap, rank) for name, wrap in ours.items()}
    return {
        name: one if isinstance(one, str) else difference(expected, one)
        for name, one in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Gradients against torch's own DDP.")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with Session(discover()) as session:
        session.open("mpi")
        ours = {
            "mpi": session.data_parallel,
            "gloo": partial(session.data_parallel, hook=False),
        }
        found = {name: compare(kind, ours, session.ranks.rank) for name, kind in KINDS.items()}
        everyone = [json.loads(text) for text in session.exchange(json.dumps(found))]
    if session.ranks.rank == 0:
        together = {
            name: {
                backend: "; ".join(sorted({one[name][backend] for one in everyone} - {""}))
                for backend in BACKENDS
            }
            for name in KINDS
        }
        document = {
            "schema": 1,
            "benchmark": "gradients",
            "ranks": session.ranks.world,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "kinds": together,
        }
        print(json.dumps(document), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    run_program(main)
