"""The epochs of a training that goes on where an earlier one was stopped, for any program.

    from trainlib.epochs import Epochs

    with Epochs(10, {"model": model, "optimizer": optimizer}) as epochs:
        for epoch in epochs:
            ...

clusterctl sends SIGTERM to every rank when a job is cancelled, its time is up, its machine comes to
its deadline, or EC2 reclaims it; SIGKILL follows after five seconds. At the end of the epoch in
which a signal comes to any rank, rank 0 writes `snapshot.pt` and all ranks end with 128 + the
signal's number. The next run finds the file (`clusterctl rerun --resume` brings it along).
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.distributed as dist

from trainlib import collectives, snapshots
from trainlib.errors import Stopped, UsageError
from trainlib.program import print_line
from trainlib.session import Session
from trainlib.signals import StopRequest

SNAPSHOT = Path("snapshot.pt")

UNSAVED_S = 2.0
"""Seconds of finished epochs that may be lost where a rank has to end within an epoch."""

SAVING = 20
"""At most one part in this many of the time goes into saving that nobody asked for."""


class Part(Protocol):
    """What has a state: models, optimizers, schedulers, scalers."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


class Epochs(contextlib.AbstractContextManager["Epochs"]):
    """Iterates over the numbers of the epochs that are still to be trained.

    A snapshot lies there only while the training is not finished: the one that this run has read
    or written is removed at its end. Whatever is drawn at random has to follow from the epoch's
    number for a resumed training to repeat an undisturbed one.

    Args:
        count: Epochs in all.
        parts: All that changes from epoch to epoch. Rank 0's go into the snapshot.
        session: Whose ranks they are; None: those of torch.distributed's default group, if any.
        identity: What a training that resumes must have in common with the one that wrote the
            snapshot.

    Raises:
        UsageError: The snapshot is damaged, or of another training.
        Stopped: After a signal, once the snapshot is written.
    """

    def __init__(
        self,
        count: int,
        parts: Mapping[str, Part],
        *,
        session: Session | None = None,
        path: Path = SNAPSHOT,
        identity: Mapping[str, str] | None = None,
    ) -> None:
        self.count, self.parts, self.path = count, parts, path
        self.identity = dict(identity or {})
        self.done = 0
        self._session = session
        self._stop = StopRequest()
        self._kept = False
        self._saved = time.monotonic()
        self._save_s = 0.0
        self._ours = False
        grouped = dist.is_available() and dist.is_initialized()
        self._lead = session.ranks.rank == 0 if session else not grouped or dist.get_rank() == 0
        if session:
            self._communicator = session.communicator
        elif grouped:
            self._ours = True
            on_gpu = dist.get_backend() == "nccl"
            device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else "cpu"
            self._communicator = collectives.OverTorch(torch.device(device))
        else:
            self._communicator = collectives.Alone()

    def __enter__(self) -> Epochs:
        self._resume()
        self._stop.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.__exit__(kind, error, trace)
        if error is None and self._kept and self._lead:
            self.path.unlink(missing_ok=True)
        if isinstance(error, Stopped) and self._ours:
            # A process that ends without that may abort in one of gloo's threads.
            self._communicator.barrier()
            dist.destroy_process_group()

    @property
    def stopping(self) -> bool:
        """Whether this rank was told to stop: the epoch may be ended early."""
        return self._stop.signum != 0

    def __iter__(self) -> Iterator[int]:
        for epoch in range(self.done, self.count):
            yield epoch
            self.done = epoch + 1
            if self.done < self.count:
                self._finish(epoch)

    def _finish(self, epoch: int) -> None:
        """Saves after an epoch, if it is time to, and stops if any rank was told to."""
        # A signal reaches the ranks at different moments, but they can only stop together: one
        # that left alone would leave the others waiting in a collective.
        signum = self._communicator.maximum(self._stop.signum)
        unsaved = time.monotonic() - self._saved
        if signum or unsaved > max(UNSAVED_S, SAVING * self._save_s):
            self._save()
        if not signum:
            return
        if self._lead:
            name = signal.Signals(signum).name
            print_line(f"{name}: stopped after epoch {epoch}, saved in {self.path}")
        raise Stopped(signum)

    def _save(self) -> None:
        started = time.monotonic()
        if self._lead:
            states = {name: part.state_dict() for name, part in self.parts.items()}
            kept = snapshots.Snapshot(self.done, states, {}, self.identity, {})
            snapshots.save(self.path, kept)
        self._kept = True
        self._saved = time.monotonic()
        self._save_s = self._saved - started

    def _resume(self) -> None:
        def read() -> bytes:
            snapshots.check_place(self.path)
            content = snapshots.read(self.path)
            if content:
                self._check(snapshots.parse(content, self.path, self.identity))
            return content

        if self._session:
            content = self._session.on_rank0(read)
        else:
            content = self._communicator.broadcast(read() if self._lead else b"")
        if not content:
            return
        snapshot = snapshots.parse(content, self.path, self.identity)
        for name, part in self.parts.items():
            part.load_state_dict(snapshot.model[name])
        self.done = snapshot.epochs
        self._kept = True
        if self._lead:
            print_line(f"Resuming from {self.path} after {self.done} epochs")

    def _check(self, snapshot: snapshots.Snapshot) -> None:
        if snapshot.model.keys() != self.parts.keys():
            raise UsageError(
                f"the snapshot {self.path} belongs to another program",
                "move it away to start afresh, or give another --snapshot",
            )
