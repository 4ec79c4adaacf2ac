"""A shell on a node in which ssh, mpirun and python are those of jobs.

What it needs is written to all nodes when the first shell is opened, since `ssh worker-1` and
`mpirun` reach all of them, and again when the nodes have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from shlex import quote

from clusterctl import __version__, assets
from clusterctl.actions import open_pool
from clusterctl.jobs import archives, stage
from clusterctl.launch import terminal_settings
from clusterctl.model import Cluster, Node, NodeResult, Reporter, render_hostfile_mark
from clusterctl.node_results import fold
from clusterctl.state import Store
from clusterctl.state.home import write_atomic

TIMEOUT = 60.0
DIGEST = "shell"
"""A file beside the cluster's keys: which nodes have been prepared, and by which version."""


def forget(store: Store, cluster: Cluster) -> None:
    """The nodes are made ready again: their files may be gone."""
    (store.locate_folder(cluster.name) / "ssh" / DIGEST).unlink(missing_ok=True)


def prepare(
    store: Store, cluster: Cluster, report: Reporter, *, needed: Collection[str] = ()
) -> None:
    """Writes the files of the shells to all nodes, unless those that are needed, all by default,
    have them. Nodes that do not answer are told, and tried again next time."""
    stamp = store.locate_folder(cluster.name) / "ssh" / DIGEST
    wanted = hashlib.sha256(f"{__version__} {cluster.nodes}".encode()).hexdigest()
    names = [node.name for node in cluster.nodes]
    written, *have = (stamp.read_text().split() if stamp.is_file() else []) or [""]
    if written == wanted and set(needed or names) <= set(have):
        return
    programs = stage.pack_programs("programs")

    def send(name: str) -> NodeResult:
        node = cluster.node(name)
        texts = terminal_settings.render_files(cluster, node).items()
        archive = archives.pack_texts((path, text, mode) for path, (text, mode) in texts)
        return pool.find_transport(name).run(
            _install(cluster, node),
            stdin=archive + programs + archives.END_OF_ARCHIVE,
            timeout=TIMEOUT,
        )

    with open_pool(store, cluster) as pool:
        failed = [result for result in pool.call_each(send) if not result.ok]
    for line in fold(failed):
        report(f"{line}; `ssh` and `mpirun` may not reach it")
    missed = {result.node for result in failed}
    reached = [name for name in names if name not in missed]
    write_atomic(stamp, " ".join((wanted, *reached)).encode())


def _install(cluster: Cluster, node: Node) -> str:
    script = assets.render(
        "terminal/install.sh.j2",
        node=node,
        mark=render_hostfile_mark(cluster.id),
        container=terminal_settings.is_contained(node),
    )
    return f"exec /bin/sh -c {quote(script)}"
