"""Every error a person can meet. One root, one leaf per exit code of the command-line contract.

A message says what happened and to which node; the hint says what to do next.
"""

from __future__ import annotations

import errno
import sys

FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space left on device; disk quota exceeded."""


class ClusterctlError(Exception):
    """The root. Raised itself only for a bug in clusterctl (exit 1).

    `transient` marks what may pass by itself, so that callers may try again.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", transient: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.transient = transient
        if hint and sys.version_info >= (3, 11):
            self.add_note(f"→ {hint}")  # Python shows it with the message


class UsageError(ClusterctlError, ValueError):
    """The command line or a file of the user's is wrong."""

    exit_code = 2


class ProviderError(ClusterctlError):
    """The provider of machines said no: quota, capacity, credentials, a missing tool. Also: this
    machine's disk is full."""

    exit_code = 3


class NodeUnreachable(ClusterctlError, ConnectionError):
    """A node cannot be reached or refuses us. `cluster`: whose node, and `nodes`: which, where that
    is known."""

    exit_code = 4
    cluster = ""
    nodes: tuple[str, ...] = ()


class BootstrapError(ClusterctlError):
    """Making a node ready failed on it."""

    exit_code = 5


class LaunchError(ClusterctlError):
    """The job could not be started: no GPU, ranks that do not fit, no mpirun."""

    exit_code = 6


class JobError(ClusterctlError):
    """A job of the Python API did not succeed: a function raised, a program failed, or it was
    ended. So did one that `bench` measures. `rank`, `node`: which one failed first, where one did;
    `traceback` is that rank's."""

    exit_code = 6

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        job: int = 0,
        rank: int | None = None,
        node: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.job, self.rank, self.node, self.traceback = job, rank, node, traceback

    def __str__(self) -> str:
        return f"{self.message}\n\n{self.traceback}" if self.traceback else self.message


class RecordError(ClusterctlError, LookupError):
    """A cluster or job record is unknown, taken, or locked by another clusterctl."""

    exit_code = 7


class NewerRecordError(RecordError):
    """A later clusterctl wrote the record: this one must neither change nor replace it."""


class LeftoverError(ClusterctlError):
    """Something of the cluster still exists after `down`. `left`: where, of hosts."""

    exit_code = 9
    left: tuple[dict[str, str], ...] = ()


def describe_reason(error: Exception) -> str:
    """What went wrong, in one line without the exception's name."""
    if isinstance(error, ClusterctlError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def make_write_error(what: str, error: OSError, hint: str = "") -> ClusterctlError:
    """The error for what cannot be written on this machine. `hint`: see `make_local_error`."""
    return make_local_error(f"cannot write {what}: {error.strerror or error}", error.errno, hint)


def make_local_error(message: str, code: int | None, hint: str = "") -> ClusterctlError:
    """The same by its message and errno. A full disk is no mistake in a command line, and may pass;
    `hint` is for all else."""
    if code in FULL:
        return ProviderError(message, hint="free some space there")
    if code == errno.ESTALE:
        hint = "repeat the command when nothing writes to it"
    return UsageError(message, hint=hint)
