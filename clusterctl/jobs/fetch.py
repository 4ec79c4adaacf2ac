"""Brings what a job has made: files and links that are new or changed in its working directories.

They come from its nodes, or from the copies of them that its supervisor puts onto the launcher
(clusterctl/agent/mirror.py). While somebody follows the job, those come to this machine, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import secrets
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clusterctl.batch.system import ask_agent, list_rank_nodes, load_system, locate_folder
from clusterctl.core.clock import Deadline, now, run_in_background
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster, NodeResult, Reporter, make_error
from clusterctl.core.text import count, format_bytes, format_time
from clusterctl.errors import ClusterctlError, RecordError, UsageError, describe_reason
from clusterctl.jobs.records import read_note, read_state, read_states
from clusterctl.state.files import explain_write_errors, make_private, write_atomic
from clusterctl.state.home import FETCHED_MARK, Home
from clusterctl.transport import copying
from clusterctl.transport.pool import Pool
from clusterctl.transport.protocol import Transport
from clusterctl.transport.ssh import CONNECT_LIMIT

LIST_TIMEOUT = 60.0
LINK_TIMEOUT = 60.0
COPY_TIMEOUT = 3600.0
BEGUN = ".clusterctl-parts"
"""Beside the files of a node, the folder with the beginning of one whose copy has broken off."""
_ET_CORE = 4
"""The kind of an ELF file that is a core dump."""


class Output(Struct, frozen=True):
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


class Brought(Struct, frozen=True, kw_only=True):
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


class FoundOutputs(Struct, frozen=True):
    """`outputs`, in the order of their places, and an error for each node that may have more:
    NodeUnreachable where it does not answer, RecordError where they cannot be told or listed."""

    outputs: tuple[Output, ...]
    failed: tuple[ClusterctlError, ...] = ()
    lost: tuple[str, ...] = ()
    """Nodes that were made anew since."""
    left_out: tuple[str, ...] = ()
    """What is neither a file nor a link, such as a pipe."""

    def require_all(self) -> tuple[Output, ...]:
        """The outputs; raises the first error where there may be more."""
        if self.failed:
            raise self.failed[0]
        return self.outputs


def find_outputs(
    job: Job, cluster: Cluster, pool: Pool, *, timeout: float = LIST_TIMEOUT
) -> FoundOutputs:
    """Every output on every node that ran ranks."""
    commands = {}
    for name in list_rank_nodes(job, cluster):
        root = shlex.quote(cluster.node(name).root)
        folder = shlex.quote(locate_folder(job, cluster, name))
        # Before its start, a job has made nothing, however far its staging got. Afterwards only a
        # machine that was made anew has nothing of it.
        nothing = (
            f"[ -d {root} ] && [ ! -e {folder} ]" if job.started else f"[ ! -e {folder}/.staged ]"
        )
        script = f"cd {folder} || exit; {ask_agent('list')}"
        commands[name] = f"if {nothing}; then printf lost; exit 0; fi; {script}"
    found: list[Output] = []
    failed: list[ClusterctlError] = []
    lost: list[str] = []
    left_out: list[str] = []
    for result in pool.run(commands, list(commands), timeout=timeout):
        if result.exit_code is None:
            failed.append(make_error(f"looking for outputs of job {job.id}", result))
        elif not result.ok:
            place = f"{result.node}:{locate_folder(job, cluster, result.node)}/work"
            failed.append(
                RecordError(
                    f"the outputs of job {job.id} on {result.node} cannot be listed: {result.why}",
                    hint=f"copy its working directory: `clusterctl cp {place} FOLDER`",
                )
            )
        if result.stdout.endswith(b"lost"):  # else it ends with a NUL, if anything
            lost.append(result.node)
        found += parse_outputs(result.node, result.stdout)
        left_out += _list_left_out(result)
    found.sort(key=lambda output: (output.node, output.path))
    return FoundOutputs(tuple(found), tuple(failed), tuple(lost), tuple(left_out))


def _list_left_out(result: NodeResult) -> list[str]:
    lines = result.complaints.splitlines()
    return [f"{result.node}: {line}" for line in lines if line.startswith("left out ")]


def parse_outputs(node: str, printed: bytes) -> list[Output]:
    """What `agent.sh list` printed there. Raises RecordError."""
    found = []
    try:
        for item in printed.split(b"\0")[:-1]:
            size, modified, _, path = item.decode(errors="surrogateescape").split(" ", 3)
            path = path.removeprefix("./")
            found.append(Output(node, path, int(size), float(modified)))
    except ValueError as error:
        raise make_unreadable_error(node) from error
    return found


def make_unreadable_error(node: str) -> RecordError:
    return RecordError(
        f"the list of output files that {node} sent cannot be read",
        hint=f"`clusterctl ssh {node} -- true` must print nothing: check the login files there",
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
    # How the files were when fetches had put them there.
    note = home.fetched / f"{hashlib.sha256(os.fsencode(target.resolve())).hexdigest()[:32]}.json"
    with _lock(note.with_suffix(".lock"), target, home):
        with explain_write_errors(target, "choose another folder with --to"):
            if not target.exists():
                target.mkdir(parents=True)
                (target / FETCHED_MARK).touch()
        known = read_note(note, dict[str, list[int]]) or {}
        kept = tuple(o for o in outputs if _is_someones_else(o, target, known.get(o.place)))
        wanted = [output for output in outputs if output not in kept]
        results = copy_outputs(job, cluster, pool, wanted, target, report)
        there = {result.node for result in results if result.ok}
        got = [output for output in wanted if output.node in there]
        known |= read_states(target, [output.place for output in got])
        write_atomic(note, json.dumps(known).encode())
    said = {result.node: result.stderr for result in results}
    what = f"fetching outputs of job {job.id}"
    return Brought(
        outputs=tuple(
            o for o in got if b"left out ./%b: " % os.fsencode(o.path) not in said[o.node]
        ),
        kept=tuple(output.place for output in kept),
        left_out=tuple(line for result in results for line in _list_left_out(result)),
        core_dumps=tuple(o.place for o in got if _is_core_dump(target / o.place)),
        failed=tuple(make_error(what, result) for result in results if not result.ok),
    )


def _is_someones_else(output: Output, target: Path, before: list[int] | None) -> bool:
    """Whether something is in the place of `output` that no fetch has left as it is."""
    state = read_state(target / output.place)
    if state is None or before:
        return state is not None and state != before
    # A fetch that was killed has noted nothing; archives have whole seconds.
    return (state[0], state[1] // 10**9) != (output.size, int(output.modified))


@contextmanager
def _lock(path: Path, target: Path, home: Home) -> Iterator[None]:
    home.make(home.fetched)
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


def copy_outputs(
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

    before = read_states(target, [output.place for output in wanted])
    copied = {output.node for output in wanted if output.copied}

    def get(name: str) -> NodeResult:
        mine = {output.place: output.path for output in wanted if output.node == name}
        come = read_states(target, mine)
        paths = [mine[place] for place in mine if come.get(place) == before.get(place)]
        if not paths:
            return NodeResult(node=name, exit_code=0)
        begun = target / name / BEGUN
        if name in copied:
            return copy_mirrored(job, cluster, pool, name, paths, target / name, begun)
        # A folder of links gives the transport one tree that holds the outputs and nothing else.
        folder = locate_folder(job, cluster, name)
        command = f"cd {shlex.quote(folder)} || exit; {ask_agent('link')}"
        transport, links = pool.find_transport(name), f"{folder}/outputs"
        return get_linked(transport, command, links, paths, target / name, begun)

    return persist(
        pool,
        lambda names: pool.call_each(get, names),
        sorted({output.node for output in wanted}),
        report,
        lambda name: cluster.launcher.name if name in copied else name,
    )


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


# -------------------------------------------------------------------------------------------------
# Copies that go on after their connection was lost.


ATTEMPTS = 5
"""Connections that one copy may use up."""
WAIT, PAUSE = 300.0, 3.0
"""Seconds that a node which was lost has to answer again; seconds between two looks."""


def persist(
    pool: Pool,
    attempt: Callable[[Sequence[str]], Sequence[NodeResult]],
    names: Sequence[str],
    report: Reporter = lambda line: None,
    find_source: Callable[[str], str] = lambda name: name,
) -> Sequence[NodeResult]:
    """Calls `attempt` with the names of nodes, and again with those that answer after a loss of the
    connection: it copies what is missing by then. The last result of each. `report` hears of each
    loss; `find_source`: the node that has what belongs to another one."""
    results = {result.node: result for result in attempt(names)}
    for _ in range(ATTEMPTS - 1):
        lost = [result for result in results.values() if result.cut]
        for result in lost:
            report(
                f"lost the connection to {find_source(result.node)}: {result.error};"
                f" continuing if it answers within {WAIT / 60:g} minutes"
            )
        back = [r.node for r in lost if _connect(pool.find_transport(find_source(r.node)))]
        if not back:
            break
        results.update({result.node: result for result in attempt(back)})
    return list(results.values())


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


def get_linked(
    transport: Transport,
    command: str,
    links: str,
    paths: Sequence[str],
    target: Path,
    begun: Path,
) -> NodeResult:
    """Copies files of a node into the folder `target`. `command` makes the folder `links` there of
    those whose paths it reads, each with a zero byte behind it. Where the copy breaks off, the
    beginning of a file waits in the folder `begun`, and the next call brings the rest."""
    linked = transport.run(command, stdin=render_paths(paths), timeout=LINK_TIMEOUT)
    if not linked.ok:
        return linked
    got = _get_rests(transport, linked, links, set(paths), target, begun)
    if got.ok:
        got = transport.get(links, target, timeout=COPY_TIMEOUT, begun=begun)
    if got.ok:
        shutil.rmtree(begun, ignore_errors=True)
    return got


def render_paths(paths: Collection[str]) -> bytes:
    return b"".join(os.fsencode(f"./{path}") + b"\0" for path in paths)


def _get_rests(
    transport: Transport,
    got: NodeResult,
    links: str,
    wanted: Collection[str],
    target: Path,
    begun: Path,
) -> NodeResult:
    """Brings the rest of files whose beginning is here, and removes their links. One that is not
    what it was stays among the links, and comes whole with them. `got`: the node's last answer."""
    found = [file for file in begun.rglob("*") if file.is_file() and not file.is_symlink()]
    # Not the other way round: a node may list paths that lead out of the folder.
    here = {path: file for file in found if (path := str(file.relative_to(begun))) in wanted}
    whole = []
    try:
        for path, file in here.items():
            with tempfile.TemporaryDirectory(dir=begun.parent, prefix=".part-") as scratch:
                source = f"{links}/{path}"
                got = transport.get(source, Path(scratch, path), timeout=COPY_TIMEOUT, begun=file)
                if got.exit_code is None:
                    return got
                file.unlink(missing_ok=True)
                if got.ok:
                    whole.append(path)
                    target.mkdir(parents=True, exist_ok=True)
                    copying.move_into(Path(scratch), target)
    except (OSError, UsageError) as error:
        errno = getattr(error, "errno", 0) or 0
        return replace(got, exit_code=None, error=describe_reason(error), errno=errno)
    if not here:
        return got
    command = f"cd {shlex.quote(links)} && xargs -0 -r rm -f"
    return transport.run(command, stdin=render_paths(whole), timeout=LINK_TIMEOUT)


