"""TAGI against Monte-Carlo moments, closed forms, and one process with all rows."""

from __future__ import annotations

import ctypes.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import tagi_layers
from tests.sim.engine import cache
from tests.transport.lab import free_port
from tests.workloads.running import Programs
from trainlib import data
from trainlib.tagi import base, layers, models
from trainlib.tagi.output import HierarchicalSoftmax
from trainlib.tagi.parallel import DDPConfig, DDPSequential


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def inputs(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, *shape), 0.1 + torch.rand(1, *shape)


def test_mixture_relu_loses_no_digits_far_from_zero() -> None:
    """Against the textbook's formulas, in the double precision that these take."""
    means = torch.tensor([-50.0, -5.0, -3.0, -1.0, 0.0, 0.5, 3.0, 10.0, 100.0, 1000.0])
    deviations = torch.tensor([[0.1], [1.0], [20.0]])
    mean, deviation = torch.broadcast_tensors(means.double(), deviations.double())
    alpha = mean / deviation
    below = torch.special.ndtr(alpha)
    density = torch.exp(-0.5 * alpha**2) / math.sqrt(2 * math.pi)
    a_mean = mean * below + deviation * density
    square = (mean**2 + deviation**2) * below + mean * deviation * density
    found = layers.MixtureReLU().forward(mean.float(), deviation.float() ** 2)
    for one, exact in zip(found, (a_mean, square - a_mean**2), strict=True):
        # Both moments are kept above 1e-6.
        assert torch.allclose(one.double(), exact.clamp_min(1e-6), rtol=1e-4, atol=0)
    far = layers.MixtureReLU().forward(torch.tensor([1e20, -1e20]), torch.zeros(2))
    assert far[0].tolist() == pytest.approx([1e20, 1e-6])
    assert far[1].tolist() == pytest.approx([1e-6, 1e-6])


def test_max_pooling_takes_the_unit_with_the_largest_mean() -> None:
    mean, var = inputs(2, 4, 4)
    layer = layers.MaxPool2d(2)
    a_mean, a_var = layer.forward(mean, var)
    for channel in range(2):
        window = mean[0, channel, :2, 2:].flatten()
        assert a_mean[0, channel, 0, 1] == window.max()
        assert a_var[0, channel, 0, 1] == var[0, channel, :2, 2:].flatten()[window.argmax()]
    back, _ = layer.backward(torch.ones(1, 2, 2, 2), torch.ones(1, 2, 2, 2))
    assert torch.equal(back.bool(), torch.isin(mean, a_mean))


def test_batch_norm_keeps_running_averages_for_evaluation() -> None:
    layer = layers.BatchNorm2d(3)
    mean, var = torch.randn(8, 3, 2, 2) + 1, torch.rand(8, 3, 2, 2)
    layer.forward(mean, var)
    assert torch.allclose(layer.running_mean, 0.1 * mean.mean((0, 2, 3)), rtol=1e-4)
    layer.train(False)
    before = layer.running_var.clone()
    layer.forward(mean + 5, var)
    assert torch.equal(layer.running_var, before)


def test_updates_are_capped_by_the_deviation() -> None:
    parameter = base.Parameter(torch.zeros(4), torch.full((4,), 4.0))
    parameter.delta_mean = torch.tensor([5.0, -5.0, 0.5, 0.0])
    parameter.delta_var = torch.tensor([0.0, -0.5, -1.0, -9.0])
    parameter.step(base.cap(32))
    assert parameter.mean.tolist() == [1.0, -1.0, 0.5, 0.0]
    assert parameter.var.tolist() == [4.0, 3.5, 3.0, 3.0]
    parameter.var = torch.tensor([0.01, 1.0, 1.0, 1.0])
    parameter.step(base.cap(1))
    assert parameter.var.tolist()[3] == pytest.approx(1e-5), "a negative variance starts again"
    assert [base.cap(rows) for rows in (1, 2, 255, 256)] == [0.1, 2.0, 2.0, 3.0]


