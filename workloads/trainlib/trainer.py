"""Data-parallel training of a small network, the same on CPU and GPU.

The method is synchronous data-parallel SGD: every rank computes the gradient of its own rows, the
mean over the ranks is applied everywhere, so that all ranks hold equal weights (PyTorch's
DistributedDataParallel, Li et al., VLDB 2020, arXiv 2006.15704). Program and arguments follow
`multinode.py` of pytorch/examples' distributed tutorial.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from trainlib import data, metrics, models, snapshots
from trainlib.errors import Stopped, UsageError
from trainlib.options import Options
from trainlib.program import put
from trainlib.ranks import Ranks, discover
from trainlib.session import Session
from trainlib.signals import StopRequest

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """What a program runs on, and how it names its ranks and its time."""

    gpu: bool
    rank: str
    elapsed: str


CPU = Kind(False, "Rank", "Elapsed time: {:.4f} seconds")
GPU = Kind(True, "GPU", "Training took {:.4f} s")


def run(options: Options, kind: Kind) -> int:
    """Train as the options say; returns the exit code 0.

    Raises:
        WorkloadError: See its subclasses; the same on all ranks where all are concerned.
        Stopped: After a signal, once the snapshot is written.
    """
    ranks = discover()
    torch.set_num_threads(threads(ranks))
    torch.manual_seed(options.seed)
    with Session(ranks) as session:
        dataset = session.agree(lambda: _load(options, ranks))
        if kind.gpu:
            session.use_gpus(allow_cpu=options.allow_cpu)
        session.open(options.backend)
        Trainer(session, options, kind, dataset.to(session.device)).train()
    return 0


def _load(options: Options, ranks: Ranks) -> data.Dataset:
    dataset = data.load(options.dataset, options.seed)
    data.shard(len(dataset.train), ranks.rank, ranks.world, options.seed, 0)
    return dataset


def threads(ranks: Ranks) -> int:
    """Threads for torch: OMP_NUM_THREADS, else this rank's part of the cores it may use."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > 0:
        return int(text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // ranks.local_world)


def train_epoch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Loss,
    batches: Iterable[Batch],
) -> tuple[torch.Tensor, int, int]:
    """One step per batch; returns (mean loss over the rows as a scalar tensor, steps, rows).

    Nothing here waits for the device: the losses are looked at once an epoch.
    """
    losses: list[torch.Tensor] = []
    sizes: list[int] = []
    for inputs, targets in batches:
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        sizes.append(len(inputs))
    stacked = torch.stack(losses)
    weights = torch.tensor(sizes, dtype=stacked.dtype, device=stacked.device)
    return (stacked * weights).sum() / weights.sum(), len(losses), sum(sizes)


