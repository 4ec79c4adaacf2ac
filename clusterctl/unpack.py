"""Unpacking an archive that may be hostile: nothing is written outside the folder.

Not tarfile's own `data` filter: the Python of Debian 12 has none, and releases of it were fooled by
links. Here there are none to be fooled by: the folder is fresh, links are made after all else, and
into an existing folder the result is moved without following any.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from clusterctl.errors import UsageError

CHUNK = 1 << 20
"""Bytes."""


MAX_PARTS = 200
"""Folders in a path: what walks through a tree calls itself for each."""
MAX_NAME = 255
MAX_PATH = 3000
"""Bytes of a name, and of a path below a folder: Linux takes 4,095 with that."""


class UnsafeArchive(UsageError):
    """What it holds would be written elsewhere, in place of something else, or too deep."""


def unpack(archive: tarfile.TarFile, folder: Path, broken: Path | None = None) -> list[str]:
    """Writes a stream's members into `folder`, which is empty. Returns what was left out, and why.

    Where it breaks off, the files that are there are whole, and the beginning of the next one is in
    the folder `broken`. Owners are dropped, and modes keep their lower nine bits.

    Raises UnsafeArchive for names that lead out of the folder, OSError, tarfile.TarError.
    """
    left_out: list[str] = []
    modes: list[tuple[Path, int]] = []
    links: list[tuple[Path, str]] = []
    for member in archive:
        parts = split_inner_parts(member.name)
        if reason := _find_limit(parts):
            left_out.append(f"{member.name[:60]}…: {reason}")
            continue
        path = folder.joinpath(*parts)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            modes.append((path, member.mode & 0o777 | 0o700))
        elif not parts:
            raise UnsafeArchive(f"the node sent an archive with a bad name: {member.name!r}")
        elif member.issym():
            if stays_inside(parts, member.linkname):
                # Now, while there are no links on the way.
                path.parent.mkdir(parents=True, exist_ok=True)
                links.append((path, member.linkname))
            else:
                left_out.append(f"{member.name}: leads out of the folder, to {member.linkname}")
        elif member.islnk():
            path.parent.mkdir(parents=True, exist_ok=True)
            inner = split_inner_parts(member.linkname)
            if _find_limit(inner):
                left_out.append(f"{member.name}: a link to what was left out")
            else:
                os.link(folder.joinpath(*inner), path)
        elif member.isreg():
            path.parent.mkdir(parents=True, exist_ok=True)
            with (
                open(path, "xb") as file,
                _remove_on_failure(path, broken and broken / Path(*parts)),
            ):
                source = archive.extractfile(member)
                if source is not None:
                    shutil.copyfileobj(source, file, CHUNK)
                os.fchmod(file.fileno(), member.mode & 0o777)
            os.utime(path, (member.mtime, member.mtime))
        else:
            left_out.append(f"{member.name}: neither a file, a folder nor a link")
    for path, target in links:
        path.symlink_to(target)
    for path, mode in reversed(modes):
        path.chmod(mode)
    return left_out


def _find_limit(parts: list[str]) -> str:
    """Why no file can have that path; "" where one can."""
    if len(parts) > MAX_PARTS:
        return f"it lies more than {MAX_PARTS} folders deep"
    longest = max((len(os.fsencode(part)) for part in parts), default=0)
    if longest > MAX_NAME or len(os.fsencode("/".join(parts))) > MAX_PATH:
        return "the name is too long"
    return ""


@contextmanager
def _remove_on_failure(path: Path, broken: Path | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if broken:
            broken.parent.mkdir(parents=True, exist_ok=True)
            path.rename(broken)
        else:
            path.unlink()
        raise


def split_inner_parts(name: str) -> list[str]:
    """The parts of a member's name, none of which leads up or out. Raises UnsafeArchive."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise UnsafeArchive(f"the node sent an archive with a bad name: {name!r}")
    return parts


def stays_inside(parts: list[str], target: str) -> bool:
    """Whether a link at `parts` can only lead to what is inside, over other such links, too.

    Steps up come first, from a real folder, and no more of them than it is deep.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = next((i for i, step in enumerate(steps) if step != ".."), len(steps))
    return not target.startswith("/") and ups < len(parts) and ".." not in steps[ups:]


def move_into(source: Path, target: Path) -> None:
    """Moves what is in the folder `source` into the folder `target`, file by file, following no
    links. What is there under the same name is replaced; folders are merged.

    Raises UnsafeArchive.
    """
    for entry in list(os.scandir(source)):
        there = target / entry.name
        folder_there = there.is_dir() and not there.is_symlink()
        if not entry.is_dir(follow_symlinks=False):
            if folder_there:
                raise UnsafeArchive(f"{there} is a folder here, but not in the source")
            os.replace(entry.path, there)
        elif folder_there:
            move_into(Path(entry.path), there)
        else:
            there.unlink(missing_ok=True)
            os.rename(entry.path, there)


def open_reader(file: BinaryIO) -> tarfile.TarFile:
    """An archive that is read once, from front to back."""
    return tarfile.open(
        fileobj=file, mode="r|", bufsize=CHUNK, encoding="utf-8", errors="surrogateescape"
    )
