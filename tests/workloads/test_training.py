"""The training programs as a person starts them, on small files in the real formats."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from typing import Any

import pytest
import torch

from tests.unit.tables import rows
from tests.workloads import making
from tests.workloads.running import WORKLOADS, Ended, Programs

pytestmark = [pytest.mark.mpi]

DDP = "multinode_ddp_mpi.py"


def losses(ended: Ended, start: str = "Epoch ") -> list[float]:
    assert ended.code == 0, ended
    return [float(match) for match in re.findall(rf"{start}.*\| Loss: (\S+)", ended.out)]


def without_speed(ended: Ended) -> list[str]:
    """What a repetition has to print again."""
    return sorted(
        re.sub(r"(Throughput|Elapsed|Total).*", "", line) for line in ended.lines("Epoch")
    )


# ------------------------------------------------------------------------------- multinode_ddp_mpi

STEPS = """
import copy, sys, torch
from trainlib import data, models, optimizers, trainer
from trainlib.steps import Recipe, train_epoch
from trainlib.ranks import discover
from trainlib.session import Session

loss_of = torch.nn.functional.cross_entropy
with Session(discover()) as session:
    session.open(sys.argv[1])
    rank, world = session.ranks.rank, session.ranks.world
    digits = data.load_digits().train
    torch.manual_seed(0)
    start = models.mlp(64, 10, 5000)

    def batches(size, of, by):
        rows = torch.arange(100)[of::by]
        return digits.select(rows, size)

    def off(one, other):
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)

    def trained(recipe=None, compress="none", size=7):
        model = copy.deepcopy(start)
        parallel = session.data_parallel(model, compress=compress)
        optimizer = optimizers.make_sgd(model.parameters(), lr=0.1)
        mean, steps, rows = train_epoch(
            parallel, optimizer, loss_of, batches(size, rank, world), recipe
        )
        assert rows == 100 // world
        return model, steps

    # Steps of 3 batches of 7, 7 and 7 rows, and of a last one of 7, 7, 7 and 1: as of 21 rows.
    whole, count = trained(size=21)
    parts, steps = trained(Recipe(accumulate=3))
    assert steps == count == 3, (steps, count)
    assert off(whole, parts) < 1e-6, off(whole, parts)
    assert off(start, whole) > 1e-2
    for half, limit in (("fp16", 1e-3), ("bf16", 1e-2)):
        narrow, _ = trained(compress=half, size=21)
        assert 1e-7 < off(whole, narrow) < limit, (half, off(whole, narrow))
    mixed, _ = trained(Recipe(precision="bf16"), size=21)
    assert 1e-6 < off(whole, mixed) < 5e-2, off(whole, mixed)
    print("equal", rank, flush=True)
"""


@pytest.mark.parametrize("backend", ["mpi", pytest.param("gloo", marks=pytest.mark.all)])
def test_accumulation_compression_and_precision(programs: Programs, backend: str) -> None:
    script = programs.script("steps.py", STEPS)
    ended = programs.mpirun(2, script, backend)
    assert (ended.code, ended.lines("equal")) == (0, ["equal 0", "equal 1"]), ended


BUFFERS = """
import torch
from trainlib import data, ddp_options, trainer
from trainlib.ranks import discover
from trainlib.session import Session

chosen = ddp_options.parse("", "1 1 --model resnet18 --lr 0.01 --batch-size 8".split(), gpu=False)
with Session(discover()) as session:
    session.open("auto")
    torch.manual_seed(0)
    images = data.make_synthetic_images(0, 8, 48, 8)
    training = trainer.Trainer(session, chosen, trainer.CPU, images)
    training.train()
    own = torch.cat([b.flatten() for b in training.model.buffers() if b.is_floating_point()])
    mean = own.clone()
    session.reduce(mean, average=True)
    assert (own - 0).abs().max() > 0.1
    assert torch.allclose(own, mean, atol=1e-7), "ranks hold different statistics"
    print("equal", session.ranks.rank, flush=True)
