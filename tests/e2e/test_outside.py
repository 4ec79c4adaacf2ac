"""Programs of other people's frameworks, written after their documentation, with packages that
clusterctl installs for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.cli import Cli

pytestmark = [
    pytest.mark.sshd,
    pytest.mark.mpi,
    pytest.mark.timeout(600),
]

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"


PACKAGES = ("--requirements", PROGRAMS / "requirements.txt")
"""One environment for all of them."""


def take(cli: Cli, name: str) -> str:
    shutil.copy(PROGRAMS / name, cli.folder)
    return name


@pytest.mark.all
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_lightning(cli: Cli, launcher: str) -> None:
    name = take(cli, "lightning_line.py")
    done = cli("run", *PACKAGES, "--launcher", launcher, name, timeout=500)
    assert all(f"{rank} of 2: True" in done.of(rank) for rank in (0, 1))


@pytest.mark.all
def test_accelerate(cli: Cli) -> None:
    words = ("--num_processes", 2, "--mixed_precision", "bf16", "--multi_gpu")
    name = take(cli, "accelerate_line.py")
    done = cli("run", *PACKAGES, "--", "accelerate", "launch", *words, name, timeout=500)
    assert "clusterctl starts the ranks itself instead of accelerate launch" in done.err
    assert all(f"{rank} of 2: True, bf16" in done.of(rank) for rank in (0, 1))


@pytest.mark.all
def test_fsdp2(cli: Cli) -> None:
    done = cli("run", take(cli, "fsdp2_line.py"), timeout=90)
    said = "16 of 32 weights, falls: True"
    assert [done.of(rank) for rank in (0, 1)] == [[f"0 of 2: {said}"], [f"1 of 2: {said}"]]


def test_mpi4py_futures(cli: Cli) -> None:
    name = take(cli, "futures_squares.py")
    done = cli("run", "-n", 3, "--", "python", "-m", "mpi4py.futures", name, timeout=60)
    assert done.out == "[0] 2470\n"


@pytest.mark.all
def test_dask(cli: Cli) -> None:
    done = cli("run", *PACKAGES, "-n", 3, take(cli, "dask_sum.py"), timeout=500)
    assert done.of(1) == ["90"]


@pytest.mark.all
def test_a_training_under_torchrun_begins_again(cli: Cli) -> None:
    name = take(cli, "elastic_line.py")
    words = ("--nnodes=2", "--nproc-per-node=1", "--max-restarts=2", "--rdzv-backend=c10d")
    done = cli("run", "--", "torchrun", *words, name, timeout=90)
    assert all(f"{rank} of 2: epochs 2 to 3" in done.of(rank) for rank in (0, 1))
