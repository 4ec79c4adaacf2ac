"""What a folder is made of, by the digests of its files: those that have stayed as they are since
an earlier command are not read again."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from errno import ESTALE
from pathlib import Path

import msgspec

from clusterctl.agent.store import DIRECTORY, FILE, LINK, TreeEntry, sum_up
from clusterctl.state.home import Home
from clusterctl.transport.diagnosis import Failure
from clusterctl.transport.spreading import Content

SETTLED = 2.0
"""Seconds after its last change from which on a file shows the next one by its times: clocks of
file systems tick, and servers have their own."""
FORGOTTEN = 30 * 86400.0
"""Seconds for which is kept what no command has used: digests, and what nodes have built."""

DigestRow = tuple[str, int, int, int, int]
"""Digest, size, inode, and the nanoseconds of the last change of the content, and of any."""


class Digests:
    """Those of files below `root`, as paths relative to it. `save` keeps the ones that this command
    has asked for."""

    def __init__(self, home: Home, root: Path) -> None:
        self._folder = home.path / "digests"
        self._home, self._name = home, f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
        self._before: dict[str, DigestRow] = {}
        self._now: dict[str, DigestRow] = {}
        with suppress(OSError, msgspec.DecodeError, UnicodeError):
            data = (self._folder / self._name).read_bytes()
            self._before = msgspec.json.decode(data, type=dict[str, DigestRow])

    def find(self, name: str, status: os.stat_result) -> str:
        """That of a file which has this status, if it is known; else ""."""
        row = self._before.get(name)
        if row is None or row != _make_row(row[0], status):
            return ""
        self._now[name] = row
        return row[0]

    def note(self, name: str, status: os.stat_result, digest: str) -> None:
        """`status`: that of before the file was read."""
        settled = max(status.st_mtime, status.st_ctime) + SETTLED < time.time()
        if settled and name.isprintable():
            self._now[name] = _make_row(digest, status)

    def save(self) -> None:
        if self._now == self._before:
            return
        with suppress(OSError):  # they are summed up again
            folder = self._home.make(self._folder)
            scratch = folder / f".{self._name}.{os.getpid()}"
            scratch.write_bytes(msgspec.json.encode(self._now))
            scratch.replace(folder / self._name)
            for path in folder.iterdir():
                if path.lstat().st_mtime < time.time() - FORGOTTEN:
                    path.unlink()


def _make_row(digest: str, status: os.stat_result) -> DigestRow:
    return digest, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def read_folder(source: Path, home: Home) -> Content:
    """The files, folders and links in it. Raises Failure for what cannot be read."""
    entries: list[TreeEntry] = []
    places: dict[str, tuple[Path, int]] = {}
    digests = Digests(home, source)
    try:
        for path in _list_all(source):
            status, name = path.lstat(), str(path.relative_to(source))
            mode, when = stat.S_IMODE(status.st_mode), status.st_mtime_ns
            if stat.S_ISREG(status.st_mode):
                digest = digests.find(name, status)
                if not digest:
                    digest = sum_up(str(path))
                    digests.note(name, status, digest)
                places.setdefault(digest, (path, 0))
                entries.append(TreeEntry(FILE, name, mode, status.st_size, digest, modified=when))
            elif stat.S_ISDIR(status.st_mode):
                entries.append(TreeEntry(DIRECTORY, name, mode, modified=when))
            elif stat.S_ISLNK(status.st_mode):
                entries.append(TreeEntry(LINK, name, target=os.readlink(path)))
    except EOFError as error:
        raise Failure(f"{source} changed while it was read", ESTALE) from error
    except OSError as error:
        why = f"{error.filename or source} cannot be read: {error.strerror}"
        raise Failure(why, error.errno or 0) from error
    digests.save()
    return Content(entries, places)


def _list_all(source: Path) -> Iterator[Path]:
    """All that is in it; a folder before what that holds. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    for above, folders, names in os.walk(source, onerror=fail):
        yield from (Path(above, name) for name in sorted((*folders, *names)))
