"""Cluster and job records as JSON files."""

from __future__ import annotations

import fcntl
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from clusterctl.errors import RecordError
from clusterctl.model import Cluster, Job
from clusterctl.state.home import Home, write_atomic, writing

Record = TypeVar("Record", Cluster, Job)


class Store:
    """All records of one state home. Reading is lock-free: files are replaced, never rewritten."""

    def __init__(self, home: Home) -> None:
        self.home = home

    # clusters

    def folder(self, name: str) -> Path:
        return self.home.clusters / name

    def clusters(self) -> tuple[Cluster, ...]:
        """Every cluster with a record, by name."""
        records = sorted(self.home.clusters.glob("*/cluster.json"))
        return tuple(_decode(path, Cluster) for path in records)

    def cluster(self, name: str) -> Cluster:
        path = self.folder(name) / "cluster.json"
        if not path.is_file():
            known = ", ".join(cluster.name for cluster in self.clusters())
            raise RecordError(
                f"there is no cluster {name!r}",
                hint=f"clusters here: {known}" if known else "`clusterctl up` makes one",
            )
        return _decode(path, Cluster)

    def save(self, cluster: Cluster) -> None:
        folder = self.home.make(self.folder(cluster.name))
        write_atomic(folder / "cluster.json", _encode(cluster))

    def retire(self, cluster: Cluster) -> None:
        """Moves what is worth keeping to the past and removes the cluster's folder.

        The record goes last: while any of it is left, `down` can be repeated.
        """
        folder = self.folder(cluster.name)
        past = self.home.make(self.home.past / cluster.id)
        write_atomic(past / "cluster.json", _encode(cluster))
        events = folder / "events.jsonl"
        if events.is_file():
            events.replace(past / "events.jsonl")
        for entry in folder.iterdir():
            if entry.name != "cluster.json":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        shutil.rmtree(folder)

    def event(self, cluster: str, what: str, **details: Any) -> None:
        """Appends one line to the cluster's events file; nothing if the cluster has no folder."""
        line = msgspec.json.encode({"time": round(time.time(), 3), "event": what, **details})
        # Events are for looking back: a disk that is full must not end what they are about.
        with suppress(OSError), (self.folder(cluster) / "events.jsonl").open("ab") as file:
            file.write(line + b"\n")

    # jobs

    def job_folder(self, number: int) -> Path:
        return self.home.jobs / str(number)

    def jobs(self) -> tuple[Job, ...]:
        """Every job with a record, oldest first."""
        return tuple(
            _decode(self.job_folder(number) / "job.json", Job) for number in self._numbers()
        )

    def _numbers(self) -> list[int]:
        """The numbers of the jobs with a record, in order; what else lies there is not ours."""
        names = (path.parent.name for path in self.home.jobs.glob("*/job.json"))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def job(self, number: int) -> Job:
        path = self.job_folder(number) / "job.json"
        if not path.is_file():
            raise RecordError(
                f"there is no job {number}", hint="`clusterctl jobs` lists the jobs there are"
            )
        return _decode(path, Job)

    def save_job(self, job: Job) -> None:
        folder = self.home.make(self.job_folder(job.id))
        write_atomic(folder / "job.json", _encode(job))

    def next_job_id(self) -> int:
        """A number that no job of this state home has had: the counter only ever grows. Should it
        be lost, the records themselves say where it was."""
        self.home.make(self.home.jobs)
        counter = self.home.jobs / "last-id"
        with writing(counter), (self.home.jobs / ".counting").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            last = counter.read_text() if counter.is_file() else ""
            highest = max(self._numbers(), default=0) if not last.isdigit() else int(last)
            write_atomic(counter, str(highest + 1).encode())
        return highest + 1


def _encode(record: Cluster | Job) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def _decode(path: Path, kind: type[Record]) -> Record:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(
            f"the record {path} cannot be read: {error}",
            hint="it was written by another version of clusterctl, or damaged",
        ) from error
