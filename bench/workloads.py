"""Samples per second of the training programs on one rank, against plain PyTorch loops.

    python bench/workloads.py --out bench/results/workloads.json

For each program its own epoch, and a loop of the same model, optimizer, rows and batch size that
uses nothing of ours. The two take turns; the ratio is the median of the rounds' ratios. Seconds are
those of the processor, with one thread: what else runs on the machine meets both, but in no even
measure.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workloads"))

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from trainlib import data, images, mnist_ddp, models, optimizers, parameter_averaging
from trainlib.mpi_sgd import MpiSGD
from trainlib.ranks import Ranks
from trainlib.rows import IMAGENET_SCALE, Dataset, Split
from trainlib.session import Session
from trainlib.steps import train_epoch
from trainlib.tagi import training
from trainlib.tagi.layers import Sequential
from trainlib.tagi.output import HierarchicalSoftmax
from trainlib.tagi.parallel import DDPConfig, DDPSequential

LIMIT = 0.95
"""Of the plain loop's speed. The exit code is 1 if a program is below it."""
ALONE = Ranks(0, 1, 0, 1, "none")

Epoch = Callable[[], int]
"""Trains once over the rows and returns how many there were."""


def plain(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    batch: int,
    loss_of: Callable[..., torch.Tensor] = functional.cross_entropy,
) -> Epoch:
    def epoch() -> int:
        order = torch.randperm(len(inputs))
        for start in range(0, len(inputs), batch):
            rows = order[start : start + batch]
            optimizer.zero_grad()
            loss = loss_of(model(inputs[rows]), targets[rows])
            loss.backward()
            optimizer.step()
        return len(inputs)

    return epoch


def sgd(model: torch.nn.Module, lr: float = 0.01) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=True)


def ddp(name: str) -> tuple[Epoch, Epoch]:
    """multinode_ddp_mpi.py: `name` on the digits, or on synthetic images for a ResNet."""
    images_wanted = name.startswith("resnet")
    dataset = data.load("synthetic" if images_wanted else "digits", 0, images=True)
    if images_wanted:
        rows, labels = next(dataset.train.select(torch.arange(128), 128))
        dataset = Dataset("", 10, Split(rows, labels), dataset.test, dataset.image)

    def build() -> torch.nn.Module:
        return models.build(name, dataset.train.shape, dataset.image, 10)

    mine, other = build(), build()
    optimizer = optimizers.make_sgd(mine.parameters(), lr=0.01)

    def epoch() -> int:
        batches = data.iterate_batches(dataset.train, 32, 0, 1, 0, 0)
        loss, _, rows = train_epoch(mine, optimizer, functional.cross_entropy, batches)
        loss.item()
        return rows

    split: Any = dataset.train
    return epoch, plain(other, sgd(other), split.inputs, split.targets, 32)


def digits_as_images() -> tuple[Dataset, torch.Tensor, torch.Tensor]:
    """1,000 of the digits, enlarged to MNIST's 28 x 28."""
    split: Any = data.load_digits().train
    pixels = functional.interpolate(split.inputs[:1000].view(-1, 1, 8, 8), 28)
    rows = Split(pixels, split.targets[:1000])
    return Dataset("", 10, rows, rows, (1, 28, 28)), pixels, rows.targets


def mnist() -> tuple[Epoch, Epoch]:
    """train_mnist_ddp.py."""
    dataset, inputs, targets = digits_as_images()
    mine, other = (models.mnist_cnn((1, 28, 28), 10) for _ in range(2))
    ours, theirs = (torch.optim.Adadelta(model.parameters(), lr=0.1) for model in (mine, other))
    options = Namespace(log_interval=10)

    def epoch() -> int:
        with contextlib.redirect_stdout(io.StringIO()):
            batches = data.iterate_batches(dataset.train, 64, 0, 1, 0, 0)
            return mnist_ddp.train_epoch(mine, ours, batches, "", options)

    return epoch, plain(other, theirs, inputs, targets, 64, functional.nll_loss)


