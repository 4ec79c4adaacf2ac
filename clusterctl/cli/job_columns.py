"""`jobs --columns`: what a table of jobs may show beside its usual columns."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from clusterctl.actions import Store, metrics
from clusterctl.cli.console import format_table, redact, redact_arguments
from clusterctl.cli.job_output import format_duration
from clusterctl.errors import UsageError
from clusterctl.job_model import Job, Provenance

WIDEST = 60
"""Characters of a cell."""


@dataclass
class JobRow:
    """A job, with what is read only where a column wants it."""

    store: Store
    job: Job
    dollars: float | None

    @cached_property
    def provenance(self) -> Provenance:
        return self.store.read_provenance(self.job.id)

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        """The last value of each metric."""
        points = metrics.collect_stored(self.store, self.job)
        found = {name: metrics.find_last(points, name) for name in metrics.list_columns(points)}
        return {name: value for name, value in found.items() if value is not None}


def _format_clock(when: float | None) -> str | None:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when)) if when else None


def _quote_words(words: Sequence[str]) -> str:
    """As a command line, without values that are secrets."""
    return redact(shlex.join(redact_arguments(words)))


def _list_versions(row: JobRow, name: str) -> str | None:
    found = {m.packages[name] for m in row.provenance.machines if name in m.packages}
    return ", ".join(sorted(found)) or None


COLUMNS: dict[str, Callable[[JobRow], Any]] = {
    "id": lambda row: row.job.id,
    "cluster": lambda row: row.job.cluster,
    "state": lambda row: row.job.state.value,
    "exit": lambda row: row.job.program_exit_code,
    "reason": lambda row: row.job.reason or None,
    "ranks": lambda row: row.job.ranks,
    "nodes": lambda row: ",".join(place.node for place in row.job.placement),
    "attempt": lambda row: row.job.attempt,
    "created": lambda row: _format_clock(row.job.created),
    "started": lambda row: _format_clock(row.job.started),
    "finished": lambda row: _format_clock(row.job.finished),
    "took": lambda row: format_duration(row.job),
    "dollars": lambda row: row.dollars,
    "program": lambda row: row.job.spec.program.target,
    "args": lambda row: _quote_words(row.job.spec.program.args),
    "env": lambda row: _quote_words([f"{k}={v}" for k, v in row.job.spec.env.items()]) or None,
    "backend": lambda row: row.job.spec.backend,
    "commit": lambda row: row.provenance.commit[:12] or None,
    "branch": lambda row: row.provenance.branch or None,
    "changed": lambda row: (
        ("yes" if row.provenance.patch_bytes else "no") if row.provenance.commit else None
    ),
    "command": lambda row: _quote_words(row.provenance.command) or None,
    "image": lambda row: ", ".join(dict.fromkeys(row.provenance.images.values())) or None,
    "python": lambda row: (
        ", ".join(sorted({m.python for m in row.provenance.machines if m.python})) or None
    ),
    "torch": lambda row: _list_versions(row, "torch"),
    "mpi": lambda row: _list_versions(row, "openmpi"),
}
"""Any other name is that of a metric."""


def collect_values(
    store: Store, jobs: Sequence[Job], dollars: Mapping[int, float], names: Sequence[str]
) -> list[dict[str, Any]]:
    """The columns of each job; None where it has none. UsageError for a name that is no column, and
    no metric of any of the jobs."""
    rows = [JobRow(store, job, dollars.get(job.id)) for job in jobs]
    for name in names:
        if name not in COLUMNS and not any(name in row.metrics for row in rows):
            close = get_close_matches(name, COLUMNS, n=1)
            known = f"columns: {', '.join(COLUMNS)}, and metrics of the jobs"
            raise UsageError(
                f"--columns: no job has a column or metric {name!r}",
                hint=f"did you mean {close[0]}?" if close else known,
            )
    return [
        {n: COLUMNS[n](row) if n in COLUMNS else row.metrics.get(n) for n in names} for row in rows
    ]


def show(found: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """As a table."""
    return format_table([names, *([_format_cell(row[name]) for name in names] for row in found)])


def _format_cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    text = metrics.render(value) if isinstance(value, float) else str(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
