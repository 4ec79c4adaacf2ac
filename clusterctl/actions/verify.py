"""`verify`: measures all nodes and links of a cluster; compares them with the expected values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from clusterctl import schedulers, timeouts
from clusterctl.actions import jobs, open_pool, require_ready, run, verify_links, verify_nodes
from clusterctl.actions.probes import NO_TIME, Probes, list_machines
from clusterctl.actions.quiet_run import run_quietly
from clusterctl.errors import (
    ClusterctlError,
    NodeUnreachable,
    RecordError,
    UsageError,
    describe_reason,
)
from clusterctl.formats import count
from clusterctl.insight import verify, verify_output
from clusterctl.insight.figures import LeftOut, Link, NodeFigures, Reduction
from clusterctl.insight.figures import Measurements as Measurements
from clusterctl.job_model import JobSpec, JobState
from clusterctl.model import Accelerator, Cluster, Reporter
from clusterctl.state import Store
from clusterctl.timeouts import Deadline
from clusterctl.transport.pool import Pool

PROGRAM = "reduce_all.py"
AFTER_UP = 15.0
"""Seconds that `up` may spend on it."""
NODES = 8
"""Nodes of which all is measured within the time of an `Effort`; more get more in proportion."""
REDUCTION, ENDING = 3.0, 1.5
"""Seconds without which no all-reduce is begun, and those for the end of one that is too slow."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds of each measurement at most, bytes on the disk, and seconds of all together: by
    which share of these the nodes, the rates of GEMM and the links have to be done."""

    compute: float
    link: float
    disk: int
    seconds: float
    nodes: float
    gemm: float
    links: float

    @property
    def thorough(self) -> bool:
        return self.gemm > 0


THOROUGH = Effort(
    compute=0.25, link=0.2, disk=64 << 20, seconds=28.8, nodes=0.25, gemm=0.5, links=0.6
)
QUICK = Effort(compute=0.1, link=0.1, disk=16 << 20, seconds=4.6, nodes=0.65, gemm=0.0, links=0.93)


def measure(
    store: Store,
    cluster: Cluster,
    report: Reporter,
    *,
    quick: bool,
    now: bool,
    whole_command: bool = False,
) -> Measurements:
    """Raises RecordError while a job runs, unless `now`; UsageError for a batch system. The time
    limit counts from the start of this process where it is a `whole_command`."""
    began = time.monotonic()
    effort = QUICK if quick else THOROUGH
    spent = min(timeouts.measure_age(), effort.seconds / 3) if whole_command else 0.0
    deadline = Deadline(effort.seconds * max(1.0, len(cluster.workers) / NODES) - spent)
    require_measurable(store, cluster, report, now=now)
    reductions: tuple[Reduction, ...] = ()
    with open_pool(store, cluster) as pool:
        nodes, links, left_out = _measure(cluster, pool, effort, report, deadline)
        if effort.thorough:
            backends = ["mpi", "gloo"]
            if all(node.accelerator is not Accelerator.NONE for node in cluster.workers):
                backends.append("nccl")
            broken = next((n.name for n in nodes if n.error), "")
            broken = broken or next((link.name for link in links if link.error), "")
            reductions, more = _reduce_all(
                store,
                cluster,
                pool,
                backends,
                f"no connection: {broken}" * bool(broken),
                report,
                deadline,
            )
            left_out += more
    return _conclude(store, cluster, nodes, links, reductions, left_out, began)


def measure_after_up(
    store: Store,
    cluster: Cluster,
    pool: Pool,
    report: Reporter,
    deadline: Deadline | None = None,
) -> Measurements | None:
    """A quick look at a cluster that has just become ready, over connections that are open. What
    the deadline (AFTER_UP) leaves no time for is not measured; None where nothing could be, with
    the reason told: a cluster is none the worse for it."""
    began = time.monotonic()
    try:
        require_measurable(store, cluster, report, now=False)
        until = deadline or Deadline(AFTER_UP)
        nodes, links, left_out = _measure(cluster, pool, QUICK, report, until)
    except (ClusterctlError, OSError, LookupError, ValueError) as error:
        why = error.message if isinstance(error, ClusterctlError) else describe_reason(error)
        report(
            f"the nodes were not measured: {why}; `clusterctl verify {cluster.name}` tries again"
        )
        return None
    known = load_last(store, cluster)
    # A thorough one of the same nodes is worth more.
    anew = known is None or {n.name for n in known.nodes} != {n.name for n in nodes}
    return _conclude(store if anew else None, cluster, nodes, links, (), left_out, began)


def _conclude(
    store: Store | None,
    cluster: Cluster,
    nodes: tuple[NodeFigures, ...],
    links: tuple[Link, ...],
    reductions: tuple[Reduction, ...],
    left_out: tuple[LeftOut, ...],
    began: float,
) -> Measurements:
    """With verdicts; on record where there is a `store`."""
    one = len(list_machines(cluster)) == 1
    verdicts = verify.judge(nodes, links, reductions, left_out, one_machine=one)
    seconds = time.monotonic() - began
    measured = Measurements(nodes, links, reductions, verdicts, seconds, time.time(), left_out)
    if store:
        keep(store, cluster, measured)
    return measured


def _measure(
    cluster: Cluster, pool: Pool, effort: Effort, report: Reporter, deadline: Deadline
) -> tuple[tuple[NodeFigures, ...], tuple[Link, ...], tuple[LeftOut, ...]]:
    """Nodes and links, as far as there is time for them."""

    def make_deadline(share: float) -> Deadline:
        return deadline.limit(max(0.0, deadline.left - (1 - share) * deadline.seconds))

    report(f"measuring {count(len(cluster.workers), 'node')}")
    with Probes(cluster, pool, deadline) as probes:
        found = verify_nodes.measure(
            cluster, pool, probes, effort.compute, effort.disk, make_deadline(effort.nodes)
        )
        if effort.thorough:
            report("measuring GEMM")
            verify_nodes.measure_gemm(found, probes, effort.compute, make_deadline(effort.gemm))
        pairs = len(probes.names) * (len(probes.names) - 1) // 2
        if pairs:
            report(f"measuring {count(pairs, 'link')}")
        links, more = verify_links.measure(
            cluster, probes, effort.link, make_deadline(effort.links)
        )
        if not deadline.passed:
            verify_nodes.look_for_others(found, probes, deadline.left)
        return found.nodes, links, (*found.left_out, *more)


def require_measurable(store: Store, cluster: Cluster, report: Reporter, *, now: bool) -> None:
    """Raises RecordError while a job runs, unless `now`; UsageError for a batch system."""
    require_ready(cluster)
    if not cluster.workers:
        raise UsageError(
            f"cluster {cluster.name!r} has no nodes of its own to measure",
            hint="run reduce_all.py on it:"
            f" clusterctl run {schedulers.load_batch(cluster.system).example_size} reduce_all.py",
        )
    running = [
        job.id
        for job in (() if now else jobs.list_jobs(store, cluster.name, report))
        if job.cluster_id == cluster.id and not job.state.ended
    ]
    if running:
        raise RecordError(
            f"job {running[0]} may be running on cluster {cluster.name!r}: it and the"
            " measurements would disturb each other",
            hint="wait until it has ended, or add --now",
        )


def keep(store: Store, cluster: Cluster, measured: Measurements) -> None:
    """Puts it on record, for `report`. A full disk must not end what has been measured."""
    with suppress(ClusterctlError):
        store.save_measurements(cluster.name, "verify", msgspec.json.encode(measured))


def load_last(store: Store, cluster: Cluster) -> Measurements | None:
    """What was measured last; None where nothing is on record."""
    with suppress(msgspec.DecodeError):
        data = store.read_measurements(cluster, "verify")
        return msgspec.json.decode(data, type=Measurements) if data else None
    return None


def _reduce_all(
    store: Store,
    cluster: Cluster,
    pool: Pool,
    backends: Sequence[str],
    broken: str,
    report: Reporter,
    deadline: Deadline,
) -> tuple[tuple[Reduction, ...], tuple[LeftOut, ...]]:
    """An all-reduce in each backend, unless something is `broken` that it would wait for."""
    found: list[Reduction] = []
    left_out: list[LeftOut] = []
    for number, backend in enumerate(backends):
        # Each gets its part of the time, and what those before it have left.
        seconds = deadline.left / (len(backends) - number) - ENDING
        if broken or seconds < REDUCTION:
            left_out.append(LeftOut("all-reduce", (f"all-reduce {backend}",), broken or NO_TIME))
        else:
            most = _count_nodes(cluster, backend)
            found.append(_reduce(store, cluster, pool, backend, most, report, seconds))
            if rest := tuple(node.name for node in cluster.workers[most:]):
                why = "loading PyTorch on so many nodes of one machine takes too long"
                left_out.append(LeftOut(f"all-reduce {backend}", rest, why))
    return tuple(sorted(found, key=lambda item: item.backend)), tuple(left_out)


def _count_nodes(cluster: Cluster, backend: str) -> int:
    """Those that take part: of one machine only so many as can load PyTorch in a few seconds."""
    number = len(cluster.workers)
    if backend == "mpi" or len(list_machines(cluster)) > 1:
        return number
    return min(number, 2 * max(1, cluster.workers[0].facts.cores))


def _reduce(
    store: Store,
    cluster: Cluster,
    pool: Pool,
    backend: str,
    nodes: int,
    report: Reporter,
    seconds: float,
) -> Reduction:
    """An all-reduce over all ranks of so many nodes, as a job like any other."""
    report(f"all-reduce over {backend}")
    resolved = run.resolve([PROGRAM], None, None)
    spec = JobSpec(
        program=replace(resolved.program, args=("--backend", backend)),
        backend=backend,
        nodes=nodes,
        allow_cpu=True,
        now=True,
        timeout=seconds,
    )
    try:
        number = run.choose_number(store, dry=False)
        prepared = run.prepare(cluster, spec, resolved, {}, number=number)
        job, printed = run_quietly(store, prepared, pool, "verify")
    except NodeUnreachable:
        raise
    except ClusterctlError as error:
        return Reduction(backend, error=error.message)
    if job.state is JobState.TIMEOUT:
        return Reduction(backend, error=f"it did not end within {seconds:.2g} s")
    said = b"\n".join(printed.get((rank, "stdout"), b"") for rank in range(job.ranks))
    errors = b"\n".join(text for (_, stream), text in printed.items() if stream == "stderr")
    failed = b"" if job.program_exit_code == 0 else errors
    return verify_output.read_reduction(backend, (said + b"\n" + failed).decode(errors="replace"))