def sgd_mpi() -> tuple[Epoch, Epoch]:
    """train_sgd_mpi.py."""
    dataset, inputs, targets = digits_as_images()
    mine, other = (models.leaky_mlp(784, 10) for _ in range(2))
    optimizer = MpiSGD(mine.parameters(), lr=0.01, momentum=0.9)

    def epoch() -> int:
        batches = data.iterate_batches(dataset.train, 200, 0, 1, 0, 0)
        _, _, rows = train_epoch(mine, optimizer, functional.cross_entropy, batches)
        return rows

    return epoch, plain(other, sgd(other), inputs, targets, 200)


def average_parameters() -> tuple[Epoch, Epoch]:
    """train_parameter_averaging.py: one worker's epoch."""
    dataset, inputs, targets = digits_as_images()
    mine, other = (models.averaging_cnn((1, 28, 28), 10) for _ in range(2))
    options = Namespace(seed=0, shard=False, batch_size=16, lr=0.001, momentum=0.9)
    ranks = Ranks(1, 2, 1, 2, "mpirun")

    def epoch() -> int:
        return parameter_averaging.train_worker(mine, dataset, options, ranks, 0)[1]

    optimizer = torch.optim.SGD(other.parameters(), lr=0.001, momentum=0.9)
    return epoch, plain(other, optimizer, inputs, targets, 16)


def imagenette(folder: Path) -> tuple[Epoch, Epoch]:
    """train_imagenette.py: ResNet-18 on 64 JPEG files, decoded each epoch."""
    generator = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(64)]
    for path in paths:
        small = generator.integers(0, 255, (12, 16, 3)).astype(np.uint8)
        Image.fromarray(small).resize((426, 320)).save(path)
    labels = torch.arange(64) % 10
    rows = images.ImageFiles(tuple(paths), tuple(labels.tolist()), 64)
    mine, other = (models.resnet(18, (3, 64, 64), 10) for _ in range(2))
    ours, theirs = MpiSGD(mine.parameters(), lr=0.001, momentum=0.9), sgd(other, 0.001)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET_SCALE)

    def epoch() -> int:
        batches = data.iterate_batches(rows, 32, 0, 1, 0, 0)
        return train_epoch(mine, ours, functional.cross_entropy, batches)[2]

    def read(path: Path) -> torch.Tensor:
        with Image.open(path) as image:
            image.draft("RGB", (64, 64))
            image = image.convert("RGB")
            scale = 64 / min(image.size)
            image = image.resize(
                (round(image.width * scale), round(image.height * scale)),
                Image.Resampling.BILINEAR,
            )
            left, top = (image.width - 64) // 2, (image.height - 64) // 2
            pixels = np.array(image.crop((left, top, left + 64, top + 64)))
        return (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - mean) / deviation

    def by_hand() -> int:
        order = torch.randperm(64).tolist()
        for start in range(0, 64, 32):
            chosen = order[start : start + 32]
            batch = torch.stack([read(paths[row]) for row in chosen])
            theirs.zero_grad()
            functional.cross_entropy(other(batch), labels[chosen]).backward()
            theirs.step()
        return 64

    return epoch, by_hand


def tagi() -> tuple[Epoch, Epoch]:
    """train_tagi.py: the digits' network; the plain loop writes its formulas out."""
    dataset = data.load_digits()
    softmax = HierarchicalSoftmax(10)
    options = Namespace(
        seed=0, dataset="digits", activation="relu", gain=1.0, batch_size=16, sigma_v=0.3
    )
    bare: Sequential = training.build_network(options, dataset, softmax.units)
    session = Session(ALONE)
    model = DDPSequential(bare, DDPConfig.of(session))
    split: Any = dataset.train
    inputs, targets = split.inputs, split.targets
    step = plain_tagi(softmax, (64, 64, 64, 11))

    def epoch() -> int:
        with torch.inference_mode():
            return int(training._run_epoch(session, options, dataset, model, softmax, 0)[0])

    def by_hand() -> int:
        with torch.inference_mode():
            order = torch.randperm(len(inputs))
            loss = torch.zeros(())
            for start in range(0, len(inputs), 16):
                rows = order[start : start + 16]
                loss += step(inputs[rows], targets[rows])
            loss.item()
        return len(inputs)

    return epoch, by_hand


