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
from tests.unit.tables import rows
from tests.workloads.running import Programs
from trainlib.mpi_sgd import MpiSGD

pytestmark = [pytest.mark.mpi]

MPI_SGD = """
import torch
from trainlib.mpi_sgd import MpiSGD
from trainlib.ranks import discover
from trainlib.session import Session

with Session(discover(), over_mpi=True) as session:
    rank = session.ranks.rank
    model = torch.nn.Linear(3, 2)
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    MpiSGD([*model.parameters(), frozen], lr=0.1, weight_decay=0.1).step()
    assert frozen.tolist() == [1.0] * 3
    for dampening, unscale in ((0, False), (0, True), (0.5, False)):
        optimizer = MpiSGD(model.parameters(), momentum=0.9, dampening=dampening)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        try:
            scaler.step(optimizer)
        except ValueError as error:
            assert "GradScaler" in str(error)
        else:
            raise AssertionError("a rank's own overflow would have become everybody's")
    try:
        MpiSGD(model.parameters(), sync_iterations=0)
    except ValueError:
        print("equal", rank, flush=True)
"""


def test_mpi_sgd_refuses_what_it_cannot_do(
    programs: Programs,
) -> None:
    script = programs.script("sgd.py", MPI_SGD)
    ended = programs.mpirun(2, script)
    expected = ["equal 0", "equal 1"]
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


@rows("last, after, code", "sgd.a_rank_ends_with_its_own_exit_code")
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
    """Of the weights, for all scripts in one start of three ranks."""
    programs = Programs(tmp_path_factory.mktemp("scripts"), need, warm_python)
    ended = programs.mpirun(3, Path(mpi_sgd.__file__))
    assert ended.code == 0, ended
    found: dict[str, float] = json.loads(ended.out.splitlines()[-1])["largest_difference"]
    return found


@pytest.mark.parametrize("script", mpi_sgd.SCRIPTS)
def test_a_step_is_that_of_torchs_sgd_on_the_rows_of_all_ranks(
    differences: dict[str, float], script: str
) -> None:
    assert differences[script] <= mpi_sgd.LIMITS[script]


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
