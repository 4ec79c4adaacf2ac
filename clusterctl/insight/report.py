"""A report of a cluster or a job as a value, and as Markdown and HTML. Pure but for the clock that
it is given: what it says comes from records."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clusterctl.core import assets
from clusterctl.core.job import Job, JobState
from clusterctl.insight import metrics, page
from clusterctl.insight import scaling as insight_scaling
from clusterctl.insight.metrics import MetricPoint
from clusterctl.insight.page import Section, Table
from clusterctl.insight.scaling import Curve, Curves
from clusterctl.insight.verify import Link, Verdict

LAST_JOBS = 20
"""Jobs on the timeline and in the table; the latest ones."""
MOST_PLOTS = 12
"""Plots of metrics: each takes a tenth of a second and 30 kB. Losses and accuracies come first."""
LAST_CURVES = 6
"""Jobs whose curves are drawn."""
_KINDS = {
    JobState.SUCCEEDED: 2,
    JobState.RUNNING: 0,
    JobState.QUEUED: 4,
    JobState.CANCELLED: 4,
}
_FAILED, _PHASE = 1, 3


@dataclass(frozen=True, slots=True)
class UpPhase:
    """A step of `up`, in seconds since the epoch."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """What a report is made from. Money is None where there is none."""

    title: str
    now: float
    facts: Table
    nodes: Table | None = None
    phases: tuple[UpPhase, ...] = ()
    jobs: tuple[Job, ...] = ()
    job_table: Table | None = None
    points: Mapping[int, Sequence[MetricPoint]] = field(default_factory=dict)
    cost: Table | None = None
    verdicts: tuple[Verdict, ...] = ()
    links: tuple[Link, ...] = ()
    measured: str = ""
    """When the figures of `verify` were measured, for people."""
    allreduce: Curves | None = None
    scaling: Curve | None = None


def make_sections(source: ReportData, *, draw: bool) -> list[Section]:
    """All that there is something to say about. `draw`: with plots."""
    found = [Section("Overview", source.facts)]
    if source.nodes:
        found.append(Section("Nodes", source.nodes))
    bars, unit = _make_bars(source)
    if bars and draw:
        drawn = page.draw_timeline(bars, f"{unit} since the start")
        found.append(Section("Time line", plots=(("Phases and jobs", drawn),)))
    if source.job_table:
        found.append(Section("Jobs", source.job_table))
    table = _tabulate_metrics(source.points)
    if table:
        groups, units = _collect_lines(source.points)
        shown = dict(itertools.islice(groups.items(), MOST_PLOTS))
        text = ""
        if draw and len(groups) > len(shown):
            text = f"Curves of {len(shown)} of {len(groups)} metrics; the table has all of them."
        curves = tuple(_draw_curves(shown, units)) if draw else ()
        found.append(Section("Metrics", table, curves, text))
    if source.cost:
        found.append(Section("Cost", source.cost))
    if source.verdicts:
        found.append(_describe_measurements(source, draw))
    if source.allreduce:
        found.append(insight_scaling.describe_allreduce_benchmarks(source.allreduce, draw))
    if source.scaling:
        found.append(insight_scaling.describe_scaling(source.scaling, draw))
    return found


def _make_bars(source: ReportData) -> tuple[list[page.Bar], str]:
    """And the unit of their times."""
    jobs = [job for job in source.jobs if job.started][-LAST_JOBS:]
    starts = [*(phase.start for phase in source.phases), *(job.started or 0.0 for job in jobs)]
    if not starts:
        return [], ""
    first = min(starts)
    ends = [*(p.end for p in source.phases), *(j.finished or source.now for j in jobs)]
    unit, name = _choose_unit(max(ends) - first)
    bars = [
        page.Bar(phase.name, (phase.start - first) / unit, (phase.end - first) / unit, _PHASE)
        for phase in source.phases
    ]
    bars += [
        page.Bar(
            f"job {job.id}",
            ((job.started or first) - first) / unit,
            ((job.finished or source.now) - first) / unit,
            _KINDS.get(job.state, _FAILED),
        )
        for job in jobs
    ]
    return bars, name


def _choose_unit(seconds: float) -> tuple[float, str]:
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds > 3 * unit:
            return unit, name
    return 1.0, "seconds"


def _make_label(name: str) -> str:
    return name.replace("_per_", "/").replace("_", " ")


_MIXED = ("loss", "accuracy")


def _name_group(name: str) -> str:
    """Metrics that share a plot: losses, accuracies; any other one has its own."""
    for word in _MIXED:
        if name == word or name.endswith(f"_{word}"):
            return word
    return name


_NO_CURVE = {"epoch", "epochs", "step", "steps", "time", "bytes", "allreduces", "allreduce_bytes"}


_Lines = dict[str, Sequence[tuple[float, float]]]


def count_plots(source: ReportData) -> int:
    """Plots of metrics that the page will have."""
    return min(MOST_PLOTS, len(_collect_lines(source.points)[0]))


def _collect_lines(
    points: Mapping[int, Sequence[MetricPoint]],
) -> tuple[dict[str, _Lines], set[str]]:
    """The lines of each plot that has a curve, the most wanted first, and the units of their x."""
    chosen = dict(sorted(points.items())[-LAST_CURVES:])
    groups: dict[str, _Lines] = {}
    units = set()
    for number, mine in chosen.items():
        if any("bytes" in point.values for point in mine):
            _add_sizes(groups, number, mine)
            continue
        units.add("step" if any("step" in point.values for point in mine) else "epoch")
        for name in metrics.list_columns(mine):
            if name in _NO_CURVE:
                continue
            ranks = metrics.find_series(mine, name)
            lines = groups.setdefault(_name_group(name), {})
            mixed = _name_group(name) in _MIXED
            for rank, series in ranks.items():
                rest = f", rank {rank}" if len(ranks) > 1 else ""
                what = f": {_make_label(name)}" if mixed else ""
                lines[f"job {number}{what}{rest}"] = series
    curved = {
        group: lines
        for group, lines in groups.items()
        if group == _SIZES or any(len(series) > 1 for series in lines.values())
    }
    first = (_SIZES, *_MIXED)
    return dict(sorted(curved.items(), key=lambda item: item[0] not in first)), units


def _draw_curves(groups: Mapping[str, _Lines], units: set[str]) -> list[tuple[str, str]]:
    found = []
    for group, lines in groups.items():
        if group == _SIZES:
            drawn = page.draw_curves(lines, x="bytes", y="GB/s", log_x=True, log_y=True)
            found.append(("All-reduce: bus bandwidth by size", drawn))
        else:
            low = min(y for series in lines.values() for _, y in series)
            scale = group not in _MIXED and low >= 0
            axis = " or ".join(sorted(units))
            drawn = page.draw_curves(lines, x=axis, y=_make_label(group), from_zero=scale)
            found.append((_make_label(group).capitalize(), drawn))
    return found


_SIZES = "all-reduce"


def _add_sizes(
    groups: dict[str, _Lines],
    number: int,
    mine: Sequence[MetricPoint],
) -> None:
    rates = [
        (p.values["bytes"], p.values["bus_gb_per_second"])
        for p in mine
        if p.values.get("bytes", 0) > 0 and p.values.get("bus_gb_per_second", 0) > 0
    ]
    if rates:
        groups.setdefault(_SIZES, {})[f"job {number}"] = rates


def _tabulate_metrics(points: Mapping[int, Sequence[MetricPoint]]) -> Table | None:
    """First, last, and the best of what may have one."""
    rows = []
    for number, mine in sorted(points.items())[-LAST_CURVES:]:
        for name in metrics.list_columns(mine):
            if name in _NO_CURVE:
                continue
            for rank, series in metrics.find_series(mine, name).items():
                values = [value for _, value in series]
                texts = (
                    metrics.render_metrics(v)
                    for v in (values[0], values[-1], min(values), max(values))
                )
                rows.append((str(number), _make_label(name), str(rank), str(len(values)), *texts))
    head = ("job", "metric", "rank", "points", "first", "last", "smallest", "largest")
    return Table(head, tuple(rows), frozenset({0, 2, 3, 4, 5, 6, 7})) if rows else None


def _describe_measurements(source: ReportData, draw: bool) -> Section:
    rows = tuple((v.state, v.subject, v.what, v.text) for v in source.verdicts)
    rates: dict[tuple[str, str], float] = {}
    for link in source.links:
        if not link.error and link.rate:
            rates[link.second, link.first] = link.rate * 8 / 1e9
            rates[link.first, link.second] = (link.back or link.rate) * 8 / 1e9
    names = list(dict.fromkeys(name for pair in sorted(rates) for name in pair))
    drawn: tuple[tuple[str, str], ...] = ()
    if draw and rates:
        title = "Bandwidth between nodes (row sends to column)"
        drawn = ((title, page.draw_heat_map(names, rates, "Gbit/s")),)
    text = f"Measured by clusterctl verify on {source.measured}."
    return Section("Measurements", Table(("state", "of", "what", "result"), rows), drawn, text)


def to_html(source: ReportData) -> str:
    """One page without scripts that loads nothing."""
    found = make_sections(source, draw=True)
    return assets.render("insight/report.html.j2", title=source.title, sections=found)


def to_markdown(source: ReportData) -> str:
    """The same without plots, for issues and papers."""
    parts = [f"# {source.title}"]
    for section in make_sections(source, draw=False):
        parts.append(f"## {section.title}")
        if section.text:
            parts.append(section.text)
        if section.table:
            parts.append(_render_table(section.table))
    return "\n\n".join(parts) + "\n"


def _render_table(table: Table) -> str:
    def render_row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"

    rule = (
        "|" + "|".join("---:" if n in table.right else "---" for n in range(len(table.head))) + "|"
    )
    return "\n".join([render_row(table.head), rule, *map(render_row, table.rows)])
