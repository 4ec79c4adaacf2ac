"""Fewer workers: what goes with them is said, and asked, before they do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from clusterctl.actions import connect_or_report, open_pool
from clusterctl.actions.salvage import LOOK_LIMIT
from clusterctl.actions.save_logs import save_logs
from clusterctl.actions.unfetched import find_unfetched
from clusterctl.errors import UsageError
from clusterctl.formats import format_bytes
from clusterctl.job_model import Job
from clusterctl.jobs import control
from clusterctl.model import Cluster, Consent, Reporter
from clusterctl.node_results import shorten
from clusterctl.providers.protocol import ProviderPlan
from clusterctl.state import Store
from clusterctl.timeouts import Deadline


def find_surplus(old: Cluster, plan: ProviderPlan, wanted: int) -> tuple[str, ...]:
    """The workers that there are and that the plan does without. `wanted`: how many there will be,
    where the plan names none."""
    kept = plan.nodes or [node.name for node in old.workers[:wanted]]
    return tuple(node.name for node in old.workers if node.name not in kept)


def confirm_removal(
    store: Store,
    old: Cluster,
    names: Sequence[str],
    report: Reporter,
    consent: Consent,
) -> None:
    """Has a person agree to the removal of workers that cost money, names what is lost with them,
    and saves their logs. Raises UsageError where a job runs there, or where the person said no."""
    jobs = [_require_ended(store, old, job, names) for job in _list_jobs(store, old, names)]
    if not jobs:
        _ask(old, names, consent)
        return
    used = [name for name in names if any(name == p.node for job in jobs for p in job.placement)]
    with open_pool(store, old) as pool:
        away = connect_or_report(pool, used, report)
        for name, why in away.items():
            report(f"files on {name} cannot be saved: {why}")
        here = old.drop_nodes(away)
        going = replace(here, nodes=tuple(n for n in here.nodes if n.name in names))
        found, unknown = find_unfetched(jobs, going, pool, Deadline(LOOK_LIMIT))
        for number, size in found:
            report(f"job {number} has unfetched outputs there: {format_bytes(size)}")
        for number, why in unknown.items():
            report(f"job {number} may have unfetched outputs there: {why}")
        _ask(old, names, consent)
        save_logs(store, jobs, old, pool, report, away=away)


def _ask(old: Cluster, names: Sequence[str], consent: Consent) -> None:
    if old.charges and not consent(f"remove {shorten(names)}?"):
        raise UsageError("aborted; nothing was removed", hint="--dry-run only shows the plan")


def _list_jobs(store: Store, cluster: Cluster, names: Collection[str]) -> list[Job]:
    """The jobs that have, or will have, ranks on these nodes."""
    return [
        job
        for job in store.list_cluster_jobs(cluster)
        if not {place.node for place in job.placement}.isdisjoint(names)
    ]


def _require_ended(store: Store, cluster: Cluster, job: Job, names: Collection[str]) -> Job:
    """The job, if it has ended: fewer workers must not mean one that dies without a word."""
    if job.state.ended:
        return job
    with open_pool(store, cluster) as pool:
        job = control.refresh(job, cluster, pool)
    store.save_job(job)
    if not job.state.ended:
        hit = sorted({place.node for place in job.placement} & set(names))
        raise UsageError(
            f"job {job.id} has ranks on {', '.join(hit)}, which would be removed",
            hint=f"wait for it, or `clusterctl cancel {job.id}` first",
        )
    return job
