"""What `run` finds on its standard input, for rank 0 of the job.

The shell's `< FILE` is for this command alone. Anything else may belong to a loop of the shell, to
cron or to a terminal: without --stdin not one byte of it is read.
"""

from __future__ import annotations

import array
import os
import stat
import sys
from contextlib import suppress

from clusterctl.actions.run import LARGEST_INPUT, Stdin
from clusterctl.cli.console import Console
from clusterctl.errors import UsageError
from clusterctl.formats import format_bytes

FILE = 0
CHUNK = 1 << 20
"""Bytes that are read at a time."""


def read(*, piped: bool, limit: int = 0) -> Stdin | None:
    """A file that the shell has opened for this command; with `piped`, all that comes until its
    end. None: rank 0 gets nothing. `limit`: bytes; 0: the usual one.

    Raises UsageError for more than that, and for `piped` where there is nothing to read from.
    """
    limit = limit or LARGEST_INPUT
    mode = _find_mode()
    if not mode or (piped and os.isatty(FILE)):
        if piped:
            what = "a terminal" if mode else "closed"
            raise UsageError(
                f"--stdin: standard input is {what}",
                hint="redirect a file or a pipe to it, or leave --stdin out",
            )
        return None
    name = _find_name()
    if not stat.S_ISREG(mode):
        return Stdin(name, _read_rest(name, limit)) if piped else None
    at = os.lseek(FILE, 0, os.SEEK_CUR)
    if at and not piped:
        return None  # a loop of the shell reads from it, too
    size = os.fstat(FILE).st_size - at
    if size > limit:
        raise _make_too_large_error(name, format_bytes(size), limit)
    data = _read_rest(name, limit, None if piped else 0)
    return Stdin(name, data) if data or piped else None


def warn_of_pipe(console: Console) -> None:
    """That bytes wait in a pipe which nobody is going to read. They stay there."""
    mode = _find_mode()
    if (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and _count_waiting():
        console.warn(
            "standard input is a pipe and is not passed to the program; `run --stdin` passes it"
        )


def _find_mode() -> int:
    """The type of what is there; 0 if it is closed, or open for writing alone (nohup)."""
    import fcntl

    with suppress(OSError):
        writes = fcntl.fcntl(FILE, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        if sys.__stdin__ is not None and not writes:  # else its number may be that of our own file
            return os.fstat(FILE).st_mode
    return 0


def _count_waiting() -> int:
    import fcntl
    import termios

    waiting = array.array("i", [0])
    with suppress(OSError):
        fcntl.ioctl(FILE, termios.FIONREAD, waiting)
    return waiting[0]


def _find_name() -> str:
    """The file that it is, as seen from here; "a pipe" for what has no name."""
    with suppress(OSError):
        path = os.readlink(f"/proc/self/fd/{FILE}")
        if os.path.exists(path):
            here = os.path.relpath(path)
            return path if here.startswith("../") else here
    return "a pipe"


def _read_rest(name: str, limit: int, start: int | None = None) -> bytes:
    """From `start`, without a trace: a loop of the shell may give one file to many commands."""
    found = bytearray()
    try:
        while data := (
            os.read(FILE, CHUNK) if start is None else os.pread(FILE, CHUNK, start + len(found))
        ):
            found += data
            if len(found) > limit:
                raise _make_too_large_error(name, f"more than {format_bytes(limit)}", limit)
    except OSError as error:
        raise UsageError(
            f"standard input ({name}) cannot be read: {error.strerror}",
            hint="redirect a file or a pipe to it",
        ) from error
    return bytes(found)


def _make_too_large_error(name: str, size: str, limit: int) -> UsageError:
    return UsageError(
        f"standard input ({name}) is too large to copy: {size} (limit: {format_bytes(limit)})",
        hint="raise the limit with --max-stage 2GB, copy the file with `clusterctl data push`, or"
        " give no input: </dev/null",
    )
