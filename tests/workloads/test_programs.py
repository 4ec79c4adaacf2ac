"""The bundled programs, run for real on this host."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workloads.running import WORKLOADS, Ended, Programs

CPU = "multinode_ddp_mpi.py"
GPU = "multinode_ddp_mpi_gpu.py"


def accuracy(ended: Ended) -> float:
    match = re.search(r"^\[(?:Rank|GPU)0\] Test accuracy: ([0-9.]+) ", ended.out, re.MULTILINE)
    assert match, ended
    return float(match[1])


def state(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def assert_equal_states(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Bit for bit: the weights, the optimizer's momentum, and the epochs."""
    assert one["epochs"] == other["epochs"]
    assert one["model"].keys() == other["model"].keys()
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name
    momenta = one["optimizer"]["state"]
    assert momenta, "the optimizer's state is not in the snapshot"
    for index, values in momenta.items():
        buffer = other["optimizer"]["state"][index]["momentum_buffer"]
        assert torch.equal(values["momentum_buffer"], buffer), index


@pytest.mark.mpi
def test_two_ranks_learn_the_digits_over_mpi(programs: Programs) -> None:
    ended = programs.mpirun(2, CPU, 20, 20, "--metrics")
    assert ended.code == 0, ended.err
    assert accuracy(ended) >= 0.95
    assert [values["epoch"] for values in ended.metrics] == list(range(20)), "from rank 0 alone"
    assert ended.metrics[-1]["loss"] < 0.2 * ended.metrics[0]["loss"]
    assert ended.metrics[-1]["step"] == ended.metrics[0]["steps"] == 20 * 23
    assert all(values["samples_per_second"] > 0 for values in ended.metrics)
    for values in ended.metrics:
        split = [values[f"{part}_seconds"] for part in ("compute", "communication", "waiting")]
        assert min(split) >= 0
        assert 0 < sum(split) < 1.5 * values["seconds"] + 1, "means over the ranks"
        assert (values["allreduces"], values["allreduce_bytes"] > 0) == (23, True)
    assert len(ended.lines("] Backend: mpi (mpi4py hook, host buffers) | Ranks: 2")) == 1
    pattern = r"^\[Rank([01])\] Epoch (\d+) \| Batchsize: 32 \| Steps: 23 \| Loss: (\S+)$"
    found = re.findall(pattern, ended.out, re.MULTILINE)
    assert sorted((int(rank), int(epoch)) for rank, epoch, _ in found) == [
        (rank, epoch) for rank in (0, 1) for epoch in range(20)
    ]
    losses = [float(loss) for rank, _, loss in found if rank == "0"]
    assert losses[-1] < 0.2 * losses[0]
    assert len(ended.lines("Elapsed time: ")) == 2
    # One file, by global rank 0, and nothing half-written.
    assert [path.name for path in programs.folder.glob("snapshot*")] == ["snapshot.pt"]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ranks", "backend"), [(3, "mpi"), pytest.param(3, "gloo", marks=pytest.mark.all)]
)
def test_a_resumed_training_ends_bit_equal(programs: Programs, ranks: int, backend: str) -> None:
    # Three ranks: with two, a sum is rounded alike in whatever order it is made.
    common = ["--backend", backend, "--seed", 7, "--batch-size", 100]
    whole = programs.mpirun(ranks, CPU, 6, 100, *common, "--snapshot", "whole.pt")
    assert whole.code == 0, whole.err
    first = programs.mpirun(ranks, CPU, 3, 2, *common, "--snapshot", "parts.pt")
    assert first.code == 0, first.err
    assert state(programs.folder / "parts.pt")["epochs"] == 3, "the final snapshot is missing"
    second = programs.mpirun(ranks, CPU, 6, 100, *common, "--snapshot", "parts.pt")
    assert second.code == 0, second.err
    rest = [line for line in whole.lines("Epoch ") if int(line.split()[2]) >= 3]
    assert second.lines("Epoch ") == rest
    assert len(rest) == 3 * ranks
    assert_equal_states(state(programs.folder / "whole.pt"), state(programs.folder / "parts.pt"))


