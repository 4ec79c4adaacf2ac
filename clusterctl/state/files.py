"""How a file gets to the disk in one piece."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clusterctl.errors import make_write_error


def make_private(folder: Path) -> None:
    """Makes `folder` and the missing ones above it, all for the user alone whatever the umask. They
    outlive a power loss."""
    for place in reversed((folder, *folder.parents)):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)
            _flush(place.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces `path` by `data`: after a crash it holds the old bytes or the new ones, after a
    power loss that comes later the new ones."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    with explain_write_errors(path):
        try:
            fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
            _flush(path.parent)
        except OSError:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise


def replace_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """A file that a person asked for, whole or as it was, where a symbolic link leads to. A pipe or
    a device is written to. `mode`: of a new one; None: as the umask says. Raises OSError."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.touch(mode=0o666 if mode is None else mode)
        if target.exists():
            scratch.chmod(target.stat().st_mode & 0o777)
        scratch.write_bytes(data)
        scratch.replace(target)
    except OSError:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def _flush(folder: Path) -> None:
    """Brings the names in `folder` to the disk, where it may be opened and its file system can."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return  # one may be allowed to write to a folder and not to read it
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


@contextmanager
def explain_write_errors(
    path: Path, hint: str = "set CLUSTERCTL_HOME to a writable folder"
) -> Iterator[None]:
    """Turns a failure to write into an error that says where and what to do."""
    try:
        yield
    except OSError as error:
        raise make_write_error(str(path), error, f"check its permissions, or {hint}") from error
