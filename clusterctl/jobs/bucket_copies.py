"""Copies of a job's outputs in a bucket (`--sync s3://…`): those that this machine has brought from
the launcher go there while it follows the job, and come back for a job that is resumed.

`NODE/PATH` is a file, and `.NODE.json` says which ones are there: it is written behind them.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl import unpack
from clusterctl.errors import RecordError, UsageError
from clusterctl.job_model import Job
from clusterctl.jobs import copies_here
from clusterctl.state.home import make_private, write_atomic

if TYPE_CHECKING:
    from clusterctl.s3.bucket import Bucket


def is_url(sync: str) -> bool:
    return sync.startswith("s3://")


def make_url(job: Job) -> str:
    return f"{job.spec.sync}/job-{job.id}"


def _open(job: Job) -> Bucket:
    from clusterctl.s3.bucket import Bucket  # not for every `run`

    return Bucket(make_url(job))


def claim(job: Job) -> None:
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
    for node, copies in copies_here.list_stored(folder).items():
        note = folder / f".{node}.sent"
        before = copies_here.parse(note.read_bytes()) if note.is_file() else None
        known = before.files if before else ()
        files = tuple(item for item in copies.files if not (folder / node / item[0]).is_symlink())
        if before and files == known:
            continue
        for item in set(files).difference(known):
            bucket.upload(folder / node / item[0], _name(node, item[0]))
        content = copies_here.render(replace(copies, files=files))
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
        copies = copies_here.parse(content)
        if copies is None:
            raise RecordError(
                f"{bucket.url}/{note} is damaged: it does not list the files of {node}",
                hint="copy the files from the bucket by hand",
            )
        for path, _, modified in copies.files:
            file = folder.joinpath(node, *unpack.split_inner_parts(path))
            make_private(file.parent)
            bucket.download(_name(node, path), file)
            os.utime(file, (modified, modified))
        make_private(folder)
        write_atomic(folder / note, content)
    return bool(notes)


def _name(node: str, path: str) -> str:
    """Names of objects are UTF-8; those of files may be anything."""
    return f"{node}/{os.fsencode(path).decode(errors='backslashreplace')}"
