"""`jobs JOB` of a sweep: a line for each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from clusterctl.actions import metrics
from clusterctl.job_model import Job


def list_rows(job: Job, values: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Its number, its values, its exit code (None: it has not ended), its metrics."""
    return [
        {
            "point": point.number,
            "values": point.settings,
            "exit_code": job.points_ended.get(str(point.number)),
            "metrics": {n: v for n, v in values.get(point.number, {}).items() if n != "time"},
        }
        for point in job.spec.points
    ]


def document_points(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As JSON has it: what is not finite is null."""
    return [
        {**row, "metrics": {n: v if isfinite(v) else None for n, v in row["metrics"].items()}}
        for row in found
    ]


def render_cells(found: Sequence[Mapping[str, Any]]) -> list[list[object]]:
    """For people, with a head."""
    swept = dict.fromkeys(name for row in found for name in row["values"])
    measured = dict.fromkeys(name for row in found for name in row["metrics"])
    return [
        ["point", *swept, "exit", *measured],
        *(
            [
                row["point"],
                *(row["values"][name] for name in swept),
                "-" if row["exit_code"] is None else row["exit_code"],
                *(_format_metric(row["metrics"].get(name)) for name in measured),
            ]
            for row in found
        ),
    ]


def _format_metric(value: float | None) -> str:
    return "-" if value is None else metrics.render(value)
