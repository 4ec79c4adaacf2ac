"""Calling a function on all ranks of a cluster: what differs from running a script."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from clusterctl.actions.common import open_pool
from clusterctl.actions.jobs import require_cluster
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster
from clusterctl.errors import JobError, UsageError
from clusterctl.jobs.submit import PYTHON, RankOutcome, read_outcomes, resolve_call
from clusterctl.project.program import Resolved
from clusterctl.state.store import Store


def check_pythons(cluster: Cluster) -> None:
    """Raises UsageError if a node has another minor version of Python than this process: it could
    not read what is pickled here."""
    for node in cluster.workers or cluster.nodes:
        there = node.facts.python.version if node.facts.python else PYTHON
        if there.split(".")[:2] != PYTHON.split("."):
            raise UsageError(
                f"{node.name} has Python {there}, and this process runs Python {PYTHON}: a function"
                " needs the same version on both",
                hint=f"use Python {'.'.join(there.split('.')[:2])} here, or run a script instead",
            )


def resolve(
    cluster: Cluster, function: Callable[..., Any], args: tuple[Any, ...], *files: Any
) -> Resolved:
    """The call as a program that its nodes can run; `files` as in resolve_call. Raises
    UsageError."""
    check_pythons(cluster)
    return Resolved(*resolve_call(function, args, *files))


def explain_failure(job: Job) -> JobError:
    """Why a job that ended did not succeed."""
    failure = job.failure
    if job.state is JobState.FAILED and failure:
        what = f"failed: {failure.text}"
    else:
        what = f"{'was ' if job.state is not JobState.FAILED else ''}{job.state.value}"
        what += f": {job.reason}" if job.reason else ""
    return JobError(
        f"job {job.id} {what}",
        hint=f"`clusterctl logs {job.id}` shows its output, `clusterctl doctor {job.id}` the cause",
        job=job.id,
        rank=failure.rank if failure else None,
        node=failure.node if failure else "",
    )


def read_results(store: Store, job: Job) -> list[Any]:
    """What the function has returned, by rank. Raises JobError if a rank has raised, from the
    exception if that can be pickled."""
    if job.state not in (JobState.SUCCEEDED, JobState.FAILED):
        raise explain_failure(job)
    cluster = require_cluster(store, job)
    with open_pool(store, cluster) as pool:
        outcomes = read_outcomes(job, cluster, pool)
    if job.state is JobState.FAILED:
        rank = job.failure.rank if job.failure else -1
        if rank not in outcomes or outcomes[rank].ok:
            raise explain_failure(job)
        raise _make_error(job, rank, outcomes[rank]) from _load(job, rank, outcomes[rank], None)
    values = []
    for rank in range(job.ranks):
        if rank not in outcomes:
            raise JobError(
                f"the result of rank {rank} of job {job.id} could not be read",
                hint="check the nodes with `clusterctl status --live`",
                job=job.id,
                rank=rank,
                node=job.find_node(rank),
            )
        values.append(_load(job, rank, outcomes[rank], outcomes[rank]))
    return values


def _make_error(job: Job, rank: int, outcome: RankOutcome) -> JobError:
    node = job.find_node(rank)
    return JobError(
        f"rank {rank} on {node}: {outcome.said}",
        hint=f"`traceback` of this error shows where; `clusterctl logs {job.id}` shows the output",
        job=job.id,
        rank=rank,
        node=node,
        traceback=outcome.traceback,
    )


def _load(job: Job, rank: int, outcome: RankOutcome, needed: RankOutcome | None) -> Any:
    """The value; None for an exception that cannot be read here."""
    try:
        return pickle.loads(outcome.data) if outcome.data else None
    except Exception as error:
        if needed is None:
            return None
        raise JobError(
            f"the result of rank {rank} cannot be read here: {error}",
            hint="return plain values, or install the packages of their types on this machine too",
            job=job.id,
            rank=rank,
            node=job.find_node(rank),
        ) from error
