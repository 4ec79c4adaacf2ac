"""Whether all nodes reach each other, and the shared folder: checked from the launcher."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.core import assets
from clusterctl.core.model import Cluster, Node
from clusterctl.errors import BootstrapError, NodeUnreachable
from clusterctl.transport.pool import Pool

PATIENCE = 60.0
WAVE, WAVE_PATIENCE = 8, 20.0
"""Workers that are checked at a time, and seconds that each further wave of them may take."""

MARK = "@@mesh"
"""Begins the lines of a mesh check that are answers: start files of shells print lines, too."""


def _list_others(cluster: Cluster) -> list[Node]:
    return [node for node in cluster.workers if node.name != cluster.launcher.name]


def _run_on_launcher(pool: Pool, cluster: Cluster, script: str) -> tuple[str, ...]:
    """The edges that do not work, by a check that runs on the launcher."""
    result = pool.find_transport(cluster.launcher.name).run(
        "exec /bin/sh -s",
        stdin=script.encode(),
        timeout=PATIENCE + WAVE_PATIENCE * (len(cluster.workers) // WAVE),
    )
    failures = read_failures(result.text)
    return failures if result.ok else (result.error or result.complaints, *failures)


def check_mesh(pool: Pool, cluster: Cluster, *, what: str, hint: str) -> None:
    """Raises NodeUnreachable unless the launcher and the workers (`what`) all reach each other."""
    if not (others := _list_others(cluster)):
        return
    if failures := _run_on_launcher(pool, cluster, render_check(cluster.launcher, others)):
        raise NodeUnreachable(
            f"some {what} cannot reach each other: {'; '.join(failures)}",
            hint=hint,
            transient=True,
        )


def render_check(launcher: Node, workers: Sequence[Node]) -> str:
    """Checks, from the launcher, launcher ↔ every worker and a ring among the workers."""
    following = [*workers[1:], *workers[:1]] if len(workers) > 1 else [None]
    pairs = list(zip(workers, following, strict=True))
    values = {"launcher": launcher, "pairs": pairs, "mark": MARK, "wave": WAVE}
    return assets.render("bootstrap/mesh.sh.j2", **values)


def check_shared(pool: Pool, cluster: Cluster) -> None:
    """Raises BootstrapError unless all nodes can read and write the shared folder, where ranks
    run."""
    folder = cluster.shared
    script = render_shared_check(folder, cluster.launcher, _list_others(cluster))
    if failures := _run_on_launcher(pool, cluster, script):
        raise BootstrapError(
            f"some nodes cannot use the shared folder {folder}: {'; '.join(failures)}",
            hint=f"`clusterctl up {cluster.name}` mounts it again",
        )


def render_shared_check(folder: str, launcher: Node, workers: Sequence[Node]) -> str:
    """Writes a file on the launcher, and reads and writes it on all workers."""
    values = {"folder": folder, "launcher": launcher, "workers": workers}
    return assets.render("bootstrap/shared-check.sh.j2", **values, mark=MARK, wave=WAVE)


def read_failures(text: str) -> tuple[str, ...]:
    """The edges that do not work, for people, from what `render_check` printed. Only lines
    with the mark count."""
    failed = []
    for line in text.splitlines():
        mark, word, *rest = [*line.split(" "), ""]
        if (mark, word) == (MARK, "broken") and len(rest) >= 3:
            source, target, *why = rest
            failed.append(f"{source} → {target}: {' '.join(why).strip() or 'no answer'}")
    return tuple(failed)
