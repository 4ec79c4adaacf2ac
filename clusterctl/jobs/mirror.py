"""Copies of outputs: those that the supervisor puts onto the launcher (templates/job/mirror.sh.j2),
and those that are brought from there to this machine while somebody follows the job."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import secrets
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.batch.system import load_system
from clusterctl.core import assets
from clusterctl.core.clock import Deadline, now, run_in_background
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster, NodeResult, make_error
from clusterctl.core.text import count, format_bytes, format_time
from clusterctl.errors import ClusterctlError, RecordError, UsageError, describe_reason
from clusterctl.jobs.submit import list_rank_nodes
from clusterctl.project import tree
from clusterctl.state.home import explain_write_errors, make_private, write_atomic
from clusterctl.transport import copying
from clusterctl.transport.pool import Pool
from clusterctl.transport.protocol import Transport

if TYPE_CHECKING:
    from clusterctl.data.s3 import Bucket


# -------------------------------------------------------------------------------------------------
# The copies of a job's outputs that this machine has: `copies/NODE/PATH` in the job's folder, and
# `copies/.NODE.json`, which says what they are.


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one node's outputs: (path, size in bytes, modification time). `when`: all that
    was there at that moment is among them, in seconds since the epoch by the launcher's clock."""

    when: float
    files: tuple[tuple[str, int, float], ...]
    left_out: tuple[int, int] = (0, 0)
    """How many more outputs there were, and their bytes: as far as the launcher has said so."""


def locate_copies(job_folder: Path) -> Path:
    """Where copies of a job's outputs are here."""
    return job_folder / "copies"


def parse_copies(content: bytes) -> Copies | None:
    """What a note says; None where it is damaged."""
    with suppress(ValueError, LookupError, TypeError, OverflowError, RecursionError):
        known = json.loads(content)
        files = ((str(name), int(size), float(when)) for name, size, when in known["files"])
        return Copies(float(known["when"]), tuple(files))
    return None


def render_copies(copies: Copies) -> bytes:
    return json.dumps({"when": copies.when, "files": copies.files}).encode()


def list_stored(target: Path) -> dict[str, Copies]:
    """What `mirror.bring` has put below `target`, by node. What has a damaged note comes anew."""
    found = {}
    for path in target.glob(".*.json"):
        with suppress(OSError):
            if copies := parse_copies(path.read_bytes()):
                found[path.name[1 : -len(".json")]] = copies
    return found


# -------------------------------------------------------------------------------------------------
# Copies of a job's outputs in a bucket (`--sync s3://…`): those that this machine has brought from
# the launcher go there while it follows the job, and come back for a job that is resumed.
#
# `NODE/PATH` is a file, and `.NODE.json` says which ones are there: it is written behind them.


def is_url(sync: str) -> bool:
    return sync.startswith("s3://")


def make_url(job: Job) -> str:
    return f"{job.spec.sync}/job-{job.id}"


def _open(job: Job) -> Bucket:
    from clusterctl.data.s3 import Bucket  # not for every `run`

    return Bucket(make_url(job))


def claim_bucket(job: Job) -> None:
    """Writes there which job it is, so that a bucket that may not be written to is known before
    the job starts. Raises ProviderError; UsageError where there is something already."""
    bucket = _open(job)
    if not bucket.is_empty():
        raise UsageError(
            f"{make_url(job)} is not empty, so the outputs of job {job.id} cannot be copied there",
            hint="move it away, or choose another --sync URL",
        )
    about = {"schema": 1, "job": job.id, "cluster": job.cluster, "program": job.spec.program.target}
    bucket.write("job.json", json.dumps(about).encode())


def upload(job: Job, folder: Path) -> None:
    """Brings what has changed in `folder`, the copies here, to the bucket, and removes there what
    the program has. Links stay here. Raises ProviderError, OSError."""
    bucket = _open(job)
    for node, copies in list_stored(folder).items():
        note = folder / f".{node}.sent"
        before = parse_copies(note.read_bytes()) if note.is_file() else None
        known = before.files if before else ()
        files = tuple(item for item in copies.files if not (folder / node / item[0]).is_symlink())
        if before and files == known:
            continue
        for item in set(files).difference(known):
            bucket.upload(folder / node / item[0], _name(node, item[0]))
        content = render_copies(replace(copies, files=files))
        bucket.write(f".{node}.json", content)
        paths = {path for path, _, _ in files}
        bucket.delete(_name(node, path) for path, _, _ in known if path not in paths)
        write_atomic(note, content)