# -------------------------------------------------------------------------------------------------
# The copies that the launcher has.


class Copies(Struct, frozen=True):
    """The copies of one node's outputs: (path, size in bytes, modification time). `when`: all that
    was there at that moment is among them, in seconds since the epoch by the launcher's clock."""

    when: float
    files: tuple[tuple[str, int, float], ...]
    left_out: tuple[int, int] = (0, 0)
    """How many more outputs there were, and their bytes: as far as the launcher has said so."""


def find_mirror(
    job: Job, cluster: Cluster, pool: Pool, names: Collection[str]
) -> dict[str, Copies]:
    """What there is of the outputs of these nodes, by node; none where there are no copies. Raises
    NodeUnreachable."""
    if not names or (cluster.one_host and not job.spec.sync):
        return {}
    launcher = cluster.launcher.name
    agent = shlex.quote(f"{locate_folder(job, cluster, launcher)}/agent.sh")
    script = f"[ ! -e {agent} ] || exec /bin/sh {agent} mirrored {shlex.join(sorted(names))}"
    result = pool.find_transport(launcher).run(script, timeout=LIST_TIMEOUT)
    if not result.ok:
        raise make_error(f"looking for copies of the outputs of job {job.id}", result)
    return parse_mirror(launcher, result.stdout)


