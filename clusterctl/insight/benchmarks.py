"""What `bench` has measured, as sections of a report. Pure."""

from __future__ import annotations

from typing import Any

from clusterctl.formats import count, format_time
from clusterctl.insight import plots
from clusterctl.insight.allreduce import Curves, describe, estimate_ring_seconds
from clusterctl.insight.page import Section, Table
from clusterctl.insight.scaling import SPLIT, Curve
from clusterctl.insight.verify import format_rate

Lines = dict[str, list[tuple[float, float]]]
Errors = dict[str, list[tuple[float, float]]]


def describe_allreduce(found: Curves, draw: bool) -> Section:
    """Table, and curves against the slowest link."""
    rows = tuple(
        (
            row.backend,
            str(row.size),
            row.seconds.describe(1e6),
            row.algorithm.describe(1e-9),
            row.bus.describe(1e-9),
            f"{row.bus.value / found.limit.rate:.0%}" if found.limit.rate else "-",
        )
        for row in found.rows
    )
    head = ("backend", "bytes", "latency µs", "algbw GB/s", "busbw GB/s", "of limit")
    limit = f" Limit: {format_rate(found.limit.rate)} ({found.limit.of})."
    text = (
        f"Measured by clusterctl bench allreduce on {format_time(found.time)} with"
        f" {count(found.rows[0].ranks, 'rank')}: median of {count(found.repeats, 'repeat')}, with"
        f" the smallest and the largest.{limit if found.limit.rate else ''}"
    )
    table = Table(head, rows, frozenset(range(1, len(head))))
    return Section("All-reduce", table, _plot_allreduce(found) if draw else (), text)


def _plot_allreduce(found: Curves) -> tuple[tuple[str, str], ...]:
    bandwidth: Lines = {}
    latency: Lines = {}
    bandwidth_errors: Errors = {}
    latency_errors: Errors = {}
    for row in found.rows:
        bandwidth.setdefault(row.backend, []).append((row.size, row.bus.value / 1e9))
        bandwidth_errors.setdefault(row.backend, []).append((row.bus.low / 1e9, row.bus.high / 1e9))
        latency.setdefault(row.backend, []).append((row.size, row.seconds.value * 1e6))
        spread = (row.seconds.low * 1e6, row.seconds.high * 1e6)
        latency_errors.setdefault(row.backend, []).append(spread)
    dashed: list[str] = []
    if found.limit.rate:
        sizes = sorted({row.size for row in found.rows})
        dashed = ["limit", "ring at the limit"]
        bandwidth["limit"] = [(size, found.limit.rate / 1e9) for size in sizes]
        ranks = found.rows[0].ranks
        ring = [(size, estimate_ring_seconds(size, ranks, found.limit) or 0.0) for size in sizes]
        latency["ring at the limit"] = [(size, seconds * 1e6) for size, seconds in ring]
    scales: Any = {"x": "bytes", "log_x": True, "log_y": True, "dashed": dashed}
    return (
        (
            "All-reduce: bus bandwidth",
            plots.draw_curves(bandwidth, y="GB/s", errors=bandwidth_errors, **scales),
        ),
        ("All-reduce: time", plots.draw_curves(latency, y="µs", errors=latency_errors, **scales)),
    )


def describe_scaling(found: Curve, draw: bool) -> Section:
    """Table, and curves with prediction and efficiency."""
    rows = tuple(
        (
            str(step.ranks),
            str(step.nodes),
            step.seconds.describe(),
            "-" if step.predicted is None else describe(step.predicted),
            step.speedup.describe(),
            f"{step.efficiency:.0%}",
            *(describe(seconds) for seconds in step.split or ()),
            *["-"] * (0 if step.split else len(SPLIT)),
            "-" if step.dollars is None else describe(step.dollars),
        )
        for step in found.steps
    )
    times = (f"s per {found.unit}", "predicted", "speed-up", "efficiency")
    split = ("compute", "communication", "waiting")
    head = ("ranks", "nodes", *times, *split, f"$ per {found.unit}")
    cheapest = f", cheapest: {count(found.cheapest, 'rank')}" if found.cheapest else ""
    text = (
        f"{found.program}, measured by clusterctl bench scaling on {format_time(found.time)}."
        f" Fastest: {count(found.fastest, 'rank')}{cheapest}. Predicted from {found.assumes}."
    )
    table = Table(head, rows, frozenset(range(len(head))))
    return Section("Scaling", table, _plot_scaling(found) if draw else (), text)


def _plot_scaling(found: Curve) -> tuple[tuple[str, str], ...]:
    if len(found.steps) < 2:
        return ()
    unit = f"seconds per {found.unit}"
    times: Lines = {"measured": [(step.ranks, step.seconds.value) for step in found.steps]}
    spread = {"measured": [(step.seconds.low, step.seconds.high) for step in found.steps]}
    known = [(step.ranks, step.predicted) for step in found.steps if step.predicted is not None]
    if known:
        times["predicted"] = [(float(ranks), seconds) for ranks, seconds in known]
    share: Lines = {
        "measured": [(step.ranks, 100 * step.efficiency) for step in found.steps],
        "ideal": [(step.ranks, 100.0) for step in found.steps],
    }
    common: Any = {"x": "ranks", "from_zero": True}
    drawn = [
        (
            "Time by number of ranks",
            plots.draw_curves(times, y=unit, errors=spread, dashed=["predicted"], **common),
        ),
        ("Efficiency", plots.draw_curves(share, y="% of ideal", dashed=["ideal"], **common)),
    ]
    if all(step.split for step in found.steps):
        parts: Lines = {
            name.removesuffix("_seconds"): [
                (step.ranks, step.split[number]) for step in found.steps if step.split
            ]
            for number, name in enumerate(SPLIT)
        }
        drawn.append(("Where the time goes", plots.draw_curves(parts, y=unit, **common)))
    return tuple(drawn)
