"""Files by SHA-256 under the node's root, so that each byte comes once: trees, packages, data.

`store/ab/cdef…` is a whole and verified file, `store/parts/` holds what a cut has left of others. A
manifest lists what a folder is made of; who has one asks a store what it lacks, sends that, and has
the folder made. Several nodes may share a store (loopback nodes, NFS), and several processes write
to it: files appear at once, and the same content may come twice.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
import zlib
from typing import (
    IO,
    Callable,
    Collection,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from . import processes
from .processes import remove

FOLDER = "store"
STEP = 1 << 18
"""Bytes that are moved at a time."""
FILE, LINK, HARD, DIRECTORY = "f", "l", "h", "d"
UNTOUCHED = 0
"""The modification time of a file in the store which nobody has written to since it was verified.
One that is also part of a data set has the time that its manifest says."""
FORGOTTEN = 86400.0
"""Seconds after which a part that nothing was added to is removed."""
DAY = 86400.0
"""Seconds to within which it is noted when a file was last used."""
LARGEST, SHARE = 20000000000, 4
"""Bytes that a store may have, and the part of the disk's."""
FULL = (errno.ENOSPC, errno.EDQUOT)
FICLONE = 0x40049409
"""ioctl_ficlone(2): a copy that shares its blocks until one of the two is written to."""


class TreeEntry(NamedTuple):
    """A row of a manifest. `kind`: FILE, LINK (to `target`, as the link says it), HARD (a further
    name of the path `target`) or DIRECTORY. `modified`: nanoseconds since the epoch."""

    kind: str
    path: str
    mode: int = 0
    size: int = 0
    digest: str = ""
    target: str = ""
    modified: int = 0


class Missing(NamedTuple):
    """A file that a store lacks, but for its first `had` bytes."""

    digest: str
    size: int
    had: int = 0


class BadManifest(ValueError):
    """It would write elsewhere than into its folder."""


def pack_manifest(entries: Sequence[TreeEntry]) -> bytes:
    return zlib.compress(json.dumps(entries, separators=(",", ":")).encode(), 1)


def read_manifest(data: bytes) -> List[TreeEntry]:
    """Raises BadManifest for paths that lead out of the folder."""
    try:
        entries = [TreeEntry(*row) for row in json.loads(zlib.decompress(data).decode())]
    except (ValueError, TypeError, zlib.error) as error:
        raise BadManifest(f"the manifest is damaged: {error}") from error
    links = {entry.path for entry in entries if entry.kind == LINK}
    for entry in entries:
        paths = [entry.path] + [entry.target] * (entry.kind == HARD)
        for path in paths:
            parts = path.split("/")
            above = {"/".join(parts[:count]) for count in range(1, len(parts))}
            if "\0" in path or {"", ".", ".."} & set(parts) or links & above:
                raise BadManifest(f"the manifest has a bad path: {path!r}")
        if entry.kind == FILE and not (
            len(entry.digest) == 64 and set(entry.digest) <= set("0123456789abcdef")
        ):
            raise BadManifest(f"the manifest has a bad digest: {entry.digest!r}")
    return entries


def list_files(entries: Sequence[TreeEntry]) -> Dict[str, int]:
    """Digest and size of what the manifest needs, each once, in its order. Nothing is sent for a
    file without content."""
    return {entry.digest: entry.size for entry in entries if entry.kind == FILE and entry.size}


def sum_up(path: str) -> str:
    with open(path, "rb") as file:
        return sum_up_next(file, os.fstat(file.fileno()).st_size).hexdigest()


def sum_up_next(file: IO[bytes], size: int) -> "hashlib._Hash":
    """Of so many bytes from where it stands. Raises EOFError."""
    summed = hashlib.sha256()
    while size:
        data = file.read(min(STEP, size))
        if not data:
            raise EOFError
        summed.update(data)
        size -= len(data)
    return summed