def parse_mirror(launcher: str, printed: bytes) -> dict[str, Copies]:
    """What `agent.sh mirrored` printed there. Raises RecordError."""
    try:
        return msgspec.convert(json.loads(printed or b"{}"), dict[str, Copies])
    except (ValueError, RecursionError) as error:
        raise make_unreadable_error(launcher) from error


def find_copies(
    job: Job, cluster: Cluster, pool: Pool, names: Collection[str], report: Reporter
) -> tuple[Output, ...]:
    """The launcher's copies of the outputs of nodes that are lost; says from when they are. Raises
    NodeUnreachable."""
    outputs = []
    for name, found in sorted(find_mirror(job, cluster, pool, names).items()):
        when = format_time(found.when)
        report(f"using the launcher's copies of the files of {name}, as of {when}")
        number, size = found.left_out
        if number:
            report(
                f"{count(number, 'more file')} of {name} ({format_bytes(size)})"
                f" {'was' if number == 1 else 'were'} not copied to the launcher:"
                " `run --keep-files` chooses what is copied"
            )
        outputs += [Output(name, *file, copied=True) for file in sorted(found.files)]
    return tuple(outputs)


def copy_mirrored(
    job: Job,
    cluster: Cluster,
    pool: Pool,
    name: str,
    paths: Sequence[str],
    target: Path,
    begun: Path,
) -> NodeResult:
    """Copies the copies of these files of a node into the folder `target`. `begun`: as for
    `get_linked`."""
    launcher = cluster.launcher.name
    # A folder of links gives the transport one tree that holds them and nothing else.
    links = f"{_locate_mirror(job, cluster)}/.{name}.{secrets.token_hex(4)}"
    held = shlex.quote(links)
    command = (
        f"rm -rf {held} && mkdir {held} && cd {shlex.quote(_locate_mirror(job, cluster))}/{name} &&"
        f" xargs -0 -r cp -lP --parents -t {held}"
    )
    transport = pool.find_transport(launcher)
    try:
        got = get_linked(transport, command, links, paths, target, begun)
        return replace(got, node=name)
    finally:
        with suppress(ClusterctlError, OSError):
            transport.run(f"rm -rf {held}", timeout=LIST_TIMEOUT)


