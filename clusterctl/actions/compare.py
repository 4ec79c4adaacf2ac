"""`diff`: two jobs compared by their records and by the trees that they ran with."""

from __future__ import annotations

import hashlib
import tarfile

from clusterctl.actions import jobs
from clusterctl.core.job import Job
from clusterctl.core.model import Reporter
from clusterctl.insight import compare
from clusterctl.insight.compare import Change, FileChange
from clusterctl.state.store import Store

LARGEST = 1 << 20
"""Bytes of a file whose differences are shown."""
PREFIX = "work/"


def compare_jobs(
    store: Store, first: int, second: int, where: str | None, report: Reporter
) -> tuple[tuple[Change, ...], tuple[FileChange, ...]]:
    """RecordError for a job that is not there, or not of the cluster `where`."""
    one, other = jobs.find_job(store, first, where), jobs.find_job(store, second, where)
    origins = store.read_provenance(first), store.read_provenance(second)
    changes = (*compare.compare_provenance(*origins), *compare.compare(one, other))
    return changes, _compare_files(store, one, other, report)


def _compare_files(
    store: Store, first: Job, second: Job, report: Reporter
) -> tuple[FileChange, ...]:
    """Equal trees have the same name."""
    if first.stage == second.stage:
        return ()
    for job in (first, second):
        if not (store.home.stages / job.stage).is_file():
            report(f"the files of job {job.id} are not stored: only the records are compared")
            return ()
    return compare.compare_trees(_read_tree(store, first), _read_tree(store, second))


def _read_tree(store: Store, job: Job) -> compare.FilesByPath:
    """The archive has no end mark (see `jobs.stage.write_archive`)."""
    found = {}
    path = store.home.stages / job.stage
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            digest = hashlib.sha256(f"{member.mode:o} {member.linkname}".encode(errors="replace"))
            content = None
            if member.isreg() and (file := archive.extractfile(member)):
                while chunk := file.read(LARGEST):
                    digest.update(chunk)
                    content = chunk if member.size <= LARGEST else None
            if not member.isdir():
                found[member.name.removeprefix(PREFIX)] = digest.hexdigest(), content
    return found