class FileStore:
    """The one below `root`, which is made when it is first written to."""

    def __init__(self, root: str) -> None:
        self._folder = os.path.join(root, FOLDER)
        self._parts = os.path.join(self._folder, "parts")
        self._id = ""

    def locate(self, digest: str) -> str:
        """Where a whole file is, or would be."""
        return os.path.join(self._folder, digest[:2], digest[2:])

    def locate_part(self, digest: str) -> str:
        """Where the beginning of one is, or would be."""
        return os.path.join(self._parts, digest)

    def identify(self) -> str:
        """The same for all nodes that share it."""
        if not self._id:
            os.makedirs(self._parts, exist_ok=True)
            place = os.path.join(self._folder, "identity")
            with contextlib.suppress(FileExistsError):  # a link is there at once, with what it says
                os.symlink(os.urandom(16).hex(), place)
            self._id = os.readlink(place)
        return self._id

    # ---------------------------------------------------------------------------------------------
    # What is there.

    def has(self, digest: str, size: int, times: Collection[int] = ()) -> bool:
        """Whether that file is there as it was verified: one that a program has written to, through
        a link in a data set, is removed. `times`: those that a manifest gives it."""
        place = self.locate(digest)
        try:
            status = os.stat(place)
        except FileNotFoundError:
            return False
        sound = status.st_size == size and (
            status.st_mtime_ns == UNTOUCHED
            or status.st_mtime_ns in times
            or sum_up(place) == digest
        )
        if not sound:
            remove(place)
        elif status.st_atime < time.time() - DAY:
            os.utime(place, ns=(int(time.time() * 1e9), status.st_mtime_ns))
        return sound

    def find_missing(self, entries: Sequence[TreeEntry]) -> List[Missing]:
        """What it lacks of a manifest."""
        times: Dict[str, Set[int]] = {}
        for entry in entries:
            if entry.modified:
                times.setdefault(entry.digest, set()).add(entry.modified)
        return [
            Missing(digest, size, self._measure_part(digest, size))
            for digest, size in list_files(entries).items()
            if not self.has(digest, size, times.get(digest, ()))
        ]

    def _measure_part(self, digest: str, size: int) -> int:
        try:
            return min(size, os.stat(self.locate_part(digest)).st_size)
        except FileNotFoundError:
            return 0

    # ---------------------------------------------------------------------------------------------
    # What comes.

    def put(self, wanted: Missing, fill: Callable[[memoryview], Optional[int]]) -> bool:
        """Takes the rest of a file: each `fill` says how much of its buffer it has filled; whether
        it is whole and right. What has come stays where that is nothing, with EOFError; a wrong one
        is removed."""
        left = wanted.size - wanted.had
        buffer = memoryview(bytearray(min(STEP, left)))
        part, path = self._open_part(wanted)
        with part:
            summed = sum_up_next(part, wanted.had)
            while left:
                data = buffer[: fill(buffer[:left]) or 0]
                if not data:
                    raise EOFError("the connection was lost")
                write_all(part.fileno(), data)
                summed.update(data)
                left -= len(data)
            if summed.hexdigest() != wanted.digest:
                remove(path)
                return False
            os.fchmod(part.fileno(), 0o444)
            os.utime(part.fileno(), ns=(int(time.time() * 1e9), UNTOUCHED))
            place = self.locate(wanted.digest)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.replace(path, place)
        return True

    def _open_part(self, wanted: Missing) -> Tuple[IO[bytes], str]:
        """The one of that file, with what is had of it; where another process writes to it, one of
        our own. Locked. Raises EOFError where less is there."""
        self.identify()
        place = self.locate_part(wanted.digest)
        for path in (place, f"{place}.{os.urandom(8).hex()}"):
            part = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", 0)
            if not (processes.lock(part) and _is_same(part.fileno(), path)):
                part.close()
                continue
            if path != place and wanted.had:
                with contextlib.suppress(FileNotFoundError), open(place, "rb") as begun:
                    part.write(begun.read(wanted.had))
            size = os.fstat(part.fileno()).st_size
            if size < wanted.had:
                part.close()
                raise EOFError("the beginning of a file is gone")
            if size > wanted.had:  # ext4 writes what was cut to nothing to the disk at once
                part.truncate(wanted.had)
            part.seek(0)
            return part, path
        raise OSError(errno.EAGAIN, "another process keeps it locked", place)

    def follow(self, wanted: Missing, pause: float = 0.005) -> Iterator[Tuple[int, int, int]]:
        """The rest of a file, as it comes here: an open one, from which of its bytes on, and how
        many. 0: nothing has come for a moment."""
        left, offset, seen = wanted.size - wanted.had, wanted.had, 0
        while left:
            # Anew each time: another process may have been faster, or it was wrong and comes again.
            with self._open_begun(wanted.digest) as file:
                count = min(left, os.fstat(file.fileno()).st_size - offset)
                if count >= min(left, STEP) or 0 < count <= seen:  # much, or no more comes
                    yield file.fileno(), offset, count
                    offset += count
                    left -= count
                    seen = 0
                    continue
            seen = count
            time.sleep(pause)
            yield -1, offset, 0

    def _open_begun(self, digest: str) -> IO[bytes]:
        for path in (self.locate(digest), self.locate_part(digest), self.locate(digest)):
            with contextlib.suppress(FileNotFoundError):
                return open(path, "rb", 0)
        return open(os.devnull, "rb", 0)

    # ---------------------------------------------------------------------------------------------
    # What is made of it.

    def make(self, folder: str, entries: Sequence[TreeEntry], link: bool = False) -> None:
        """Makes what the manifest says in `folder`: files that programs may write to. With `link`
        they only read them, and the files are links into the store where their modes and times
        allow that. What is there under the same names is replaced, but for a folder with files
        where a file comes. Raises FileNotFoundError for what the store lacks, OSError."""
        made: Set[str] = set()
        for entry in entries:
            path = os.path.join(folder, entry.path)
            if entry.kind == DIRECTORY:
                _make_folder(folder, entry.path, made)
                continue
            _make_folder(folder, entry.path.rpartition("/")[0], made)
            _remove_empty_folder(path)
            if entry.kind == FILE:
                if not (link and entry.size and self._link(entry, path)):
                    self._copy(entry, path)
            elif entry.kind == HARD:
                remove(path)
                os.link(os.path.join(folder, entry.target), path)
        # Links at last, while nothing is written by way of them, and the modes of folders behind.
        for entry in entries:
            if entry.kind == LINK:
                path = os.path.join(folder, entry.path)
                remove(path)
                os.symlink(entry.target, path)
        for entry in reversed(entries):
            if entry.kind == DIRECTORY:
                path = os.path.join(folder, entry.path)
                os.chmod(path, entry.mode)
                os.utime(path, ns=(entry.modified, entry.modified))

    def _link(self, entry: TreeEntry, path: str) -> bool:
        """Whether the file in the store can be that one, too: all its names share a mode and a
        time. Nobody may write to it."""
        place = self.locate(entry.digest)
        mode = entry.mode & 0o555
        status = os.stat(place)
        if status.st_nlink == 1:
            os.chmod(place, mode)
            os.utime(place, ns=(status.st_atime_ns, entry.modified))
        elif (stat.S_IMODE(status.st_mode), status.st_mtime_ns) != (mode, entry.modified):
            return False
        if os.path.lexists(path) and os.path.samefile(place, path):
            return True
        scratch = f"{path}.{os.urandom(4).hex()}.new"
        try:
            os.link(place, scratch)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                return False
            raise
        os.replace(scratch, path)
        return True

    def _copy(self, entry: TreeEntry, path: str) -> None:
        scratch = f"{path}.{os.urandom(4).hex()}.new" if os.path.lexists(path) else path
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if entry.size:
                with open(self.locate(entry.digest), "rb", 0) as source:
                    try:
                        fcntl.ioctl(handle, FICLONE, source.fileno())
                    except OSError:  # not every file system can
                        move(handle, source.fileno(), 0, entry.size)
            os.fchmod(handle, entry.mode & 0o777)
            os.utime(handle, ns=(entry.modified, entry.modified))
            if scratch != path:
                os.replace(scratch, path)
        except BaseException:
            remove(scratch)
            raise
        finally:
            os.close(handle)

    # ---------------------------------------------------------------------------------------------
    # What stays.

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Nothing is removed meanwhile. Whoever is the last to use it removes what is too much; and
        where the disk is full, what nobody has sent to its end."""
        self.identify()
        forgotten = FORGOTTEN
        with open(os.path.join(self._folder, "lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            try:
                yield
            except OSError as error:
                forgotten = 0 if error.errno in FULL else FORGOTTEN
                raise
            finally:
                if processes.lock(lock):
                    self.evict(None, forgotten)

    def evict(self, limit: Optional[int], forgotten: float = FORGOTTEN) -> None:
        """Removes files until they have no more bytes than `limit`, else than a part of what the
        disk has for them and for others: those that were not used for the longest time first; none
        that a data set is linked to: that would free nothing. Removes parts to which nothing was
        added for `forgotten` seconds."""
        for part in os.scandir(self._parts):
            if part.stat().st_mtime <= time.time() - forgotten:
                remove(part.path)
        kept = sorted(self._list_kept())
        total = sum(size for _, size, _ in kept)
        if limit is None:
            disk = os.statvfs(self._folder)
            limit = min(LARGEST, (disk.f_bavail * disk.f_frsize + total) // SHARE)
        for _, size, path in kept:
            if total <= limit:
                break
            remove(path)
            total -= size

    def _list_kept(self) -> Iterator[Tuple[float, int, str]]:
        """When each was last used, its size, and its path."""
        for folder in os.scandir(self._folder):
            if len(folder.name) == 2:
                for entry in os.scandir(folder.path):
                    status = entry.stat()
                    if status.st_nlink == 1:
                        yield status.st_atime, status.st_size, entry.path


# -------------------------------------------------------------------------------------------------


def move(target: int, source: int, offset: int, size: int) -> None:
    """From a file to another one, or into a pipe. Raises EOFError where it has less."""
    while size:
        try:
            count = os.sendfile(target, source, offset, size)
        except OSError as error:  # not every file system can
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            data = os.pread(source, min(size, STEP), offset)
            write_all(target, data)
            count = len(data)
        if not count:
            raise EOFError("a file in the store was cut short")
        offset += count
        size -= count


def write_all(target: int, data: Union[bytes, bytearray, memoryview]) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]


def _is_same(handle: int, path: str) -> bool:
    """Whether that open file still has that name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _make_folder(folder: str, name: str, made: Set[str]) -> None:
    """That one in `folder`, unless it is among those that were made. A file or a link that stands
    in its place goes: what leads elsewhere is never written through."""
    if name in made:
        return
    path = os.path.join(folder, name)
    if name:
        _make_folder(folder, name.rpartition("/")[0], made)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                remove(path)
    os.makedirs(path, exist_ok=True)
    made.add(name)


def _remove_empty_folder(path: str) -> None:
    """Where a file comes. Raises OSError for one with files: they may be somebody's."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
