"""Which node is at which step, while it happens: the scripts' own words, equal ones in one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from clusterctl import node_phases
from clusterctl.bootstrap import facts
from clusterctl.model import Reporter
from clusterctl.node_phases import NodePhases
from clusterctl.node_results import shorten

MARKER = "@@step"
"""A script prints it with the name of a step, and what the node is about to get."""
RECEIVED = "@@received"
"""And, where somebody watches, with the bytes that the node has received since it was started."""

PHASES = {
    "boot": node_phases.FIRST_BOOT,
    **dict.fromkeys(("docker", "nvidia", "amd", "venv", "wheels"), node_phases.INSTALLING),
    **dict.fromkeys(("image", "base"), node_phases.PULLING),
    "sources": node_phases.DOWNLOADING,
    "build": node_phases.BUILDING,
    "container": node_phases.STARTING,
    **dict.fromkeys(("versions", "kernel"), node_phases.TESTING),
}
"""What a node is doing at a step, in words for people. All other steps write a file or two."""

DONE = "done"
PAUSE = 0.5
"""Seconds between two looks: what many nodes begin in between is one line."""


class StepReporter:
    """A context manager. `on_stdout` takes what the nodes print, from any thread; `report` gets
    lines such as `worker-[1-8]: Docker`. A node that has all it needs already is not spoken of."""

    def __init__(
        self,
        report: Reporter,
        pause: float = PAUSE,
        now: Callable[[], float] = time.monotonic,
        *,
        nodes: NodePhases | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """`nodes` is told the phase of each node. `sizes`: bytes of the image that a node pulls."""
        self.nodes = nodes or NodePhases()
        self.sizes = sizes or {}
        self.seconds: dict[str, float] = {}
        """How long each step took on the node that it took longest on."""
        self._now = now
        self._since: dict[str, tuple[str, float]] = {}
        self._report = report
        self._pause = pause
        self._rest: dict[str, bytes] = {}
        self._busy: set[str] = set()
        self._news: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="progress")

    def on_stdout(self, node: str, data: bytes) -> None:
        with self._lock:
            *lines, self._rest[node] = (self._rest.get(node, b"") + data).split(b"\n")
            for line in lines:
                self._read(node, line.decode(errors="replace"))

    def _read(self, node: str, line: str) -> None:
        marker, _, what = line.partition(" ")
        if marker in (MARKER, facts.MARKER):
            self._end(node)
        if marker == RECEIVED and what.isdecimal():
            self.nodes.receive(node, int(what))
        if marker == MARKER:
            name, _, what = what.partition(" ")
            self._enter(node, name, what)
            self._since[node] = what, self._now()
            self._busy.add(node)
            self._news.setdefault(what, []).append(node)
        elif marker == facts.MARKER and node in self._busy:
            # The questions come when all steps are behind it.
            self._busy.remove(node)
            self._news.setdefault(DONE, []).append(node)

    def _enter(self, node: str, step: str, what: str) -> None:
        phase = PHASES.get(step, node_phases.CONFIGURING)
        size = self.sizes.get(node, 0) if phase == node_phases.PULLING else 0
        self.nodes.enter([node], phase, what if phase == node_phases.INSTALLING else "", size)

    def _end(self, node: str) -> None:
        """The step that a node was at is behind it."""
        if node in self._since:
            what, began = self._since.pop(node)
            self.seconds[what] = max(self.seconds.get(what, 0.0), self._now() - began)

    def _run(self) -> None:
        while not self._ended.wait(self._pause):
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            news, self._news = self._news, {}
        for what, nodes in news.items():
            self._report(f"{shorten(nodes)}: {what}")

    def __enter__(self) -> StepReporter:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ended.set()
        self._thread.join()
        self._flush()
