"""MNIST with DDP: Adadelta, a learning rate that falls by steps, the whole test set over all ranks.

After DistributedTraining of bu-rcs/access-multi-gpu, which is `mnist/main.py` of pytorch/examples
in DistributedDataParallel. Adadelta: Zeiler, arXiv 1212.5701. Unlike there the rows are shuffled
anew in each epoch (`DistributedSampler.set_epoch`), and each rank tests its part of the test set.
"""

from __future__ import annotations

import itertools
import math
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import torch

from trainlib import data, metrics, models, snapshots
from trainlib.epochs import Epochs, Part
from trainlib.errors import Diverged
from trainlib.program import print_line, print_metrics
from trainlib.ranks import discover
from trainlib.rows import Batch, Dataset
from trainlib.session import Session
from trainlib.trainer import count_threads

_MODEL = Path("mnist_cnn.pt")


def run(options: Namespace) -> int:
    """Train as the options say (see `train_mnist_ddp.parse`); returns 0.

    Raises:
        WorkloadError: See its subclasses.
    """
    ranks = discover()
    torch.set_num_threads(count_threads(ranks))
    with Session(ranks) as session:
        dataset = session.agree(lambda: _load(options, session))
        if not options.no_cuda:
            session.use_gpus(allow_cpu=True)
        session.open(options.backend)
        _train(session, options, dataset.to(session.device))
    return 0


def _load(options: Namespace, session: Session) -> Dataset:
    if options.save_model and session.ranks.rank == 0:
        snapshots.check_place(_MODEL)
    dataset = data.load(options.dataset, options.seed, folder=options.data)
    return data.require_rows(dataset, session.ranks.world)


def _train(session: Session, options: Namespace, dataset: Dataset) -> None:
    ranks = session.ranks
    tag = f"[Rank{ranks.rank}]"
    torch.manual_seed(options.seed)
    model = models.build("cnn", dataset.train.shape, dataset.image, dataset.classes)
    model.to(session.device)
    parallel = session.data_parallel(model)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=options.gamma)
    if ranks.rank == 0:
        print_line(
            f"Backend: {session.backend} ({session.description}) | Ranks: {ranks.world} | "
            f"Device: {session.device.type} | Data: {dataset.name} ({len(dataset.train)} + "
            f"{len(dataset.test)} rows) | Seed: {options.seed}"
        )
    parts: dict[str, Part] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    identity = {"data set": dataset.name, "model": models.signature(model)}
    with Epochs(
        1 if options.dry_run else options.epochs,
        parts,
        session=session,
        path=options.snapshot,
        identity=identity,
    ) as epochs:
        for epoch in epochs:
            # Dropout: another one on each rank, and the same again with the same seed.
            torch.manual_seed(data.mix(options.seed, epoch * ranks.world + ranks.rank))
            started = time.perf_counter()
            batches = data.iterate_batches(
                dataset.train, options.batch_size, ranks.rank, ranks.world, options.seed, epoch
            )
            if options.dry_run:
                batches = itertools.islice(batches, 1)
            rows = train_epoch(parallel, optimizer, batches, f"{tag} Epoch {epoch}", options)
            schedule.step()
            if session.device.type == "cuda":
                torch.cuda.synchronize()  # what was only begun counts, too
            seconds = time.perf_counter() - started
            speed = session.communicator.sum([rows / seconds])[0]
            test_loss, accuracy = metrics.score(session, model, dataset, options.test_batch_size)
            if not math.isfinite(test_loss):
                raise Diverged(epoch, f"try an --lr below {options.lr:g}")
            if ranks.rank == 0:
                print_line(
                    f"{tag} Epoch {epoch} | Test loss: {test_loss:.6g} | Test accuracy: "
                    f"{accuracy:.4f} | Throughput: {speed:.1f} samples/s"
                )
                if options.metrics:
                    print_metrics(
                        epoch=epoch,
                        epochs=options.epochs,
                        test_loss=test_loss,
                        test_accuracy=accuracy,
                        samples_per_second=speed,
                        seconds=seconds,
                    )
    if options.save_model and ranks.rank == 0:
        snapshots.write(_MODEL, model.state_dict())


def train_epoch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    title: str,
    options: Namespace,
) -> int:
    """One step per batch, the loss of each `log_interval`-th printed; returns the rows seen."""
    rows = 0
    for step, (inputs, targets) in enumerate(batches):
        optimizer.zero_grad()
        loss = torch.nn.functional.nll_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        rows += len(inputs)
        if step % options.log_interval == 0:
            print_line(f"{title} | Step {step} | Loss: {loss.item():.6g}")
    return rows
