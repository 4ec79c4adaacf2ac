"""How long the phases of an `up` take, and what a live view calls them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from clusterctl.model import Reporter
from clusterctl.node_phases import NodePhases

BOOTSTRAP = "bootstrap"
STAGES = {
    "images": "building images",
    "create": "creating nodes",
    "connect": "connecting",
    BOOTSTRAP: "preparing nodes",
    "mesh": "testing the connections between nodes",
    "all-reduce": "testing an all-reduce",
    "verify": "measuring",
}
"""The phases of an `up`, for a live view."""


@dataclass(slots=True)
class Clock:
    """Seconds per phase, in order; on machines that take their time, each is announced."""

    nodes: NodePhases
    report: Reporter | None = None
    phases: list[tuple[str, float]] = field(default_factory=list)
    parts: list[tuple[str, float]] = field(default_factory=list)
    """Of the bootstrap: the steps that took time, on the slowest node of each."""

    @property
    def all(self) -> tuple[tuple[str, float], ...]:
        """The phases, the parts of the bootstrap after the bootstrap."""
        after = next((n for n, row in enumerate(self.phases, 1) if row[0] == BOOTSTRAP), 0)
        return (*self.phases[:after], *self.parts, *self.phases[after:])

    @contextmanager
    def time_phase(self, name: str) -> Iterator[None]:
        if self.report and self.phases:
            self.report(f"{name} (after {self.phases[-1][0]}: {self.phases[-1][1]:.1f} s)")
        self.nodes.show_stage(STAGES.get(name, ""))
        began = time.monotonic()
        yield
        self.phases.append((name, round(time.monotonic() - began, 3)))
