"""What we know about clusters and jobs: plain files, crash-safe.

<home>/clusters/<name>/    cluster.json, events.jsonl, ssh/, and what the provider keeps there
<home>/jobs/<id>/          job.json, stage.json, out/ (the ranks' output, once brought here)
<home>/stages/<digest>     archives of staged trees, shared by the jobs that ran them
<home>/digests/            digests of files that were copied, so that none is read twice
<home>/fetched/            what `fetch` has put where, one file per folder
<home>/past/<cluster id>/  records of clusters that are gone
<home>/locks/              one file per cluster name; they stay, the lock on them does not
<home>/clusterctl.log      what happened, for the day when something went wrong
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from clusterctl.core.clock import Deadline
from clusterctl.core.model import Cluster, Phase, Role
from clusterctl.errors import NewerRecordError, RecordError
from clusterctl.state.files import explain_write_errors, write_atomic
from clusterctl.state.home import Home

if TYPE_CHECKING:  # looking at a cluster without jobs needs no jobs
    from clusterctl.core.job import Job, Provenance

# -------------------------------------------------------------------------------------------------
# The version of records: what an earlier clusterctl wrote has fewer fields, what a later one wrote
# is refused, because to write it back would lose what this one does not know.
#
# It stands for all that lies beside the record of a cluster or job, too (the state of its
# provider, its provenance, what was fetched of it): that is used only by who has read the record.
# So a change of form there is a version here.


VERSION = 6
"""The version that this clusterctl writes. One that only has more fields is a version too: an older
clusterctl would drop them when it writes the record back."""


class _Head(msgspec.Struct):
    """The version of a record, and whose it is. Records of the first version name none."""

    record_version: Annotated[int, msgspec.Meta(ge=1)] = 1
    cluster_id: str = ""


def _read_head(path: Path | str, data: bytes) -> _Head:
    """Raises NewerRecordError for what a later clusterctl wrote, and msgspec.DecodeError for what
    is no record."""
    head = msgspec.json.decode(data, type=_Head)
    if head.record_version > VERSION:
        raise NewerRecordError(
            f"the record {path} has version {head.record_version},"
            f" and this clusterctl reads versions up to {VERSION}",
            hint="upgrade clusterctl to the version that wrote it; the record was not changed",
        )
    return head


# -------------------------------------------------------------------------------------------------
# Cluster and job records as JSON files.


STORE_PATIENCE = 10.0
"""Seconds that another process may need for a record: it takes milliseconds, unless it stands
still."""
MEASURED = {
    "verify": "measurements.json",
    "bench allreduce": "allreduce.json",
    "bench scaling": "scaling.json",
}
"""Files with what verbs have measured last."""

Record = TypeVar("Record", Cluster, "Job")
T = TypeVar("T")


class Store:
    """All records of one state home. Reading is lock-free: files are replaced, never rewritten."""

    def __init__(self, home: Home) -> None:
        self.home = home

    # clusters

    def locate_folder(self, name: str) -> Path:
        return self.home.clusters / name

    def list_names(self) -> tuple[str, ...]:
        """Every cluster that left something here, also where its record is damaged or gone."""
        folders = sorted(self.home.clusters.glob("*/"))
        return tuple(folder.name for folder in folders if any(folder.iterdir()))

    def list_clusters(self) -> tuple[Cluster, ...]:
        """Every cluster with a record that can be read, by name."""
        return tuple(_read_all(self.read_cluster, self.list_names()))

    def read_cluster(self, name: str) -> Cluster:
        with suppress(FileNotFoundError):
            hint = (
                f"`clusterctl down {name}` finds and removes the cluster without it; "
                f"another version of clusterctl may be able to read it"
            )
            path = self.locate_folder(name) / "cluster.json"
            return _decode(path, Cluster, hint, _check_cluster)
        names = self.list_names()
        if name in names:
            raise RecordError(
                f"the record of cluster {name!r} is gone",
                hint=f"`clusterctl down {name}` removes what is left of the cluster",
            )
        there = f"existing clusters: {', '.join(names)}" if names else "`clusterctl up` creates one"
        raise RecordError(f"no cluster named {name!r}", hint=there)

    def find(self, name: str) -> Cluster | None:
        """The same, or None where there is no record."""
        there = (self.locate_folder(name) / "cluster.json").exists()
        return self.read_cluster(name) if there else None

    def list_past(self) -> tuple[Cluster, ...]:
        """The records of clusters that were taken down and can be read, by id."""
        return tuple(_read_all(self._read_past, self._list_past_ids()))

    def _list_past_ids(self) -> list[str]:
        return sorted(path.parent.name for path in self.home.past.glob("*/cluster.json"))

    def _read_past(self, id: str) -> Cluster:
        path = self.home.past / id / "cluster.json"
        return _decode(path, Cluster, "it holds the costs of a removed cluster", _check_cluster)

    def save(self, cluster: Cluster) -> None:
        folder = self.home.make(self.locate_folder(cluster.name))
        _write(folder / "cluster.json", cluster)

    def retire(self, cluster: Cluster) -> None:
        """Moves what is worth keeping to the past and removes the cluster's folder.

        The record goes last: while any of it is left, `down` can be repeated. Raises UsageError,
        with the folder gone, where the past cannot be written.
        """
        folder = self.locate_folder(cluster.name)
        try:
            past = self.home.make(self.home.past / cluster.id)
            _write(past / "cluster.json", cluster)
            for name in ("events.jsonl", "ledger", *MEASURED.values()):
                if (folder / name).is_file():
                    with explain_write_errors(past / name):
                        (folder / name).replace(past / name)
        finally:
            _remove(folder)

    def add_event(self, cluster: str, what: str, **details: Any) -> None:
        """Appends one line to the cluster's events file; nothing if the cluster has no folder."""
        line = msgspec.json.encode({"time": round(time.time(), 3), "event": what, **details})
        # Events are for looking back: a disk that is full must not end what they are about.
        with suppress(OSError), (self.locate_folder(cluster) / "events.jsonl").open("ab") as file:
            file.write(line + b"\n")

    def read_events(self, cluster: Cluster) -> tuple[dict[str, Any], ...]:
        """What happened to the cluster, oldest first; also of one that is gone."""
        found = []
        with suppress(OSError):
            for line in (self._find_folder(cluster) / "events.jsonl").read_bytes().splitlines():
                with suppress(msgspec.DecodeError):
                    found.append(msgspec.json.decode(line, type=dict[str, Any]))
        return tuple(found)

    def read_measurements(self, cluster: Cluster, verb: str, kind: type[T]) -> T | None:
        """What the verb of MEASURED has found last; None where nothing is on record."""
        with suppress(OSError, msgspec.DecodeError):
            data = (self._find_folder(cluster) / MEASURED[verb]).read_bytes()
            return msgspec.json.decode(data, type=kind)
        return None

    def save_measurements(self, name: str, verb: str, found: object) -> None:
        path = self.home.make(self.locate_folder(name)) / MEASURED[verb]
        write_atomic(path, msgspec.json.encode(found))

    def _find_folder(self, cluster: Cluster) -> Path:
        """Where the cluster's files are, or were put when it was taken down."""
        past = self.home.past / cluster.id
        return past if past.is_dir() else self.locate_folder(cluster.name)

    # jobs

    def locate_job_folder(self, number: int) -> Path:
        return self.home.jobs / str(number)

    def list_jobs(self, damage: list[str] | None = None) -> tuple[Job, ...]:
        """Every job with a record that can be read, oldest first. `damage` gets a line for each of
        the others."""
        return tuple(_read_all(self.read_job, self._list_numbers(), damage))

    def list_cluster_jobs(self, cluster: Cluster) -> list[Job]:
        """The jobs that have been on this very cluster, or will be, oldest first."""
        return [
            job
            for job in self.list_jobs()
            if job.cluster_id == cluster.id and (job.started or not job.state.ended)
        ]

    def check_jobs(self, cluster: Cluster) -> None:
        """Raises NewerRecordError where a later clusterctl has run a job on this very cluster: what
        that job does and has made cannot be seen from here."""
        for number in self._list_numbers():
            path = self.locate_job_folder(number) / "job.json"
            with suppress(msgspec.DecodeError, UnicodeDecodeError, OSError):
                data = path.read_bytes()
                if msgspec.json.decode(data, type=_Head).cluster_id == cluster.id:
                    _read_head(path, data)

    def list_unrecorded_jobs(self, cluster: Cluster) -> list[int]:
        """Jobs that were started on it, and have no record that can be read any more."""
        events = self.read_events(cluster)
        started = [event["id"] for event in events if event.get("event") == "job"]
        readable = {job.id for job in _read_all(self.read_job, started)}
        return [number for number in dict.fromkeys(started) if number not in readable]

    def list_open_jobs(self, cluster: Cluster) -> list[Job]:
        """Those that have not ended."""
        return [job for job in self.list_cluster_jobs(cluster) if not job.state.ended]

    def list_damage(self) -> list[str]:
        """What is wrong with records, one line each: what `list` and `jobs` pass over."""
        found: list[str] = []
        list(_read_all(self.read_cluster, self.list_names(), found))
        self.list_jobs(found)
        return found

    def list_cluster_damage(self, name: str | None = None) -> tuple[str, ...]:
        """The same of the cluster of that name, or of all, and of all that are gone: a record of
        the past that cannot be read does not tell its name."""
        found: list[str] = []
        names = [item for item in self.list_names() if name in (None, item)]
        list(_read_all(self.read_cluster, names, found))
        list(_read_all(self._read_past, self._list_past_ids(), found))
        return tuple(found)

    def _list_numbers(self) -> list[int]:
        """The numbers of the jobs with a record, in order; what else lies there is not ours."""
        folder, names = self.home.jobs, list[str]()
        with suppress(FileNotFoundError):
            names = [name for name in os.listdir(folder) if name.isascii() and name.isdigit()]
        return sorted(int(name) for name in names if os.path.exists(f"{folder}/{name}/job.json"))

    def read_job(self, number: int) -> Job:
        from clusterctl.core.job import Job

        path = f"{self.home.jobs}/{number}/job.json"  # there may be thousands of them
        with suppress(FileNotFoundError):
            return _decode(path, Job, "move it away: the job's output is beside it", _check_job)
        raise RecordError(f"no job with number {number}", hint="`clusterctl jobs` lists all jobs")

    def save_job(self, job: Job) -> None:
        """Others may have fetched the job's outputs, or ended it with its cluster, while the caller
        stood still: such a job is not on record as running again, for nobody could ask how it
        goes, nor are its outputs as unfetched."""
        with _lock_folder(self.home.make(self.locate_job_folder(job.id))):
            with suppress(RecordError):
                known = self.read_job(job.id)
                if known.state.ended and not job.state.ended and not self._has_cluster(job):
                    return
                job = replace(job, fetched=job.fetched or known.fetched)
            _write(self.locate_job_folder(job.id) / "job.json", job)

    def _has_cluster(self, job: Job) -> bool:
        """Whether its cluster is there, and nobody is removing it."""
        return any(
            cluster.id == job.cluster_id and cluster.phase is not Phase.DELETING
            for cluster in self.list_clusters()
        )

    def read_provenance(self, number: int) -> Provenance:
        """What the job was made from; an empty one where that is not on record."""
        from clusterctl.core.job import Provenance

        path = self.locate_job_folder(number) / "provenance.json"
        with suppress(msgspec.DecodeError, UnicodeDecodeError, OSError):
            return msgspec.json.decode(path.read_bytes(), type=Provenance)
        return Provenance()

    def save_provenance(self, number: int, found: Provenance) -> None:
        folder = self.home.make(self.locate_job_folder(number))
        write_atomic(folder / "provenance.json", msgspec.json.encode(found))

    @contextmanager
    def mark_handing_in(self, number: int) -> Iterator[None]:
        """Open while this process stages a job and hands it in. The kernel closes it should the
        process die."""
        with self._open_marker(number, ".handing-in") as file:
            with suppress(OSError):  # some shared disks have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _open_marker(self, number: int, name: str) -> BinaryIO:
        path = self.home.make(self.locate_job_folder(number)) / name
        with explain_write_errors(path):
            return path.open("ab")

    @contextmanager
    def claim_continuing(self, number: int) -> Iterator[bool]:
        """Open while this process continues a failed job as a new one. False: another process does
        that, or somebody has run the job again."""
        with self._open_marker(number, ".continuing") as file:
            free = True
            with suppress(OSError):  # some shared disks have no locks
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    free = False
            yield free and all(other.rerun_of != number for other in self.list_jobs())

    def is_handed_in(self, number: int) -> bool:
        """Whether no living process is just staging the job or handing it in."""
        try:
            with (self.locate_job_folder(number) / ".handing-in").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def read_next_job_id(self) -> int:
        """The number that `reserve_job_id` gives, if no other command is faster."""
        counter = self.home.jobs / "last-id"
        last = counter.read_text() if counter.is_file() else ""
        return 1 + (int(last) if last.isdigit() else max(self._list_numbers(), default=0))

    def reserve_job_id(self) -> int:
        """A number that no job of this state home has had: the counter only ever grows. Should it
        be lost, the records themselves say where it was."""
        self.home.make(self.home.jobs)
        counter = self.home.jobs / "last-id"
        with explain_write_errors(counter), (self.home.jobs / ".counting").open("ab") as lock:
            if not _lock(lock.fileno()):
                raise RecordError(
                    "another clusterctl has held the lock of the job numbers"
                    f" for {STORE_PATIENCE:g} s",
                    hint=f"is one stopped (Ctrl-Z)? `fuser {lock.name}` shows which",
                )
            number = self.read_next_job_id()
            write_atomic(counter, str(number).encode())
        return number


