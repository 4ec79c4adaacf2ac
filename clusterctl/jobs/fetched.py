"""What a fetch has put where, by job, so that a later job can start with it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from clusterctl.errors import RecordError
from clusterctl.job_model import Job
from clusterctl.state import Home
from clusterctl.state.home import write_atomic

Files = dict[str, Path]
"""Files of one node, by their paths below the working directory."""


@dataclass(frozen=True, slots=True)
class _FetchNote:
    """Of one job: the last folder, the nodes, and what `read_state` gave, by NODE/PATH."""

    folder: str = ""
    nodes: tuple[str, ...] = ()
    files: dict[str, list[int]] = field(default_factory=dict)


def note(home: Home, job: Job, nodes: Iterable[str], folder: Path, places: Iterable[str]) -> None:
    """Notes that these files, `NODE/PATH` below `folder`, are as the job's nodes have them.
    `nodes`: those that hold the job's files, that of rank 0 first."""
    folder = folder.absolute()
    known = _read(home, job)
    files = dict(known.files) if known.folder == str(folder) else {}
    for place in places:
        with suppress(OSError):  # it may have been left out
            files[place] = read_state(folder / place)
    document = asdict(_FetchNote(str(folder), tuple(nodes), files))
    write_atomic(_locate(home, job), json.dumps(document).encode())


def list_nodes(home: Home, job: Job) -> tuple[str, ...]:
    """The nodes that held the job's files, that of rank 0 first; () where nothing was fetched."""
    return _read(home, job).nodes


def find_folder(home: Home, job: Job) -> str:
    """The folder that files of the job were fetched to last; "" where nothing was."""
    return _read(home, job).folder


def find_files(
    home: Home, job: Job, wanted: Callable[[str], bool] = lambda node: True
) -> dict[str, Files]:
    """What was fetched of the job from these nodes, by node. Raises RecordError where it is no
    longer as it was."""
    known = _read(home, job)
    found: dict[str, Files] = {}
    for place, before in known.files.items():
        node, _, name = place.partition("/")
        if not wanted(node):
            continue
        path = Path(known.folder) / place
        try:
            same = read_state(path) == before
        except OSError:
            same = False
        if not same:
            raise RecordError(
                f"{path} is not as it was fetched from job {job.id}",
                hint=f"`clusterctl fetch {job.id} --to DIR` fetches it again while the cluster"
                " exists, else put the file back",
            )
        found.setdefault(node, {})[name] = path
    return found


def pack(files: Files, archive: Path) -> Path:
    """Writes an archive of them."""
    with tarfile.open(
        archive, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as packed:
        for name, path in sorted(files.items()):
            packed.add(path, name, recursive=False)
    return archive


def read_state(path: Path) -> list[int]:
    """What changes with a file: size, modification time and time of the last change."""
    info = path.lstat()
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns]


def _read(home: Home, job: Job) -> _FetchNote:
    """Nothing where nothing was fetched, or the note of it is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        return msgspec.convert(json.loads(_locate(home, job).read_bytes()), _FetchNote)
    return _FetchNote()


def _locate(home: Home, job: Job) -> Path:
    return home.jobs / str(job.id) / "fetched.json"