SAVES = """
import sys
import torch
from trainlib import ddp_options, trainer

def look(event, args):
    if event == "os.rename" and str(args[0]).endswith(".partial"):
        print("saved after", torch.load(args[0], weights_only=True)["epochs"])

sys.addaudithook(look)
trainer.UNSAVED_S = float(sys.argv[1])
trainer.SAVING = 0.0  # however long a busy machine takes for it
trainer.run(ddp_options.parse("", ["3", "100", "--batch-size", "100"], gpu=False), trainer.CPU)
"""


@pytest.mark.parametrize(
    ("seconds", "saved"), [(0, ["1", "2", "3"]), pytest.param(1000, ["3"], marks=pytest.mark.all)]
)
def test_long_epochs_are_saved_as_they_end(
    programs: Programs, seconds: int, saved: list[str]
) -> None:
    """Whoever is killed within the next one has lost no other."""
    script = programs.script("saves.py", SAVES)
    ended = programs.alone(script, seconds)
    assert [line.split()[-1] for line in ended.lines("saved after")] == saved, ended


def test_a_resumed_training_takes_the_new_learning_rate(programs: Programs) -> None:
    common = ["--batch-size", 100, "--snapshot", "a.pt"]
    assert programs.alone(CPU, 1, 1, *common, "--lr", 0.1).code == 0
    before = state(programs.folder / "a.pt")["model"]
    second = programs.alone(CPU, 2, 1, *common, "--lr", 1e-12)
    assert second.code == 0, second.err
    assert second.lines("learning rate 0.1 -> 1e-12"), second.out
    after = state(programs.folder / "a.pt")["model"]
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in before)


