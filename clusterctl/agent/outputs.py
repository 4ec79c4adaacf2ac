"""What a job has made in its working directory here: the files and links that are new, or not as
they were staged.

What lists them loads little: the agent is started for it on every node of every job.
Programs set modification times (`cp -p`, `tar -x`), but not the time of a file's last change.
Inode numbers are left out, as some network file systems do not keep them.
"""

import contextlib
import os
import re
import stat
from typing import (
    IO,
    TYPE_CHECKING,
    Container,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
)

if TYPE_CHECKING:
    import tarfile

WORK = "work"
"""The working directory, in the job's folder."""
STAGED = ".staged"
"""What was there before the program started."""
CALL = ".clusterctl-call"
"""In the working directory: a function that a rank calls. Nothing in it is an output."""
POINTS = "points"
"""In the working directory: the folders of a sweep's points, with links to what was staged."""


class FileEntry(NamedTuple):
    """A file or a link below the working directory. Times are in nanoseconds since the epoch, by
    this node's clock; `changed`: its last change (ctime)."""

    path: str
    size: int
    modified: int
    changed: int


def walk(
    work: str,
    inside: str = "",
    failed: Optional[List[OSError]] = None,
    others: Optional[List[str]] = None,
) -> Iterator[FileEntry]:
    """All files and links below `inside`, but for what Python caches. `failed` gets why folders
    cannot be read; without it, the first such error is raised. `others` gets the paths of pipes,
    sockets and devices."""
    waiting = [inside]
    while waiting:
        folder = waiting.pop()
        try:
            with_entries = list(os.scandir(os.path.join(work, folder)))
        except FileNotFoundError:  # the program has removed it meanwhile
            continue
        except OSError as error:
            if failed is None:
                raise
            failed.append(error)
            continue
        for entry in with_entries:
            path = os.path.join(folder, entry.name)
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                if entry.name != "__pycache__" and path != CALL:
                    waiting.append(path)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                if stat.S_ISREG(status.st_mode) or not _is_staged_link(work, path):
                    yield FileEntry(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            elif others is not None:
                others.append(path)


def _is_staged_link(work: str, path: str) -> bool:
    """Whether it stands for what was staged, in the folder of a sweep's point."""
    if not path.startswith(POINTS + os.sep):
        return False
    try:
        return os.readlink(os.path.join(work, path)).startswith(os.path.join("..", "..", ""))
    except OSError:
        return False


def note_built(job: str, path: str) -> None:
    """Counts a compiled program, and modules of Fortran, among what was staged."""
    names = (entry.path for entry in walk(os.path.join(job, WORK)))
    note_staged(job, {path, *(name for name in names if name.endswith(".mod"))})


def note_staged(job: str, paths: Container[str]) -> None:
    """Counts these, as they are now, among what was staged."""
    found = [entry for entry in walk(os.path.join(job, WORK)) if entry.path in paths]
    with open(os.path.join(job, STAGED), "ab") as file:
        file.write(b"".join(map(_render, found)))


def _render(entry: FileEntry) -> bytes:
    """As `find` writes it, but that its seconds may have more digits."""
    times = ("{}.{:09d}".format(*divmod(time, 10**9)) for time in (entry.modified, entry.changed))
    return " ".join([str(entry.size), *times, ""]).encode() + os.fsencode(entry.path) + b"\0"


def list_outputs(
    job: str, failed: Optional[List[OSError]] = None, others: Optional[List[str]] = None
) -> List[FileEntry]:
    """By path; `failed` and `others`: see `walk`. Raises OSError, also where the note of what was
    staged is missing."""
    with open(os.path.join(job, STAGED), "rb") as file:
        rows = file.read().split(b"\0")[:-1]
    staged = {re.sub(rb"(\.\d{9})\d* ", rb"\1 ", row, count=2) for row in rows}
    work = os.path.join(job, WORK)
    os.stat(work)
    found = walk(work, failed=failed, others=others)
    return sorted(entry for entry in found if _render(entry)[:-1] not in staged)


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether one of these patterns of --keep-files chooses it: by its name, or, where the pattern
    has a slash, by the whole path."""
    from fnmatch import fnmatchcase

    name = os.path.basename(path)
    return any(fnmatchcase(path if "/" in glob else name, glob) for glob in patterns)


# -------------------------------------------------------------------------------------------------
# Archives of outputs. A job that still runs may change them meanwhile, or remove some.


class _Exact:
    """As many bytes of a file as it had: zeros where it has become shorter."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def pack(folder: str, paths: Iterable[str], out: IO[bytes]) -> None:
    """A tar archive of those below `folder` that are still there."""
    import tarfile

    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in paths:
            add(archive, folder, path)


def unpack(stream: IO[bytes], target: str) -> None:
    """Into that folder, which is made anew. Who packed it does not matter. Raises EOFError where it
    broke off."""
    import shutil
    import tarfile

    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    try:
        with open_archive(stream) as archive:
            for member in archive:
                extract(archive, member, target)
    except tarfile.TarError as error:
        raise EOFError("the connection was lost") from error


def open_archive(stream: IO[bytes]) -> "tarfile.TarFile":
    import tarfile

    archive = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115
    # Newer Pythons would rather refuse links that lead out of the folder: they are the program's.
    archive.extraction_filter = lambda member, path: member
    return archive


def extract(archive: "tarfile.TarFile", member: "tarfile.TarInfo", target: str) -> None:
    if not os.path.isabs(member.name) and ".." not in member.name.split("/"):
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        archive.extract(member, target)


def add(archive: "tarfile.TarFile", folder: str, path: str) -> None:
    place = os.path.join(folder, path)
    try:
        info = archive.gettarinfo(place, path)
        archive.inodes.clear()  # type: ignore[attr-defined]  # each one whole: others may be left out
        if info.isreg():
            with open(place, "rb") as file:
                archive.addfile(info, _Exact(file))  # type: ignore[arg-type]
        else:
            archive.addfile(info)
    except FileNotFoundError:
        pass


def link(source: str, paths: Iterable[str], target: str) -> None:
    """Makes a folder of hard links to those that are still there: a program that replaces a file
    leaves the link as it was."""
    for path in paths:
        place = os.path.join(target, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.link(os.path.join(source, path), place, follow_symlinks=False)


def link_outputs(job: str, paths: Iterable[str]) -> None:
    """Links them into the job's folder `outputs`."""
    import shutil

    target = os.path.join(job, "outputs")
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    link(os.path.join(job, WORK), paths, target)
