"""What a job has made: files and links that are new or changed in its working directories."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from clusterctl.jobs import stage
from clusterctl.jobs.start import ranked, trouble
from clusterctl.model import Cluster, Job, Node, NodeResult
from clusterctl.state.home import writing
from clusterctl.transport.pool import Pool

LIST_TIMEOUT = 60.0
FETCH_TIMEOUT = 3600.0

_FIND = "find . \\( -type f -o -type l \\) -newer ../.staged ! -path '*/__pycache__/*'"


@dataclass(frozen=True, slots=True)
class Output:
    """A file below the working tree of a node; `size` in bytes."""

    node: str
    path: str
    size: int


def find(job: Job, cluster: Cluster, pool: Pool) -> tuple[Output, ...]:
    """Every output on every node that ran ranks. Raises NodeUnreachable if one does not answer."""

    def ask(name: str) -> NodeResult:
        # A job that never got this far has made nothing.
        command = (
            f"cd {_work(job, cluster.node(name))} 2>/dev/null || exit 0; {_FIND} -printf '%s %P\\0'"
        )
        return pool.transport(name).run(command, timeout=LIST_TIMEOUT)

    found = []
    for result in pool.each(ask, ranked(job, cluster)):
        if not result.ok:
            raise trouble(f"looking for outputs of job {job.id}", result)
        for item in result.stdout.split(b"\0"):
            size, _, path = item.decode(errors="surrogateescape").partition(" ")
            if path:
                found.append(Output(result.node, path, int(size)))
    return tuple(sorted(found, key=lambda output: (output.node, output.path)))


def fetch(
    job: Job, cluster: Cluster, pool: Pool, outputs: tuple[Output, ...], target: Path
) -> tuple[str, ...]:
    """Copies outputs to `target`/<node>/<path>. Files that are there are replaced.

    Returns what was not brought, such as a link that leads out of the folder, with the reason.
    Raises UsageError where nothing can be written.
    """
    with writing(target):
        if not target.exists():
            target.mkdir(parents=True)
            (target / stage.MARK).touch()

    def get(name: str) -> NodeResult:
        node = cluster.node(name)
        # A folder of links gives the transport one tree that holds the outputs and nothing else.
        work = _work(job, node)
        command = (
            f"cd {work} && rm -rf ../outputs && mkdir ../outputs && {_FIND} -print0 |"
            " xargs -0 cp -lP --parents -t ../outputs"
        )
        linked = pool.transport(name).run(command, timeout=LIST_TIMEOUT)
        if not linked.ok:
            return linked
        folder = f"{node.root}/jobs/{job.id}/outputs"
        return pool.transport(name).get(folder, target / name, timeout=FETCH_TIMEOUT)

    names = sorted({output.node for output in outputs})
    left_out: list[str] = []
    for result in pool.each(get, names):
        if not result.ok:
            raise trouble(f"fetching outputs of job {job.id}", result)
        said = result.stderr.decode(errors="replace").splitlines()
        left_out += [f"{result.node}: {line}" for line in said if line.startswith("left out ")]
    return tuple(left_out)


def _work(job: Job, node: Node) -> str:
    return shlex.quote(f"{node.root}/jobs/{job.id}/work")
