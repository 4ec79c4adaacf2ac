"""Members of tar archives, which can be joined: without owners and times, so that equal files make
equal archives. Those of jobs are kept in the state home, as long as there is room."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from clusterctl.state import Store

END_OF_ARCHIVE = bytes(1024)
PERMISSIONS = 0o777
"""The bits of a mode that are copied: setuid, setgid and sticky are not."""
KEPT_JOBS = 100
"""The last jobs, of which more is kept than the records."""
KEPT_SECONDS = 30 * 86400
"""Archives that none of them needs are kept for so long."""
KEPT_BYTES = 5_000_000_000
"""In all archives. Beyond that, those go that have not been used for the longest time."""
FRESH_SECONDS = 3600.0
"""An archive that was used so lately may belong to a job that has no record yet; one to which
nothing was added for so long is not being written any more."""
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


def remove_old(store: Store, limit: int = KEPT_BYTES) -> None:
    """Removes archives that none of the last jobs needs and nobody has used for long, and beyond
    `limit` bytes also others: never that of a job that has not ended. Removes those whose
    clusterctl was killed while it wrote them."""
    now = time.time()
    with suppress(OSError):  # what is not removed now is removed with the next job
        for path in store.home.stages.glob(".*.new"):
            if path.lstat().st_mtime < now - FRESH_SECONDS:
                path.unlink()
        found = {path: path.lstat() for path in store.home.stages.glob("[!.]*")}
        size = sum(status.st_size for status in found.values())
        if size <= limit and all(s.st_mtime >= now - KEPT_SECONDS for s in found.values()):
            return
        if store.list_damage():
            return  # a record that cannot be read may name one of them
        jobs = sorted(store.list_jobs(), key=lambda job: job.id)
        kept = {job.stage for job in jobs[-KEPT_JOBS:]}
        in_use = {job.stage for job in jobs if not job.state.ended}
        for path in sorted(found, key=lambda path: (path.name in kept, found[path].st_mtime)):
            status = found[path]
            old = status.st_mtime < now - KEPT_SECONDS and path.name not in kept
            fresh = status.st_mtime >= now - FRESH_SECONDS
            if (old or size > limit) and not fresh and path.name not in in_use:
                path.unlink()
                size -= status.st_size


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