def download(job: Job, folder: Path) -> bool:
    """Brings them back into `folder`, as `mirror.bring` leaves them; whether there were any. Raises
    ProviderError, OSError; RecordError for a note that is damaged."""
    bucket = _open(job)
    notes = [name for name in bucket.list() if re.fullmatch(r"\.[a-z0-9.-]+\.json", name)]
    for note in notes:
        node = note[1 : -len(".json")]
        content = bucket.read(note)
        copies = parse_copies(content)
        if copies is None:
            raise RecordError(
                f"{bucket.url}/{note} is damaged: it does not list the files of {node}",
                hint="copy the files from the bucket by hand",
            )
        for path, _, modified in copies.files:
            file = folder.joinpath(node, *copying.split_inner_parts(path))
            make_private(file.parent)
            bucket.download(_name(node, path), file)
            os.utime(file, (modified, modified))
        make_private(folder)
        write_atomic(folder / note, content)
    return bool(notes)


def _name(node: str, path: str) -> str:
    """Names of objects are UTF-8; those of files may be anything."""
    return f"{node}/{os.fsencode(path).decode(errors='backslashreplace')}"


# -------------------------------------------------------------------------------------------------

LIST_TIMEOUT = 60.0
LINK_TIMEOUT = 60.0
COPY_TIMEOUT = 3600.0
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


def find_mirror(
    job: Job, cluster: Cluster, pool: Pool, names: Collection[str]
) -> dict[str, Copies]:
    """What there is of the outputs of these nodes, by node; none where there are no copies. Raises
    NodeUnreachable."""
    if not names or (cluster.one_host and not job.spec.sync):
        return {}
    script = assets.render(
        "job/mirrored.sh.j2", folder=_locate_folder(job, cluster), names=sorted(names)
    )
    launcher = cluster.launcher.name
    result = pool.find_transport(launcher).run(script, timeout=LIST_TIMEOUT)
    if not result.ok:
        raise make_error(f"looking for copies of the outputs of job {job.id}", result)
    return parse_mirror(launcher, result.stdout)


def parse_mirror(launcher: str, printed: bytes) -> dict[str, Copies]:
    """What templates/job/mirrored.sh.j2 printed there. Raises RecordError."""
    found: dict[str, tuple[float, list[tuple[str, int, float]]]] = {}
    left: dict[str, tuple[int, int]] = {}
    name = ""
    try:
        for item in printed.split(b"\0")[:-1]:
            size, modified, path = item.decode(errors="surrogateescape").split(" ", 2)
            if path == "-":
                left[name] = int(size), int(modified)
            elif not path.startswith("./"):
                name = path
                found[name] = (float(modified), [])
            else:
                found[name][1].append((path.removeprefix("./"), int(size), float(modified)))
    except (ValueError, KeyError) as error:
        raise make_unreadable_error(launcher) from error
    return {
        name: Copies(when, tuple(files), left.get(name, (0, 0)))
        for name, (when, files) in found.items()
    }


def make_unreadable_error(node: str) -> RecordError:
    return RecordError(
        f"the list of output files that {node} sent cannot be read",
        hint=f"`clusterctl ssh {node} -- true` must print nothing: check the login files there",
    )