@pytest.mark.parametrize(("average", "part"), [(False, 2.0), (True, 0.1)])
def test_the_cap_of_a_sum_is_that_of_all_rows(average: bool, part: float) -> None:
    """One row on each of two ranks make an update of two rows, 20 times as tight as of one."""
    layer = layers.Linear(1, 1, bias=False)
    model = DDPSequential(
        layer, DDPConfig(world_size=2, all_reduce=lambda tensor, mean: None), average=average
    )
    before, limit = layer.weight.mean.clone(), layer.weight.var.sqrt() / part
    layer.weight.delta_mean.fill_(1e3)
    model.step(1)
    assert torch.allclose(layer.weight.mean - before, limit)


def test_classes_are_paths_in_a_tree() -> None:
    ten = HierarchicalSoftmax(10)
    assert ten.units == 11
    paths = {0: (0, 1, 3, 6), 3: (0, 1, 3, 7), 4: (0, 1, 4, 8), 7: (0, 1, 4, 9), 9: (0, 2, 5, 10)}
    assert {label: tuple(ten.nodes[label].tolist()) for label in paths} == paths
    assert ten.signs[5].tolist() == [1, -1, 1, -1]
    eight = HierarchicalSoftmax(8)
    chances = eight.compute_probabilities(torch.randn(5, eight.units), torch.rand(5, eight.units))
    assert torch.allclose(chances.sum(1), torch.ones(5))
    d_mean, d_var = ten.compute_innovation(
        torch.zeros(1, 11), torch.ones(1, 11), torch.tensor([9]), sigma_v=1.0
    )
    assert d_mean.nonzero()[:, 1].tolist() == [0, 2, 5, 10]
    assert d_mean[0, [0, 2, 5, 10]].tolist() == [-0.5, 0.5, 0.5, -0.5]
    assert d_var[0, [0, 1]].tolist() == [-0.5, 0.0]


def test_every_nested_layer_is_found() -> None:
    model = models.resnet18(11, width=4)
    convolutions = [m for m in model.modules() if isinstance(m, layers.Conv2d)]
    # The stem, two in each of eight blocks, three shortcuts.
    assert len(convolutions) == 1 + 16 + 3
    assert len(model.parameters()) == 20 + 2 * 20 + 2


def test_resnet18_is_cutagis() -> None:
    """`resnet18_cifar10` of its examples, as pytagi 0.2.1 builds it."""
    model = models.resnet18(11)
    blocks = [layer for layer in model.layers if isinstance(layer, layers.Residual)]
    first, last = model.layers.index(blocks[0]), model.layers.index(blocks[-1])
    assert list(model.layers[first : last + 1]) == blocks, "nothing follows the sum of a block"
    shortcuts = [
        [layer for layer in block.shortcut.modules() if isinstance(layer, layers.Conv2d)]
        for block in blocks
        if block.shortcut
    ]
    sizes = [tuple(one.weight.mean.shape) for (one,) in shortcuts]
    assert sizes == [(128, 64, 2, 2), (256, 128, 2, 2), (512, 256, 2, 2)]
    norms = [layer for layer in model.modules() if isinstance(layer, layers.BatchNorm2d)]
    assert {norm.weight.var[0].item() * len(norm.weight.var) for norm in norms} == {1.0}


def test_a_residual_network_learns() -> None:
    """ResNet-18, an eighth as wide, on patterns of colour: from guessing to mostly right."""
    images = data.make_synthetic_images(0, 16, 300, 10)
    softmax = HierarchicalSoftmax(10)
    model = models.resnet18(softmax.units, gain=0.3, width=8, side=16)
    losses = []
    with torch.inference_mode():
        for epoch in range(2):
            loss = torch.zeros(())
            for rows, labels in data.iterate_batches(images.train, 20, 0, 1, 0, epoch):
                mean, var = model.forward(rows)
                chances = softmax.compute_probabilities(mean, var).gather(1, labels.view(-1, 1))
                loss -= chances.clamp_min(1e-30).log().sum()
                model.backward(*softmax.compute_innovation(mean, var, labels, 0.3), first=True)
                model.step(len(rows))
            losses.append(loss.item() / len(images.train))
    assert losses[0] < math.log(10) + 0.5
    assert losses[1] < 0.7 * losses[0]


