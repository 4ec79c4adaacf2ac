"""What a job was made from, for its record: the commit and the changes beside it, the exact
command, the packages, images and machines."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from clusterctl import process
from clusterctl.batch.direct import LEAST_OUTPUT, OUTPUT
from clusterctl.core.job import Job, LaunchPlan, Machine, Provenance
from clusterctl.core.model import Cluster
from clusterctl.core.text import format_bytes
from clusterctl.core.variables import redact_arguments, redact_patch
from clusterctl.errors import RecordError
from clusterctl.state.files import explain_write_errors, write_atomic
from clusterctl.state.home import KEPT_JOBS, Home
from clusterctl.state.store import Store

if TYPE_CHECKING:  # a job that is there has been staged
    from clusterctl.project.tree import Tree

GIT_TIMEOUT = 20.0
PATCH = 1_000_000
"""Bytes of a patch that are kept."""


def describe_provenance(
    job: Job,
    cluster: Cluster,
    plan: LaunchPlan,
    tree: Tree,
    store: Store,
    typed: Sequence[str] = (),
) -> Provenance:
    """Of a job that was started from `tree`, or from the files of the job that it runs again."""
    from clusterctl.project import packages  # not for a job that is there

    if job.rerun_of is not None:
        source = store.read_provenance(job.rerun_of)
    else:
        source = read_git(tree.root) if tree.by_git else Provenance()
    rank_nodes = [cluster.node(p.node) for p in job.placement if cluster.has(p.node)]
    chosen = packages.choose_packages(cluster, job.spec.python)
    versions = (
        packages.read_versions(job.spec.packages, chosen.node(node.name), store.home)
        for node in rank_nodes
    )
    return replace(
        source,
        typed=tuple(redact_arguments(typed)),
        command=plan.argv,
        machines=tuple(
            _describe_machine(cluster, place.node, place.count) for place in job.placement
        ),
        images=dict(cluster.images) or _list_images(job, cluster),
        site=dict(cluster.site_info),
        requirements=next(versions, ()),
    )


def read_git(root: Path) -> Provenance:
    """Commit, branch, and what the tracked files differ by; nothing without commits."""

    def ask(*words: str) -> bytes:
        result = process.run(["git", "-C", str(root), *words], timeout=GIT_TIMEOUT)
        return result.stdout if result.ok else b""

    commit = ask("rev-parse", "--verify", "--quiet", "HEAD").decode(errors="replace").strip()
    if not commit:
        return Provenance()
    branch = ask("rev-parse", "--abbrev-ref", "HEAD").decode(errors="replace").strip()
    # Not as the user's own settings would show it: colours, and programs that compare.
    patch = ask("diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".")
    text = redact_patch(patch.decode(errors="replace"))[:PATCH]
    return Provenance(commit=commit, branch=branch, patch=text, patch_bytes=len(patch))


def _describe_machine(cluster: Cluster, name: str, ranks: int) -> Machine:
    if not cluster.has(name):  # a batch system says later where the ranks run
        return Machine(name=name, ranks=ranks)
    node = cluster.node(name)
    facts = node.facts
    packages = dict(facts.python.packages) if facts.python else {}
    if facts.mpi:
        packages[facts.mpi.flavour] = facts.mpi.version
    return Machine(
        name=name,
        ranks=ranks,
        address=node.private_address,
        instance_type=node.instance_type,
        arch=facts.arch,
        cores=facts.cores,
        gpus=facts.gpus,
        python=facts.python.version if facts.python else "",
        packages=packages,
    )


def _list_images(job: Job, cluster: Cluster) -> dict[str, str]:
    image = job.spec.container or cluster.spec.image
    return {"all": image} if image else dict(cluster.spec.images)


# -------------------------------------------------------------------------------------------------
# A job's output in the state home: a file for each stream of each rank, less what was left out of
# one that became too long. Beside such a file, FILE.cut has a line `FROM TO` for each part left
# out: bytes of the output, which are a hole in the file.


CHUNK = 1 << 20
"""Bytes that are read at a time."""
BLOCK = 4096
"""Bytes that a hole begins and ends at a multiple of."""
KEPT_SECONDS = 90 * 86400
"""The output of the last KEPT_JOBS jobs is kept, and that of others for so long."""
_REMOVED = "out-removed"
_FILE = re.compile(r"out/(rank|agent)-(\d+)\.(out|err)")
"""The name of such a file in a job's folder."""


