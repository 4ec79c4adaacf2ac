"""The MPI optimizers against their definitions, computed in one process."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import mpi_sgd
from tests.workloads.running import Programs
from trainlib.mpi_sgd import MpiSGD

pytestmark = [pytest.mark.mpi]

MPI_SGD = """
import copy, torch
from trainlib import data, models
from trainlib.mpi_sgd import MpiSGD
from trainlib.ranks import discover
from trainlib.session import Session

SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}
loss_of = torch.nn.functional.cross_entropy
digits = data.load_digits().train

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
    assert extra.tolist() == [1.0] * 3
    assert frozen.tolist() == [1.0] * 3
    assert off(before, own) > 0
    optimizer.load_state_dict(optimizer.state_dict())
    for dampening, unscale in ((0, False), (0, True), (0.5, False)):
        optimizer = MpiSGD(own.parameters(), momentum=0.9, dampening=dampening)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(own(digits.inputs[:4]), digits.targets[:4])).backward()
        if unscale:
            scaler.unscale_(optimizer)
        try:
            scaler.step(optimizer)
        except ValueError as error:
            assert "GradScaler" in str(error)
        else:
            raise AssertionError("a rank's own overflow would have become everybody's")
    try:
        MpiSGD(own.parameters(), sync_iterations=0)
    except ValueError:
        print("equal", rank, flush=True)
"""


def test_mpi_sgd_is_what_it_says_on_three_ranks(programs: Programs) -> None:
    script = programs.script("sgd.py", MPI_SGD)
    ended = programs.mpirun(3, script)
    expected = [f"equal {rank}" for rank in range(3)]
    assert (ended.code, ended.lines("equal")) == (0, expected), ended


WITHOUT_SESSION = """
import torch
from trainlib.mpi_sgd import MpiSGD

model = torch.nn.Linear(3, 2)
optimizer = MpiSGD(model.parameters(), lr=0.1)
model(torch.ones(1, 3)).sum().backward()
optimizer.step()
"""


def test_a_script_without_a_session_ends_well(programs: Programs) -> None:
    ended = programs.mpirun(2, programs.script("plain.py", WITHOUT_SESSION))
    assert ended.code == 0, ended


ENDS = """
import sys
from sys import exit as leave
from trainlib import mpi
from trainlib.ranks import discover

def catch():
    try:
        sys.exit(7)
    except SystemExit:
        pass

ranks = discover()
world = mpi.start(ranks).COMM_WORLD
if ranks.rank == 1:
    {last}
world.Barrier()
{after}
"""


@pytest.mark.parametrize(
    ("last", "after", "code"),
    [
        ("sys.exit('a reason')", "", 1),
        ("raise ValueError", "", 1),
        ("exit(3)", "", 3),
        ("leave(3)", "", 3),
        ("sys.exit(3)", "", 3),
        ("catch()", "", 0),
        ("pass", "raise SystemExit(0)", 0),
        ("catch()", "leave()", 0),
    ],
)
def test_a_rank_ends_with_its_own_exit_code(
    programs: Programs, last: str, after: str, code: int
) -> None:
    """The other one waits for it, and MPI_Finalize would wait for the other one."""
    programs.seconds = 20
    ended = programs.mpirun(2, programs.script("ends.py", ENDS.format(last=last, after=after)))
    assert ended.code == code, ended


@pytest.fixture(scope="module")
def differences(
    tmp_path_factory: pytest.TempPathFactory, need: Any, warm_python: Sequence[object]
) -> dict[str, float]:
    """Of the weights, for all scripts in one start of two ranks."""
    programs = Programs(tmp_path_factory.mktemp("scripts"), need, warm_python)
    ended = programs.mpirun(2, Path(mpi_sgd.__file__))
    assert ended.code == 0, ended
    found: dict[str, float] = json.loads(ended.out.splitlines()[-1])["largest_difference"]
    return found


@pytest.mark.parametrize("script", mpi_sgd.SCRIPTS)
def test_a_step_is_that_of_torchs_sgd_on_the_rows_of_all_ranks(
    differences: dict[str, float], script: str
) -> None:
    assert differences[script] <= mpi_sgd.LIMITS[script]


def test_the_results_have_all_scripts() -> None:
    results = Path(mpi_sgd.__file__).parent / "results" / "mpi_sgd.json"
    assert list(json.loads(results.read_text())["largest_difference"]) == list(mpi_sgd.SCRIPTS)


AVERAGING = """
import torch
from argparse import Namespace
from trainlib import data, parameter_averaging
from trainlib.ranks import discover
from trainlib.session import Session
from trainlib.rows import Dataset, Split