def _write(path: Path, record: Cluster | Job) -> None:
    """Raises NewerRecordError where a later clusterctl has written the record meanwhile."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, OSError):
        _read_head(path, path.read_bytes())
    # Without a copy of all that is in it: a record of 1,000 workers is 700 kB.
    data = msgspec.json.encode({"record_version": VERSION, **asdict(record)})
    write_atomic(path, msgspec.json.format(data, indent=2) + b"\n")


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Only one process at a time is inside for this folder. One that was stopped in there does not
    hold up the others."""
    file = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some shared disks have no locks
            _lock(file)
        yield
    finally:
        os.close(file)


def _lock(file: int) -> bool:
    """Whether nobody else has this lock, or drops it within PATIENCE seconds. OSError."""
    limit = Deadline(STORE_PATIENCE)
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if limit.passed:
            return False
        time.sleep(0.01)


LATEST = 253402300800.0
"""Seconds since 1970 at the end of the year 9999: no time of a record is later."""


def _check_times(*times: float | None) -> None:
    if not all(when is None or 0 <= when < LATEST for when in times):
        raise msgspec.ValidationError("one of its times is invalid")


def _check_cluster(cluster: Cluster) -> None:
    _check_times(cluster.created, cluster.deadline)
    for charge in cluster.charges:
        _check_times(charge.since, charge.until)
        if charge.hourly is not None and charge.hourly < 0:
            raise msgspec.ValidationError(f"the price of {charge.node} is below zero")
    if cluster.phase is not Phase.READY:
        return  # it may not have its nodes yet
    if all(node.role is Role.WORKER for node in cluster.nodes):
        raise msgspec.ValidationError("it has no launcher")
    if all(node.role is Role.LAUNCHER for node in cluster.nodes):
        raise msgspec.ValidationError("it has no workers")


