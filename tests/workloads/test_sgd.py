"""The MPI optimizers against their definitions, computed in one process."""

from __future__ import annotations

import pytest
import torch

from tests.workloads.running import Programs
from trainlib.mpi_sgd import MpiSGD

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

MPI_SGD = """
import copy, torch
from trainlib import data, models
from trainlib.mpi_sgd import MpiSGD
from trainlib.ranks import discover
from trainlib.session import Session

SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}
loss_of = torch.nn.functional.cross_entropy
digits = data.digits().train

def step(model, optimizer, rows):
    optimizer.zero_grad()
    loss_of(model(digits.inputs[rows]), digits.targets[rows]).backward()
    return optimizer.step()

def off(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)

with Session(discover(), over_mpi=True) as session:
    rank, world = session.ranks.rank, session.ranks.world
    torch.manual_seed(0)
    start = models.mlp(64, 10)
    torch.manual_seed(rank)  # other weights on the other ranks: rank 0's have to win
    mine = models.mlp(64, 10)
    if rank == 0:
        mine.load_state_dict(start.state_dict())

    def part(number, of):
        return slice(30 * number + 30 // world * of, 30 * number + 30 // world * (of + 1))

    # n = 1: one process on the rows of all ranks.
    one = copy.deepcopy(mine)
    optimizer = MpiSGD(one.parameters(), **SETTINGS)
    assert isinstance(optimizer, torch.optim.Optimizer)
    alone = copy.deepcopy(start)
    reference = torch.optim.SGD(alone.parameters(), **SETTINGS)
    assert off(one, alone) == 0, "not rank 0's weights"
    for number in range(6):
        step(one, optimizer, part(number, rank))
        step(alone, reference, slice(30 * number, 30 * number + 30))
        assert off(one, alone) < 1e-6, (number, off(one, alone))
    assert off(start, alone) > 1e-2

    # n = 3: every rank for itself, the mean of the weights after steps 3 and 6, momentum kept.
    own = copy.deepcopy(mine)
    optimizer = MpiSGD(own.parameters(), sync_iterations=3, **SETTINGS)
    copies = [copy.deepcopy(start) for _ in range(world)]
    locals_ = [torch.optim.SGD(model.parameters(), **SETTINGS) for model in copies]

    def mean():
        for tensors in zip(*(model.parameters() for model in copies), strict=True):
            value = torch.stack([t.detach() for t in tensors]).mean(0)
            for tensor in tensors:
                tensor.data.copy_(value)

    for number in range(7):
        step(own, optimizer, part(number, rank))
        for index, model in enumerate(copies):
            step(model, locals_[index], part(number, index))
        if number % 3 == 1:
            assert off(copies[0], copies[1]) > 1e-4, "nothing local about it"
        if (number + 1) % 3 == 0:
            mean()
        assert off(own, copies[rank]) < 1e-6, (number, off(own, copies[rank]))
    optimizer.synchronize()
    mean()
    assert off(own, copies[rank]) < 1e-6
    before = copy.deepcopy(own)
    # A closure, parameters that are in no loss or frozen, and the state of a snapshot.
    extra = torch.nn.Parameter(torch.ones(3))
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = MpiSGD([*own.parameters(), extra, frozen], lr=0.1, weight_decay=0.1)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(own(digits.inputs[:4]), digits.targets[:4])
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert torch.allclose(extra, torch.full((3,), 0.99))
    assert frozen.tolist() == [1.0] * 3
    assert off(before, own) > 0
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.grad_scale = torch.ones(1)  # as torch.amp.GradScaler does it
    try:
        optimizer.step()
    except ValueError as error:
        assert "GradScaler" in str(error)
    else:
        raise AssertionError("a rank's own overflow would have become everybody's")
    try:
        MpiSGD(own.parameters(), sync_iterations=0)
    except ValueError:
        print("equal", rank, flush=True)
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi_sgd_is_what_it_says(programs: Programs, ranks: int) -> None:
    script = programs.script("sgd.py", MPI_SGD)
    ended = programs.mpirun(ranks, script)
    expected = [f"equal {rank}" for rank in range(ranks)]
    assert (ended.code, ended.lines("equal")) == (0, expected), ended


AVERAGING = """
import copy, torch
from argparse import Namespace
from trainlib import averaging, data, models
from trainlib.ranks import Ranks, discover
from trainlib.session import Session

with Session(discover(), over_mpi=True) as session:
    rank, world = session.ranks.rank, session.ranks.world
    digits = data.digits()
    for shard in (False, True):
        options = Namespace(
            nepochs=2, batch_size=100, lr=0.05, momentum=0.9, shard=shard, seed=3
        )
        torch.manual_seed(0)
        model = models.build("averaging_cnn", (64,), digits.image, 10)
        reference = copy.deepcopy(model)
        role = averaging.master if rank == 0 else averaging.worker
        role(session, model, digits, options)
        if rank:
            continue
        start = averaging.flat(reference)
        for epoch in range(2):
            trained = []
            for number in range(1, world):
                one = copy.deepcopy(reference)
                ranks = Ranks(number, world, number, world, "mpirun")
                averaging.train_worker(one, digits, options, ranks, epoch)
                trained.append(averaging.flat(one))
            assert (trained[0] - trained[1]).abs().max() > 1e-3, "all workers did the same"
            averaging.fill(reference, torch.stack(trained).double().mean(0).float())
        off = (averaging.flat(model) - averaging.flat(reference)).abs().max().item()
        moved = (start - averaging.flat(reference)).abs().max().item()
        assert off < 1e-6 < 1e-2 < moved, (off, moved)
        print("equal", shard, flush=True)
"""


def test_mpi_sgd_may_be_made_before_the_model_moves_and_be_resumed() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = MpiSGD(model.parameters(), lr=0.1, momentum=0.9)
    model.double()  # as .to("cuda") would
    weight = model.weight.detach().clone()
    for _ in range(2):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
    assert torch.allclose(model.weight, weight - 0.1 - 0.19)
    resumed = MpiSGD(model.parameters(), lr=0.1, momentum=0.9)
    resumed.load_state_dict(optimizer.state_dict())
    resumed.step()
    assert torch.allclose(model.weight, weight - 0.1 - 0.19 - 0.271)


def test_parameter_averaging_is_the_mean_of_independent_copies(programs: Programs) -> None:
    script = programs.script("averaging.py", AVERAGING)
    ended = programs.mpirun(3, script)
    assert (ended.code, ended.lines("equal")) == (0, ["equal False", "equal True"]), ended
