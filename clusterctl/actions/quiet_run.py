"""A job that measures: followed like any other, with its output kept instead of shown."""

from __future__ import annotations

from clusterctl.actions import run
from clusterctl.actions.run import Prepared
from clusterctl.job_model import Job
from clusterctl.jobs.logs import Piece
from clusterctl.state import Store
from clusterctl.transport.pool import Pool

Heard = dict[tuple[int | None, str], bytes]
"""By rank (None: the launcher) and stream: `stdout` or `stderr`."""


def run_quietly(store: Store, prepared: Prepared, pool: Pool) -> tuple[Job, Heard]:
    """The job as it ended, and all that it wrote."""
    heard: Heard = {}

    def listen(pieces: list[Piece]) -> None:
        for piece in pieces:
            source = (piece.rank, piece.stream)
            heard[source] = heard.get(source, b"") + piece.data

    job = run.run(
        store, prepared, on_start=lambda job: None, on_output=listen, tell=_silent, pool=pool
    )
    return job, heard


def _silent(text: str) -> None:
    """What a job says of its own start is no result of a measurement."""
