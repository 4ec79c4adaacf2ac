"""SGD with momentum where it begins, and where a snapshot goes on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from bench import mpi_sgd
from tests.unit.tables import rows
from trainlib import optimizers
from trainlib.mpi_sgd import MpiSGD


@pytest.fixture
def memory_that_nobody_wrote_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("make", [optimizers.make_sgd, partial(MpiSGD, momentum=0.9)])
def test_a_first_step_that_the_scaler_leaves_out_is_no_step(
    make: Any, memory_that_nobody_wrote_is_nan: None
) -> None:
    weights = [torch.nn.Parameter(torch.full((50_000,), 1.0)) for _ in range(2)]
    optimizer = make(weights[:1], lr=0.1)
    plain = torch.optim.SGD(weights[1:], lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    weights[0].grad = torch.full_like(weights[0], torch.inf)
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)
    scaler.update()
    for _ in range(3):
        weights[0].grad = torch.full_like(weights[0], 2.0 * scaler.get_scale())
        weights[1].grad = torch.full_like(weights[1], 2.0)
        scaler.step(optimizer)
        scaler.update()
        plain.step()
    assert torch.allclose(*weights)


def test_a_scaler_may_scale_for_a_group_that_is_not_fused() -> None:
    weights = [torch.nn.Parameter(torch.ones(4, 6)[:, ::2]) for _ in range(2)]
    made = [
        MpiSGD(weights[:1], lr=0.1, momentum=0.9),
        torch.optim.SGD(weights[1:], lr=0.1, momentum=0.9),
    ]
    for weight, optimizer in zip(weights, made, strict=True):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale((weight * weight).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert torch.equal(*weights)


def test_a_snapshot_of_a_gpu_goes_on_where_images_lie_otherwise() -> None:
    torch.manual_seed(0)
    convolutions = [torch.nn.Conv2d(3, 8, 3) for _ in range(2)]
    convolutions[0].load_state_dict(convolutions[1].state_dict())
    convolutions[1].to(memory_format=torch.channels_last)  # as the trainer does on a GPU
    made = [optimizers.make_sgd(one.parameters(), lr=0.1) for one in convolutions]
    gradient = torch.randn(8, 3, 3, 3)

    def steps(count: int) -> None:
        for one, optimizer in zip(convolutions, made, strict=True):
            for _ in range(count):
                one.weight.grad = torch.empty_like(one.weight).copy_(gradient)
                optimizer.step()

    steps(1)
    states = [optimizer.state_dict() for optimizer in made]
    for optimizer, state in zip(made, reversed(states), strict=True):
        optimizer.load_state_dict(state)
    steps(2)
    assert torch.allclose(convolutions[0].weight, convolutions[1].weight, atol=1e-6)


# Only several ranks take a missing gradient for zeros.
@pytest.mark.parametrize("script", sorted({*mpi_sgd.SCRIPTS} - {"parameter in no loss"}))
def test_a_step_of_one_rank_is_that_of_torchs_sgd(script: str) -> None:
    assert mpi_sgd.compare(mpi_sgd.SCRIPTS[script], 0, 1) <= mpi_sgd.LIMITS[script]


def filled(shape: tuple[int, ...], strides: tuple[int, ...], seed: int) -> torch.Tensor:
    """The same numbers for a seed, at the places in memory that `strides` say."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if 0 in strides:
        return numbers.flatten()[0].expand(shape)
    places = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.zeros(places).as_strided(shape, strides).copy_(numbers)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@rows(
    "shape, weight, gradient, fused, kept",
    "optimizers.the_fused_kernel_steps_what_it_can_and_copies_what_it_must",
)
def test_the_fused_kernel_steps_what_it_can_and_copies_what_it_must(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    gradient: tuple[int, ...],
    fused: bool,
    kept: bool,
    momentum: float,
) -> None:
    ours, theirs = (torch.nn.Parameter(filled(shape, weight, 0)) for _ in range(2))
    made = torch.optim.SGD([ours], lr=0.1, momentum=momentum, fused=True)
    plain = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, foreach=False)
    for seed in (1, 2):
        buffer = made.state[ours].get("momentum_buffer")
        given = filled(shape, gradient, seed)
        ours.grad, theirs.grad = given, given.clone()
        optimizers.prepare(made)
        assert (made.param_groups[0]["fused"], ours.grad is given) == (fused, kept)
        assert buffer is None or made.state[ours]["momentum_buffer"] is buffer
        made.step()
        plain.step()
        assert torch.allclose(ours, theirs)


def test_sgd_is_fused_also_beside_parameters_without_a_gradient() -> None:
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = optimizers.make_sgd(weights[:2], lr=0.1)
    plain = torch.optim.SGD(weights[2:], lr=0.1, momentum=0.9)
    for _ in range(2):
        weights[0].grad, weights[2].grad = torch.ones(3), torch.ones(3)
        optimizer.step()
        plain.step()
    assert [group["fused"] for group in optimizer.param_groups] == [True]
    assert torch.allclose(weights[0], weights[2])
    assert weights[1].tolist() == [1.0] * 3