LR, MOMENTUM, EPOCHS = 0.1, 0.9, 2

def gradient(weight, bias, rows, labels):
    # Of the mean cross-entropy of a linear classifier: softmax minus one-hot.
    chances = torch.softmax(rows @ weight.T + bias, 1)
    slope = (chances - torch.eye(10)[labels]) / len(rows)
    return slope.T @ rows, slope.sum(0)

def epoch(weight, bias, batches):
    # SGD by hand, momentum from 0.
    speed = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for rows, labels in batches:
        for number, part in enumerate(gradient(weight, bias, rows, labels)):
            speed[number] = MOMENTUM * speed[number] + part
        weight, bias = weight - LR * speed[0], bias - LR * speed[1]
    return weight, bias

def check(session, rows, labels, expected, what, **options):
    chosen = Namespace(nepochs=EPOCHS, lr=LR, momentum=MOMENTUM, seed=3, metrics=False, **options)
    split = Split(rows, labels)
    dataset = Dataset("", 10, split, split, None)
    torch.manual_seed(session.ranks.rank)  # the master's weights have to win
    model = torch.nn.Linear(6, 10)
    start = model.weight.detach().clone(), model.bias.detach().clone()
    role = parameter_averaging.run_worker if session.ranks.rank else parameter_averaging.run_master
    role(session, model, dataset, chosen, range(EPOCHS))
    if session.ranks.rank:
        return
    for _ in range(EPOCHS):
        start = expected(*start)
    off = max((a - b).abs().max().item() for a, b in zip(start, model.parameters()))
    assert off < 1e-6, (what, off)
    print("equal", what, flush=True)

with Session(discover(), over_mpi=True) as session:
    workers = session.ranks.world - 1
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(24, 6, generator=generator)
    labels = torch.randint(10, (24,), generator=generator)
    # One batch each: the mean of the steps of all shards is the step of all rows, whoever has
    # which, and the same as that of workers who all have all rows.
    whole = lambda weight, bias: epoch(weight, bias, [(rows, labels)])
    check(session, rows, labels, whole, "split up", shard=True, batch_size=24 // workers)
    check(session, rows, labels, whole, "all for each", shard=False, batch_size=24)
    # Rows that are all one have no order: a worker makes this many steps, with momentum.
    same, one = rows[:1].expand(24, 6).contiguous(), labels[:1].expand(24).contiguous()
    for shard, steps in ((True, 24 // workers // 4), (False, 6)):
        several = lambda weight, bias: epoch(weight, bias, [(same[:4], one[:4])] * steps)
        check(session, same, one, several, f"momentum {shard}", shard=shard, batch_size=4)
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


def test_mpi_sgd_refuses_to_be_copied_without_what_averages() -> None:
    optimizer = MpiSGD(torch.nn.Linear(3, 2).parameters())
    with pytest.raises(TypeError, match=r"cannot be copied; make one .* load state_dict\(\)"):
        copy.deepcopy(optimizer)


def test_parameter_averaging_is_the_mean_of_sgd_by_hand(programs: Programs) -> None:
    """Each row once in all shards, and momentum within an epoch; nothing of ours in the judge."""
    script = programs.script("averaging.py", AVERAGING)
    ended = programs.mpirun(4, script)
    expected = ["all for each", "momentum False", "momentum True", "split up"]
    assert (ended.code, ended.lines("equal")) == (0, [f"equal {one}" for one in expected]), ended
