"""A job's output in the state home: a file for each stream of each rank, less what was left out of
one that became too long. Beside such a file, FILE.cut has a line `FROM TO` for each part left out:
bytes of the output, which are a hole in the file."""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterctl import process
from clusterctl.formats import format_bytes
from clusterctl.jobs.archives import KEPT_JOBS
from clusterctl.schedulers.direct import LEAST_OUTPUT, OUTPUT
from clusterctl.state import Store
from clusterctl.state.home import explain_write_errors

CHUNK = 1 << 20
"""Bytes that are read at a time."""
BLOCK = 4096
"""Bytes that a hole begins and ends at a multiple of."""
KEPT_SECONDS = 90 * 86400
"""The output of the last KEPT_JOBS jobs is kept, and that of others for so long."""
_REMOVED = "out-removed"
FILE = re.compile(r"out/(?:rank|(?P<agent>agent))-(?P<number>\d+)\.(?P<stream>out|err)")
"""The name of such a file in a job's folder."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a rank wrote next to one of its streams, byte by byte: a piece may begin and end within
    a line. `rank` is None for a torchrun agent."""

    rank: int | None
    node: str
    stream: str
    data: bytes


def read_cuts(path: Path) -> list[tuple[int, int]]:
    """What was left out of a file, in order; nothing twice."""
    found: list[tuple[int, int]] = []
    with suppress(OSError, ValueError):
        lines = path.with_name(f"{path.name}.cut").read_text().splitlines()
        for start, end in sorted((int(a), int(b)) for a, b in (line.split() for line in lines)):
            if found and start <= found[-1][1]:
                start, end = found[-1][0], max(end, found.pop()[1])
            found.append((start, end))
    return found


def leave_out(path: Path, start: int, end: int) -> None:
    """Notes that these bytes are left out, and makes the file so long."""
    with explain_write_errors(path):
        with path.with_name(f"{path.name}.cut").open("a") as file:
            file.write(f"{start} {end}\n")
        with path.open("ab") as file:
            if file.tell() < end:
                file.truncate(end)


def render_marker(missing: int) -> bytes:
    """What is shown instead of so many bytes."""
    return f"\n[clusterctl: {format_bytes(missing)} of output left out here]\n".encode()


def read(path: Path) -> Iterator[tuple[bytes, int]]:
    """The output piece by piece, each with the position in the output behind it."""
    at = 0
    with path.open("rb") as file:
        for start, end in (*read_cuts(path), (math.inf, 0)):
            while at < start and (data := file.read(int(min(CHUNK, start - at)))):
                at += len(data)
                yield data, at
            if at < start or os.fstat(file.fileno()).st_size < end:
                return  # also where a process died before the file was as long
            at = int(end)
            file.seek(at)
            yield render_marker(at - int(start)), at


def shorten(path: Path, files: int) -> None:
    """Frees the middle of a file that takes more than its share of the disk, one of so many."""
    share = max(OUTPUT // files, LEAST_OUTPUT)
    status = path.stat()
    if status.st_blocks * 512 <= share + share // 4 or not shutil.which("fallocate"):
        return
    start = share // 10 // BLOCK * BLOCK
    end = (status.st_size - share + start) // BLOCK * BLOCK
    hole = ["fallocate", "--punch-hole", f"--offset={start}", f"--length={end - start}", str(path)]
    if process.run(hole, timeout=60).ok:
        leave_out(path, start, end)


def remove_old(store: Store) -> None:
    """Removes the output of jobs that ended long ago, from the state home."""
    limit = time.time() - KEPT_SECONDS
    with suppress(OSError):  # what is not removed now is removed with the next job
        folders = [path for path in store.home.jobs.iterdir() if path.name.isdigit()]
        for folder in sorted(folders, key=lambda path: int(path.name))[:-KEPT_JOBS]:
            output = folder / "out"
            if output.is_dir() and output.stat().st_mtime < limit:
                (folder / _REMOVED).touch()
                shutil.rmtree(output)


def was_removed(folder: Path) -> bool:
    """Whether `remove_old` has removed a job's output from its folder."""
    return (folder / _REMOVED).exists() and not (folder / "out").exists()


def read_stored(folder: Path) -> Iterator[list[Piece]]:
    """The output that the state home has, file by file: all there is once the cluster is gone."""
    for path in sorted(folder.glob("out/*/*-*.*"), key=_make_sort_key):
        match = FILE.fullmatch(f"out/{path.name}")
        if match is None:
            continue
        rank = None if match["agent"] else int(match["number"])
        stream = "stdout" if match["stream"] == "out" else "stderr"
        for chunk, _ in read(path):
            yield [Piece(rank, path.parent.name, stream, chunk)]


def is_complete(folder: Path) -> bool:
    """Whether the state home has all the output there will ever be."""
    return (folder / "out" / ".complete").exists()


def _make_sort_key(path: Path) -> tuple[str, int]:
    return path.suffix, int("".join(filter(str.isdigit, path.stem)) or 0)