def copy(
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
    links = f"{_locate_folder(job, cluster)}/.{name}.{secrets.token_hex(4)}"
    held = shlex.quote(links)
    command = (
        f"rm -rf {held} && mkdir {held} && cd {shlex.quote(_locate_folder(job, cluster))}/{name} &&"
        f" xargs -0 -r cp -lP --parents -t {held}"
    )
    transport = pool.find_transport(launcher)
    try:
        got = get_linked(transport, command, links, paths, target, begun, timeout=COPY_TIMEOUT)
        return replace(got, node=name)
    finally:
        with suppress(ClusterctlError, OSError):
            transport.run(f"rm -rf {held}", timeout=LIST_TIMEOUT)


def get_linked(
    transport: Transport,
    command: str,
    links: str,
    paths: Sequence[str],
    target: Path,
    begun: Path,
    *,
    timeout: float,
) -> NodeResult:
    """Copies files of a node into the folder `target`. `command` makes the folder `links` there of
    those whose paths it reads, each with a zero byte behind it. Where the copy breaks off, the
    beginning of a file waits in the folder `begun`, and the next call brings the rest."""
    linked = transport.run(command, stdin=_render_paths(paths), timeout=LINK_TIMEOUT)
    if not linked.ok:
        return linked
    got = _get_rests(transport, linked, links, set(paths), target, begun, timeout)
    if got.ok:
        got = transport.get(links, target, timeout=timeout, begun=begun)
    if got.ok:
        shutil.rmtree(begun, ignore_errors=True)
    return replace(got, stderr=linked.stdout + got.stderr)


def _render_paths(paths: Collection[str]) -> bytes:
    return b"".join(os.fsencode(f"./{path}") + b"\0" for path in paths)


def _get_rests(
    transport: Transport,
    got: NodeResult,
    links: str,
    wanted: Collection[str],
    target: Path,
    begun: Path,
    timeout: float,
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
                got = transport.get(source, Path(scratch, path), timeout=timeout, begun=file)
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
    return transport.run(command, stdin=_render_paths(whole), timeout=LINK_TIMEOUT)


def describe_mirror(copies: Mapping[str, Copies]) -> list[str]:
    """From when they are, for people."""
    lines = []
    for name, found in sorted(copies.items()):
        when = format_time(found.when)
        lines.append(f"using the launcher's copies of the files of {name}, as of {when}")
        number, size = found.left_out
        if number:
            lines.append(
                f"{count(number, 'more file')} of {name} ({format_bytes(size)})"
                f" {'was' if number == 1 else 'were'} not copied to the launcher:"
                " `run --keep-files` chooses what is copied"
            )
    return lines


def _locate_folder(job: Job, cluster: Cluster) -> str:
    return f"{cluster.launcher.root}/jobs/{job.id}/mirror"


# ------------------------------------------------------------------------------------ copies here


def claim(job: Job, job_folder: Path) -> None:
    """Makes a new folder below that of --sync the place of the copies, or one in a bucket theirs.
    UsageError where it has files already, or cannot be made; ProviderError from a bucket."""
    if is_url(job.spec.sync):
        claim_bucket(job)
        return
    target = Path(job.spec.sync, f"job-{job.id}")
    with explain_write_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise UsageError(
                f"{target} is not empty, so the outputs of job {job.id} cannot be copied there",
                hint="move it away, or choose another --sync DIR",
            )
        (target / tree.MARK).touch()
        make_private(job_folder)
        locate_copies(job_folder).symlink_to(target)


def describe_synced(job: Job, job_folder: Path, missing: str = "") -> str:
    """Where --sync has brought the outputs, for people. `missing`: why the last ones are not
    there."""
    folder = locate_copies(job_folder).resolve()
    target = folder if not is_url(job.spec.sync) else make_url(job)
    if missing:
        how = f"`clusterctl fetch {job.id}` copies everything that the nodes still have"
        return f"{target} lacks the last outputs of job {job.id}: {missing}; {how}"
    if not any(copies.files for copies in list_stored(folder).values()):
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
        usual = SYNC_INTERVAL if job.spec.sync else INTERVAL
        self._interval = usual if interval is None else interval
        self._largest = math.inf if job.spec.sync else LARGEST
        # What shares this machine's disk is not safer for a further copy on it.
        wanted = bool(job.spec.sync) or not cluster.shares_machine
        self._works = wanted and load_system(cluster.system).places_ranks
        self._end = threading.Event()
        self._busy = threading.Lock()

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
        try:
            with self._busy:
                while not self._bring_alone(target):
                    if limit.passed:
                        return "another clusterctl is copying them"
                    time.sleep(0.2)
                if is_url(self._job.spec.sync):
                    upload(self._job, target)
        except (ClusterctlError, OSError) as error:
            return describe_reason(error)
        return ""

    def _bring_alone(self, target: Path) -> bool:
        """False where another clusterctl is at it."""
        try:
            bring(self._job, self._cluster, self._pool, target, self._largest)
        except BlockingIOError:
            return False
        return True

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


def bring(job: Job, cluster: Cluster, pool: Pool, target: Path, largest: float = LARGEST) -> None:
    """Makes `target`/NODE hold the launcher's copies, less those that are larger. Raises
    NodeUnreachable, OSError; UsageError where they do not fit."""
    found = find_mirror(job, cluster, pool, list_rank_nodes(job, cluster))
    if not found:
        return
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (target / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another clusterctl may be at it
        for abandoned in target.glob(".part-*"):
            shutil.rmtree(abandoned)
        known = list_stored(target)
        for name, copies in found.items():
            _bring_node(job, cluster, pool, target, name, known.get(name), copies, largest)


def _bring_node(
    job: Job,
    cluster: Cluster,
    pool: Pool,
    target: Path,
    name: str,
    known: Copies | None,
    copies: Copies,
    largest: float,
) -> None:
    files = tuple(item for item in copies.files if item[1] <= largest)
    had = set(known.files) if known else set()
    wanted = [item for item in files if item not in had]
    room = shutil.disk_usage(target).free - RESERVE
    if sum(size for _, size, _ in wanted) > room:
        raise UsageError(f"the outputs of {name} do not fit on the disk of {target}")
    got = NodeResult(node=name, exit_code=0)
    with tempfile.TemporaryDirectory(dir=target, prefix=".part-") as scratch:
        if wanted:
            paths = [path for path, _, _ in wanted]
            new, begun = Path(scratch, name), target / f".parts-{name}"
            got = copy(job, cluster, pool, name, paths, new, begun)
        left = {path for path, _, _ in files}
        for path, _, _ in had:
            if path not in left:
                (target / name / path).unlink(missing_ok=True)
        # Some may have been replaced on the launcher since it was asked: those come next time.
        came = {path for path, _, _ in wanted if os.path.lexists(Path(scratch, name, path))}
        if came:
            (target / name).mkdir(exist_ok=True)
            copying.move_into(Path(scratch, name), target / name)
    have = tuple(item for item in files if item in had or item[0] in came)
    write_atomic(target / f".{name}.json", render_copies(Copies(copies.when, have)))
    if not got.ok:
        raise make_error(f"copying outputs of job {job.id}", got)
