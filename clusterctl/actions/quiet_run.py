"""A job that measures: followed like any other, with its output kept instead of shown."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.actions import run
from clusterctl.actions.run import Prepared
from clusterctl.job_model import Job
from clusterctl.jobs.logs import Piece
from clusterctl.model import Reporter
from clusterctl.state import Store
from clusterctl.transport.pool import Pool

Printed = dict[tuple[int | None, str], bytes]
"""By rank (None: the launcher) and stream: `stdout` or `stderr`."""


def run_quietly(
    store: Store,
    prepared: Prepared,
    pool: Pool,
    purpose: str,
    report: Reporter = lambda line: None,
) -> tuple[Job, Printed]:
    """The job as it ended, and all that it wrote. `purpose`: the verb that it is for; its outputs
    are no result. `report` gets what it says of its own start, which is none either."""
    prepared = replace(prepared, job=replace(prepared.job, purpose=purpose, fetched=True))
    printed: Printed = {}

    def listen(pieces: list[Piece]) -> None:
        for piece in pieces:
            source = (piece.rank, piece.stream)
            printed[source] = printed.get(source, b"") + piece.data

    job = run.run(
        store, prepared, on_start=lambda job: None, on_output=listen, report=report, pool=pool
    )
    return job, printed
