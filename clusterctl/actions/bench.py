"""`bench`: all-reduces of many sizes in each backend, and a program with more and more ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from clusterctl.actions import call, run, verify
from clusterctl.actions.common import Connected, open_pool
from clusterctl.actions.run import Printed
from clusterctl.core.job import Job, JobSpec, JobState
from clusterctl.core.model import Accelerator, Cluster, Reporter
from clusterctl.core.text import count
from clusterctl.errors import ClusterctlError, JobError, NodeUnreachable, UsageError
from clusterctl.insight import scaling
from clusterctl.insight.metrics import MetricPoint, Reader
from clusterctl.insight.scaling import Curve, Curves
from clusterctl.insight.verify import Measurements
from clusterctl.project.program import Resolved
from clusterctl.state.store import Store

PROGRAM = "reduce_all.py"
LIMIT = 600.0
"""Seconds of one run of it."""


def measure_allreduce(
    store: Store,
    cluster: Cluster,
    report: Reporter,
    *,
    backends: Sequence[str],
    largest: int,
    ranks: int,
    repeats: int,
    now: bool,
) -> Curves:
    """`backends` () are those that the nodes have; `ranks` 0 is one per GPU, else one per worker.
    Raises RecordError while a job runs, unless `now`; UsageError for a batch system; JobError if
    no backend works."""
    verify.require_measurable(store, cluster, report, now=now)
    limit = scaling.find_limit(_find_or_measure(store, cluster, report, now=now))
    rows: list[scaling.Row] = []
    failed: dict[str, str] = {}
    hint = ""
    with open_pool(store, cluster) as pool:
        at = Connected(store, cluster, pool, lambda line: None)
        gpus = all(node.accelerator is not Accelerator.NONE for node in cluster.workers)
        for backend in backends or ("mpi", "gloo", *["nccl"] * gpus):
            measured: list[Sequence[MetricPoint]] = []
            args = ("--backend", backend, "--max-bytes", str(largest), "--metrics")
            try:
                for number in range(repeats):
                    report(f"all-reduce over {backend}, {number + 1} of {repeats}")
                    job, printed = run.run_bundled(
                        *(at, "bench", PROGRAM, args),
                        backend=backend,
                        ranks=ranks,
                        timeout=LIMIT,
                    )
                    measured.append(_read_points(job, printed))
            except NodeUnreachable:
                raise
            except ClusterctlError as error:
                failed[backend], hint = error.message, hint or error.hint
                continue
            if job.ranks < 2:
                raise UsageError(
                    "an all-reduce needs two ranks or more", hint="for example --ranks 2"
                )
            rows += scaling.make_rows(backend, job.ranks, measured)
    if not rows:
        name, why = next(iter(failed.items()))
        raise JobError(f"no all-reduce could be measured: {name}: {why}", hint=hint)
    curves = Curves(tuple(rows), limit, repeats, failed, time.time())
    verify.keep(store, cluster, "bench allreduce", curves)
    return curves


def measure_scaling(
    store: Store,
    cluster: Cluster,
    report: Reporter,
    *,
    spec: JobSpec,
    resolved: Resolved,
    secrets: Mapping[str, str],
    requirements: str,
    counts: Sequence[int],
    repeats: int,
    now: bool,
) -> Curve:
    """Runs the program with each number of ranks, by turns, so that what changes in the meantime
    changes all of them. Raises JobError if a run fails, UsageError and LaunchError before any."""
    verify.require_measurable(store, cluster, report, now=now)

    def prepare(ranks: int, number: int) -> run.Prepared:
        given = (cluster, replace(spec, ranks=ranks), resolved, secrets)
        return run.prepare(*given, number=number, requirements=requirements)

    for ranks in counts:
        prepare(ranks, store.read_next_job_id())
    found = []
    total = len(counts) * repeats
    with open_pool(store, cluster) as pool:
        at = Connected(store, cluster, pool, lambda line: None)
        for number in range(total):
            ranks = counts[number % len(counts)]
            report(f"run {number + 1} of {total}: {count(ranks, 'rank')}")
            prepared = prepare(ranks, store.reserve_job_id())
            job, printed = run.run_quietly(at, prepared, "bench")
            points = _read_points(job, printed)
            nodes = tuple(place.node for place in job.placement if place.count)
            seconds = max(1e-3, (job.finished or 0.0) - (job.started or 0.0))
            found.append(scaling.read_run(job.id, ranks, nodes, seconds, points))
    curve = scaling.make_curve(spec.program.target, found)
    curve = replace(curve, time=time.time())
    verify.keep(store, cluster, "bench scaling", curve)
    return curve


def _find_or_measure(
    store: Store, cluster: Cluster, report: Reporter, *, now: bool
) -> Measurements:
    """What `verify` has measured of these nodes, or measures now."""
    known = store.read_measurements(cluster, "verify", Measurements)
    names = {node.name for node in cluster.workers}
    if known and {node.name for node in known.nodes} == names:
        return known
    return verify.measure(store, cluster, report, quick=True, now=now)


def _read_points(job: Job, printed: Printed) -> list[MetricPoint]:
    """The metrics that it has printed. Raises JobError if it failed."""
    if job.state is not JobState.SUCCEEDED:
        raise call.explain_failure(job)
    reader = Reader()
    found = [
        point
        for (rank, stream), text in printed.items()
        if rank is not None and stream == "stdout"
        for point in reader.read(rank, text)
    ]
    return [*found, *reader.finish()]