class Piece(Struct, frozen=True):
    """What a rank wrote next to one of its streams, byte by byte: a piece may begin and end within
    a line. `rank` is None for a torchrun agent."""

    rank: int | None
    node: str
    stream: str
    data: bytes


def read_name(name: str) -> tuple[int | None, str] | None:
    """Rank and stream of such a file, as a Piece has them; None for any other file."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    rank = int(match[2]) if match[1] == "rank" else None
    return rank, "stdout" if match[3] == "out" else "stderr"


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


def read_log(path: Path) -> Iterator[tuple[bytes, int]]:
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
            if start:  # else it is what lay in the file before the job
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
        if found := read_name(f"out/{path.name}"):
            for chunk, _ in read_log(path):
                yield [Piece(found[0], path.parent.name, found[1], chunk)]


def is_complete(folder: Path) -> bool:
    """Whether the state home has all the output there will ever be."""
    return (folder / "out" / ".complete").exists()


def _make_sort_key(path: Path) -> tuple[str, int]:
    return path.suffix, int("".join(filter(str.isdigit, path.stem)) or 0)


# -------------------------------------------------------------------------------------------------
# What a fetch has put where, by job, so that a later job can start with it.


T = TypeVar("T")
Files = dict[str, Path]
"""Files of one node, by their paths below the working directory."""


class FetchNote(Struct, frozen=True):
    """Of one job: the folder that files were fetched to last; the nodes that held the job's files,
    that of rank 0 first; and what `read_state` gave, by NODE/PATH."""

    folder: str = ""
    nodes: tuple[str, ...] = ()
    files: dict[str, list[int]] = field(default_factory=dict)


def note(home: Home, job: Job, nodes: Iterable[str], folder: Path, places: Iterable[str]) -> None:
    """Notes that these files, `NODE/PATH` below `folder`, are as the job's nodes have them."""
    folder = folder.absolute()
    known = read_fetched(home, job)
    files = dict(known.files) if known.folder == str(folder) else {}
    files |= read_states(folder, places)
    document = asdict(FetchNote(str(folder), tuple(nodes), files))
    write_atomic(_locate(home, job), json.dumps(document).encode())


def read_fetched(home: Home, job: Job) -> FetchNote:
    """An empty one where nothing was fetched."""
    return read_note(_locate(home, job), FetchNote) or FetchNote()


def find_files(
    home: Home, job: Job, wanted: Callable[[str], bool] = lambda node: True
) -> dict[str, Files]:
    """What was fetched of the job from these nodes, by node. Raises RecordError where it is no
    longer as it was."""
    known = read_fetched(home, job)
    found: dict[str, Files] = {}
    for place, before in known.files.items():
        node, _, name = place.partition("/")
        if not wanted(node):
            continue
        path = Path(known.folder) / place
        if read_state(path) != before:
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


def read_state(path: Path) -> list[int] | None:
    """What changes with a file: size, modification time and time of the last change. None where
    there is none."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns]


def read_states(folder: Path, places: Iterable[str]) -> dict[str, list[int]]:
    """The same of these files below the folder, as far as they are there."""
    found = {place: read_state(folder / place) for place in places}
    return {place: state for place, state in found.items() if state}


def read_note(path: Path, kind: type[T]) -> T | None:
    """What a file of JSON holds; None where there is none, or it is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        return msgspec.convert(json.loads(path.read_bytes()), kind)
    return None


def _locate(home: Home, job: Job) -> Path:
    return home.jobs / str(job.id) / "fetched.json"
