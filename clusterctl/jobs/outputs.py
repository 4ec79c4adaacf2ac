"""What a job has made: files and links that are new or changed in its working directories."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from clusterctl.core.clock import Deadline
from clusterctl.core.job import Job
from clusterctl.core.model import Cluster, NodeResult, Reporter, make_error
from clusterctl.errors import ClusterctlError, RecordError
from clusterctl.jobs import mirror
from clusterctl.jobs.records import read_state
from clusterctl.jobs.submit import list_rank_nodes
from clusterctl.project import tree
from clusterctl.state.home import Home, explain_write_errors, write_atomic
from clusterctl.transport import protocol
from clusterctl.transport.pool import Pool
from clusterctl.transport.protocol import Transport
from clusterctl.transport.ssh import CONNECT_LIMIT

# -------------------------------------------------------------------------------------------------
# Copies that go on after their connection was lost.


ATTEMPTS = 5
"""Connections that one copy may use up."""
LIST_TIMEOUT = 60.0
WAIT, PAUSE = 300.0, 3.0
"""Seconds that a node which was lost has to answer again; seconds between two looks."""


def persist(
    transport: Transport,
    attempt: Callable[[int], NodeResult],
    report: Reporter = lambda line: None,
) -> NodeResult:
    """Calls `attempt` with its number, from 0, and again when the node answers after a loss of the
    connection: it copies what is missing by then. The result of the last one. `report` hears of
    each loss."""
    number = 0
    while True:
        result = attempt(number)
        number += 1
        if not result.cut or number == ATTEMPTS:
            return result
        report(
            f"lost the connection to {result.node}: {result.error};"
            f" continuing if it answers within {WAIT / 60:g} minutes"
        )
        if not _connect(transport):
            return result


def _connect(transport: Transport) -> bool:
    limit = Deadline(WAIT)
    while True:
        try:
            transport.connect(min(CONNECT_LIMIT, limit.left))
            return True
        except (ClusterctlError, OSError):
            if limit.left < PAUSE:
                return False
            time.sleep(PAUSE)


def put_folder(
    transport: Transport,
    source: Path,
    target: str,
    *,
    timeout: float,
    report: Reporter = lambda line: None,
) -> NodeResult:
    """As `Transport.put`; after a loss of the connection, the files that came whole are not sent
    again."""

    def attempt(number: int) -> NodeResult:
        there = _list_whole(transport, source, target) if number else ()
        return transport.put(source, target, timeout=timeout, without=there)

    return persist(transport, attempt, report)


def _list_whole(transport: Transport, source: Path, target: str) -> Sequence[str]:
    """The files of a folder that have their size and time there, too. A file gets its time when it
    is complete."""
    command = f"cd {protocol.quote_path(target)} && find . -type f -printf '%s %T@ %P\\0'"
    found = []
    for item in transport.run(command, timeout=LIST_TIMEOUT).stdout.split(b"\0")[:-1]:
        size, modified, path = os.fsdecode(item).split(" ", 2)
        with suppress(OSError, ValueError):
            here = os.lstat(source / path)
            if (int(size), int(float(modified))) == (here.st_size, int(here.st_mtime)):
                found.append(path)
    return found


# -------------------------------------------------------------------------------------------------

FETCH_TIMEOUT = 3600.0
BEGUN = ".clusterctl-parts"
"""Beside the files of a node, the folder with the beginning of one whose copy has broken off."""

_ET_CORE = 4
"""The kind of an ELF file that is a core dump."""


@dataclass(frozen=True, slots=True)
class Output:
    """A file below the working tree of a node; `size` in bytes, `modified` in seconds since the
    epoch, by the node's clock."""

    node: str
    path: str
    size: int
    modified: float = 0.0
    copied: bool = False
    """It is the launcher's copy."""

    @property
    def place(self) -> str:
        """Its path below the folder that it is fetched into."""
        return f"{self.node}/{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What a fetch has done."""

    outputs: tuple[Output, ...] = ()
    kept: tuple[str, ...] = ()
    """Files here that are not as they were fetched: they stay, and the node's stay there."""
    left_out: tuple[str, ...] = ()
    """What was not brought, such as a link that leads out of the folder, with the reason."""
    core_dumps: tuple[str, ...] = ()
    """Files that hold the memory of a program, and with it the secrets that it was given."""
    failed: tuple[ClusterctlError, ...] = ()
    """One for each node that some of them could not be copied from."""