class Trainer:
    """Model, optimizer and where the training stands."""

    def __init__(
        self, session: Session, options: Options, kind: Kind, dataset: data.Dataset
    ) -> None:
        self.session = session
        self.options = options
        self.dataset = dataset
        self.kind = kind
        self.tag = f"[{kind.rank}{session.ranks.rank}]"
        self.epochs_done = 0
        self.loss_of: Loss = (
            torch.nn.functional.cross_entropy if dataset.classes else torch.nn.functional.mse_loss
        )
        self.model = models.mlp(dataset.train.inputs.shape[1], dataset.classes or 1)
        self.model.to(session.device)
        self.optimizer = sgd(self.model.parameters(), lr=0.1)
        self.identity = {
            "data set": dataset.name,
            "model": models.signature(self.model),
            "optimizer": type(self.optimizer).__name__,
        }
        self.setting = {
            "seed": str(options.seed),
            "batch size": str(options.batch_size),
            "ranks": str(session.ranks.world),
            "backend": session.backend,
            "device": session.device.type,
        }

    def train(self) -> None:
        """Resume if there is a snapshot, train, save and report."""
        self._resume()
        options, lead = self.options, self.session.ranks.rank == 0
        if lead:
            self._print(
                f"Backend: {self.session.backend} ({self.session.description}) | "
                f"Ranks: {self.session.ranks.world} | Device: {self.session.device.type} | "
                f"Data: {self.dataset.name} ({len(self.dataset.train)} + "
                f"{len(self.dataset.test)} rows) | Seed: {options.seed}"
            )
        if self.epochs_done >= options.total_epochs:
            if lead:
                self._print(
                    f"{options.snapshot} has {self.epochs_done} of {options.total_epochs} epochs: "
                    "already finished, nothing to train"
                )
        else:
            parallel = self.session.data_parallel(self.model)
            self._settle(parallel)
            started = time.perf_counter()
            with StopRequest() as stop:
                for epoch in range(self.epochs_done, options.total_epochs):
                    self._epoch(parallel, epoch, stop)
            self._print(self.kind.elapsed.format(time.perf_counter() - started))
        report = metrics.evaluate(self.session, self.model, self.dataset)
        if lead:
            self._print(report)

    def _epoch(self, parallel: torch.nn.Module, epoch: int, stop: StopRequest) -> None:
        options, ranks = self.options, self.session.ranks
        batches = data.batches(
            self.dataset.train, options.batch_size, ranks.rank, ranks.world, options.seed, epoch
        )
        loss, steps, rows = train_epoch(parallel, self.optimizer, self.loss_of, batches)
        self.epochs_done = epoch + 1
        self._print(
            f"Epoch {epoch} | Batchsize: {min(options.batch_size, rows)} | Steps: {steps} | "
            f"Loss: {loss.item():.6g}"
        )
        # A signal reaches the ranks at different moments, but they can only stop together: one
        # that left alone would leave the others waiting in a collective.
        signum = self.session.communicator.maximum(stop.signum)
        due = self.epochs_done % options.save_every == 0
        if due or signum or self.epochs_done == options.total_epochs:
            self._save()
        if signum and self.epochs_done < options.total_epochs:
            if ranks.rank == 0:
                name = signal.Signals(signum).name
                self._print(f"{name}: stopped after epoch {epoch}, saved in {options.snapshot}")
            raise Stopped(signum)

    def _settle(self, parallel: torch.nn.Module) -> None:
        """One forward and backward pass whose gradients are thrown away.

        After its first backward pass DDP orders the gradients in its buckets anew, and for more
        than two ranks the order in which a sum is rounded depends on the place in the bucket.
        Getting that over with before the first real step makes a resumed training, which starts
        with new buckets, add up exactly as one that was never interrupted.
        """
        buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        with torch.random.fork_rng(devices=[]):
            train = self.dataset.train
            for _ in range(2):
                self.loss_of(parallel(train.inputs[:2]), train.targets[:2]).backward()
                self.optimizer.zero_grad()
        for name, value in self.model.named_buffers():
            value.copy_(buffers[name])

    def _resume(self) -> None:
        session, path = self.session, self.options.snapshot

        def read() -> bytes:
            snapshots.check_place(path)
            content = snapshots.read(path)
            if content:
                snapshots.parse(content, path, self.identity)
            return content

        content = session.on_rank0(read)
        if not content:
            return
        snapshot = snapshots.parse(content, path, self.identity)
        session.agree(lambda: self._adopt(snapshot))
        if session.ranks.rank == 0:
            self._print(f"Resuming from {path} after {snapshot.epochs} epochs")
            changes = [
                f"{key} {snapshot.setting.get(key)} -> {value}"
                for key, value in self.setting.items()
                if snapshot.setting.get(key) != value
            ]
            if changes:
                self._print(
                    f"Note: {', '.join(changes)}: the result will not be bit-equal to a run "
                    "without interruption"
                )

    def _adopt(self, snapshot: snapshots.Snapshot) -> None:
        try:
            self.model.load_state_dict(snapshot.model)
            self.optimizer.load_state_dict(snapshot.optimizer)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"the snapshot {self.options.snapshot} does not fit this model",
                "move it away to start afresh, or give another --snapshot",
            ) from error
        self.epochs_done = snapshot.epochs

    def _save(self) -> None:
        if self.session.ranks.rank == 0:
            snapshots.save(
                self.options.snapshot,
                snapshots.Snapshot(
                    self.epochs_done,
                    self.model.state_dict(),
                    self.optimizer.state_dict(),
                    self.identity,
                    self.setting,
                ),
            )

    def _print(self, text: str) -> None:
        put(f"{self.tag} {text}")


def sgd(parameters: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """SGD with momentum 0.9, one kernel for all parameters."""
    options: dict[str, Any] = {"momentum": 0.9, "fused": True}
    return torch.optim.SGD(parameters, lr=lr, **options)
