"""The agent that ends unused workers, and what it reports."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterctl import assets
from clusterctl.model import Node, Role

NOTICED = 60.0
"""Seconds that a clock may be wrong: less is the time that an answer takes."""

END = "sudo -n sh -c 'shutdown -P now || poweroff -f'"


@dataclass(frozen=True, slots=True)
class AgentReport:
    """By node: when it ended, or when it was kept because its files could not be copied to the
    launcher; in seconds since the epoch, by the launcher's clock. `now` is what that showed when it
    was asked."""

    ended: dict[str, float]
    kept: dict[str, float]
    now: float = 0.0

    def compute_ends(self, now: float) -> dict[str, float]:
        """`ended` by a clock that shows `now`, where the launcher's is wrong."""
        off = now - self.now if self.now else 0.0
        late = off if abs(off) > NOTICED else 0.0
        return {name: when + late for name, when in self.ended.items()}


def locate_folder(node: Node) -> str:
    return f"{node.root}/idle"


def render_agent(
    node: Node, nodes: Iterable[Node], limit: float, containers: int, proc: str = "/proc"
) -> str:
    """`limit`: seconds. `containers`: how many containers of ours run on each machine."""
    workers = [other for other in nodes if other.role is Role.WORKER]
    return assets.render(
        "node/idle.sh.j2",
        root=node.root,
        dir=locate_folder(node),
        limit=int(limit),
        workers=workers if node.role is Role.LAUNCHER else (),
        containers=containers,
        proc=proc,
        end=END,
    )


def build_values(
    node: Node, nodes: Sequence[Node], limit: float, containers: int
) -> dict[str, object]:
    """Of the step that starts the agent, or with `limit` 0 stops it."""
    agent = render_agent(node, nodes, limit, containers) if limit else ""
    return {
        "limit": limit,
        "agent": agent,
        "digest": hashlib.sha256(agent.encode()).hexdigest(),
        "dir": locate_folder(node),
        "file": f"{locate_folder(node)}/agent.sh",
    }


def render_question(node: Node) -> str:
    """A shell command for the launcher that prints what `parse` reads."""
    return (
        # Those that were just requested to end are in the report half a minute later.
        f"cd '{locate_folder(node)}' 2>/dev/null && {{ cat report; sed 's/^/ended /' told; }}"
        " 2>/dev/null; echo now launcher $(date +%s)"
    )


def parse(text: str) -> AgentReport:
    found: dict[str, dict[str, float]] = {"ended": {}, "kept": {}, "now": {}}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        name, _, when = rest.partition(" ")
        if word in found and when.isdecimal():
            found[word][name] = float(when)
    return AgentReport(found["ended"], found["kept"], max(found["now"].values(), default=0.0))