@dataclass(frozen=True, slots=True)
class FoundOutputs:
    """`outputs`, in the order of their places, and an error for each node that may have more:
    NodeUnreachable where it does not answer, RecordError where they cannot be told or listed."""

    outputs: tuple[Output, ...]
    failed: tuple[ClusterctlError, ...] = ()
    lost: tuple[str, ...] = ()
    """Nodes that were made anew since."""

    def require_all(self) -> tuple[Output, ...]:
        """The outputs; raises the first error where there may be more."""
        if self.failed:
            raise self.failed[0]
        return self.outputs


def find_outputs(
    job: Job, cluster: Cluster, pool: Pool, *, timeout: float = LIST_TIMEOUT
) -> FoundOutputs:
    """Every output on every node that ran ranks."""

    def ask(name: str) -> NodeResult:
        root = shlex.quote(cluster.node(name).root)
        folder, script = (
            shlex.quote(_locate_folder(job, cluster, name)),
            _quote_script(job, cluster, name),
        )
        # Before its start, a job has made nothing, however far its staging got. Afterwards only a
        # machine that was made anew has nothing of it.
        nothing = (
            f"[ -d {root} ] && [ ! -e {folder} ]" if job.started else f"[ ! -e {folder}/.staged ]"
        )
        return pool.find_transport(name).run(
            f"if {nothing}; then printf lost; exit 0; fi; exec /bin/sh {script} list",
            timeout=timeout,
        )

    found: list[Output] = []
    failed: list[ClusterctlError] = []
    lost: list[str] = []
    for result in pool.call_each(ask, list_rank_nodes(job, cluster)):
        if result.exit_code is None:
            failed.append(make_error(f"looking for outputs of job {job.id}", result))
        elif not result.ok:
            failed.append(_make_listing_error(job, cluster, result))
        if result.stdout.endswith(b"lost"):  # else it ends with a NUL, if anything
            lost.append(result.node)
        found += parse_outputs(result.node, result.stdout)
    found.sort(key=lambda output: (output.node, output.path))
    return FoundOutputs(tuple(found), tuple(failed), tuple(lost))


def parse_outputs(node: str, printed: bytes) -> list[Output]:
    """What `outputs.sh list` printed there. Raises RecordError."""
    found = []
    try:
        for item in printed.split(b"\0")[:-1]:
            size, modified, _, path = item.decode(errors="surrogateescape").split(" ", 3)
            path = path.removeprefix("./")
            found.append(Output(node, path, int(size), float(modified)))
    except ValueError as error:
        raise mirror.make_unreadable_error(node) from error
    return found


def find_copies(
    job: Job, cluster: Cluster, pool: Pool, names: Collection[str], report: Reporter
) -> tuple[Output, ...]:
    """The launcher's copies of the outputs of nodes that are lost; says from when they are. Raises
    NodeUnreachable."""
    copies = mirror.find_mirror(job, cluster, pool, names)
    for line in mirror.describe_mirror(copies):
        report(line)
    return tuple(
        Output(name, path, size, modified, copied=True)
        for name, found in sorted(copies.items())
        for path, size, modified in sorted(found.files)
    )


def fetch(
    job: Job,
    cluster: Cluster,
    pool: Pool,
    outputs: Iterable[Output],
    target: Path,
    home: Home,
    report: Reporter = lambda line: None,
) -> Brought:
    """Copies outputs to `target`/<node>/<path>. Files that an earlier fetch has put there are
    replaced; those that were there before, or were changed since, are kept.

    Raises UsageError where nothing can be written, and RecordError while another clusterctl is
    fetching to the same folder.
    """
    with explain_write_errors(target):
        if not target.exists():
            target.mkdir(parents=True)
            (target / tree.MARK).touch()
    with _lock(target, home):
        return _fetch(job, cluster, pool, outputs, target, home, report)


@contextmanager
def _lock(target: Path, home: Home) -> Iterator[None]:
    home.make(home.fetched)
    path = home.fetched / f"{_hash_path(target)}.lock"
    with explain_write_errors(path):
        lock = path.open("ab")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(
                f"another clusterctl is fetching to {target}",
                hint="try again when that has finished, or choose another folder with --to",
                transient=True,
            ) from None
        yield


def _hash_path(target: Path) -> str:
    return hashlib.sha256(os.fsencode(target.resolve())).hexdigest()[:32]


