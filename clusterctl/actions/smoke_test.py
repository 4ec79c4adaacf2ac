"""The last step of `up` on machines that cost money: all ranks reduce, and the sum is right."""

from __future__ import annotations

from clusterctl.actions import run
from clusterctl.actions.quiet_run import run_quietly
from clusterctl.errors import BootstrapError
from clusterctl.formats import count
from clusterctl.job_model import JobSpec, JobState
from clusterctl.model import Cluster, Reporter
from clusterctl.state import Store
from clusterctl.transport.pool import Pool

PROGRAM = "reduce_all.py"
TIMEOUT = 120.0
"""Seconds that the ranks may take: they sum four numbers."""


def run_all_reduce(store: Store, cluster: Cluster, pool: Pool, report: Reporter) -> None:
    """Every rank has to hold W(W-1)/2. Raises BootstrapError with what the ranks said."""
    resolved = run.resolve([PROGRAM], None, None)
    spec = JobSpec(program=resolved.program, allow_cpu=True, now=True, timeout=TIMEOUT)
    number = run.choose_number(store, dry=False)
    prepared = run.prepare(cluster, spec, resolved, {}, number=number)
    job, printed = run_quietly(store, prepared, pool, "up", report)
    texts = (text.decode(errors="replace") for text in printed.values())
    said = [line for text in texts for line in text.splitlines()]
    proof = next((text for text in said if text.startswith("ok:")), "")
    if job.state is not JobState.SUCCEEDED or not proof:
        raise BootstrapError(
            f"the all-reduce over {count(job.ranks, 'rank')} failed"
            f" (job {job.id}, {job.state.value}):"
            f" {said[-1] if said else job.reason or 'no rank printed anything'}",
            hint=f"`clusterctl logs {job.id}` shows it, `clusterctl up {cluster.name}` tries again",
        )
    report(f"all-reduce {proof}")
