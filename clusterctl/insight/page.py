"""What a report consists of."""

from __future__ import annotations

import html
import io
import itertools
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import UsageError


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


# -------------------------------------------------------------------------------------------------
# Plots as SVG, by matplotlib (the extra `report`), for a page that is light or dark.
#
# Colours are variables of the page's style sheet: `--ink`, `--faint` and `--c0` to `--c7`. Text is
# drawn as paths, so that it is as wide in every browser as it was when room was made for it.


WIDTH, HEIGHT = 5.0, 3.0
"""Inches, of 72 points each: a phone shows that without making the text too small."""
MOST_POINTS, MOST_LINES = 400, 8
LONGEST_LABEL = 18
"""Characters in a line of an axis' label: a plot with a large legend has no more room."""
INK, FAINT = "#010203", "#010204"
SERIES = tuple(f"#01030{number}" for number in range(MOST_LINES))
_VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(SERIES)},
}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Bar:
    """From `start` to `end`, in seconds, in the row of that name. `kind`: 0 to 7, its colour."""

    row: str
    start: float
    end: float
    kind: int


def _make_figure(height: float = HEIGHT) -> tuple[Any, Any]:
    try:
        import matplotlib
    except ImportError:
        raise UsageError(
            "the plots of an HTML report need matplotlib, which is not installed",
            hint="pip install 'clusterctl[report]', or use --format md",
        ) from None
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(
        {"svg.fonttype": "path", "svg.hashsalt": "clusterctl", "text.parse_math": False}
    )
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, which="both", labelsize=9)
    axes.set_axisbelow(True)
    return figure, axes


def _render_svg(figure: Any, label: str) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    # Several plots share a page, and an id is one thing's.
    mark = f"plot{next(_numbers)}-"
    svg = re.sub(r'\bid="', f'id="{mark}', svg)
    svg = re.sub(r'href="#', f'href="#{mark}', svg).replace("url(#", f"url(#{mark}")
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    label = html.escape(label)  # it may be what a program calls a metric
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def draw_curves(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = False,
    errors: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    dashed: Collection[str] = (),
) -> str:
    """One line for each name, with its points where there are few; at most MOST_LINES of them.

    Args:
        errors: The smallest and the largest value at each point, of lines with error bars.
        dashed: Lines that are not measured: limits and predictions.
    """
    figure, axes = _make_figure()
    shown = dict(itertools.islice(lines.items(), MOST_LINES))
    for (name, points), colour in zip(shown.items(), SERIES, strict=False):
        step = max(1, len(points) // MOST_POINTS)
        chosen = [*points[::step], points[-1]] if step > 1 else points
        xs, ys = [point[0] for point in chosen], [point[1] for point in chosen]
        marker = "o" if len(chosen) <= 30 and name not in dashed else None
        style = "--" if name in dashed else "-"
        look: Any = {"color": colour, "linestyle": style, "linewidth": 1.6}
        axes.plot(xs, ys, label=name, marker=marker, markersize=4, **look)
        if spread := (errors or {}).get(name):
            below = [max(0.0, y - low) for y, (low, _) in zip(ys, spread, strict=True)]
            above = [max(0.0, high - y) for y, (_, high) in zip(ys, spread, strict=True)]
            bars = {"fmt": "none", "ecolor": colour, "elinewidth": 1.0, "capsize": 3}
            axes.errorbar(xs, ys, yerr=[below, above], **bars)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(textwrap.fill(y, LONGEST_LABEL), color=INK)
    if log_x:
        axes.set_xscale("log", base=2)
        _label_sizes(axes, sorted({point[0] for points in shown.values() for point in points}))
    else:
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=7)
    if log_y:
        # The usual labels are formulas, which names of metrics must not be taken for.
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, position: "")
    elif from_zero:
        axes.set_ylim(bottom=0, top=1.05 * axes.get_ylim()[1])
    if len(shown) > 1:
        columns = 2 if max(map(len, shown)) < 24 else 1
        figure.legend(
            loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK, fontsize=9
        )
    return _render_svg(figure, f"{y} by {x}")


def _label_sizes(axes: Any, sizes: Sequence[float]) -> None:
    """Labels for the sizes of messages, at most seven: `8 B`, `32 KiB`."""
    chosen = sizes[:: -(-len(sizes) // 7)]
    axes.set_xticks(chosen, [_format_size(size) for size in chosen])
    axes.minorticks_off()


def _format_size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def draw_timeline(bars: Sequence[Bar], x: str) -> str:
    """A row for each name, in the order of the bars, the first one above."""
    rows = list(dict.fromkeys(bar.row for bar in bars))
    figure, axes = _make_figure(0.9 + 0.28 * len(rows))
    end = max((bar.end for bar in bars), default=1.0)
    for bar in bars:
        width = max(bar.end - bar.start, end / 200)
        axes.barh(rows.index(bar.row), width, left=bar.start, color=SERIES[bar.kind], height=0.6)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the first one above, and no room for rows that are not
    axes.grid(color=FAINT, linewidth=0.5, axis="x")
    axes.set_xlabel(x, color=INK)
    return _render_svg(figure, "timeline")


def draw_heat_map(names: Sequence[str], values: Mapping[tuple[str, str], float], label: str) -> str:
    """A square for each ordered pair that has a value; numbers in the squares of few nodes."""
    size = len(names)
    figure, axes = _make_figure(min(6.0, 1.8 + 0.4 * size))
    missing = float("nan")
    cells = [[values.get((row, column), missing) for column in names] for row in names]
    known = [value for row in cells for value in row if value == value]
    low, high = min(known), max(known)
    mesh = axes.pcolormesh(cells, cmap="cividis", vmin=0.0, vmax=high or 1.0, edgecolors="none")
    for row, column in itertools.product(range(size), repeat=2) if size <= 8 else ():
        value = cells[row][column]
        if value == value:
            dark = value < 0.55 * high
            colour = "#ffffff" if dark else "#000000"
            place = (column + 0.5, row + 0.5)
            axes.annotate(f"{value:.3g}", place, ha="center", va="center", color=colour, size=9)
    ticks = [number + 0.5 for number in range(size)]
    axes.set_xticks(
        ticks, names, rotation=45 if size > 3 else 0, ha="right" if size > 3 else "center"
    )
    axes.set_yticks(ticks, names)
    axes.invert_yaxis()
    bar = figure.colorbar(mesh, ax=axes)
    bar.set_label(label, color=INK)
    bar.ax.tick_params(colors=INK, labelsize=9)
    bar.outline.set_visible(False)
    return _render_svg(figure, f"{label}, from {low:.3g} to {high:.3g}")
