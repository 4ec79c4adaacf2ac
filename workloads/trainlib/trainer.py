"""Data-parallel training of a network, the same on CPU and GPU.

The method is synchronous data-parallel SGD: every rank computes the gradient of its own rows, the
mean over the ranks is applied everywhere, so that all ranks hold equal weights (PyTorch's
DistributedDataParallel, Li et al., VLDB 2020, arXiv 2006.15704). Program and arguments follow
`multinode.py` of pytorch/examples' distributed tutorial.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import torch

from trainlib import data, metrics, models, optimizers, snapshots
from trainlib.ddp_options import Options
from trainlib.epochs import SAVING, UNSAVED_S
from trainlib.errors import Diverged, StartError, Stopped, UsageError
from trainlib.program import print_line, print_metrics
from trainlib.ranks import Ranks, discover
from trainlib.rows import Dataset
from trainlib.session import Session
from trainlib.signals import StopRequest
from trainlib.steps import Loss, Recipe, train_epoch


@dataclass(frozen=True)
class Kind:
    """What a program runs on, and how it names its ranks and its time."""

    gpu: bool
    rank: str
    elapsed: str


_DIVERGED = 1 << 10
"""More than any signal's number."""

CPU = Kind(False, "Rank", "Elapsed time: {:.4f} seconds")
GPU = Kind(True, "GPU", "Training took {:.4f} s")


def run(options: Options, kind: Kind) -> int:
    """Train as the options say; returns the exit code 0.

    Raises:
        WorkloadError: See its subclasses; the same on all ranks where all are concerned.
        Stopped: After a signal, once the snapshot is written.
    """
    ranks = discover()
    torch.set_num_threads(count_threads(ranks))
    torch.manual_seed(options.seed)
    with Session(ranks) as session:
        dataset = session.agree(lambda: _load(options, ranks))
        if kind.gpu:
            session.use_gpus(allow_cpu=options.allow_cpu)
        session.agree(lambda: _check_precision(options, session.device))
        if options.compile:
            session.agree(lambda: _check_compiler(session.device))
        session.open(options.backend)
        Trainer(session, options, kind, dataset.to(session.device)).train()
    return 0


def _load(options: Options, ranks: Ranks) -> Dataset:
    dataset = data.load(
        options.dataset,
        options.seed,
        folder=options.data,
        image_size=options.image_size,
        images=options.model != "mlp",
    )
    return data.require_rows(dataset, ranks.world)


def _check_precision(options: Options, device: torch.device) -> None:
    if options.precision == "fp16" and device.type != "cuda":
        raise UsageError("--precision fp16 needs a GPU", "pass --precision bf16 or fp32")


def _check_compiler(device: torch.device) -> None:
    """Finds out before ranks wait for each other in a collective."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(8, device=device))
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
        said = next((line for line in lines if "error:" in line or "Compiler" in line), lines[0])
        raise StartError(
            f"torch.compile does not work here ({said})",
            "install g++ and Python's headers (python3-dev), or leave --compile out",
        ) from error


def emulates_bf16(device: torch.device) -> bool:
    """Whether this is a GPU without bf16 units, such as g4dn's T4: autocast works there, slowly."""
    return device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)


