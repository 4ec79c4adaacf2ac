"""The choice of a backend from what the ranks have."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.unit.tables import rows
from trainlib import backends, ddp_options
from trainlib.backends import Capability, choose, count_gpus
from trainlib.errors import StartError, UsageError

CPU = Capability(host="a", nccl=True)
GPU = Capability(host="a", device="cuda", gpu="GPU-1", vendor="nvidia", nccl=True)
GPU2 = replace(GPU, host="b", gpu="GPU-2")
AMD = replace(GPU, host="c", gpu="c/0:3:0", vendor="amd")
NO_MPI = "torchrun starts no MPI"


def without_mpi(capability: Capability) -> Capability:
    return replace(capability, mpi_problem=NO_MPI)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param([CPU, CPU], "mpi", id="cpu"),
        pytest.param([CPU, without_mpi(CPU)], "gloo", id="cpu, one rank without MPI"),
        pytest.param([GPU, GPU2], "nccl", id="a GPU each"),
        pytest.param([GPU, replace(GPU2, gpu="GPU-1")], "mpi", id="one GPU for two"),
        pytest.param([GPU, AMD], "mpi", id="two vendors"),
        pytest.param([without_mpi(GPU), AMD], "gloo", id="two vendors, one rank without MPI"),
        pytest.param([GPU, replace(GPU2, nccl=False)], "mpi", id="one torch without NCCL"),
        pytest.param([CPU, replace(CPU, mpi_native=True)], "gloo", id="two kinds of MPI"),
    ],
)
def test_auto_takes_the_fastest_that_works_on_all_ranks(
    ranks: list[Capability], expected: str
) -> None:
    assert choose("auto", ranks) == expected


@pytest.mark.parametrize(
    ("wanted", "ranks", "says"),
    [
        pytest.param("mpi", [CPU, without_mpi(CPU)], "torchrun.*rank 1 on a", id="mpi"),
        pytest.param("nccl", [GPU, CPU], "needs a GPU.*rank 1", id="nccl on cpu"),
        pytest.param("nccl", [GPU, GPU], "ranks 0 and 1 share one GPU", id="nccl, shared GPU"),
        pytest.param("nccl", [GPU, AMD], "mixes amd and nvidia", id="nccl, two vendors"),
        pytest.param("gloo", [CPU, replace(CPU, gloo=False)], "without gloo.*rank 1", id="gloo"),
    ],
)
def test_what_was_asked_for_is_used_or_refused(
    wanted: str, ranks: list[Capability], says: str
) -> None:
    with pytest.raises(StartError, match=says) as caught:
        choose(wanted, ranks)
    assert caught.value.code == 6


def test_asked_for_and_possible() -> None:
    assert choose("gloo", [GPU, GPU2]) == "gloo"
    assert choose("nccl", [GPU, GPU2]) == "nccl"
    assert choose("mpi", [CPU, CPU]) == "mpi"


def test_capabilities_survive_the_exchange() -> None:
    assert Capability.from_json(AMD.to_json()) == AMD


@rows("name, shown, numbers, left", "backends.gpus_are_chosen_among_those_that_the_launcher_shows")
def test_gpus_are_chosen_among_those_that_the_launcher_shows(
    monkeypatch: pytest.MonkeyPatch, name: str, shown: str | None, numbers: list[int], left: str
) -> None:
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    if shown is not None:
        monkeypatch.setenv(name, shown)
    assert backends.mask_gpus(()) is None
    assert os.environ.get(name) == shown, "none named: all that are shown"
    assert backends.mask_gpus(numbers) is None
    assert os.environ[name] == left
    for missing in (9, -1):
        error = backends.mask_gpus([missing])
        assert error is not None
        assert f"--gpu {missing}: {name}={left} shows" in error.line
    monkeypatch.setenv(name, "")
    error = backends.mask_gpus([0])
    assert error is not None
    assert "shows 0 GPUs" in error.line


def test_ranks_that_leave_gpus_to_a_slower_library_hear_why() -> None:
    assert backends.explain_no_nccl([GPU, GPU2]) == ""
    assert backends.explain_no_nccl([CPU, CPU]) == ""
    assert "share one GPU" in backends.explain_no_nccl([GPU, GPU])


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(StartError, match="--allow-cpu") as caught:
        count_gpus(allow_cpu=False, env={})
    assert caught.value.code == 6
    assert count_gpus(allow_cpu=True, env={}) == 0
    assert count_gpus(allow_cpu=False, env={"CLUSTERCTL_ALLOW_CPU": "1"}) == 0


def test_both_spellings_of_the_batch_size() -> None:
    assert ddp_options.parse("", ["5", "2", "--batch-size", "7"], gpu=False).batch_size == 7
    assert ddp_options.parse("", ["5", "2", "--batch_size", "8"], gpu=True).batch_size == 8
    assert ddp_options.parse("", ["5", "2"], gpu=False).batch_size == 32


@rows("arguments", "backends.wrong_arguments")
def test_wrong_arguments(arguments: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        ddp_options.parse("", arguments, gpu=False)
    assert caught.value.code == 2
