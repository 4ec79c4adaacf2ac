"""The two training programs of the MPI SGD optimizer: an MLP on MNIST, and image folders.

After the examples of deephealthproject's promort_pipeline, branch sgd_mpi. Metrics are means over
all rows of all ranks.
"""

from __future__ import annotations

import json
import math
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainlib import backends, cpp_sgd, data, folders, images, metrics, models, readers, snapshots
from trainlib.cpp_sgd import CppSGD
from trainlib.epochs import Epochs, Part
from trainlib.errors import Diverged, UsageError, WorkloadError
from trainlib.mpi_sgd import MpiSGD
from trainlib.program import print_line, print_metrics
from trainlib.ranks import discover
from trainlib.rows import Dataset, Rows
from trainlib.session import Session
from trainlib.steps import train_epoch
from trainlib.trainer import count_threads


def run_mnist(options: Namespace) -> int:
    """`train_sgd_mpi.py` with the options of `train_sgd_mpi.parse`; returns 0.

    Raises:
        StartError: No MPI, or no GPU where one is asked for.
        WorkloadError: See its other subclasses.
    """
    ranks = discover()
    torch.set_num_threads(count_threads(ranks))
    with Session(ranks, over_mpi=True) as session:
        dataset = session.agree(lambda: _load(options, ranks.world))
        if options.gpu:
            session.use_gpus(allow_cpu=False)
        torch.manual_seed(options.seed)
        model = models.leaky_mlp(math.prod(dataset.train.shape), dataset.classes, options.hidden)
        optimizer = _make_optimizer(session, model, options, options.weight_decay)
        _Training(session, options, dataset.to(session.device), model, optimizer).run()
    return 0


def run_imagenette(options: Namespace) -> int:
    """`train_imagenette.py` with the options of `train_imagenette.parse`; returns 0.

    Raises:
        StartError: No MPI, no Pillow, or no GPU where one is asked for.
        WorkloadError: See its other subclasses.
    """
    ranks = discover()
    missing = backends.mask_gpus(options.gpu or ())
    torch.set_num_threads(count_threads(ranks))
    with Session(ranks, over_mpi=True) as session:
        session.agree(lambda: _refuse(missing))
        dataset = session.agree(lambda: data.require_rows(_from_yaml(options), ranks.world))
        if options.gpu is not None:
            session.use_gpus(allow_cpu=False)
        torch.manual_seed(options.seed)
        model = session.agree(lambda: _build_network(options, dataset))
        optimizer = _make_optimizer(session, model, options, options.l2_reg)
        training = _Training(session, options, dataset.to(session.device), model, optimizer)
        if options.augs_on:
            training.rows_of_epoch = _augment(training.dataset.train, options.seed)
        training.patience = options.patience
        training.history_path = options.out_dir / "history.json"
        if options.save_weights:
            training.weights_path = options.out_dir / "weights.pt"
        training.run()
    return 0


def _refuse(error: UsageError | None) -> None:
    if error:
        raise error


def _load(options: Namespace, world: int) -> Dataset:
    dataset = data.load(options.dataset, options.seed, folder=options.data, images=True)
    return data.require_rows(dataset, world)


def _from_yaml(options: Namespace) -> Dataset:
    if options.dropout is not None and options.dropout >= 1:
        raise UsageError(f"--dropout {options.dropout:g} drops everything", "give less than 1")
    snapshots.check_place(options.out_dir / "history.json", "--out-dir")
    path = readers.find_pushed(options.yml_in)
    index = folders.read_index(path)
    train, validation = (
        images.from_index(path, index, part, options.patch_size)
        for part in ("training", "validation")
    )
    for split in (train, validation):
        images.read(split.paths[0], split.size)  # before any rank trains
    size = options.patch_size
    return Dataset(index.name or path.stem, len(index.classes), train, validation, (3, size, size))


def _build_network(options: Namespace, dataset: Dataset) -> torch.nn.Module:
    shape = dataset.train.shape
    if options.net_name == "vgg16":
        if options.patch_size < 32:
            raise UsageError("--patch-size below 32 is too small for VGG-16", "give 32 or more")
        dropout = 0.5 if options.dropout is None else options.dropout
        return models.vgg16(shape, dataset.classes, dropout)
    depth = int(options.net_name.removeprefix("resnet"))
    return models.resnet(depth, shape, dataset.classes, options.dropout or 0.0)


def _make_optimizer(
    session: Session, model: torch.nn.Module, options: Namespace, weight_decay: float
) -> MpiSGD | CppSGD:
    model.to(session.device)
    nesterov = getattr(options, "nesterov", False)
    if nesterov and options.momentum == 0:
        raise UsageError("--nesterov needs a --momentum above 0", "give one", everywhere=True)
    kind: type[MpiSGD | CppSGD] = MpiSGD
    if getattr(options, "optimizer", "") == "cpp":
        kind = CppSGD
        session.agree(cpp_sgd.load)  # a node without a compiler ends all ranks
    return kind(
        model.parameters(),
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=weight_decay,
        nesterov=nesterov,
        sync_iterations=options.sync_iterations,
    )