def plain_tagi(
    softmax: HierarchicalSoftmax, sizes: Sequence[int]
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A step of TAGI for layers of these sizes: its formulas, in place on means and variances."""
    weights = [
        [torch.randn(o, i) / i**0.5, torch.full((o, i), 1 / i),
         torch.randn(o) / i**0.5, torch.full((o,), 1 / i)]
        for i, o in itertools.pairwise(sizes)
    ]  # fmt: skip

    def step(mean: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        var: torch.Tensor | None = None
        gate = torch.ones_like(mean)
        for number, (w, w_var, b, b_var) in enumerate(weights):
            seen.append((mean, gate))
            z = mean @ w.T + b
            z_var = (mean * mean) @ w_var.T + b_var
            if var is not None:
                z_var = z_var + var @ (w * w + w_var).T
            if number < 2:
                gate = (z > 0).float()
                mean, var = z * gate, z_var * gate
        ratio = (z / (z_var + 1 / 9).sqrt())[:, softmax.nodes]
        chances = torch.special.ndtr(ratio * softmax.signs).prod(2)
        loss = -chances.gather(1, labels.view(-1, 1)).clamp_min(1e-30).log().sum()
        total = z_var + 0.09
        mask = torch.zeros_like(z).scatter_(1, softmax.nodes[labels], 1.0)
        wanted = torch.zeros_like(z).scatter_(1, softmax.nodes[labels], softmax.signs[labels])
        d_mean, d_var = mask * (wanted - z) / total, -mask / total
        for (w, w_var, b, b_var), (a, gate) in zip(reversed(weights), reversed(seen), strict=True):
            changes = (
                (w, w_var, d_mean.T @ a, d_var.T @ (a * a)),
                (b, b_var, d_mean.sum(0), d_var.sum(0)),
            )
            d_mean, d_var = (d_mean @ w) * gate, (d_var @ (w * w)) * gate * gate
            for value, value_var, mean_part, var_part in changes:
                limit = value_var.sqrt() / 2
                delta, delta_var = value_var * mean_part, value_var * value_var * var_part
                value += torch.clamp(delta, -limit, limit)
                value_var += torch.clamp(delta_var, -limit, limit)
                value_var[value_var <= 0] = 1e-5
        return loss

    return step


def measure(ours: Epoch, theirs: Epoch, rounds: int) -> dict[str, Any]:
    """Samples per processor second of both, and the ratio."""

    def speed(epoch: Epoch) -> float:
        rows, started = 0, time.process_time()
        while rows == 0 or time.process_time() - started < 0.4:
            rows += epoch()
        return rows / (time.process_time() - started)

    speed(ours), speed(theirs)
    pairs = []
    for number in range(rounds):
        # Whoever is second finds the caches as the first has left them: they swap.
        first, second = (ours, theirs) if number % 2 else (theirs, ours)
        one, two = speed(first), speed(second)
        pairs.append((one, two) if number % 2 else (two, one))
    return {
        "samples_per_cpu_s": round(statistics.median(pair[0] for pair in pairs), 1),
        "plain_samples_per_cpu_s": round(statistics.median(pair[1] for pair in pairs), 1),
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Programs against plain loops, on one rank.")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "multinode_ddp_mpi.py --model mlp": ddp("mlp"),
            "multinode_ddp_mpi.py --model cnn": ddp("cnn"),
            "multinode_ddp_mpi.py --model resnet18": ddp("resnet18"),
            "train_mnist_ddp.py": mnist(),
            "train_sgd_mpi.py": sgd_mpi(),
            "train_parameter_averaging.py": average_parameters(),
            "train_imagenette.py --net-name resnet18": imagenette(Path(folder)),
            "train_tagi.py": tagi(),
        }
        results = {name: measure(*case, options.rounds) for name, case in cases.items()}
    text = json.dumps(
        {
            "schema": 1,
            "benchmark": "workloads",
            "limit": LIMIT,
            "ranks": 1,
            "threads": 1,
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "programs": results,
        },
        indent=2,
    )
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return 0 if all(row["ratio"] >= LIMIT for row in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
