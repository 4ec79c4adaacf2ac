"""Copies of outputs that the supervisor has put onto the launcher (templates/job/mirror.sh.j2)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from clusterctl import assets
from clusterctl.jobs.start import make_error
from clusterctl.model import Cluster, Job, NodeResult, clock
from clusterctl.transport.pool import Pool

LIST_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one node's outputs: (path, size in bytes, modification time). `when`: all that
    was there at that moment is among them, in seconds since the epoch by the launcher's clock."""

    when: float
    files: tuple[tuple[str, int, float], ...]


def find(job: Job, cluster: Cluster, pool: Pool, names: Collection[str]) -> dict[str, Copies]:
    """What there is of the outputs of these nodes, by node; none where there are no copies. Raises
    NodeUnreachable."""
    if not names or cluster.one_host:
        return {}
    script = assets.render("job/mirrored.sh.j2", folder=_folder(job, cluster), names=sorted(names))
    launcher = cluster.launcher.name
    result = pool.transport(launcher).run(script, timeout=LIST_TIMEOUT)
    if not result.ok:
        raise make_error(f"looking for copies of the outputs of job {job.id}", result)
    found: dict[str, tuple[float, list[tuple[str, int, float]]]] = {}
    name = ""
    for item in result.stdout.split(b"\0")[:-1]:
        size, modified, path = item.decode(errors="surrogateescape").split(" ", 2)
        if not path.startswith("./"):
            name = path
            found[name] = (float(modified), [])
        else:
            found[name][1].append((path.removeprefix("./"), int(size), float(modified)))
    return {name: Copies(when, tuple(files)) for name, (when, files) in found.items()}


def link(job: Job, cluster: Cluster, pool: Pool, name: str, paths: Iterable[str]) -> NodeResult:
    """Makes `folder(…)` on the launcher hold the copies of these files of a node."""
    target = shlex.quote(folder(job, cluster, name))
    command = (
        f"rm -rf {target} && mkdir {target} && cd {shlex.quote(_folder(job, cluster))}/{name} &&"
        f" xargs -0 -r cp -lP --parents -t {target}"
    )
    names = b"".join(os.fsencode(f"./{path}") + b"\0" for path in paths)
    launcher = cluster.launcher.name
    return pool.transport(launcher).run(command, stdin=names, timeout=LIST_TIMEOUT)


def folder(job: Job, cluster: Cluster, name: str) -> str:
    """Where `link` puts a node's files."""
    return f"{_folder(job, cluster)}/.{name}.out"


def describe(copies: Mapping[str, Copies]) -> list[str]:
    """From when they are, for people."""
    return [
        f"using the launcher's copies of the files of {name}, as of {clock(found.when)}"
        for name, found in sorted(copies.items())
    ]


def _folder(job: Job, cluster: Cluster) -> str:
    return f"{cluster.launcher.root}/jobs/{job.id}/mirror"
