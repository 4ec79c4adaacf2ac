"""What `up` says of a quick look at a cluster: one line, and one for each thing that is slow."""

from __future__ import annotations

from clusterctl.formats import count
from clusterctl.insight.figures import Measurements

SHOWN = 10
"""Things below their limit that are named; of more, only the number is told."""


def describe(report: Measurements, *, workers: int, name: str) -> tuple[str, ...]:
    """`workers` of the cluster, those included for which there was no time; `name` is its own."""
    measured = count(len(report.nodes), "node")
    if report.links:
        measured += f" and {count(len(report.links), 'link')}"
    low, seconds = report.low, f"({report.seconds:.1f} s)"
    head = f"measured {measured}: all within limits {seconds}"
    if low:
        figures = count(len(report.verdicts), "figure")
        head = f"measured {measured}: {len(low)} of {figures} below the limit {seconds}"
    lines = [head, *(f"  {v.subject}, {v.what}: {v.text}" for v in low[:SHOWN])]
    if len(low) > SHOWN:
        lines.append(f"  … {len(low) - SHOWN} more")
    pairs = workers * (workers - 1) // 2
    missing = {"node": workers - len(report.nodes), "link": pairs - len(report.links)}
    left_out = [count(number, what) for what, number in missing.items() if number]
    if left_out:
        lines.append(f"  not measured, to save time: {', '.join(left_out)}")
    if low or left_out:
        lines.append(f"  → `clusterctl verify {name}` measures everything, for longer")
    return tuple(lines)
