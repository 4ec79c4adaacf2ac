"""Takes back what we have put on machines that are not ours."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from clusterctl import assets
from clusterctl.errors import LeftoverError
from clusterctl.model import MEMORY, Cluster, Node, NodeResult, Reporter, render_hostfile_mark
from clusterctl.node_results import fold, shorten
from clusterctl.transport.pool import Pool

LIMIT = 60.0


def make_key_mark(cluster: Cluster) -> str:
    """The comment by which our key is found again among those that a machine lets in."""
    return f"clusterctl:{cluster.id}"


def clean_up_hosts(
    cluster: Cluster, folder: Path, report: Reporter, script: Callable[[Node], str]
) -> None:
    """Runs `script` on each node. LeftoverError names those that did not answer: they still have
    what it removes."""

    def clean(name: str) -> NodeResult:
        return pool.find_transport(name).run(f"{script(cluster.node(name))}\n:", timeout=LIMIT)

    with Pool.of(cluster, folder / "ssh") as pool:
        results = pool.call_each(clean)
    if cleaned := [result.node for result in results if result.ok]:
        report(f"removed clusterctl's files from {shorten(cleaned)}")
    if failed := [result for result in results if not result.ok]:
        raise LeftoverError(
            f"clusterctl's folder and key could not be removed: {'; '.join(fold(failed))}",
            hint=f"`clusterctl detach {cluster.name}` again when they answer, or with --force",
        )


def render_removal(root: str, id: str) -> str:
    """sh that removes a node root, and what was made for it. "" where it cannot be ours: only a
    folder with the cluster's id as its name is, or one in such a folder."""
    path = PurePosixPath(root)
    own = next((folder for folder in (path, path.parent) if folder.name == id), None)
    if own is None:
        return ""
    return assets.render(
        "bootstrap/remove.sh.j2",
        root=root,
        own=str(own),
        workdir=str(own.parent),
        id=id,
        memory=MEMORY,
        mark=render_hostfile_mark(id),
    )


def render_shut_out(mark: str) -> str:
    """sh that removes the keys with that mark from those that the user lets in; others stay."""
    text = assets.render("bootstrap/authorized.sh.j2", mark=mark, line="")
    file = '"$HOME/.ssh/authorized_keys"'
    return f"if grep -qsF {shlex.quote(mark)} {file}; then (\n{text}\n); fi"