def _locate_mirror(job: Job, cluster: Cluster) -> str:
    return f"{cluster.launcher.root}/jobs/{job.id}/mirror"


# -------------------------------------------------------------------------------------------------
# The copies of a job's outputs that this machine has: `copies/NODE/PATH` in the job's folder, and
# `copies/.NODE.json`, which says what they are.


INTERVAL = 60.0
"""Seconds between two looks for copies to bring here, at least."""
SYNC_INTERVAL = 5.0
"""The same for a job with --sync."""
LARGEST = 100_000_000
"""Bytes of a file that is brought here: a cloud charges for what leaves it."""
SAVE_LIMIT = 60
"""Seconds that the launcher may take for the copies of a job that has ended."""
SYNC_LIMIT = 600
RESERVE = 1_000_000_000
"""Bytes that copies leave free on the disk here."""


def locate_copies(job_folder: Path) -> Path:
    """Where copies of a job's outputs are here."""
    return job_folder / "copies"


def list_stored(target: Path) -> dict[str, Copies]:
    """What `bring` has put below `target`, by node. What has a damaged note comes anew."""
    found = {}
    for path in target.glob(".*.json"):
        if copies := read_note(path, Copies):
            found[path.name[1 : -len(".json")]] = copies
    return found


def claim(job: Job, job_folder: Path) -> None:
    """Makes a new folder below that of --sync the place of the copies. UsageError where it has
    files already, or cannot be made."""
    target = Path(job.spec.sync, f"job-{job.id}")
    with explain_write_errors(target, "choose another --sync DIR"):
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise UsageError(
                f"{target} is not empty, so the outputs of job {job.id} cannot be copied there",
                hint="move it away, or choose another --sync DIR",
            )
        (target / FETCHED_MARK).touch()
        make_private(job_folder)
        locate_copies(job_folder).symlink_to(target)


def describe_synced(job: Job, job_folder: Path, missing: str = "") -> str:
    """Where --sync has brought the outputs, for people. `missing`: why the last ones are not
    there."""
    target = locate_copies(job_folder).resolve()
    if missing:
        how = f"`clusterctl fetch {job.id}` copies everything that the nodes still have"
        return f"{target} lacks the last outputs of job {job.id}: {missing}; {how}"
    if not any(copies.files for copies in list_stored(target).values()):
        return f"job {job.id} has no outputs that --sync copies to {target}"
    return f"the outputs of job {job.id} are in {target}"


