"""One clusterctl at a time changes a cluster. The kernel drops the lock when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from clusterctl.errors import RecordError
from clusterctl.state.home import Home, writing


class ClusterLock:
    """An exclusive lock on a cluster's name, held while the context is open.

    The descriptor may be handed to a child (Terraform): while such an orphan lives the lock is
    still held, and the next verb names the process instead of racing with it.
    """

    def __init__(self, home: Home, name: str, verb: str) -> None:
        self._home = home
        self._name = name
        self._verb = verb
        self._fd: int | None = None

    @property
    def path(self) -> Path:
        return self._home.locks / f"{self._name}.lock"

    def fileno(self) -> int:
        if self._fd is None:
            raise ValueError("the lock is not held")
        return self._fd

    def __enter__(self) -> ClusterLock:
        self._home.make(self._home.locks)
        with writing(self.path):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(fd, 200).decode(errors="replace").strip()
            os.close(fd)
            raise RecordError(
                f"cluster {self._name!r} is locked by another clusterctl ({holder or 'starting'})",
                hint="wait until it has ended, or end it with Ctrl-C, and try again",
                transient=True,
            ) from error
        self._fd = fd
        since = time.strftime("%H:%M:%S")
        holder = f"`clusterctl {self._verb}`, pid {os.getpid()}, since {since}\n"
        with suppress(OSError):  # on a full disk the lock holds all the same, only without a name
            os.ftruncate(fd, 0)
            os.pwrite(fd, holder.encode(), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd is not None:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None
