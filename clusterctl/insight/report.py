"""A report of a cluster or a job as sections, and as HTML. Pure: it comes from records."""

from __future__ import annotations

import html
import io
import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterctl.core import assets
from clusterctl.core.text import count, format_bytes, format_time
from clusterctl.insight import metrics, scaling
from clusterctl.insight.metrics import MetricPoint
from clusterctl.insight.scaling import SPLIT, Curve, Curves, Figure
from clusterctl.insight.verify import Measurements, format_rate

MOST_PLOTS = 12
"""Plots of metrics: each takes a tenth of a second and 30 kB. Losses and accuracies come first."""
LAST_CURVES = 6
"""Jobs whose curves are drawn."""

Plot = tuple[str, str]
"""A title and an SVG."""
Lines = Mapping[str, Sequence[tuple[float, float | Figure]]]
"""Points by the name of a line."""


class Section(Struct, frozen=True):
    """A heading with what is below it. Numbers are right-aligned in the columns of `right`."""

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    right: Collection[int] = ()
    plots: Sequence[Plot] = ()
    text: str = ""


def to_html(title: str, sections: Iterable[Section]) -> str:
    """One page without scripts that loads nothing, of sections that have something to say."""
    shown = [section for section in sections if section.rows or section.plots]
    return assets.render("insight/report.html.j2", title=title, sections=shown)


# -------------------------------------------------------------------------------------------------
# What programs have printed.


_MIXED = ("loss", "accuracy")
"""Metrics that share a plot; any other one has its own."""
_NO_CURVE = {"epoch", "epochs", "step", "steps", "time", "bytes", "allreduces", "allreduce_bytes"}


def _make_label(name: str) -> str:
    return name.replace("_per_", "/").replace("_", " ")


def describe_metrics(points: Mapping[int, Sequence[MetricPoint]]) -> Section:
    """First and last of each, the smallest and the largest; and curves, the most wanted first. One
    plot has the lines of all jobs and ranks, with what may share it."""
    rows: list[tuple[object, ...]] = []
    groups: dict[str, dict[str, Sequence[tuple[float, float]]]] = {}
    units = set()
    for number, mine in sorted(points.items())[-LAST_CURVES:]:
        units.add("step" if any("step" in point.values for point in mine) else "epoch")
        for name in [name for name in metrics.list_columns(mine) if name not in _NO_CURVE]:
            label = _make_label(name)
            group = next((w for w in _MIXED if name == w or name.endswith(f"_{w}")), name)
            what = f": {label}" if group in _MIXED else ""
            ranks = metrics.find_series(mine, name)
            for rank, series in ranks.items():
                values = [value for _, value in series]
                chosen = (values[0], values[-1], min(values), max(values))
                texts = map(metrics.render_metrics, chosen)
                rows.append((number, label, rank, len(values), *texts))
                rest = f", rank {rank}" if len(ranks) > 1 else ""
                groups.setdefault(group, {})[f"job {number}{what}{rest}"] = series
    curved = [item for item in groups.items() if any(len(line) > 1 for line in item[1].values())]
    curved.sort(key=lambda item: item[0] not in _MIXED)
    plots = []
    for group, lines in curved[:MOST_PLOTS]:
        low = min(y for series in lines.values() for _, y in series)
        zero, axis = group not in _MIXED and low >= 0, " or ".join(sorted(units))
        drawn = draw_curves(lines, x=axis, y=_make_label(group), from_zero=zero)
        plots.append((_make_label(group).capitalize(), drawn))
    more = f"Curves of {len(plots)} of {len(curved)} metrics; the table has all of them."
    head = ("job", "metric", "rank", "points", "first", "last", "smallest", "largest")
    text = more * (len(curved) > len(plots))
    return Section("Metrics", head, rows, {0, *range(2, len(head))}, plots, text)


# -------------------------------------------------------------------------------------------------
# What `verify` and `bench` have measured.


def describe_measurements(found: Measurements) -> Section:
    rows = [(v.state, v.subject, v.what, v.text) for v in found.verdicts]
    text = f"Measured by clusterctl verify on {format_time(found.time)}."
    return Section("Measurements", ("state", "of", "what", "result"), rows, text=text)


