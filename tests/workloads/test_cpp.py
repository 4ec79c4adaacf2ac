"""The optimizer in C++ beside the one in Python and torch's own, and the program with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.core.job import Program, ProgramKind
from clusterctl.launch.compiling import plan_compilation
from tests.unit.tables import rows
from tests.workloads.running import WORKLOADS, Programs

pytestmark = [pytest.mark.all, pytest.mark.mpi, pytest.mark.timeout(900)]

FIFTY_STEPS = """
import sys, torch
from trainlib.cpp_sgd import CppSGD
from trainlib.mpi_sgd import MpiSGD
from trainlib.ranks import discover
rank, kind = discover().rank, {"cpp": CppSGD, "python": MpiSGD}[sys.argv[1]]
sync, momentum, dampening, decay, nesterov, idle = map(float, sys.argv[2:])
def make(*shape, phase):
    size = torch.Size(shape).numel()
    return torch.sin(torch.arange(size, dtype=torch.float64) * 0.7 + phase).view(shape)
first, second, bias, unused = tensors = [
    make(*shape, phase=phase).requires_grad_()
    for shape, phase in (((5, 4), rank), ((3, 5), 1), ((3,), 2), ((2,), 3))
]
def begin():
    return kind(
        [{"params": [first, unused]}, {"params": [second, bias], "lr": 0.02}],
        lr=0.05, momentum=momentum, dampening=dampening, weight_decay=decay,
        nesterov=bool(nesterov), sync_iterations=int(sync),
    )
optimizer = begin()
rows, wanted = make(8, 4, phase=10 + rank), make(8, 3, phase=20 + rank)
for step in range(50):
    if step == 24:  # as after a restart
        state, optimizer = optimizer.state_dict(), begin()
        optimizer.load_state_dict(state)
    optimizer.param_groups[0]["lr"] = 0.04 if step > 40 else 0.05
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
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bindings are compiled, once for all tests."""
    return tmp_path_factory.mktemp("extensions")


@pytest.fixture
def programs(programs: Programs, compiled: Path) -> Programs:
    programs.seconds = 400
    programs.extra = {**programs.extra, "TORCH_EXTENSIONS_DIR": str(compiled)}
    return programs


@rows("options", "cpp.it_computes_what_the_one_in_python_does")
def test_it_computes_what_the_one_in_python_does(
    options: tuple[float, ...], programs: Programs
) -> None:
    script = programs.script("fifty.py", FIFTY_STEPS)

    def read(kind: str) -> list[float]:
        ended = programs.mpirun(2, script, kind, *options)
        assert ended.code == 0, ended
        lines = ended.out.splitlines()
        return [float(line) for line in lines if not line.startswith("Compiling")]

    ours, python = read("cpp"), read("python")
    assert ours == pytest.approx(python, abs=1e-6)


def test_a_training_compiles_it_once(programs: Programs, compiled: Path) -> None:
    line = ("train_sgd_mpi.py", "--optimizer", "cpp", "--dataset", "digits", "--hidden", "32")
    ended = programs.mpirun(2, *line, "--epochs", "3", "--batch-size", "20")
    python = programs.mpirun(2, line[0], *line[3:], "--epochs", "3", "--batch-size", "20")
    assert (ended.code, python.code) == (0, 0), (ended, python)
    find = [[line.rpartition("|")[0] for line in one.lines("Epoch")] for one in (ended, python)]
    assert find[0] == find[1]
    assert len(list(compiled.glob("*/*.so"))) == 1
    assert "Compiling" not in programs.mpirun(2, *line, "--epochs", "1").out


def test_a_node_without_a_compiler_ends_all_ranks(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    programs.extra["PATH"] = str(tmp_path / "bin")
    line = ("train_sgd_mpi.py", "--optimizer", "cpp", "--dataset", "digits")
    ended = programs.mpirun(2, *line)
    assert ended.code == 6
    assert [line for line in ended.err.splitlines() if "no mpicxx on" in line], ended


def test_the_program_learns(programs: Programs, tmp_path: Path) -> None:
    """Compiled as `run` compiles it."""
    for path in (WORKLOADS / "cpp").iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    program = Program(kind=ProgramKind.SOURCE, target="./mnist", source="mnist_mlp.cpp")
    compilation = plan_compilation(program, {"CXXFLAGS": "-O1"})
    assert compilation
    subprocess.run(["/bin/sh", "-c", compilation.script], cwd=tmp_path, check=True, timeout=600)
    small = ("--synthetic", "2000", "--hidden", "64", "--epochs", "4", "--batch-size", "50")
    ended = programs.run([*programs.mpirun_argv(2), tmp_path / "mnist", *small, "--lr", "0.05"])
    assert ended.code == 0, ended
    losses = [float(line.split()[3]) for line in ended.lines("epoch")]
    assert len(losses) == 4
    assert losses[-1] < 0.5 * losses[0]