"""


def test_batch_norms_statistics_are_those_of_all_ranks(programs: Programs) -> None:
    script = programs.script("buffers.py", BUFFERS)
    ended = programs.mpirun(2, script)
    assert (ended.code, ended.lines("equal")) == (0, ["equal 0", "equal 1"]), ended


@pytest.mark.all
@pytest.mark.timeout(300)  # it compiles, with as many processes as there are cores
def test_compile_learns_and_says_what_it_lacks(programs: Programs) -> None:
    programs.seconds = 240  # on two busy cores, with nothing in the cache
    programs.python = (sys.executable,)  # it reads the variables when it imports torch's compiler
    programs.extra = {"TORCHINDUCTOR_CACHE_DIR": str(programs.folder / "cache")}
    plain = programs.alone(DDP, 2, 2, "--snapshot", "plain.pt")
    ended = programs.alone(DDP, 2, 2, "--compile")
    assert ended.code == 0, ended.err
    assert losses(ended) == pytest.approx(losses(plain), rel=1e-3)
    programs.extra = {
        "CXX": "/bin/false",
        "TORCHINDUCTOR_CACHE_DIR": str(programs.folder / "other"),
    }
    ended = programs.mpirun(2, DDP, 1, 1, "--compile")
    assert ended.code == 6
    assert ended.err.count(f"{DDP}: error: torch.compile does not work here (") == 1
    assert "/bin/false" in ended.err
    assert "install g++ and Python's headers" in ended.err


def test_what_cannot_be_is_refused_once(programs: Programs) -> None:
    for arguments, says in (
        (["--precision", "fp16"], "fp16 needs a GPU"),
        (["--dataset", "mnist"], "clusterctl data get mnist"),
    ):
        ended = programs.mpirun(2, DDP, 1, 1, *arguments)
        assert ended.code == 2, ended
        assert ended.err.count(f"{DDP}: error: ") == 1
        assert says in ended.err


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        pytest.param(DDP, [9, 9, "--lr", "1e15"], marks=pytest.mark.all),
        (DDP, [3, 3, "--lr", "1e15", "--batch-size", 2000]),  # the last loss is finite yet
        *(
            pytest.param(
                f"train_{name}.py", ["--dataset", "digits", "--lr", "1e15"], marks=pytest.mark.all
            )
            for name in ("mnist_ddp", "sgd_mpi", "parameter_averaging")
        ),
        ("train_tagi.py", ["--gain", "1e15"]),
    ],
)
def test_a_training_that_diverges_ends_and_says_so(
    programs: Programs, program: str, arguments: list[object]
) -> None:
    if program == DDP:
        assert programs.mpirun(2, DDP, 1, 1).code == 0
    ended = programs.mpirun(2, program, *arguments)
    assert ended.code == 1, ended
    assert ended.err.count("the training has diverged: after epoch ") == 1
    assert re.search(r"try an? --(lr below 1e\+15|sigma-v above 0.3)", ended.err)
    assert "Test accuracy: " not in ended.out.splitlines()[-1]
    if program == DDP:
        kept = torch.load(programs.folder / "snapshot.pt", weights_only=True)
        assert all(weight.isfinite().all() for weight in kept["model"].values())


# --------------------------------------------------------------------------- the programs of seeds


def test_mnist_ddp_learns_repeats_and_saves(programs: Programs) -> None:
    making.mnist(programs.folder / "mnist")
    arguments = ["--data", "mnist", "--epochs", 2, "--batch-size", 10, "--lr", 0.5]
    ended = programs.mpirun(2, "train_mnist_ddp.py", *arguments, "--save-model", "--metrics")
    curves = [values["test_loss"] for values in ended.metrics]
    found = losses(ended, r"\[Rank0\] Epoch")
    assert len(found) == 2 * 1, "one line for each tenth step"
    tested = re.findall(r"Test loss: (\S+) \| Test accuracy: (\S+)", ended.out)
    assert float(tested[1][0]) < float(tested[0][0])
    assert curves == pytest.approx([float(loss) for loss, _ in tested], rel=1e-4)
    assert float(tested[1][1]) > 0.5
    state = torch.load(programs.folder / "mnist_cnn.pt", weights_only=True)
    assert sum(value.numel() for value in state.values()) == 1_199_882
    again = programs.torchrun(2, "train_mnist_ddp.py", *arguments, "--backend", "gloo")
    assert again.code == 0, again.err
    # Two ranks: a sum of two is rounded alike by gloo and by MPI.
    assert without_speed(again) == without_speed(ended)


def test_sgd_mpi_learns_and_repeats(programs: Programs) -> None:
    common = ["--dataset", "digits", "--hidden", 32, "--epochs", 4, "--lr", 0.1, "--nesterov"]
    common += ["--batch-size", 40]
    for sync in (1, 4):
        ended = programs.mpirun(2, "train_sgd_mpi.py", *common, "--sync-iterations", sync)
        found = losses(ended)
        assert found[-1] < 0.4 * found[0]
        accuracy = float(re.findall(r"Validation accuracy: (\S+)", ended.out)[-1])
        assert accuracy > 0.85
    again = programs.mpirun(2, "train_sgd_mpi.py", *common, "--sync-iterations", 4)
    assert without_speed(again) == without_speed(ended)
    alone = programs.alone("train_sgd_mpi.py", *common, "--metrics")
    assert losses(alone)[-1] < 0.4 * losses(alone)[0]
    assert [values["loss"] for values in alone.metrics] == pytest.approx(losses(alone), rel=1e-4)


@pytest.mark.parametrize(
    "program",
    [
        "train_sgd_mpi.py",
        pytest.param("train_parameter_averaging.py", marks=pytest.mark.all),
        pytest.param("train_imagenette.py --yml-in x", marks=pytest.mark.all),
    ],
)
def test_programs_over_mpi4py_refuse_torchrun(programs: Programs, program: str) -> None:
    name, *arguments = program.split()
    ended = programs.torchrun(2, name, *arguments)
    assert f"{name}: error: torchrun starts no MPI" in ended.err
    assert "mpirun or srun --mpi=pmix" in ended.err
    assert re.search(r"exitcode\s*: 6 ", ended.err), ended.err


@pytest.fixture
def pets(programs: Programs) -> list[Any]:
    """Arguments for a small network and small images of three classes."""
    making.image_folders(programs.folder / "pets")
    made = programs.alone("make_dataset_yaml.py", "pets/train", "pets/val")
    assert made.code == 0, made.err
    arguments = [*("--yml-in", "dataset.yaml", "--net-name", "resnet18", "--patch-size", 16)]
    return [*arguments, "--batch-size", 6, "--lr", 0.01]


@pytest.mark.all
def test_imagenette_learns_saves_and_stops_early(programs: Programs, pets: list[Any]) -> None:
    arguments = [*pets, "--epochs", 2, "--augs-on", "--save-weights", "--out-dir", "."]
    ended = programs.mpirun(2, "train_imagenette.py", *arguments)
    assert losses(ended)[-1] < losses(ended)[0]
    history = json.loads((programs.folder / "history.json").read_text())["epochs"]
    assert [row["loss"] for row in history] == pytest.approx(losses(ended), rel=1e-4)
    weights = torch.load(programs.folder / "weights.pt", weights_only=True)
    assert any("running_mean" in name for name in weights)
    again = programs.mpirun(2, "train_imagenette.py", *arguments)
    assert without_speed(again) == without_speed(ended)
    # A step that is too large to learn from: no better loss for an epoch ends it.
    arguments = [*pets, "--epochs", 30, "--patience", 1, "--lr", 3]
    ended = programs.mpirun(2, "train_imagenette.py", *arguments)
    assert ended.code == 0, ended.err
    assert ended.lines("Stopped: no better validation loss for 1 epochs")
    assert len(ended.lines("Epoch ")) < 30


# ------------------------------------------------------------------------- the all-reduce table

HEAD = ["bytes", "latency", "us", "algbw", "GB/s", "busbw", "GB/s"]


def assert_table(text: str, world: int) -> None:
    """Sizes from 8 bytes on, and a bus bandwidth of 2 (W - 1) / W times the algorithm's."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.split() == HEAD)
    rows = [[float(word) for word in line.split()] for line in lines[start + 1 :] if line.strip()]
    assert [row[0] for row in rows] == [8.0**power for power in range(1, 6)]
    for size, latency, algorithm, bus in rows:
        assert latency > 0
        assert algorithm == pytest.approx(size / latency / 1e3, rel=0.05, abs=2e-4)
        assert bus == pytest.approx(algorithm * 2 * (world - 1) / world, abs=2e-4)