class Keeper:
    """Copies here what the launcher has copies of, while somebody follows the job: a context
    manager. A launcher that is lost takes no more with it than came since the last look."""

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        pool: Pool,
        job_folder: Path,
        interval: float | None = None,
    ) -> None:
        self._job, self._cluster, self._pool, self._folder = job, cluster, pool, job_folder
        self._interval = interval or (SYNC_INTERVAL if job.spec.sync else INTERVAL)
        # What shares this machine's disk is not safer for a further copy on it.
        wanted = bool(job.spec.sync) or not cluster.shares_machine
        self._works = wanted and load_system(cluster.system).places_ranks
        self._end = threading.Event()

    def __enter__(self) -> Keeper:
        if self._works:
            run_in_background(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()

    def _keep(self) -> None:
        pause = self._interval
        while not self._end.wait(pause):
            began = now()
            self._bring()
            pause = max(self._interval, now() - began)

    def _bring(self, patience: float = 0) -> str:
        """Why not everything has come; "" where it has. The next look may do better. `patience`:
        seconds that another clusterctl, which follows the job too, may be at it."""
        target, limit = locate_copies(self._folder).resolve(), Deadline(patience)
        while True:
            try:
                bring(self._job, self._cluster, self._pool, target)
                return ""
            except BlockingIOError:
                if limit.passed:
                    return "another clusterctl is copying them"
                time.sleep(0.2)
            except (ClusterctlError, OSError) as error:
                return describe_reason(error)

    def finish(self, job: Job) -> str:
        """Brings what a job has saved that was told to end, or that failed: its nodes may be about
        to end, too. With --sync, what any job has made; returns where it is, for people."""
        self._end.set()
        if not self._works or (job.state is JobState.SUCCEEDED and not job.spec.sync):
            return ""
        limit = SYNC_LIMIT if job.spec.sync else SAVE_LIMIT
        launcher = self._cluster.launcher
        # Its supervisor is copying until then.
        command = f"exec flock -w {limit} {shlex.quote(launcher.root)}/jobs/{job.id}/alive true"
        copied = self._pool.find_transport(launcher.name).run(command, timeout=limit + 5)
        missing = self._bring(limit)
        if not job.spec.sync:
            return ""
        if not copied.ok and not missing:
            missing = f"{launcher.name} did not copy them within {limit} s"
        return describe_synced(job, self._folder, missing or self._describe_late(job))

    def _describe_late(self, job: Job) -> str:
        """That nodes have not answered the launcher since the end of the job; "" where all have."""
        known = list_stored(locate_copies(self._folder).resolve())
        late = [
            name
            for name in list_rank_nodes(job, self._cluster)
            if name not in known or known[name].when < int(job.finished or 0)
        ]
        return f"{', '.join(late)} did not answer when it had ended" if late else ""


def bring(job: Job, cluster: Cluster, pool: Pool, target: Path) -> None:
    """Makes `target`/NODE hold the launcher's copies, without --sync less those that are large.
    Raises NodeUnreachable, BlockingIOError while another clusterctl is at it, and OSError;
    UsageError where they do not fit."""
    found = find_mirror(job, cluster, pool, list_rank_nodes(job, cluster))
    if not found:
        return
    largest = math.inf if job.spec.sync else LARGEST
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (target / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for abandoned in target.glob(".part-*"):
            shutil.rmtree(abandoned)
        known = list_stored(target)
        for name, copies in found.items():
            files = tuple(item for item in copies.files if item[1] <= largest)
            had = set(known[name].files) if name in known else set()
            wanted = [item for item in files if item not in had]
            if sum(size for _, size, _ in wanted) > shutil.disk_usage(target).free - RESERVE:
                raise UsageError(f"the outputs of {name} do not fit on the disk of {target}")
            got = NodeResult(node=name, exit_code=0)
            with tempfile.TemporaryDirectory(dir=target, prefix=".part-") as scratch:
                new, paths = Path(scratch, name), [path for path, _, _ in wanted]
                if wanted:
                    begun = target / f".parts-{name}"
                    got = copy_mirrored(job, cluster, pool, name, paths, new, begun)
                for path in {path for path, _, _ in had} - {path for path, _, _ in files}:
                    (target / name / path).unlink(missing_ok=True)
                # Some may have been replaced on the launcher meanwhile: those come next time.
                came = {path for path in paths if os.path.lexists(new / path)}
                if came:
                    (target / name).mkdir(exist_ok=True)
                    copying.move_into(new, target / name)
            have = tuple(item for item in files if item in had or item[0] in came)
            note = json.dumps({"when": copies.when, "files": have}).encode()
            write_atomic(target / f".{name}.json", note)
            if not got.ok:
                raise make_error(f"copying outputs of job {job.id}", got)
