"""Members of tar archives, which can be joined: without owners and times, so that equal files make
equal archives."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

END_OF_ARCHIVE = bytes(1024)

Made = tuple[str, str, int]
"""A generated file: name, text, mode."""


def pack_texts(files: Iterable[Made]) -> bytes:
    """An archive of generated files."""
    return b"".join(make_entry(name, text.encode(), mode) for name, text, mode in files)


def pack_file(name: str, data: bytes) -> bytes:
    """An archive of one file."""
    return make_entry(name, data, 0o600)


def make_member(path: Path, name: str) -> bytes:
    if path.is_symlink():
        info = tarfile.TarInfo(name)
        info.type = tarfile.SYMTYPE
        info.linkname = str(path.readlink())
        return info.tobuf(tarfile.PAX_FORMAT)
    mode = 0o755 if os.access(path, os.X_OK) else 0o644
    return make_entry(name, path.read_bytes(), mode)


def make_entry(name: str, data: bytes, mode: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = mode
    sink = io.BytesIO()
    sink.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    sink.write(data)
    sink.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    return sink.getvalue()