def _check_job(job: Job) -> None:
    _check_times(job.created, job.started, job.finished)
    if not job.placement:
        raise msgspec.ValidationError("its ranks are on no node")


def _decode(
    path: Path | str, kind: type[Record], hint: str, check: Callable[[Record], None]
) -> Record:
    """Raises RecordError for a file that cannot be read, and for a record that fails the check;
    FileNotFoundError."""
    try:
        with open(path, "rb", 0) as file:
            data = file.read()
        _read_head(path, data)
        record = msgspec.json.decode(data, type=kind)
        check(record)
        return record
    except FileNotFoundError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise RecordError(f"the record {path} cannot be read: {error}", hint=hint) from error


Key = TypeVar("Key", str, int)


def _read_all(
    read: Callable[[Key], Record], keys: Iterable[Key], damage: list[str] | None = None
) -> Iterator[Record]:
    for key in keys:
        try:
            yield read(key)
        except FileNotFoundError:  # somebody has just removed it
            pass
        except RecordError as error:
            if damage is not None:
                damage.append(f"{error.message}; {error.hint}")


def _remove(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.name != "cluster.json":
            whole = entry.is_dir() and not entry.is_symlink()
            shutil.rmtree(entry) if whole else entry.unlink()
    shutil.rmtree(folder)


# -------------------------------------------------------------------------------------------------
# The mark of a cluster that ends with its program: `launch --detach` leaves it in the cluster's
# folder. Every command looks for marks, so this loads nothing but the records.


LAUNCH_MARK = "launch.json"


def mark_launch(store: Store, name: str, folder: Path) -> None:
    """Notes that the cluster ends with its jobs, whose outputs belong below `folder`."""
    write_atomic(
        store.locate_folder(name) / LAUNCH_MARK, json.dumps({"folder": str(folder)}).encode()
    )


def unmark_launch(store: Store, name: str) -> None:
    """The cluster stays after all."""
    (store.locate_folder(name) / LAUNCH_MARK).unlink(missing_ok=True)


def list_marked(store: Store) -> tuple[str, ...]:
    """The clusters that end with their jobs."""
    return tuple(sorted(path.parent.name for path in store.home.clusters.glob(f"*/{LAUNCH_MARK}")))


def find_launch_folder(store: Store, name: str) -> Path | None:
    """Where the outputs belong; None for a cluster that does not end with its jobs."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return Path(json.loads((store.locate_folder(name) / LAUNCH_MARK).read_bytes())["folder"])
    return None
