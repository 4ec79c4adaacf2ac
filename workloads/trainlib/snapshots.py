"""Snapshots of a training: written whole or not at all, and checked before they are used."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainlib.errors import UsageError, WorkloadError

FORMAT = 1

_MOVE_AWAY = "move it away to start afresh, or give another --snapshot"


@dataclass(frozen=True)
class Snapshot:
    """The state after `epochs` complete epochs.

    `identity` is what a training that resumes from this must have in common with the one that
    wrote it (model layout, data set, optimizer). `setting` is what may differ, at the price of a
    result that is not bit-equal (seed, batch size, ranks, backend, device).
    """

    epochs: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    identity: dict[str, str]
    setting: dict[str, str]


def check_place(path: Path, option: str = "--snapshot") -> None:
    """Refuse a place where no snapshot can be written, before training rather than after.

    Raises:
        UsageError: The folder is missing or not writable, or the path is a folder.
    """
    folder = path.parent
    todo = f"give another {option}"
    if path.is_dir():
        raise UsageError(f"the snapshot {path} is a folder", todo)
    if not folder.is_dir():
        raise UsageError(f"the snapshot's folder {folder} does not exist", f"make it, or {todo}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the snapshot's folder {folder} cannot be written to", todo)


def save(path: Path, snapshot: Snapshot) -> None:
    """Replace the file in one step: a reader, or a crash, finds the old one or the new one.

    Raises:
        WorkloadError: The file system refused; the old file is untouched.
    """
    write(path, {"format": FORMAT, **vars(snapshot)})


def write(path: Path, content: Any) -> None:
    """As `save`, for whatever torch can save."""
    # A fixed name, so that what a killed run leaves behind is overwritten and never piles up.
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as stream:
            torch.save(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
        # The new name itself is on the disk only once the folder is.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:  # torch's zip writer turns ENOSPC into the latter
        with contextlib.suppress(OSError):
            partial.unlink()
        raise WorkloadError(
            f"{path} cannot be written ({error})", "free some space there"
        ) from error


def read(path: Path) -> bytes:
    """The file's bytes, b"" if there is none.

    Raises:
        UsageError: It is there and cannot be read, or is empty.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UsageError(
            f"the snapshot {path} cannot be read ({error.strerror})", "give another --snapshot"
        ) from error
    if not content:
        raise UsageError(f"the snapshot {path} is empty", _MOVE_AWAY)
    return content


def parse(content: bytes, path: Path, identity: dict[str, str]) -> Snapshot:
    """The snapshot in `content`, its tensors on the CPU.

    Only tensors and plain values are unpickled: a file cannot run code here.

    Raises:
        UsageError: The content is damaged, no snapshot, or of a training with another identity.
    """
    try:
        # torch does not look at the checksums that its files have.
        damaged = zipfile.ZipFile(io.BytesIO(content)).testzip()
        if damaged:
            raise ValueError(f"{damaged} has another checksum")
        fields = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if fields.pop("format") != FORMAT:
            raise ValueError("another format")
        snapshot = Snapshot(**fields)
    # Whatever bytes can make torch's unpickler raise (a dozen types) means the same to a person.
    except Exception as error:
        what = f"the snapshot {path} is damaged or not a snapshot of this program"
        raise UsageError(what, _MOVE_AWAY) from error
    for key, value in identity.items():
        found = snapshot.identity.get(key)
        if found != value:
            raise UsageError(
                f"the snapshot {path} belongs to another training: its {key} is {found}, "
                f"here it is {value}",
                _MOVE_AWAY,
            )
    return snapshot
