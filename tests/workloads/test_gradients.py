"""Gradients over MPI against those of torch's own DistributedDataParallel over gloo."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import gradients
from tests.workloads.running import Programs

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def differences(
    tmp_path_factory: pytest.TempPathFactory, need: Any, warm_python: Sequence[object]
) -> dict[str, dict[str, str]]:
    """All kinds of scripts in one start of two ranks."""
    programs = Programs(tmp_path_factory.mktemp("kinds"), need, warm_python)
    ended = programs.mpirun(2, Path(gradients.__file__))
    assert ended.code == 0, ended
    found: dict[str, dict[str, str]] = json.loads(ended.out.splitlines()[-1])["kinds"]
    return found


@pytest.mark.parametrize("kind", gradients.KINDS)
@pytest.mark.parametrize("backend", gradients.BACKENDS)
def test_a_script_has_the_gradients_of_torchs_own_ddp(
    differences: dict[str, dict[str, str]], kind: str, backend: str
) -> None:
    assert differences[kind][backend] == ""


ALONE = """
import torch
from trainlib.ranks import discover
from trainlib.session import Session

with Session(discover()) as session:
    session.open()
    model = torch.nn.Linear(3, 2)
    parallel = session.data_parallel(model)
    with parallel.no_sync(), parallel.join():
        parallel(torch.ones(1, 3)).sum().backward()
    assert parallel.module is model
    print("gradients", model.weight.grad.tolist())
"""


def test_one_rank_alone_may_use_what_the_wrapper_offers(programs: Programs) -> None:
    ended = programs.alone(programs.script("alone.py", ALONE))
    assert (ended.code, ended.lines("gradients")) == (0, [f"gradients {[[1.0] * 3] * 2}"]), ended


OUTLIVES = """
from pathlib import Path

import torch
from trainlib.ranks import discover
from trainlib.session import Session

def gloo():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)

with Session(discover()) as session:
    session.open("gloo")
    parallel = session.data_parallel(torch.nn.Linear(3, 2))
    parallel(torch.ones(1, 3)).sum().backward()
    print("within", gloo() > 0, flush=True)
print("after", gloo(), parallel.module.weight.shape[0], flush=True)
"""


def test_a_wrapper_that_outlives_its_session_keeps_no_group(programs: Programs) -> None:
    """Its destructor could wait for one of gloo's threads for ever."""
    ended = programs.mpirun(2, programs.script("outlives.py", OUTLIVES))
    assert ended.code == 0, ended
    assert ended.lines("within") == ["within True"] * 2
    assert ended.lines("after") == ["after 0 2"] * 2


COMPRESSED = """
import torch
from trainlib.ranks import discover
from trainlib.session import Session

def train(session, rank):
    # In a function, as in programs: a wrapper that outlives its session may stop torch in the
    # destructor of Gloo's group, which waits with Python's lock for a thread that wants it.
    for hook in (True, False):
        for by_all, last in ((True, 2.0), (False, 4.0)):
            model = torch.nn.Linear(3, 1, bias=False)
            parallel = session.data_parallel(model, hook=hook, compress="bf16")
            found = []
            with parallel.join(divide_by_initial_world_size=by_all):
                for step in range(1 + rank):  # rank 1 makes the second step alone
                    model.zero_grad()
                    parallel(torch.full((1, 3), 2.0 * (1 + rank))).sum().backward()
                    found.append(model.weight.grad[0, 0].item())
            assert found == [3.0, last][: 1 + rank], (hook, by_all, found)

with Session(discover()) as session:
    session.open("mpi")
    train(session, session.ranks.rank)
    print("equal", session.ranks.rank, flush=True)
"""


def test_compressed_gradients_of_uneven_inputs_are_means(programs: Programs) -> None:
    ended = programs.mpirun(2, programs.script("compressed.py", COMPRESSED))
    assert (ended.code, ended.lines("equal")) == (0, ["equal 0", "equal 1"]), ended


SUMS = """
import torch
from trainlib.ranks import discover
from trainlib.session import Session

VALUES = {
    torch.uint8: 3, torch.int8: -3, torch.int16: 2**9 + 1, torch.int32: 2**25 + 1,
    torch.int64: 2**40 + 1, torch.float16: 0.5, torch.bfloat16: 0.5, torch.float32: 0.1,
    torch.float64: 0.1, torch.complex64: 1 + 2j, torch.complex128: 1 + 2j,
}
with Session(discover()) as session:
    session.open("mpi")
    rank = session.ranks.rank
    for kind in (torch.float64, torch.float16, torch.bfloat16):
        tensor = torch.full((5,), float(rank + 1), dtype=kind)
        session.reduce(tensor, average=True)
        assert tensor.tolist() == [1.5] * 5, kind
    assert session.communicator.sum([1.5, float(rank)]) == [3.0, 1.0]
    assert session.communicator.maximum(rank) == 1
    assert session.communicator.broadcast(b"from 0" if rank == 0 else b"") == b"from 0"
    for dtype, value in VALUES.items():
        found, expected = (torch.full((3,), value, dtype=dtype) for _ in range(2))
        session.reduce(found, average=False)
        assert torch.equal(found, expected + expected), (found, expected)
    try:
        session.reduce(torch.ones(3, dtype=torch.bool), average=False)
    except TypeError as error:
        print(error, session.ranks.rank, flush=True)
"""


def test_sums_over_mpi_are_exact_in_every_type(programs: Programs) -> None:
    ended = programs.mpirun(2, programs.script("sums.py", SUMS))
    says = "MPI cannot add up tensors of type bool; convert the tensor first"
    assert (ended.code, ended.lines("bool")) == (0, [f"{says} {rank}" for rank in (0, 1)]), ended
