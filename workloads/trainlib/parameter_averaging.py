"""Parameter averaging: a master that averages, and workers that train, over MPI point-to-point.

After paultsw/mnist_mpi. Each epoch the master sends its weights w to K workers, each of which makes
an epoch of SGD from there, and then

    w <- (1/K) sum over the workers of SGD_epoch(w; rows and dropout of that worker)

(McDonald, Hall and Mann, NAACL 2010; local SGD with one epoch between averages). As in the seed, a
worker forgets its momentum between epochs, and goes over all rows unless they are dealt out.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainlib import data, metrics, models
from trainlib.epochs import Epochs
from trainlib.errors import Diverged, StartError
from trainlib.program import print_line, print_metrics
from trainlib.ranks import Ranks, discover
from trainlib.rows import Dataset
from trainlib.session import Session
from trainlib.steps import train_epoch
from trainlib.trainer import count_threads

_WEIGHTS, _TRAINED, _LOSS = 1, 2, 3  # tags of the messages


def run(options: Namespace) -> int:
    """Train as the options say (see `train_parameter_averaging.parse`); returns 0.

    Raises:
        StartError: There is no worker, or no MPI.
        WorkloadError: See its subclasses.
    """
    ranks = discover()
    torch.set_num_threads(count_threads(ranks))
    with Session(ranks, over_mpi=True) as session:
        if ranks.world < 2:
            raise StartError(
                "at least one worker is needed besides the master, but this is the only process",
                "start it with mpirun -np 2 or more",
                everywhere=True,
            )
        dataset = session.agree(lambda: _load(options, ranks))
        torch.manual_seed(options.seed)
        model = models.build("averaging_cnn", dataset.train.shape, dataset.image, dataset.classes)
        role = run_master if ranks.rank == 0 else run_worker
        identity = {"data set": dataset.name, "model": models.signature(model)}
        # The master's weights are all that an epoch begins with.
        with Epochs(
            options.nepochs,
            {"model": model},
            session=session,
            path=options.snapshot,
            identity=identity,
        ) as epochs:
            role(session, model, dataset, options, epochs)
    return 0


def _load(options: Namespace, ranks: Ranks) -> Dataset:
    dataset = data.load(options.dataset, options.seed, folder=options.data)
    return data.require_rows(dataset, ranks.world - 1)


def run_master(
    session: Session,
    model: torch.nn.Module,
    dataset: Dataset,
    options: Namespace,
    epochs: Iterable[int],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Rank 0: hand out, collect, average in the order of the ranks, validate."""
    comm = session.mpi.COMM_WORLD
    workers = session.ranks.world - 1
    print_line(
        f"Master of {workers} workers | Data: {dataset.name} ({len(dataset.train)} + "
        f"{len(dataset.test)} rows, {'split up' if options.shard else 'all for each'}) | "
        f"Seed: {options.seed}"
    )
    for epoch in epochs:
        started = clock()
        weights = flatten(model).numpy()
        sending = [comm.Isend(weights, rank, _WEIGHTS) for rank in range(1, workers + 1)]
        trained = torch.empty(workers, weights.size)
        losses = torch.empty(workers, 2, dtype=torch.float64)
        receiving: list[Any] = []
        for row in range(workers):
            receiving.append(comm.Irecv(trained[row].numpy(), row + 1, _TRAINED))
            receiving.append(comm.Irecv(losses[row].numpy(), row + 1, _LOSS))
        session.mpi.Request.Waitall([*sending, *receiving])
        # Whoever was first: the sum is made in the order of the ranks, and repeats bit for bit.
        fill(model, trained.double().mean(dim=0).float())
        loss, rows = losses[:, 0].mean().item(), losses[:, 1].sum().item()
        validation, accuracy = metrics.score(None, model, dataset)
        if not math.isfinite(loss + validation):
            # The workers wait for the next weights and hear nothing of it.
            raise Diverged(epoch, f"try an --lr below {options.lr:g}", everywhere=False)
        seconds = clock() - started
        speed = rows / seconds
        print_line(
            f"Epoch {epoch} | Loss: {loss:.6g} | Validation loss: {validation:.6g} | "
            f"Accuracy: {accuracy:.4f} | Throughput: {speed:.1f} samples/s"
        )
        if options.metrics:
            print_metrics(
                epoch=epoch,
                epochs=options.nepochs,
                loss=loss,
                validation_loss=validation,
                validation_accuracy=accuracy,
                samples_per_second=speed,
                seconds=seconds,
            )


def run_worker(
    session: Session,
    model: torch.nn.Module,
    dataset: Dataset,
    options: Namespace,
    epochs: Iterable[int],
) -> None:
    """The other ranks: an epoch of SGD from the master's weights, and back with the result."""
    comm = session.mpi.COMM_WORLD
    received = flatten(model)
    for epoch in epochs:
        comm.Recv(received.numpy(), 0, _WEIGHTS)
        fill(model, received)
        loss, rows = train_worker(model, dataset, options, session.ranks, epoch)
        comm.Send(flatten(model).numpy(), 0, _TRAINED)
        comm.Send(torch.tensor([loss, rows], dtype=torch.float64).numpy(), 0, _LOSS)


def train_worker(
    model: torch.nn.Module, dataset: Dataset, options: Namespace, ranks: Ranks, epoch: int
) -> tuple[float, int]:
    """One worker's epoch; returns (mean loss, rows)."""
    number, workers = ranks.rank - 1, ranks.world - 1
    stream = epoch * workers + number
    torch.manual_seed(data.mix(options.seed, stream))  # dropout
    if options.shard:
        batches = data.iterate_batches(
            dataset.train, options.batch_size, number, workers, options.seed, epoch
        )
    else:
        # All rows, in an order of its own.
        batches = data.iterate_batches(
            dataset.train, options.batch_size, 0, 1, options.seed, stream
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    loss, _, rows = train_epoch(model, optimizer, torch.nn.functional.cross_entropy, batches)
    return float(loss.item()), rows


def flatten(model: torch.nn.Module) -> torch.Tensor:
    """All parameters, one after the other, as a copy."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def fill(model: torch.nn.Module, weights: torch.Tensor) -> None:
    """Give the parameters the values in `weights` (see `flat`)."""
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(weights.clone(), model.parameters())
