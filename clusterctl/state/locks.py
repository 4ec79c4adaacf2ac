"""One clusterctl at a time changes a cluster. The kernel drops the lock when its holder dies."""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from clusterctl.core.clock import Deadline
from clusterctl.core.model import Reporter
from clusterctl.errors import RecordError
from clusterctl.state.files import explain_write_errors
from clusterctl.state.home import Home

ORPHAN_LIMIT = 3600.0
"""Seconds to wait for an orphan. Terraform finishes or gives up long before."""

_held: dict[tuple[Path, str], ClusterLock] = {}


def find_held(home: Path, name: str) -> ClusterLock:
    """The lock that this process holds on that cluster of that state home. KeyError."""
    return _held[home, name]


class ClusterLock:
    """An exclusive lock on a cluster's name, held while the context is open.

    The descriptor may be handed to a child (Terraform): while such an orphan lives the lock is
    still held, and the next verb names the process and waits for it instead of racing with it.
    """

    def __init__(
        self,
        home: Home,
        name: str,
        verb: str,
        report: Reporter = lambda text: None,
    ) -> None:
        self._home = home
        self._name = name
        self._verb = verb
        self._report = report
        self._fd: int | None = None
        self._children: list[int] = []

    @property
    def path(self) -> Path:
        return self._home.locks / f"{self._name}.lock"

    def fileno(self) -> int:
        if self._fd is None:
            raise ValueError("the lock is not held")
        return self._fd

    def __enter__(self) -> ClusterLock:
        self._home.make(self._home.locks)
        with explain_write_errors(self.path):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                self._wait(fd)
            except BaseException:
                os.close(fd)
                raise
        self._fd = fd
        _held[self._home.path, self._name] = self
        since = time.strftime("%H:%M:%S")
        holder = f"`clusterctl {self._verb}`, pid {os.getpid()}, since {since}\n"
        with suppress(OSError):  # on a full disk the lock holds all the same, only without a name
            os.ftruncate(fd, 0)
            os.pwrite(fd, holder.encode(), 0)
        return self

    def lend(self, pid: int, command: str) -> None:
        """Notes that a child which may outlive us has inherited the lock."""
        if self._fd is not None:
            self._children.append(pid)
            with suppress(OSError):
                os.pwrite(self._fd, f"{command} {pid}\n".encode(), os.fstat(self._fd).st_size)

    def _wait(self, fd: int) -> None:
        """For the orphan of a clusterctl that is dead, which may have been killed before it had
        noted the orphan; anybody else is an error."""
        end = Deadline(ORPHAN_LIMIT)
        looks, told = 0, False
        while True:
            text = os.pread(fd, 1000, 0).decode(errors="replace").strip()
            holder, *lent = text.splitlines() or [""]
            owner = re.search(r"pid (\d+)", holder)
            if owner is None or _is_alive(int(owner[1])) or end.passed:
                raise RecordError(
                    f"cluster {self._name!r} is locked by another clusterctl"
                    f" ({holder or 'starting'})",
                    hint="wait until it has finished, or stop it with Ctrl-C, then try again",
                    transient=True,
                )
            looks += 1
            if not told and (lent or looks > 2):  # who has just got it may not have said so yet
                command, _, pid = lent[-1].rpartition(" ") if lent else ("", "", "")
                orphan = f"{command} (pid {pid})" if lent else "a process"
                self._report(f"waiting for {orphan}, left behind by {holder}")
                told = True
            time.sleep(0.1)
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._fd is not None:
            _held.pop((self._home.path, self._name), None)
            if not any(_is_alive(pid) for pid in self._children):
                with suppress(OSError):
                    os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # A process that has died, and that nobody has waited for, holds nothing any more.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True