def _augment(rows: Rows, seed: int) -> Callable[[int], Rows]:
    assert isinstance(rows, images.ImageFiles)
    files = rows
    return lambda epoch: files.augment(seed, epoch)


class _Training:
    """All epochs: train, average, validate, note, and stop when nothing gets better."""

    def __init__(
        self,
        session: Session,
        options: Namespace,
        dataset: Dataset,
        model: torch.nn.Module,
        optimizer: MpiSGD | CppSGD,
    ) -> None:
        self.session, self.options, self.dataset = session, options, dataset
        self.model, self.optimizer = model, optimizer
        self.rows_of_epoch: Callable[[int], Rows] = lambda epoch: dataset.train
        self.patience: int | None = None
        """Epochs without a smaller validation loss after which the training ends."""
        self.history_path: Path | None = None
        self.weights_path: Path | None = None
        self.history: list[dict[str, float]] = []
        self.best, self.since = math.inf, 0
        """The smallest validation loss, and the epochs since."""

    def run(self) -> None:
        lead = self.session.ranks.rank == 0
        if lead:
            how = "gradients at each step"
            if self.options.sync_iterations > 1:
                how = f"weights after each {self.options.sync_iterations} steps"
            print_line(
                f"Backend: {self.session.backend} ({self.session.description}) | Ranks: "
                f"{self.session.ranks.world} | Device: {self.session.device.type} | Data: "
                f"{self.dataset.name} ({len(self.dataset.train)} + {len(self.dataset.test)} rows) "
                f"| Averaged: {how} | Seed: {self.options.seed}"
            )
        parts: dict[str, Part] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "progress": self,
        }
        identity = {"data set": self.dataset.name, "model": models.signature(self.model)}
        with Epochs(
            self.options.epochs,
            parts,
            session=self.session,
            path=self.options.snapshot,
            identity=identity,
        ) as epochs:
            for epoch in epochs:
                if self._finish_epoch(epoch, lead):
                    break

    def _finish_epoch(self, epoch: int, lead: bool) -> bool:
        """Trains an epoch; returns whether that was enough."""
        row = self._run_epoch(epoch)
        if not math.isfinite(row["loss"] + row["validation_loss"]):
            raise Diverged(epoch, f"try an --lr below {self.options.lr:g}")
        self.history.append(row)
        better = row["validation_loss"] < self.best
        self.best, self.since = (
            (row["validation_loss"], 0) if better else (self.best, self.since + 1)
        )
        if lead:
            print_line(
                f"Epoch {epoch} | Loss: {row['loss']:.6g} | Validation loss: "
                f"{row['validation_loss']:.6g} | Validation accuracy: "
                f"{row['validation_accuracy']:.4f} | Throughput: {row['rows_per_s']:.1f} "
                "samples/s"
            )
            if self.options.metrics:
                print_metrics(
                    epoch=epoch,
                    epochs=self.options.epochs,
                    loss=row["loss"],
                    validation_loss=row["validation_loss"],
                    validation_accuracy=row["validation_accuracy"],
                    samples_per_second=row["rows_per_s"],
                )
            self._save(better)
        # All ranks have the same numbers, and decide alike.
        enough = self.patience is not None and self.since >= self.patience
        if enough and lead:
            print_line(f"Stopped: no better validation loss for {self.since} epochs")
        return enough

    def state_dict(self) -> dict[str, Any]:
        """What decides when to stop, and has been noted."""
        return {"history": self.history, "best": self.best, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history, self.best, self.since = state["history"], state["best"], state["since"]

    def _run_epoch(self, epoch: int) -> dict[str, float]:
        ranks, options = self.session.ranks, self.options
        # Dropout: another one on each rank, and the same again with the same seed.
        torch.manual_seed(data.mix(options.seed, epoch * ranks.world + ranks.rank))
        started = time.perf_counter()
        batches = data.iterate_batches(
            self.rows_of_epoch(epoch),
            options.batch_size,
            ranks.rank,
            ranks.world,
            options.seed,
            epoch,
        )
        loss_of = torch.nn.functional.cross_entropy
        loss, _, rows = train_epoch(self.model, self.optimizer, loss_of, batches)
        own = [loss.item() * rows, float(rows), rows / (time.perf_counter() - started)]
        self.optimizer.synchronize()
        self.session.average_buffers(self.model)
        total, count, speed = self.session.communicator.sum(own)
        validation, accuracy = metrics.score(self.session, self.model, self.dataset)
        return {
            "epoch": epoch,
            "loss": total / count,
            "validation_loss": validation,
            "validation_accuracy": accuracy,
            "rows_per_s": speed,
        }

    def _save(self, better: bool) -> None:
        if self.history_path is not None:
            document: dict[str, Any] = {"schema": 1, "epochs": self.history}
            try:
                self.history_path.write_text(json.dumps(document, indent=2) + "\n")
            except OSError as error:
                raise WorkloadError(
                    f"{self.history_path} cannot be written ({error.strerror})",
                    "free some space there",
                ) from error
        if self.weights_path is not None and better:
            snapshots.write(self.weights_path, self.model.state_dict())