def describe_allreduce(found: Curves) -> Section:
    """Table, and curves against the slowest link."""
    head, *rows = scaling.tabulate_allreduce(found)
    limit = f" Limit: {format_rate(found.limit.rate)} ({found.limit.of})."
    text = (
        f"Measured by clusterctl bench allreduce on {format_time(found.time)} with"
        f" {count(found.rows[0].ranks, 'rank')}: median of {count(found.repeats, 'repeat')}, with"
        f" the smallest and the largest.{limit if found.limit.rate else ''}"
    )
    bandwidth: dict[str, list[tuple[float, float | Figure]]] = {}
    latency: dict[str, list[tuple[float, float | Figure]]] = {}
    for row in found.rows:
        bandwidth.setdefault(row.backend, []).append((row.size, row.bus.scale(1e-9)))
        latency.setdefault(row.backend, []).append((row.size, row.seconds.scale(1e6)))
    if found.limit.rate:
        sizes = sorted({row.size for row in found.rows})
        bandwidth["limit"] = [(size, found.limit.rate / 1e9) for size in sizes]
    drawn = draw_curves(bandwidth, x="bytes", y="GB/s", log=True, dashed="limit")
    plots = (
        ("All-reduce: bus bandwidth", drawn),
        ("All-reduce: time", draw_curves(latency, x="bytes", y="µs", log=True)),
    )
    return Section("All-reduce", head, rows, range(1, len(head)), plots, text)


def describe_scaling(found: Curve) -> Section:
    """Table, and curves of time and efficiency."""
    head, *rows = scaling.tabulate_scaling(found)
    text = (
        f"{found.program}, measured by clusterctl bench scaling on {format_time(found.time)}."
        f" Fastest: {count(found.fastest, 'rank')}."
    )
    steps, unit = found.steps, f"seconds per {found.unit}"
    times: Lines = {"measured": [(step.ranks, step.seconds) for step in steps]}
    share: Lines = {
        "measured": [(step.ranks, 100 * step.efficiency) for step in steps],
        "ideal": [(step.ranks, 100.0) for step in steps],
    }
    parts: Lines = {
        name.removesuffix("_seconds"): [(s.ranks, s.split[number]) for s in steps if s.split]
        for number, name in enumerate(SPLIT)
    }
    plots = {"Time by number of ranks": (times, unit), "Efficiency": (share, "% of ideal")}
    if all(step.split for step in steps):
        plots["Where the time goes"] = parts, unit
    drawn = [
        (title, draw_curves(lines, x="ranks", y=y, from_zero=True, dashed="ideal"))
        for title, (lines, y) in plots.items()
        if len(steps) > 1
    ]
    return Section("Scaling", head, rows, range(len(head)), drawn, text)


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
    for side in ("width", "height"):
        svg = re.sub(rf'<svg ([^>]*?){side}="[^"]*"', r"<svg \1", svg, count=1)
    label = html.escape(label)  # it may be what a program calls a metric
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def draw_curves(
    lines: Lines,
    *,
    x: str,
    y: str,
    log: bool = False,
    from_zero: bool = False,
    dashed: str = "",
) -> str:
    """One line for each name that has points, which are shown where there are few; at most
    MOST_LINES of them. `log`: by sizes of messages, on both axes. `dashed`: a line that is not
    measured, as a limit."""
    import matplotlib
    from matplotlib import figure as matplotlib_figure

    matplotlib.rcParams.update(
        {"svg.fonttype": "path", "svg.hashsalt": "clusterctl", "text.parse_math": False}
    )
    figure: Any = matplotlib_figure.Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, which="both", labelsize=9)
    axes.set_axisbelow(True)
    shown = dict(itertools.islice(((n, p) for n, p in lines.items() if p), MOST_LINES))
    for (name, points), colour in zip(shown.items(), SERIES, strict=False):
        step = max(1, len(points) // MOST_POINTS)
        chosen = [*points[::step], points[-1]] if step > 1 else points
        xs = [at for at, _ in chosen]
        ys = [value if isinstance(value, Figure) else Figure.of(value) for _, value in chosen]
        few = len(chosen) <= 30 and name != dashed
        style = "--" if name == dashed else "-"
        look: Any = {"color": colour, "linestyle": style, "linewidth": 1.6}
        middle = [value.value for value in ys]
        axes.plot(xs, middle, label=name, marker="o" if few else None, markersize=4, **look)
        if any(value.low < value.high for value in ys):
            spread = [[v.value - v.low for v in ys], [v.high - v.value for v in ys]]
            bars = {"fmt": "none", "ecolor": colour, "elinewidth": 1.0, "capsize": 3}
            axes.errorbar(xs, middle, yerr=spread, **bars)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(textwrap.fill(y, LONGEST_LABEL), color=INK)
    if log:
        # The usual labels are formulas, which names of metrics must not be taken for.
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        sizes = sorted({point[0] for points in shown.values() for point in points})
        sizes = sizes[:: -(-len(sizes) // 7)]
        axes.set_xticks(sizes, map(format_bytes, sizes))
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    else:
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=7)
    if from_zero:
        axes.set_ylim(bottom=0, top=1.05 * axes.get_ylim()[1])
    if len(shown) > 1:
        columns = 2 if max(map(len, shown)) < 24 else 1
        figure.legend(
            loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK, fontsize=9
        )
    return _render_svg(figure, f"{y} by {x}")
