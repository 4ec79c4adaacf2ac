"""What a fresh machine needs, as ONE idempotent POSIX sh script per node: one connection, one exec.

The script runs the steps, then answers a list of questions; the answers become `NodeFacts`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from clusterctl import assets
from clusterctl.bootstrap import facts, progress
from clusterctl.errors import BootstrapError, NodeUnreachable
from clusterctl.keys import KeyPair
from clusterctl.model import Accelerator, Cluster, Node, NodeFacts, NodeResult
from clusterctl.transport.pool import Pool


class Step(Protocol):
    """One thing a node needs. Both texts are sh; `apply` runs where `check` does not succeed."""

    @property
    def name(self) -> str: ...

    def check(self, node: Node) -> str: ...

    def apply(self, node: Node) -> str: ...

    def describe(self) -> str:
        """For people: what the node gets."""


@dataclass(frozen=True, slots=True)
class LetIn:
    """A Step: the node's own user lets the cluster's key in, for commands alone. `mark`, at the end
    of the line, is how the line is found again."""

    public: str
    mark: str
    name: str = "authorized_keys"

    def check(self, node: Node) -> str:
        return f'grep -qxF {shlex.quote(self._line)} "$HOME/.ssh/authorized_keys"'

    def apply(self, node: Node) -> str:
        return assets.render("bootstrap/authorized.sh.j2", mark=self.mark, line=self._line)

    def describe(self) -> str:
        return "accepts the cluster's own key, for commands only"

    @property
    def _line(self) -> str:
        kind, key = self.public.split()[:2]
        return f"restrict {kind} {key} {self.mark}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """What the nodes need to reach each other: a key of their own, and everybody's host keys."""

    key: KeyPair
    nodes: tuple[Node, ...]
    host_keys: Mapping[str, str]


MESH_TIMEOUT = 60.0
MESH_WAVE, WAVE_TIMEOUT = 8, 20.0
"""Workers that are checked at a time, and seconds that each further wave of them may take."""

MESH_MARK = "@@mesh"
"""Begins the lines of a mesh check that are answers: start files of shells print lines, too."""

REQUIRED = {
    "flock": "util-linux",
    "setsid": "util-linux",
    "ssh": "openssh-client",
    "tar": "tar",
    "stat": "coreutils",
    "awk": "mawk",
}
"""Commands that running a job takes, with the package that brings each on Debian and Ubuntu."""


def render_script(
    node: Node,
    mesh: Mesh,
    *,
    pythons: Sequence[str],
    steps: Sequence[Step] = (),
    files: Mapping[str, str] | None = None,
    inside: str = "",
    metered: bool = False,
) -> bytes:
    """The node's script. It holds private keys: hand it over on stdin, never in argv.

    `pythons` are paths to try before those the node itself knows; `files` go below the node root
    before the steps; `inside` is a command line that makes the questions be asked in a container.
    `metered`: during the steps, it prints each second how much the node has received.
    """
    text = assets.render(
        "bootstrap/node.sh.j2",
        node=node,
        mesh=mesh,
        files={
            "ssh/config": assets.render("bootstrap/ssh_config.j2", nodes=mesh.nodes),
            "ssh/known_hosts": "".join(f"{name} {key}\n" for name, key in mesh.host_keys.items()),
            "ssh/mesh.pub": mesh.key.public + "\n",
            "bin/clusterctl-ssh": assets.render(
                "bootstrap/agent.sh.j2", root=node.root, nodes=mesh.nodes
            ),
            "bin/free-port": assets.render("bootstrap/free-port.sh.j2"),
            "bin/mesh-peer": assets.render("bootstrap/mesh-peer.sh.j2", node=node, mark=MESH_MARK),
            **(files or {}),
        },
        inside=inside,
        steps=[(step.name, step.check(node), step.apply(node), step.describe()) for step in steps],
        step_marker=progress.MARKER,
        received_marker=progress.RECEIVED if metered and steps else "",
        questions=facts.list_questions(pythons),
        marker=facts.MARKER,
    )
    return text.encode()


def find_problem(result: NodeResult) -> str:
    """Why a node is not fit for jobs: the step that failed, or the tools it lacks. "" if it is."""
    if result.error or not result.ok:
        *before, last = ["", *result.complaints.splitlines()]
        return f"{last}: {before[-1]}" if last.startswith("step ") and before[-1] else result.why
    return find_lacking(facts.parse(result.text))


