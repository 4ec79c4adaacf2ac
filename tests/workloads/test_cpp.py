"""The optimizer in C++ beside the one in Python, and beside torch's own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterctl.core.job import Program, ProgramKind
from clusterctl.launch.compiling import plan_compilation
from tests.workloads.running import WORKLOADS, Programs

pytestmark = [pytest.mark.all, pytest.mark.mpi, pytest.mark.timeout(900)]

HERE = Path(__file__).parent

PYTHON = """
import sys, torch
from trainlib.mpi_sgd import MpiSGD
from trainlib.ranks import discover
rank = discover().rank
sync, momentum, dampening, decay, nesterov, idle = map(float, sys.argv[1:])
def make(*shape, phase):
    size = torch.Size(shape).numel()
    return torch.sin(torch.arange(size, dtype=torch.float64) * 0.7 + phase).view(shape)
first, second, bias, unused = tensors = [
    make(*shape, phase=phase).requires_grad_()
    for shape, phase in (((5, 4), rank), ((3, 5), 1), ((3,), 2), ((2,), 3))
]
groups = [{"params": [first, unused]}, {"params": [second, bias], "lr": 0.02}]
optimizer = MpiSGD(
    groups, lr=0.05, momentum=momentum, dampening=dampening, weight_decay=decay,
    nesterov=bool(nesterov), sync_iterations=int(sync),
)
rows, wanted = make(8, 4, phase=10 + rank), make(8, 3, phase=20 + rank)
for _ in range(50):
    optimizer.zero_grad()
    out = torch.tanh(rows @ first.T) @ second.T + (bias.detach() if idle and rank else bias)
    (out - wanted).pow(2).mean().backward()
    optimizer.step()
optimizer.synchronize()
if rank == 0:
    values = torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()
    print(*(f"{value:.12f}" for value in values), sep="\\n")
"""


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled as `run` compiles it."""
    folder = tmp_path_factory.mktemp("cpp")
    for path in (HERE / "mpi_sgd_check.cpp", WORKLOADS / "cpp" / "mpi_sgd.hpp"):
        (folder / path.name).write_text(path.read_text())
    program = Program(kind=ProgramKind.SOURCE, target="./check", source="mpi_sgd_check.cpp")
    compiled = plan_compilation(program, {"CXXFLAGS": "-O0"})
    assert compiled
    subprocess.run(["/bin/sh", "-c", compiled.script], cwd=folder, check=True, timeout=600)
    return folder / "check"


def compute_union(momentum: float, dampening: float, decay: float, nesterov: bool) -> list[float]:
    """torch's own SGD in one process, on the rows of both ranks."""

    def make(shape: tuple[int, ...], phase: float) -> Any:
        count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        return torch.sin(count * 0.7 + phase).reshape(shape)

    first, second = make((5, 4), 0).requires_grad_(), make((3, 5), 1).requires_grad_()
    bias = make((3,), 2).requires_grad_()
    rows = torch.cat([make((8, 4), 10), make((8, 4), 11)])
    wanted = torch.cat([make((8, 3), 20), make((8, 3), 21)])
    optimizer = torch.optim.SGD(
        [{"params": [first]}, {"params": [second, bias], "lr": 0.02}],
        lr=0.05,
        momentum=momentum,
        dampening=dampening,
        weight_decay=decay,
        nesterov=nesterov,
    )
    for _ in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(torch.tanh(rows @ first.T) @ second.T + bias, wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    unused = make((2,), 3).tolist()
    return [v for tensor in (first, second, bias) for v in tensor.flatten().tolist()] + unused


@pytest.mark.parametrize(
    "options",
    [
        (1, 0.0, 0.0, 0.0, 0, 0),
        (1, 0.9, 0.0, 0.01, 1, 0),
        (1, 0.9, 0.1, 0.0, 0, 0),
        (4, 0.9, 0.0, 0.01, 0, 0),
        (1, 0.9, 0.0, 0.01, 0, 1),
    ],
)
def test_it_computes_what_the_one_in_python_does(
    options: tuple[float, ...], check: Path, programs: Programs
) -> None:
    def read(ended: Any) -> list[float]:
        assert ended.code == 0, ended.err
        return [float(line) for line in ended.out.split()]

    argv = programs.mpirun_argv(2)
    ours = read(programs.run([*argv, check, *options]))
    python = read(programs.mpirun(2, programs.script("own.py", PYTHON), *options))
    assert ours == pytest.approx(python, abs=1e-6)
    sync, momentum, dampening, decay, nesterov, idle = options
    if sync == 1 and not idle:
        union = compute_union(momentum, dampening, decay, bool(nesterov))
        assert ours == pytest.approx(union, abs=1e-6)
