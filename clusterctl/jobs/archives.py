"""Members of tar archives, which can be joined: without owners and times, so that equal files make
equal archives."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Iterable
from pathlib import Path

END_OF_ARCHIVE = bytes(1024)
PERMISSIONS = 0o777
"""The bits of a mode that are copied: setuid, setgid and sticky are not."""
LEAST_HOLES = 64 << 10
"""Bytes of holes from which on a file is packed as a sparse one."""

Made = tuple[str, str, int]
"""A generated file: name, text, mode."""


def pack_texts(files: Iterable[Made]) -> bytes:
    """An archive of generated files."""
    return b"".join(make_entry(name, text.encode(), mode) for name, text, mode in files)


def pack_file(name: str, data: bytes) -> bytes:
    """An archive of one file."""
    return make_entry(name, data, 0o600)


def make_member(path: Path, name: str) -> bytes:
    """A file or link as it is: its mode, its holes."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return make_link(name, os.readlink(path), tarfile.SYMTYPE)
    mode = status.st_mode & PERMISSIONS
    if status.st_size - status.st_blocks * 512 >= LEAST_HOLES:
        return _make_sparse_entry(path, name, mode)
    return make_entry(name, path.read_bytes(), mode)


def make_entry(name: str, data: bytes, mode: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = mode
    return _pack(info, data)


def make_link(name: str, target: str, kind: bytes = tarfile.LNKTYPE) -> bytes:
    """A further name of a member that comes before; with SYMTYPE, a symbolic link."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return _pack(info)


def make_folder(name: str, mode: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return _pack(info)


def _make_sparse_entry(path: Path, name: str, mode: int) -> bytes:
    """The data between the holes, as GNU tar packs it (its manual, "Storing Sparse Files": format
    1.0 of PAX)."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        parts = _find_data(file.fileno(), size)
        rows = [*parts, (size, 0)]
        table = "\n".join([str(len(rows)), *(f"{at}\n{count}" for at, count in rows), ""]).encode()
        sink = io.BytesIO(_fill_blocks(table))
        sink.seek(0, os.SEEK_END)
        for at, count in parts:
            file.seek(at)
            sink.write(file.read(count))
    info = tarfile.TarInfo("GNUSparseFile.0/member")  # its name is in the headers
    info.size, info.mode = sink.tell(), mode
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": name,
        "GNU.sparse.realsize": str(size),
    }
    return _pack(info, sink.getvalue())


def _find_data(file: int, size: int) -> list[tuple[int, int]]:
    """Where a file has data: positions and lengths."""
    found: list[tuple[int, int]] = []
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole
                break
            raise
        end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        found.append((start, end - start))
    return found


def _pack(info: tarfile.TarInfo, data: bytes = b"") -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + _fill_blocks(data)


def _fill_blocks(data: bytes) -> bytes:
    return data + bytes(-len(data) % tarfile.BLOCKSIZE)