def _fetch(
    job: Job,
    cluster: Cluster,
    pool: Pool,
    outputs: Iterable[Output],
    target: Path,
    home: Home,
    report: Reporter,
) -> Brought:
    before = _Fetched(home, target)
    kept = tuple(output for output in outputs if before.is_someones_else(output))
    wanted = [output for output in outputs if output not in kept]

    left_out: list[str] = []
    absent: set[Output] = set()
    results = copy(job, cluster, pool, wanted, target, report)
    there = {result.node for result in results if result.ok}
    got = [output for output in wanted if output.node in there]
    before.note(got)
    for result in results:
        absent |= {
            output
            for output in wanted
            if output.node == result.node
            and b"left out ./%b: " % os.fsencode(output.path) in result.stderr
        }
        said = result.stderr.decode(errors="replace").splitlines()
        left_out += [f"{result.node}: {line}" for line in said if line.startswith("left out ")]
    return Brought(
        outputs=tuple(output for output in got if output not in absent),
        kept=tuple(output.place for output in kept),
        left_out=tuple(left_out),
        core_dumps=tuple(o.place for o in got if _is_core_dump(target / o.place)),
        failed=tuple(
            make_error(f"fetching outputs of job {job.id}", result)
            for result in results
            if not result.ok
        ),
    )


def copy(
    job: Job,
    cluster: Cluster,
    pool: Pool,
    wanted: Collection[Output],
    target: Path,
    report: Reporter = lambda line: None,
) -> Sequence[NodeResult]:
    """Copies outputs to `target`/<node>/<path>, whatever is there; one result for each node, whose
    stderr names what was left out. Where the connection is lost, which `report` hears of, it goes
    on with the next file."""

    def get(name: str) -> NodeResult:
        mine = [output for output in wanted if output.node == name]
        before = {output: _find_state(target / output.place) for output in mine}

        def attempt(number: int) -> NodeResult:
            here = {
                o for o in mine if (state := _find_state(target / o.place)) and state != before[o]
            }
            left = [output for output in mine if output not in here]
            return get_files(name, left) if left else NodeResult(node=name, exit_code=0)

        source = cluster.launcher.name if any(output.copied for output in mine) else name
        return persist(pool.find_transport(source), attempt, report)

    def get_files(name: str, mine: Collection[Output]) -> NodeResult:
        # A folder of links gives the transport one tree that holds the outputs and nothing else.
        paths, here = [output.path for output in mine], target / name
        begun = here / BEGUN
        if any(output.copied for output in mine):
            return mirror.copy(job, cluster, pool, name, paths, here, begun)
        command = f"exec /bin/sh {_quote_script(job, cluster, name)} link"
        links, transport = (
            f"{_locate_folder(job, cluster, name)}/outputs",
            pool.find_transport(name),
        )
        return mirror.get_linked(
            transport, command, links, paths, here, begun, timeout=FETCH_TIMEOUT
        )

    return pool.call_each(get, sorted({output.node for output in wanted}))


def _find_state(path: Path) -> list[int] | None:
    try:
        return read_state(path)
    except OSError:
        return None


@dataclass(slots=True)
class _Fetched:
    """How the files below `target` were when a fetch had put them there: size, modification time
    and time of the last change, by path."""

    home: Home
    target: Path
    _known: dict[str, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        with suppress(OSError, ValueError, RecursionError):
            self._known = msgspec.convert(json.loads(self._file.read_bytes()), dict[str, list[int]])

    @property
    def _file(self) -> Path:
        return self.home.fetched / f"{_hash_path(self.target)}.json"

    def is_someones_else(self, output: Output) -> bool:
        """Whether something is in the place of `output` that no fetch has left as it is."""
        try:
            size, modified, changed = read_state(self.target / output.place)
        except OSError:
            return False
        if output.place in self._known:
            return self._known[output.place] != [size, modified, changed]
        # A fetch that was killed has noted nothing; archives have whole seconds.
        return (size, modified // 10**9) != (output.size, int(output.modified))

    def note(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            with suppress(OSError):  # it may have been left out
                self._known[output.place] = read_state(self.target / output.place)
        self.home.make(self.home.fetched)
        write_atomic(self._file, json.dumps(self._known).encode())


def _is_core_dump(path: Path) -> bool:
    if "core" not in path.name or path.is_symlink():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(18)
    except OSError:
        return False
    kind = head[16:18] if head[5:6] == b"\2" else head[17:15:-1]  # big-endian, or little
    return head[:4] == b"\x7fELF" and int.from_bytes(kind, "big") == _ET_CORE


def _make_listing_error(job: Job, cluster: Cluster, result: NodeResult) -> RecordError:
    return RecordError(
        f"the outputs of job {job.id} on {result.node} cannot be listed: {result.why}",
        hint="copy its working directory: `clusterctl cp"
        f" {result.node}:{_locate_folder(job, cluster, result.node)}/work FOLDER`",
    )


def _locate_folder(job: Job, cluster: Cluster, name: str) -> str:
    return f"{cluster.node(name).root}/jobs/{job.id}"


def _quote_script(job: Job, cluster: Cluster, name: str) -> str:
    return shlex.quote(f"{_locate_folder(job, cluster, name)}/outputs.sh")
