"""`report`: one page about a cluster or a job, from the records on this machine and the output that
is there; also of clusters that are gone."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clusterctl.actions import costs, jobs, metrics
from clusterctl.actions.common import choose_cluster
from clusterctl.core.job import Job, JobState, Provenance, format_duration
from clusterctl.core.model import Cluster, Reporter
from clusterctl.core.text import count, format_time
from clusterctl.errors import ClusterctlError, make_write_error
from clusterctl.insight import cost as insight_cost
from clusterctl.insight import report as insight_report
from clusterctl.insight.metrics import MetricPoint
from clusterctl.insight.report import Section
from clusterctl.insight.scaling import Curve, Curves
from clusterctl.insight.verify import Measurements
from clusterctl.state.files import replace_file
from clusterctl.state.store import Store

LAST_JOBS = 20
"""Jobs in the table; the latest ones."""
LAST_LINES, LAST_BYTES = 15, 16_000
"""Of each stream of a rank, at its end."""

Redact = Callable[[str], str]


def make(
    store: Store, wanted: str | None, where: str | None, redact: Redact, report: Reporter
) -> str:
    """The report as HTML. `wanted`: a number of a job, or the name of a cluster; None:
    the cluster `where`, or the only one."""
    if wanted is not None and wanted.isdigit():
        return _report_job(store, jobs.find_job(store, int(wanted), where), redact, report)
    return _report_cluster(store, find_cluster(store, wanted or where), redact, report)


def write(text: str, path: Path) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise make_write_error(str(path), error, "choose another --output FILE") from error


def find_cluster(store: Store, name: str | None) -> Cluster:
    """One that exists, else the last one of that name that did."""
    past = [item for item in store.list_past() if name in (None, item.name)]
    if name in store.list_names() or not past or (name is None and store.list_names()):
        return choose_cluster(store, name)
    return max(past, key=lambda item: item.created)


def _report_cluster(store: Store, cluster: Cluster, redact: Redact, report: Reporter) -> str:
    own = jobs.choose_own(_list_jobs(store, cluster, report))
    mine = [job for job in own if job.cluster_id == cluster.id]
    now = time.time()
    facts = {
        "cluster": cluster.name,
        "id": cluster.id,
        "provider": _join(cluster.spec.provider, cluster.mode),
        "state": cluster.phase.value,
        "created": format_time(cluster.created),
        "deadline": format_time(cluster.deadline) if cluster.deadline else "",
        "nodes": len(cluster.nodes),
        "jobs": len(mine),
        "report of": format_time(now),
    }
    points = {job.id: found for job in mine if (found := _find_points(store, job, report))}
    allreduce = store.read_measurements(cluster, "bench allreduce", Curves)
    scaling = store.read_measurements(cluster, "bench scaling", Curve)
    sections = [
        _tabulate_facts(facts),
        _tabulate_nodes(cluster),
        _tabulate_jobs(store, mine[-LAST_JOBS:], redact),
        insight_report.describe_metrics(points),
        _tabulate_cost(cluster, now),
        *_list_measured(store, cluster),
        *([insight_report.describe_allreduce(allreduce)] if allreduce else []),
        *([insight_report.describe_scaling(scaling)] if scaling else []),
    ]
    return insight_report.to_html(f"Cluster {cluster.name}", sections)


def _report_job(store: Store, job: Job, redact: Redact, report: Reporter) -> str:
    known = {item.id: item for item in (*store.list_past(), *store.list_clusters())}
    cluster = known.get(job.cluster_id)
    if cluster:
        fresh = {item.id: item for item in _list_jobs(store, cluster, report)}
        job = fresh.get(job.id, job)
    found = store.read_provenance(job.id)
    dollars = costs.sum_by_job(store, [job]).get(job.id)
    why = job.reason or (job.failure.text if job.failure else "")
    code = job.program_exit_code
    changed = f", with {found.patch_bytes} bytes of changes" if found.patch_bytes else ""
    facts = {
        "job": job.id,
        "program": _render_command(job, redact),
        "state": ": ".join(filter(None, (job.state.value, why))),
        "exit code": "" if code is None else str(code),
        "cluster": job.cluster,
        "ranks": f"{job.ranks} on {count(len(job.placement), 'node')}",
        "started": format_time(job.started) if job.started else "-",
        "took": format_duration(job),
        "cost": "" if dollars is None else f"${dollars:.4f}",
        "commit": found.commit and f"{found.commit[:12]} ({found.branch}){changed}",
        "image": _join(*found.images.values()),
        "packages": ", ".join(found.requirements),
        "typed": found.typed and shlex.join(("clusterctl", *found.typed)),
        "command": redact(shlex.join(found.command)),
    }
    points = _find_points(store, job, report)
    sections = [
        _tabulate_facts(facts),
        _tabulate_machines(found),
        insight_report.describe_metrics({job.id: points} if points else {}),
        _tabulate_last_lines(store, job, redact),
        *(_list_measured(store, cluster) if cluster else []),
    ]
    return insight_report.to_html(f"Job {job.id}: {job.spec.program.target}", sections)


def _list_measured(store: Store, cluster: Cluster) -> list[Section]:
    found = store.read_measurements(cluster, "verify", Measurements)
    return [insight_report.describe_measurements(found)] if found else []


def _tabulate_facts(facts: Mapping[str, object]) -> Section:
    return Section("Overview", ("", ""), [row for row in facts.items() if row[1] not in ("", ())])


def _tabulate_last_lines(store: Store, job: Job, redact: Redact) -> Section:
    """Of the rank that failed first, else of the first; what is on this machine."""
    rank = job.failure.rank if job.failure else min(job.processes, default=0)
    rows = []
    for stream in ("out", "err"):
        for path in (store.locate_job_folder(job.id) / "out").glob(f"*/rank-{rank}.{stream}"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LAST_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
            rows += [(rank, f"std{stream}", redact(line)) for line in lines[-LAST_LINES:]]
    return Section("Last output", ("rank", "stream", "line"), rows)


def _list_jobs(store: Store, cluster: Cluster, report: Reporter) -> Sequence[Job]:
    """The jobs, with their present state where the cluster can still say."""
    if cluster.name in store.list_names():
        return jobs.list_jobs(store, None, report)
    return store.list_jobs()


def _find_points(store: Store, job: Job, report: Reporter) -> tuple[MetricPoint, ...]:
    """Of a running job, what its nodes have; else what is on this machine."""
    if job.state is JobState.RUNNING:
        try:
            return metrics.collect_metrics(store, job.id, None, report)
        except ClusterctlError as error:
            report(f"job {job.id}: {error.message}")
    return metrics.collect_stored(store, job)


def _join(*words: str) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))


def _render_command(job: Job, redact: Redact) -> str:
    return redact(shlex.join(job.spec.program.words))


def _tabulate_machines(found: Provenance) -> Section:
    rows = [
        (
            machine.name,
            machine.instance_type or machine.arch or "-",
            machine.cores or "-",
            _join(*machine.gpus) or "-",
            machine.ranks,
            machine.python or "-",
            ", ".join(f"{name} {version}" for name, version in machine.packages.items()) or "-",
        )
        for machine in found.machines
    ]
    head = ("node", "type", "cores", "GPUs", "ranks", "Python", "packages")
    return Section("Nodes", head, rows, {2, 4})


def _tabulate_nodes(cluster: Cluster) -> Section:
    rows = [
        (
            *(node.name, node.role.value, node.instance_type or node.facts.arch or "-"),
            *(node.private_address or node.address, node.facts.cores),
            _join(*node.facts.gpus) or "-",
        )
        for node in cluster.nodes
    ]
    return Section("Nodes", ("node", "role", "type", "address", "cores", "GPUs"), rows, {4})


def _tabulate_jobs(store: Store, mine: Sequence[Job], redact: Redact) -> Section:
    dollars = costs.sum_by_job(store, mine)
    rows = [
        (
            *(job.id, job.state.value, job.ranks),
            format_time(job.started) if job.started else "-",
            format_duration(job),
            f"{dollars[job.id]:.4f}" if job.id in dollars else "-",
            _render_command(job, redact),
        )
        for job in mine
    ]
    head = ("job", "state", "ranks", "started", "took", "$", "program")
    return Section("Jobs", head, rows, {0, 2, 4, 5})


def _tabulate_cost(cluster: Cluster, now: float) -> Section:
    rows = [
        (
            f"{line.count} × {line.item} ({line.part})",
            f"{line.hours:.2f}",
            *("unknown" if it is None else f"{it:.4f}" for it in (line.hourly, line.dollars)),
        )
        for line in insight_cost.make_receipt(cluster.charges, now)
    ]
    if rows:
        spent = insight_cost.sum_dollars(cluster.charges, now)
        total = insight_cost.render_cost(spent, insight_cost.is_exact(cluster.charges), 4)
        rows.append(("in all", "", "", total))
    return Section("Cost", ("item", "hours", "$ per hour", "$"), rows, {1, 2, 3})
