"""How much of a transfer is done, as a bar for a terminal, by rich."""

from __future__ import annotations

import sys

from rich.console import Console as Screen
from rich.progress_bar import ProgressBar

WIDTH = 24
"""Characters."""


def render_bar(done: int, size: int) -> str:
    """Without colours, so that it can be a part of any line; in ASCII where stderr has no more."""
    screen = Screen(file=sys.stderr, width=WIDTH, color_system=None)
    with screen.capture() as captured:
        screen.print(ProgressBar(total=size, completed=done, width=WIDTH), end="")
    return f"[{captured.get().ljust(WIDTH)}]"