def find_lacking(found: NodeFacts) -> str:
    """Which of REQUIRED is not there, and the command that installs it; "" if all is."""
    missing = {tool: package for tool, package in REQUIRED.items() if tool not in found.tools}
    packages = " ".join(sorted(set(missing.values())))
    return f"lacks {', '.join(missing)} (sudo apt-get install {packages})" if missing else ""


def read(node: Node, result: NodeResult) -> Node:
    """The node with its facts, from what its script printed."""
    found = facts.parse(result.text)
    gpus = len(found.gpus)
    return replace(
        node,
        facts=found,
        python=found.python.executable if found.python else "",
        mpi_prefix=found.mpi.prefix if found.mpi else "",
        accelerator=found.accelerator if gpus else Accelerator.NONE,
        slots=gpus or node.slots,
    )


def render_mesh_check(launcher: Node, workers: Sequence[Node]) -> str:
    """Checks, from the launcher, launcher ↔ every worker and a ring among the workers."""
    following = [*workers[1:], *workers[:1]] if len(workers) > 1 else [None]
    return assets.render(
        "bootstrap/mesh.sh.j2",
        launcher=launcher,
        pairs=list(zip(workers, following, strict=True)),
        mark=MESH_MARK,
        wave=MESH_WAVE,
    )


def check_mesh(pool: Pool, cluster: Cluster, *, what: str, hint: str) -> None:
    """Raises NodeUnreachable unless the launcher and the workers (`what`) all reach each other."""
    launcher = cluster.launcher
    others = [node for node in cluster.workers if node.name != launcher.name]
    if not others:
        return
    result = pool.find_transport(launcher.name).run(
        "exec /bin/sh -s",
        stdin=render_mesh_check(launcher, others).encode(),
        timeout=MESH_TIMEOUT + WAVE_TIMEOUT * (len(others) // MESH_WAVE),
    )
    failures = read_mesh_failures(result.text)
    if result.error or not result.ok:
        failures = (result.error or result.complaints, *failures)
    if failures:
        raise NodeUnreachable(
            f"some {what} cannot reach each other: {'; '.join(failures)}",
            hint=hint,
            transient=True,
        )


def check_shared(pool: Pool, cluster: Cluster) -> str:
    """Raises BootstrapError unless all nodes can read and write the shared folder, where ranks
    run. A file system of the user's own may also be one that they can only read, as it is said."""
    launcher = cluster.launcher
    others = [node for node in cluster.workers if node.name != launcher.name]
    result = pool.find_transport(launcher.name).run(
        "exec /bin/sh -s",
        stdin=render_shared_check(
            cluster.shared, launcher, others, theirs=bool(cluster.shared_source)
        ).encode(),
        timeout=MESH_TIMEOUT + WAVE_TIMEOUT * (len(others) // MESH_WAVE),
    )
    failures = read_mesh_failures(result.text)
    if result.error or not result.ok:
        failures = (result.error or result.complaints, *failures)
    if failures:
        raise BootstrapError(
            f"some nodes cannot use the shared folder {cluster.shared}: {'; '.join(failures)}",
            hint=f"`clusterctl up {cluster.name}` mounts it again",
        )
    begin = f"{MESH_MARK} readonly "
    why = next((line for line in result.text.splitlines() if line.startswith(begin)), "")
    if not why:
        return ""
    return (
        f"{cluster.shared} is readable on all nodes, but {launcher.user} cannot write to it"
        f" ({why.removeprefix(begin)}): `clusterctl ssh launcher -- sudo install -d -o"
        f" {launcher.user} {cluster.shared}/NAME` creates a writable folder in it"
    )


def render_shared_check(
    folder: str, launcher: Node, workers: Sequence[Node], *, theirs: bool = False
) -> str:
    """Writes a file on the launcher, and reads and writes it on all workers. `theirs`: a file
    system of the user's own, which may be one that can only be read."""
    return assets.render(
        "bootstrap/shared-check.sh.j2",
        folder=folder,
        theirs=theirs,
        launcher=launcher,
        workers=workers,
        mark=MESH_MARK,
        wave=MESH_WAVE,
    )


def read_mesh_failures(text: str) -> tuple[str, ...]:
    """The edges that do not work, for people, from what `render_mesh_check` printed. Only lines
    with the mark count."""
    failed = []
    for line in text.splitlines():
        mark, word, *rest = [*line.split(" "), ""]
        if (mark, word) == (MESH_MARK, "broken") and len(rest) >= 3:
            source, target, *why = rest
            failed.append(f"{source} → {target}: {' '.join(why).strip() or 'no answer'}")
    return tuple(failed)