FAILS = """
import sys, time, torch
from trainlib.ranks import discover
from trainlib.session import Session

with Session(discover()) as session:
    session.open(sys.argv[1])
    if session.ranks.rank == 1:
        raise SystemExit(9) if sys.argv[1] == "mpi" else ValueError("a bug")
    session.communicator.sum([1.0])
    time.sleep(50)
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("backend", "code"), [("mpi", 9), pytest.param("gloo", 1, marks=pytest.mark.all)]
)
def test_one_failing_rank_ends_all(programs: Programs, backend: str, code: int) -> None:
    script = programs.script("fails.py", FAILS)
    started = time.monotonic()
    ended = programs.mpirun(2, script, backend)
    assert ended.code == code, ended
    assert time.monotonic() - started < 40, "they waited for the rank that was left"
    assert ("ValueError: a bug" in ended.err) == (backend == "gloo")


def test_torchrun_trains_over_gloo_and_refuses_mpi(programs: Programs) -> None:
    # Unbuffered and into one file: the lines of two ranks must not run into each other.
    programs.extra = {"PYTHONUNBUFFERED": "1"}
    ended = programs.torchrun(2, CPU, 30, 30)
    assert ended.code == 0, ended.err
    pattern = r"^\[Rank[01]\] Epoch \d+ \| Batchsize: 32 \| Steps: 23 \| Loss: [-0-9.e]+$"
    assert len(re.findall(pattern, ended.out, re.MULTILINE)) == 60
    assert ended.lines("] Backend: gloo")
    ended = programs.torchrun(2, CPU, 2, 2, "--backend", "mpi")
    assert ended.code != 0
    line = f"{CPU}: error: backend mpi is not possible: torchrun starts no MPI"
    assert ended.err.count(line) == 1, ended.err
    assert re.search(r"exitcode\s*: 6 ", ended.err)


def test_one_rank_alone_learns_a_regression(programs: Programs) -> None:
    ended = programs.alone(CPU, 5, 5, "--dataset", "synthetic", "--snapshot", "s.pt")
    assert ended.code == 0, ended.err
    losses = [float(line.rsplit(" ", 1)[1]) for line in ended.out.splitlines() if "Loss: " in line]
    assert losses[-1] < 0.25 * losses[0]
    assert ended.lines("Test MSE: ")
    # The snapshot of one data set is not for another.
    ended = programs.alone(CPU, 5, 5, "--snapshot", "s.pt")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert "its data set is synthetic, here it is digits" in ended.err


def test_wrong_arguments_are_one_line_and_exit_2(programs: Programs) -> None:
    ended = programs.alone(CPU, 10, "often")
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(rf"{CPU}: error: .*save_every.*'often'.*; see --help\n", ended.err)
    assert list(programs.folder.glob("snapshot*")) == []
    ended = programs.alone("reduce_all.py", "--max-bytes", 7)
    assert (ended.code, ended.out) == (2, "")
    assert "--max-bytes: 7 is less than 8" in ended.err


def test_without_a_gpu_the_gpu_program_says_so(programs: Programs) -> None:
    programs.extra = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    ended = programs.alone(GPU, 1, 1)
    assert (ended.code, ended.out) == (6, "")
    assert re.fullmatch(rf"{GPU}: error: no GPU is visible.*--allow-cpu.*\n", ended.err)


@pytest.mark.all
@pytest.mark.mpi
def test_the_gpu_program_on_cpus(programs: Programs) -> None:
    programs.extra = {
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "CLUSTERCTL_ALLOW_CPU": "1",
    }
    ended = programs.mpirun(2, GPU, 2, 2)
    assert ended.code == 0, ended.err
    assert len(ended.lines("[GPU1] Epoch ")) == 2
    assert len(ended.lines("Training took ")) == 2


def test_sigterm_saves_the_epoch_and_ends_with_143(programs: Programs) -> None:
    process = programs.start([sys.executable, WORKLOADS / CPU, "1000000", "1000000"])
    programs.wait_for("Epoch 3 ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 143
    last = [line for line in programs.written.splitlines() if "] Epoch " in line][-1]
    saved = state(programs.folder / "snapshot.pt")["epochs"]
    assert saved == int(last.split()[2]) + 1 >= 4
    assert f"SIGTERM: stopped after epoch {saved - 1}" in programs.written


@pytest.mark.mpi
def test_reduce_all_over_mpi_does_without_torch(programs: Programs) -> None:
    (programs.folder / "torch.py").write_text("raise ImportError('torch was imported')\n")
    programs.extra = {"PYTHONPATH": str(programs.folder)}
    ended = programs.mpirun(3, "reduce_all.py", "--no-table")
    assert ended.code == 0, ended.err
    ends = [line.split(" | ", 1)[1] for line in ended.lines("[Rank")]
    assert ends == [f"before: [{r}, {r}, {r}, {r}] | after: [3, 3, 3, 3]" for r in range(3)]
    assert ended.lines("ok: 3 ranks on 1 host, each holds 3 = W(W-1)/2, over mpi")


@pytest.mark.mpi
def test_reduce_all_over_gloo(programs: Programs) -> None:
    ended = programs.mpirun(2, "reduce_all.py", "--backend", "gloo", "--max-bytes", 64, "--metrics")
    assert ended.code == 0, ended.err
    assert ended.lines("ok: 2 ranks on 1 host, each holds 1 = W(W-1)/2, over gloo")
    assert [values["bytes"] for values in ended.metrics] == [8, 64]
    assert all(values["seconds"] > 0 for values in ended.metrics)


@pytest.mark.mpi
def test_reduce_all_fails_if_a_sum_is_wrong(programs: Programs) -> None:
    # A rank that contributes something else than its rank stands for a broken network.
    wrong = (WORKLOADS / "reduce_all.py").read_text()
    wrong = wrong.replace("[float(ranks.rank)]", "[float(ranks.rank) + (ranks.rank == 1)]")
    script = programs.script("reduce_all.py", wrong)
    ended = programs.mpirun(2, script)
    assert ended.code == 1
    assert "the sum over 2 ranks is not 1 on rank 0 on " in ended.err
    assert not ended.lines("ok: ")


STARTS = """
import gc
gc.set_threshold(700, 10, 10)
from trainlib.program import run_program

def main():
    starting = gc.get_threshold()[0]
    from trainlib.ranks import discover
    from trainlib.session import Session
    with Session(discover()):
        print(starting > 10_000, gc.get_threshold(), gc.get_freeze_count() > 10_000)
    return 0

run_program(main)
"""


def test_a_program_looks_for_garbage_when_it_has_started(programs: Programs) -> None:
    """Not in the second that it needs to import torch."""
    ended = programs.alone(programs.script("starts.py", STARTS))
    assert (ended.code, ended.out) == (0, "True (700, 10, 10) True\n"), ended
