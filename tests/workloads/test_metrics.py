"""What is printed about a model, on ranks that are threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import torch

from trainlib import metrics
from trainlib.ranks import Ranks
from trainlib.rows import Dataset, Split

T = TypeVar("T")


@dataclass
class Together:
    """Sums over ranks that wait for each other."""

    world: int
    barrier: threading.Barrier = field(init=False)
    given: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.world, timeout=30)

    def sum(self, values: list[float]) -> list[float]:
        self.given.append(values)
        self.barrier.wait()
        return [sum(column) for column in zip(*self.given, strict=True)]


@dataclass
class Session:
    """What metrics look at of a session."""

    ranks: Ranks
    communicator: Together
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


def on_ranks(world: int, job: Callable[[Any], T]) -> list[T]:
    together = Together(world)
    sessions = [
        Session(Ranks(rank, world, rank, world, "mpirun"), together) for rank in range(world)
    ]
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(job, sessions))


def dataset(rows: int, classes: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 3, generator=generator)
    targets = torch.arange(rows) % classes if classes else torch.randn(rows, 1, generator=generator)
    return Dataset("made up", classes, Split(inputs, targets), Split(inputs, targets))


@pytest.mark.parametrize("world", [1, 3, 8])
def test_accuracy_and_loss_are_those_of_one_rank_on_all_rows(world: int) -> None:
    """Also where some ranks have no row."""
    data = dataset(5, 3)
    expected = torch.nn.functional.cross_entropy(data.test.inputs, data.test.targets).item()
    right = int((data.test.inputs.argmax(1) == data.test.targets).sum())
    for loss, accuracy in on_ranks(
        world, lambda one: metrics.score(one, torch.nn.Identity(), data, 2)
    ):
        assert loss == pytest.approx(expected)
        assert accuracy == right / 5
    lines = on_ranks(world, lambda one: metrics.evaluate(one, torch.nn.Identity(), data))
    assert set(lines) == {f"Test accuracy: {right / 5:.4f} ({right}/5)"}


def test_error_of_a_regression() -> None:
    data = dataset(7, 0)
    model = torch.nn.Linear(3, 1)
    expected = torch.nn.functional.mse_loss(model(data.test.inputs), data.test.targets).item()
    lines = on_ranks(2, lambda one: metrics.evaluate(one, model, data))
    assert set(lines) == {f"Test MSE: {expected:.6g}"}


def test_a_score_without_a_session_is_that_of_this_process() -> None:
    data = dataset(5, 3)
    loss, _ = metrics.score(None, torch.nn.Identity(), data)
    expected = torch.nn.functional.cross_entropy(data.test.inputs, data.test.targets).item()
    assert loss == pytest.approx(expected)


def test_a_model_is_tested_without_dropout_and_trains_on_with_it() -> None:
    data = dataset(5, 3)
    model = torch.nn.Dropout(0.9)
    alone = [metrics.score(None, model, data) for _ in range(2)]
    assert alone[0] == alone[1]
    assert model.training


def test_a_forward_pass_takes_about_a_million_numbers() -> None:
    """And at least one row; 4 million on a GPU."""
    data = dataset(2, 2)
    assert metrics.choose_batch_rows(data, torch.device("cpu")) == 2**20 // 3
    assert metrics.choose_batch_rows(data, torch.device("cuda")) == 2**22 // 3
    large = Split(torch.empty(1, 2, 1024, 1024), torch.zeros(1, dtype=torch.int64))
    assert metrics.choose_batch_rows(Dataset("large", 2, large, large), torch.device("cpu")) == 1