@pytest.mark.parametrize("backend", ["mpi", pytest.param("gloo", marks=pytest.mark.all)])
def test_the_table_of_reduce_all(programs: Programs, backend: str) -> None:
    ended = programs.mpirun(3, "reduce_all.py", "--backend", backend, "--max-bytes", 40_000)
    assert ended.code == 0, ended.err
    assert_table(ended.out[ended.out.index("ok: 3 ranks") :], 3)


@pytest.mark.all
def test_the_same_table_in_cpp(programs: Programs, need: Any) -> None:
    need("g++")
    argv = [need("mpic++"), WORKLOADS / "allreduce.cpp", "-O2", "-Wall", "-Wextra", "-Werror"]
    compiled = programs.run([*argv, "-o", "allreduce"])
    assert compiled.code == 0, compiled
    ended = programs.run([*programs.mpirun_argv(3), programs.folder / "allreduce", 40_000])
    assert "ok: 3 ranks, each holds 3 = W(W-1)/2, over mpi" in ended.out
    assert_table(ended.out, 3)


# ------------------------------------------------------------------------------- command lines


@rows("program, arguments, expected", "training.the_seeds_flags_have_their_types_and_defaults")
def test_the_seeds_flags_have_their_types_and_defaults(
    program: str, arguments: str, expected: dict[str, Any]
) -> None:
    found = vars(import_module(program).parse(arguments.split()))
    assert {name: found[name] for name in expected} == expected
