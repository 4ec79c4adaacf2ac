"""Programs save at SIGTERM, and go on from what they saved."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.workloads import making
from tests.workloads.running import WORKLOADS, Ended, Programs

DIGITS = ("--dataset", "digits")
PROGRAMS: dict[str, Sequence[object]] = {
    "train_mnist_ddp.py": ("--data", "mnist", "--batch-size", 10, "--epochs"),
    "train_sgd_mpi.py": (*DIGITS, "--hidden", 8, "--momentum", 0.5, "--epochs"),
    "train_tagi.py": (*DIGITS, "--batch-size", 100, "--epochs"),
    "train_parameter_averaging.py": ("--data", "mnist", "--lr", 0.02, "--epochs"),
}


def results(ended: Ended) -> dict[int, str]:
    """Losses and accuracies by epoch, less the speed."""
    found = re.findall(r"Epoch (\d+) \| ((?:Loss|Test loss): .*)", ended.out)
    return {int(n): re.sub(r" \| Throughput: \S+ samples/s", "", text) for n, text in found}


def stop(process: subprocess.Popen[bytes], ranks: int) -> None:
    """SIGTERM to the programs alone, as clusterctl sends it."""
    if ranks == 1:
        process.send_signal(signal.SIGTERM)
        return
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGTERM)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.all if name in ("train_mnist_ddp.py", "train_tagi.py") else ()
        )
        for name in PROGRAMS
    ],
)
def test_a_program_saves_at_sigterm_and_goes_on_as_if_nothing_had_happened(
    name: str, programs: Programs
) -> None:
    arguments = [name, *PROGRAMS[name]]
    if "mnist" in arguments:
        making.mnist(programs.folder / "mnist", 120, 40)
    ranks = 2 if "averaging" in name else 1
    launcher = [] if ranks == 1 else programs.mpirun_argv(ranks)
    snapshot = programs.folder / "snapshot.pt"
    command = [*launcher, *programs.python, WORKLOADS / name, *arguments[1:], 100_000]
    process = programs.start(command)
    programs.wait_for("Epoch 1 ")
    stop(process, ranks)
    assert process.wait(timeout=20) == 143, programs.written
    done = int(torch.load(snapshot, weights_only=True)["epochs"])
    assert f"SIGTERM: stopped after epoch {done - 1}, saved in snapshot.pt" in programs.written

    def train() -> Ended:
        if ranks == 1:
            return programs.alone(*arguments, done + 2)
        return programs.mpirun(ranks, *arguments, done + 2)

    resumed = train()
    assert resumed.code == 0, resumed.err
    assert f"Resuming from snapshot.pt after {done} epochs" in resumed.out
    assert not snapshot.exists(), "the training is finished"
    whole = results(train())
    assert sorted(whole) == [*range(done + 2)]
    assert results(resumed) == {epoch: whole[epoch] for epoch in (done, done + 1)}


ORDINARY = """
import os, signal, sys
import torch
import torch.distributed as dist
from trainlib.epochs import Epochs

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(1, 1)
torch.nn.init.zeros_(model.weight)
if rank:
    torch.nn.init.ones_(model.weight)  # the snapshot's has to win
with Epochs(4, {"model": model}) as epochs:
    for epoch in epochs:
        with torch.no_grad():
            model.weight += 1
        if rank and epoch == 1 and len(sys.argv) > 1:
            os.kill(os.getpid(), signal.SIGTERM)
            while not epochs.stopping:
                pass
print(f"rank {rank} has {model.weight.item():g}", flush=True)
dist.destroy_process_group()
"""


def test_an_ordinary_script_stops_on_all_ranks_when_one_is_told_to(programs: Programs) -> None:
    script = programs.script("ordinary.py", ORDINARY)
    stopped = programs.torchrun(2, script, "stop")
    assert stopped.code != 0
    # The first to leave makes torchrun end the other, which may be on its way out.
    assert stopped.err.count("exitcode  : 143") >= 1, stopped.err
    assert len(re.findall(r"exitcode  : (?:143|-15)", stopped.err)) == 2, stopped.err
    assert torch.load(programs.folder / "snapshot.pt", weights_only=True)["epochs"] == 2
    ended = programs.torchrun(2, script)
    assert ended.code == 0, ended.err
    assert ended.lines("has") == ["rank 0 has 4", "rank 1 has 4"]
    assert not (programs.folder / "snapshot.pt").exists()


def test_a_snapshot_of_another_program_is_refused(programs: Programs) -> None:
    torch.save({"format": 1}, programs.folder / "snapshot.pt")
    ended = programs.alone("train_tagi.py", "--epochs", 1)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "the snapshot snapshot.pt is damaged or not a snapshot of this program" in ended.err