def count_threads(ranks: Ranks) -> int:
    """Threads for torch: OMP_NUM_THREADS, else this rank's part of the cores it may use."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > 0:
        return int(text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // ranks.local_world)


class Trainer:
    """Model, optimizer and where the training stands."""

    def __init__(self, session: Session, options: Options, kind: Kind, dataset: Dataset) -> None:
        self.session = session
        self.options = options
        self.dataset = dataset
        self.kind = kind
        self.tag = f"[{kind.rank}{session.ranks.rank}]"
        self.epochs_done = 0
        self._saved = time.monotonic()
        self._save_s = 0.0
        self.rows = 0
        self.loss_of: Loss = (
            torch.nn.functional.cross_entropy if dataset.classes else torch.nn.functional.mse_loss
        )
        self.model = session.agree(
            lambda: models.build(
                options.model, dataset.train.shape, dataset.image, dataset.classes or 1
            )
        )
        self.model.to(session.device)
        if session.device.type == "cuda" and options.model != "mlp":
            # cuDNN tries its kernels once and keeps the fastest: on GPUs a run does not repeat bit
            # for bit anyway, since additions into one place come in any order.
            torch.backends.cudnn.benchmark = True
            if not torch.version.hip or os.environ.get("PYTORCH_MIOPEN_SUGGEST_NHWC") == "1":
                # Tensor cores take images with the channels last; otherwise cuDNN converts each
                # time. MIOpen is handed what it wants by PyTorch, the other order unless told.
                self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = optimizers.make_sgd(self.model.parameters(), lr=options.lr)
        scaler = torch.amp.GradScaler("cuda") if options.precision == "fp16" else None
        self.recipe = Recipe(options.precision, options.accumulate, scaler)
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
            "learning rate": str(options.lr),
            "precision": options.precision,
            "accumulated batches": str(options.accumulate),
            "compression": options.compress,
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
            if options.precision == "bf16" and emulates_bf16(self.session.device):
                self._print(
                    "Note: this GPU computes bf16 more slowly than fp32; --precision fp16 is fast"
                )
        if self.epochs_done >= options.total_epochs:
            if lead:
                self._print(
                    f"{options.snapshot} has {self.epochs_done} of {options.total_epochs} epochs: "
                    "already finished, nothing to train"
                )
        else:
            # Batches have two sizes, the last of an epoch its own: kernels for each are faster than
            # those for any size.
            network: Any = (
                torch.compile(self.model, dynamic=False) if options.compile else self.model
            )
            parallel = self.session.data_parallel(network, compress=options.compress)
            self._settle(parallel)
            started = time.perf_counter()
            with StopRequest() as stop:
                for epoch in range(self.epochs_done, options.total_epochs):
                    self._run_epoch(parallel, epoch, stop)
            seconds = time.perf_counter() - started
            self._print(self.kind.elapsed.format(seconds))
            self._print_throughput(self.rows / seconds)
        report = metrics.evaluate(self.session, self.model, self.dataset)
        if lead:
            self._print(report)

    def _run_epoch(self, parallel: torch.nn.Module, epoch: int, stop: StopRequest) -> None:
        options, ranks = self.options, self.session.ranks
        batches = data.iterate_batches(
            self.dataset.train, options.batch_size, ranks.rank, ranks.world, options.seed, epoch
        )
        # What dropout draws follows from the epoch, so that a resumed training draws the same.
        torch.manual_seed(data.mix(options.seed, epoch * ranks.world + ranks.rank))
        before = self.session.traffic
        started = time.perf_counter()
        loss, steps, rows = train_epoch(
            parallel, self.optimizer, self.loss_of, batches, self.recipe
        )
        self.rows += rows
        self.session.average_buffers(self.model)
        self.epochs_done = epoch + 1
        self._print(
            f"Epoch {epoch} | Batchsize: {min(options.batch_size, rows)} | Steps: {steps} | "
            f"Loss: {loss.item():.6g}"
        )
        if options.metrics:
            seconds = time.perf_counter() - started
            split = self.session.split_time(seconds, before)
            self._print_metrics(epoch, steps, rows, loss.item(), seconds, split)
        sound = self._is_sound(loss.item())
        # A signal reaches the ranks at different moments, but they can only stop together: one
        # that left alone would leave the others waiting in a collective.
        signum = self.session.communicator.maximum(stop.signum if sound else _DIVERGED)
        if signum == _DIVERGED:
            raise Diverged(
                epoch,
                f"try an --lr below {options.lr:g}; this epoch is not in {options.snapshot}",
            )
        due = self.epochs_done % options.save_every == 0
        # Whoever is told to stop has seconds, and this may be the last epoch that ends in time.
        unsaved = time.monotonic() - self._saved
        due = due or unsaved > max(UNSAVED_S, SAVING * self._save_s)
        if due or signum or self.epochs_done == options.total_epochs:
            self._save()
        if signum and self.epochs_done < options.total_epochs:
            if ranks.rank == 0:
                name = signal.Signals(signum).name
                self._print(f"{name}: stopped after epoch {epoch}, saved in {options.snapshot}")
            raise Stopped(signum)

    def _print_metrics(
        self,
        epoch: int,
        steps: int,
        rows: int,
        loss: float,
        seconds: float,
        split: dict[str, float],
    ) -> None:
        """Means and sums over the ranks, from rank 0; all ranks have to call it."""
        total, count, speed = self.session.communicator.sum([loss * rows, rows, rows / seconds])
        if self.session.ranks.rank == 0:
            print_metrics(
                epoch=epoch,
                epochs=self.options.total_epochs,
                step=(epoch + 1) * steps,
                steps=self.options.total_epochs * steps,
                loss=total / count,
                samples_per_second=speed,
                seconds=seconds,
                **split,
            )

    def _is_sound(self, loss: float) -> bool:
        """Whether loss and weights are finite; the loss is from before the last step."""
        # The scaler leaves steps out whose gradients overflow, and then halves its factor: their
        # losses may be infinite, until nothing is left to halve.
        scaler = self.recipe.scaler
        if not math.isfinite(loss) and (scaler is None or scaler.get_scale() < 1):
            return False
        norms = torch._foreach_norm([one.detach() for one in self.model.parameters()])
        return bool(torch.stack(norms).isfinite().all())

    def _print_throughput(self, own: float) -> None:
        """Samples per second of this rank, and on rank 0 of all."""
        total = self.session.communicator.sum([own])[0]
        text = f"Throughput: {own:.1f} samples/s"
        if self.session.ranks.rank == 0:
            text += f" | Total: {total:.1f} samples/s on {self.session.ranks.world} ranks"
        self._print(text)

    def _settle(self, parallel: torch.nn.Module) -> None:
        """One forward and backward pass whose gradients are thrown away.

        After its first backward pass DDP orders the gradients in its buckets anew, and for more
        than two ranks the order in which a sum is rounded depends on the place in the bucket.
        Getting that over with before the first real step makes a resumed training, which starts
        with new buckets, add up exactly as one that was never interrupted.
        """
        buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        # As many rows as a step has: what is compiled or measured for that size is done, too.
        rows = min(self.options.batch_size, len(self.dataset.train) // self.session.ranks.world)
        inputs, targets = next(iter(self.dataset.train.select(torch.arange(rows), rows)))
        devices = [self.session.device] if self.session.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            for _ in range(2):
                with self.recipe.autocast(inputs.device):
                    loss = self.loss_of(parallel(inputs), targets)
                loss.backward()
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
            if self.recipe.scaler and "scaler" in snapshot.optimizer:
                self.recipe.scaler.load_state_dict(snapshot.optimizer.pop("scaler"))
            self.optimizer.load_state_dict(snapshot.optimizer)
            # The snapshot's own would win, and another --lr be announced for nothing.
            for group in self.optimizer.param_groups:
                group["lr"] = self.options.lr
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"the snapshot {self.options.snapshot} does not fit this model",
                "move it away to start afresh, or give another --snapshot",
            ) from error
        self.epochs_done = snapshot.epochs

    def _save(self) -> None:
        started = time.monotonic()
        if self.session.ranks.rank == 0:
            optimizer = self.optimizer.state_dict()
            if self.recipe.scaler:
                optimizer["scaler"] = self.recipe.scaler.state_dict()
            snapshots.save(
                self.options.snapshot,
                snapshots.Snapshot(
                    self.epochs_done,
                    self.model.state_dict(),
                    optimizer,
                    self.identity,
                    self.setting,
                ),
            )
        self._saved = time.monotonic()
        self._save_s = self._saved - started

    def _print(self, text: str) -> None:
        print_line(f"{self.tag} {text}")
