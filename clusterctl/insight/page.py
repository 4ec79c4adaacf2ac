"""What a report consists of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """`head` and rows of text; numbers are right-aligned in the columns of `right`."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what is below it. `plots` are (title, SVG) and none in Markdown."""

    title: str
    table: Table | None = None
    plots: tuple[tuple[str, str], ...] = ()
    text: str = ""
