"""A live view of `up` on a terminal: a line for each node, kept up to date below everything else
that is said. It is there after a moment, so that what is quick neither flickers nor loads rich."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from clusterctl.cli.console import Console, ago, escape, format_table
from clusterctl.core.progress import (
    ENDS,
    FAILED,
    ORDER,
    READY,
    NodePhases,
    NodeState,
    Picture,
)
from clusterctl.core.text import count

if TYPE_CHECKING:
    from rich.live import Live

DELAY = 1.0
"""Seconds before the view appears."""

REDRAW = 0.25
"""Seconds between two pictures."""
LEAST = 4
"""Lines that the view has in the lowest window; in others, it has half of them."""
SLOWEST = 5
"""Nodes that have a line where there is no room for all."""
NOTEWORTHY = 1_000_000
"""Bytes that a node has to receive in a phase to be spoken of."""
SLOW = 50_000.0
"""Bytes per second that are not worth a word."""
COLOURS = {READY: "green", FAILED: "bold red"}


@contextlib.contextmanager
def watch(console: Console) -> Iterator[NodePhases]:
    """Shows what is reported to the NodePhases meanwhile, if stderr is a terminal that can redraw
    lines, and the command line does not ask for less."""
    if console.quiet or console.json or not can_redraw():
        yield NodePhases()
        return
    nodes = NodePhases(watched=True)
    view = _View(console, nodes)
    view.start()
    try:
        yield nodes
    finally:
        view.stop()


def can_redraw() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class _View:
    """Draws from a thread of its own, whenever nobody else writes."""

    def __init__(self, console: Console, nodes: NodePhases) -> None:
        self._console, self._nodes = console, nodes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="node view")
        self._live: Live | None = None

    def start(self) -> None:
        self._console.before_message = self._wipe
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._wipe()
        self._console.before_message = None

    def _run(self) -> None:
        pause = DELAY
        while not self._over.wait(pause):
            pause = REDRAW
            picture = self._nodes.look()
            if picture.nodes or picture.stage:
                import rich.live  # noqa: F401 -- it takes its time, and nobody should wait for it

                self._console.paint(partial(self._draw, picture))

    def _draw(self, picture: Picture) -> None:
        from rich.console import Console as Screen
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(
                console=Screen(file=sys.stderr, highlight=False),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
            # Whoever is killed leaves the terminal with a cursor.
            self._live.console.show_cursor(True)
        width, height = self._live.console.size
        text = Text(no_wrap=True, overflow="crop")
        for number, (line, colour) in enumerate(describe_nodes(picture, width - 1, height)):
            text.append("\n" * bool(number) + escape(line), style=colour)
        self._live.update(text, refresh=True)

    def _wipe(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()


def describe_nodes(picture: Picture, width: int, height: int) -> list[tuple[str, str]]:
    """The lines of a picture, each with its colour: as wide as they may be, for a window that is
    `height` lines high. If the nodes do not fit, all are counted, and the slowest have lines."""
    import textwrap  # on a terminal alone

    room = max(LEAST, height // 2)
    last = (f"{picture.stage}, {ago(picture.seconds)}", "") if picture.stage else None
    room -= last is not None
    chosen: Sequence[NodeState] = picture.nodes
    lines = []
    if len(chosen) > room:
        counts = textwrap.wrap(_count(picture.nodes), width)[: room - 1]
        lines += [(text, "") for text in counts]
        slow = sorted((n for n in chosen if n.phase != READY), key=_order_by)
        chosen = slow[: min(SLOWEST, room - len(counts))]
    if chosen:
        texts = format_table(_list_cells(node) for node in chosen).splitlines()
        colours = (COLOURS.get(node.phase, "") for node in chosen)
        lines += zip(texts, colours, strict=True)
    return [(text[:width], colour) for text, colour in (*lines, *([last] if last else ()))]


def _order_by(node: NodeState) -> tuple[bool, int, float]:
    """First what failed, then the slowest."""
    return node.phase != FAILED, ORDER.index(node.phase), -node.seconds


def _count(nodes: Sequence[NodeState]) -> str:
    """`256 nodes: 200 ready, 56 pulling image`, those that are furthest first."""
    counts = Counter(node.phase for node in nodes)
    parts = (f"{counts[phase]} {phase}" for phase in reversed(ORDER) if counts[phase])
    return f"{count(len(nodes), 'node')}: {', '.join(parts)}"


def _list_cells(node: NodeState) -> tuple[str, str, str, str]:
    since = "" if node.phase in ENDS else ago(node.seconds)
    more = [node.what] if node.what else []
    if node.phase not in ENDS and node.received >= NOTEWORTHY:
        of = f" of {node.size / 1e6:.1f}" if node.size > node.received else ""
        more.append(f"{node.received / 1e6:.1f}{of} MB received")
        if node.size and not of:
            more.append("unpacking")
        elif node.rate >= SLOW:
            more.append(f"{node.rate / 1e6:.1f} MB/s")
    if node.left is not None and node.left >= 1:
        more.append(f"about {ago(node.left)} left")
    return node.node, node.phase, since, ", ".join(more)
