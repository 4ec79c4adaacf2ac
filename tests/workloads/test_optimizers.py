"""SGD with momentum where it begins, and where a snapshot goes on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from trainlib import optimizers
from trainlib.mpi_sgd import MpiSGD


@pytest.fixture
def memory_that_nobody_wrote_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("make", [optimizers.sgd, partial(MpiSGD, momentum=0.9)])
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
    made = [optimizers.sgd(one.parameters(), lr=0.1) for one in convolutions]
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
