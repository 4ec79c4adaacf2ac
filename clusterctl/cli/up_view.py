"""A live view of `up` on a terminal: a line for each node, kept up to date below everything else
that is said. It is there after a moment, so that what is quick does not flicker."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from clusterctl.cli import console as screen
from clusterctl.core.progress import ENDS, FAILED, ORDER, READY, NodePhases, NodeState, Picture
from clusterctl.core.text import count

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
COLOURS = {READY: screen.GOOD, FAILED: screen.BAD}


@contextlib.contextmanager
def watch(console: screen.Console) -> Iterator[NodePhases]:
    """Shows what is reported to the NodePhases meanwhile, if stderr is a terminal that can redraw
    lines, and the command line does not ask for less."""
    if console.quiet or console.json or not screen.can_redraw():
        yield NodePhases()
        return
    nodes, over = NodePhases(watched=True), threading.Event()

    def show() -> None:
        pause = DELAY
        while not over.wait(pause):
            pause = REDRAW
            if lines := describe_nodes(nodes.look(), screen.measure_height()):
                console.draw(lines, len(lines))

    thread = threading.Thread(target=show, daemon=True, name="node view")
    thread.start()
    try:
        yield nodes
    finally:
        over.set()
        thread.join()
        console.clear()


def describe_nodes(picture: Picture, height: int) -> list[str]:
    """The lines of a picture for a window that is `height` lines high. If the nodes do not fit, all
    are counted, and the slowest have lines."""
    last = [f"{picture.stage}, {screen.ago(picture.seconds)}"] if picture.stage else []
    room = max(LEAST, height // 2) - len(last)
    chosen: Sequence[NodeState] = picture.nodes
    lines = []
    if len(chosen) > room:
        counts = Counter(node.phase for node in chosen)
        parts = (f"{counts[phase]} {phase}" for phase in reversed(ORDER) if counts[phase])
        lines = [f"{count(len(chosen), 'node')}: {', '.join(parts)}"]
        # First what failed, then the slowest.
        slow = [node for node in chosen if node.phase != READY]
        slow.sort(key=lambda n: (n.phase != FAILED, ORDER.index(n.phase), -n.seconds))
        chosen = slow[: min(SLOWEST, room - 1)]
    if chosen:
        texts = screen.format_table(_list_cells(node) for node in chosen).splitlines()
        pairs = zip(texts, chosen, strict=True)
        lines += (screen.paint(text, COLOURS.get(node.phase, "")) for text, node in pairs)
    return lines + last


def _list_cells(node: NodeState) -> tuple[str, str, str, str]:
    since = "" if node.phase in ENDS else screen.ago(node.seconds)
    more = [node.what] if node.what else []
    if node.phase not in ENDS and node.received >= NOTEWORTHY:
        of = f" of {node.size / 1e6:.1f}" if node.size > node.received else ""
        more.append(f"{node.received / 1e6:.1f}{of} MB received")
        if node.size and not of:
            more.append("unpacking")
        elif node.rate >= SLOW:
            more.append(f"{node.rate / 1e6:.1f} MB/s")
    if node.left is not None and node.left >= 1:
        more.append(f"about {screen.ago(node.left)} left")
    return node.node, node.phase, since, ", ".join(more)