PARALLEL = """
import sys, torch
from trainlib import data
from trainlib.ranks import discover
from trainlib.session import Session
from trainlib.tagi import models
from trainlib.tagi.output import HierarchicalSoftmax
from trainlib.tagi.parallel import DDPConfig, DDPSequential

ALONE = DDPConfig(all_reduce=lambda tensor, average: None)

def make(kind):
    if kind == "mlp":
        return models.mlp(64, 11), torch.rand(24, 64)
    return models.resnet18(11, width=2, side=8), torch.rand(24, 3, 8, 8)

def steps(model, softmax, batches):
    for rows, labels in batches:
        model.backward(*softmax.compute_innovation(*model.forward(rows), labels, 0.5))
        model.step(len(rows))

def flat(model):
    return torch.cat([t.flatten() for p in model.parameters() for t in (p.mean, p.var)])

with Session(discover()) as session:
    session.open(sys.argv[1])
    rank, world = session.ranks.rank, session.ranks.world
    softmax = HierarchicalSoftmax(10)
    for kind in ("mlp", "resnet"):
        torch.manual_seed(0)
        alone, rows = make(kind)
        labels = torch.randint(10, (24,))
        torch.manual_seed(rank)  # other weights on the other ranks: rank 0's have to win
        mine, _ = make(kind)
        torch.manual_seed(0)
        if rank == 0:
            mine, _ = make(kind)
        start = flat(alone)
        batches = [(rows[i:i + 12], labels[i:i + 12]) for i in (0, 12)]
        parts = [(r[6 * rank:6 * rank + 6], l[6 * rank:6 * rank + 6]) for r, l in batches]
        steps(DDPSequential(alone, ALONE), softmax, batches)
        steps(DDPSequential(mine, DDPConfig.of(session), average=False), softmax, parts)
        moved = (flat(alone) - start).abs().max()
        off = (flat(mine) - flat(alone)).abs().max()
        assert moved > 1e-2, moved
        assert off < 1e-5, (kind, off)
        everyone = flat(mine).double()
        session.reduce(everyone, average=True)
        assert (everyone - flat(mine)).abs().max() < 1e-12, "ranks differ"
    # The mean: half of what the two ranks' updates add up to, one by one.
    torch.manual_seed(0)
    mine, rows = make("mlp")
    model = DDPSequential(mine, DDPConfig.of(session), average=True)
    labels = torch.arange(24) % 10
    own = slice(12 * rank, 12 * rank + 12)
    model.backward(*softmax.compute_innovation(*model.forward(rows[own]), labels[own], 0.5))
    parameters = mine.parameters()
    def updates():
        parts = [part for p in parameters for part in (p.delta_mean, p.delta_var)]
        return torch.cat([part.flatten() for part in parts])
    expected = updates()
    session.reduce(expected, average=False)
    model.step(12)
    assert torch.allclose(updates(), expected / world), "no mean"
    print("equal", rank, flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_the_sum_over_two_ranks_is_one_process_with_all_rows(
    programs: Programs, backend: str
) -> None:
    script = programs.script("parallel.py", PARALLEL)
    ended = programs.mpirun(2, script, backend)
    assert (ended.code, ended.lines("equal")) == (0, ["equal 0", "equal 1"]), ended


@pytest.mark.mpi
@pytest.mark.parametrize("how", ["--sum", "--average"])
def test_digits_are_learnt_and_repeat_bit_for_bit(programs: Programs, how: str) -> None:
    ended = programs.mpirun(2, "train_tagi.py", how)
    assert ended.code == 0, ended.err
    found = re.findall(r"Epoch (\d+) \| Loss: (\S+) .*accuracy: (\S+)", ended.out)
    assert [int(epoch) for epoch, _, _ in found] == list(range(10))
    assert float(found[-1][2]) >= 0.97
    losses = [float(loss) for _, loss, _ in found]
    assert losses[-1] < 0.1 * losses[0]
    again = programs.mpirun(2, "train_tagi.py", how, "--epochs", 2, "--metrics")
    assert [values["test_accuracy"] > 0.5 for values in again.metrics] == [True, True]
    assert re.findall(r"Epoch (\d+) \| Loss: (\S+) .*accuracy: (\S+)", again.out) == found[:2]


# -------------------------------------------------------------------------------------------------
# TAGI's layers against cuTAGI's own, which its wheel brings.


WHEEL = "pytagi==0.2.1"


def install(folder: Path, gcc: str, nm: str) -> str:
    """The wheel in `folder`, and what stands in for NCCL; returns why it cannot be had, or ""."""
    if (folder / "libnccl.so.2").exists():
        return ""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    argv += ["--only-binary", ":all:", "--target", str(folder), WHEEL]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    # The wheel is linked to NCCL, 350 MB of which nothing is called here: its names are enough.
    (library,) = folder.glob("cutagi*.so")
    symbols = subprocess.run([nm, "-D", library], capture_output=True, text=True, check=True).stdout
    names = re.findall(r" U (nccl\w+)", symbols)
    code = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)
    made = folder / f"stub.{os.getpid()}"
    subprocess.run([gcc, "-shared", "-x", "c", "-", "-o", made], input=code, text=True, check=True)
    made.rename(folder / "libnccl.so.2")
    return ""


@pytest.fixture(scope="module")
def differences(need: Any) -> dict[str, float]:
    """Of all networks, in one process: the library's mistakes must not end ours."""
    need(ctypes.util.find_library("mpi_cxx") is not None, "pytagi needs Open MPI 4 (libmpi_cxx)")
    folder = cache() / f"pytagi-{sys.implementation.cache_tag}"
    problem = install(folder, need("gcc"), need("nm"))
    need(problem == "", f"{WHEEL} cannot be installed: {problem}")
    done = subprocess.run(
        [sys.executable, tagi_layers.__file__, "--pytagi", folder],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done
    found: dict[str, float] = json.loads(done.stdout)["largest_relative_difference"]
    return found


@pytest.mark.parametrize("network", tagi_layers.NETWORKS)
def test_four_steps_are_cutagis_own(differences: dict[str, float], network: str) -> None:
    assert differences[network] < tagi_layers.LIMIT


SEED = """
import os, sys, torch
from trainlib.ranks import discover
from trainlib.tagi.nn import DDPConfig, DDPSequential, Linear, ReLU, Sequential

ranks = discover()
torch.manual_seed(0)
config = DDPConfig(
    device_ids=[0, 1], backend=sys.argv[1], rank=ranks.rank, world_size=ranks.world
)
model = Sequential(Linear(1, 16), ReLU(), Linear(16, 2))
ddp_model = DDPSequential(model, config, average=sys.argv[2] == "mean")
mean, var = ddp_model.forward(torch.full((4, 1), ranks.rank + 1.0))
before = torch.cat([p.mean.flatten() for p in model.parameters()])
ddp_model.backward(torch.full_like(mean, 0.1), torch.full_like(var, -0.01))
ddp_model.step(4)
moved = torch.cat([p.mean.flatten() for p in model.parameters()]) - before
print(f"{float(moved.double().norm()):.6f}", flush=True)
"""


@pytest.mark.mpi
def test_the_snippet_of_its_seed(programs: Programs) -> None:
    """As the README of cuTAGI has it: equal on all ranks, whichever backend, and the mean is half
    of the sum."""
    script = programs.script("seed.py", SEED)
    programs.extra |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    moved = {}
    for backend, how in (("gloo", "sum"), ("gloo", "mean"), ("mpi", "mean")):
        ended = programs.mpirun(2, script, backend, how)
        assert ended.code == 0, ended.err
        first, second = map(float, ended.out.split())
        assert first == second > 0
        moved[backend, how] = first
    assert moved["gloo", "mean"] == moved["mpi", "mean"]
    assert moved["gloo", "sum"] > moved["gloo", "mean"]
