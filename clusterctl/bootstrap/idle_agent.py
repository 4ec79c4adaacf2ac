"""The agent that ends unused workers, and what it reports."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterctl import assets
from clusterctl.model import Node, Role

END = "sudo -n sh -c 'shutdown -P now || poweroff -f'"


@dataclass(frozen=True, slots=True)
class Report:
    """By node: when it ended, or when it was kept because its files could not be copied to the
    launcher; in seconds since the epoch, by the launcher's clock."""

    ended: dict[str, float]
    kept: dict[str, float]


def folder(node: Node) -> str:
    return f"{node.root}/idle"


def render_agent(
    node: Node, nodes: Iterable[Node], limit: float, containers: int, proc: str = "/proc"
) -> str:
    """`limit`: seconds. `containers`: how many containers of ours run on each machine."""
    workers = [other for other in nodes if other.role is Role.WORKER]
    return assets.render(
        "node/idle.sh.j2",
        root=node.root,
        dir=folder(node),
        limit=int(limit),
        workers=workers if node.role is Role.LAUNCHER else (),
        containers=containers,
        proc=proc,
        end=END,
    )


def values(node: Node, nodes: Sequence[Node], limit: float, containers: int) -> dict[str, object]:
    """Of the step that starts the agent, or with `limit` 0 stops it."""
    agent = render_agent(node, nodes, limit, containers) if limit else ""
    return {
        "limit": limit,
        "agent": agent,
        "digest": hashlib.sha256(agent.encode()).hexdigest(),
        "dir": folder(node),
        "file": f"{folder(node)}/agent.sh",
    }


def render_question(node: Node) -> str:
    """A shell command for the launcher that prints what `parse` reads."""
    return f"cat '{folder(node)}/report' 2>/dev/null; exit 0"


def parse(text: str) -> Report:
    found: dict[str, dict[str, float]] = {"ended": {}, "kept": {}}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        name, _, when = rest.partition(" ")
        if word in found and when.isdecimal():
            found[word][name] = float(when)
    return Report(found["ended"], found["kept"])
