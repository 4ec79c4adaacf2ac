"""Training a classifier with TAGI, on this rank's part of the data."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from dataclasses import dataclass

import torch

from trainlib import augment, data, metrics
from trainlib.epochs import Epochs
from trainlib.errors import Diverged
from trainlib.program import print_line, print_metrics
from trainlib.ranks import discover
from trainlib.rows import Dataset
from trainlib.session import Session
from trainlib.tagi import models
from trainlib.tagi.layers import Sequential
from trainlib.tagi.output import HierarchicalSoftmax
from trainlib.tagi.parallel import DDPConfig, DDPSequential
from trainlib.trainer import count_threads


@dataclass(frozen=True)
class Preset:
    """What an option is when it is not given; those of cuTAGI's examples, but for the digits."""

    epochs: int
    batch_size: int
    sigma_v: float
    gain: float
    activation: str


PRESETS = {
    "digits": Preset(10, 16, 0.3, 1.0, "relu"),
    "mnist": Preset(10, 256, 0.1, 1.0, "relu"),
    "cifar10": Preset(2, 128, 0.1, 0.1, "mixture"),
}


def run(options: Namespace) -> int:
    """Train as the options say (see `train_tagi.parse`); returns 0.

    Raises:
        WorkloadError: See its subclasses.
    """
    ranks = discover()
    torch.set_num_threads(count_threads(ranks))
    preset = PRESETS[options.dataset]
    for name, value in vars(preset).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    # Convolutions on GPUs may round to ten bits unless told: few, for moments.
    torch.backends.cudnn.allow_tf32 = False
    with Session(ranks) as session, torch.inference_mode():
        dataset = session.agree(lambda: _load(options, ranks.world))
        if not options.cpu:
            session.use_gpus(allow_cpu=True)
        session.open(options.backend)
        train(session, options, dataset.to(session.device))
    return 0


def _load(options: Namespace, world: int) -> Dataset:
    dataset = data.load(options.dataset, options.seed, folder=options.data)
    return data.require_rows(dataset, world)


def build_network(options: Namespace, dataset: Dataset, units: int) -> Sequential:
    """The network for the data set, its means drawn from the seed."""
    torch.manual_seed(options.seed)
    if options.dataset == "digits":
        return models.mlp(dataset.train.shape[0], units, options.activation, options.gain)
    if options.dataset == "mnist":
        return models.mnist_cnn(units, options.activation, options.gain)
    return models.resnet18(units, options.activation, options.gain)


def train(session: Session, options: Namespace, dataset: Dataset) -> DDPSequential:
    """All epochs, with the test accuracy after each."""
    ranks = session.ranks
    softmax = HierarchicalSoftmax(dataset.classes, session.device)
    bare = build_network(options, dataset, softmax.units)
    bare.to(session.device)
    model = DDPSequential(bare, DDPConfig.of(session), average=options.average)
    if ranks.rank == 0:
        print_line(
            f"Backend: {session.backend} ({session.description}) | Ranks: {ranks.world} | "
            f"Device: {session.device.type} | Data: {dataset.name} ({len(dataset.train)} + "
            f"{len(dataset.test)} rows) | Updates: {'mean' if options.average else 'sum'} | "
            f"sigma_v: {options.sigma_v:g} | Gain: {options.gain:g} | Seed: {options.seed}"
        )
    sizes = " ".join(str(tuple(parameter.mean.shape)) for parameter in bare.parameters())
    identity = {"data set": dataset.name, "model": sizes}
    with Epochs(
        options.epochs, {"model": model}, session=session, path=options.snapshot, identity=identity
    ) as epochs:
        for epoch in epochs:
            started = time.perf_counter()
            rows, loss = _run_epoch(session, options, dataset, model, softmax, epoch)
            seconds = time.perf_counter() - started
            total, loss, speed = session.communicator.sum([rows, loss, rows / seconds])
            if not math.isfinite(loss):
                raise Diverged(
                    epoch, f"try a --sigma-v above {options.sigma_v:g}, or a smaller --gain"
                )
            correct = evaluate(session, dataset, bare, softmax)
            if ranks.rank == 0:
                rows = len(dataset.test)
                print_line(
                    f"Epoch {epoch} | Loss: {loss / total:.6g} | Throughput: {speed:.1f} samples/s"
                    f" | Test accuracy: {correct / rows:.4f} ({correct}/{rows})"
                )
                if options.metrics:
                    print_metrics(
                        epoch=epoch,
                        epochs=options.epochs,
                        loss=loss / total,
                        test_accuracy=correct / rows,
                        samples_per_second=speed,
                        seconds=seconds,
                    )
    return model


def _run_epoch(
    session: Session,
    options: Namespace,
    dataset: Dataset,
    model: DDPSequential,
    softmax: HierarchicalSoftmax,
    epoch: int,
) -> tuple[float, float]:
    """Rows seen, and the sum of -log P(true class) before each update."""
    ranks = session.ranks
    generator = torch.Generator().manual_seed(
        data.mix(options.seed, epoch * ranks.world + ranks.rank)
    )
    rows = 0
    loss = torch.zeros((), device=session.device)
    batches = data.iterate_batches(
        dataset.train, options.batch_size, ranks.rank, ranks.world, options.seed, epoch
    )
    for inputs, labels in batches:
        if options.dataset == "cifar10":
            inputs = augment.crop_and_mirror(inputs, generator)
        mean, var = model.forward(inputs)
        chances = softmax.compute_probabilities(mean, var)
        loss -= chances.gather(1, labels.view(-1, 1)).clamp_min(1e-30).log().sum()
        model.backward(*softmax.compute_innovation(mean, var, labels, options.sigma_v))
        model.step(len(inputs))
        rows += len(inputs)
    return float(rows), float(loss.item())


def evaluate(
    session: Session, dataset: Dataset, model: Sequential, softmax: HierarchicalSoftmax
) -> int:
    """How many rows of the whole test split are right; each rank looks at its part."""
    ranks = session.ranks
    correct = torch.zeros((), dtype=torch.int64, device=session.device)
    model.train(False)
    # Fewer than a GPU could have: each layer keeps its moments and Jacobians, also while testing.
    rows = metrics.choose_batch_rows(dataset, torch.device("cpu"))
    for inputs, labels in metrics.take_part_of_test(dataset, ranks.rank, ranks.world, rows):
        chances = softmax.compute_probabilities(*model.forward(inputs))
        correct += (chances.argmax(dim=1) == labels).sum()
    model.train()
    return round(session.communicator.sum([float(correct.item())])[0])
