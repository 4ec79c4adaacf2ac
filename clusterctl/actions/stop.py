"""`stop`: ends jobs, and switches the machines off. Their disks stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from clusterctl import providers
from clusterctl.actions import (
    ended_workers,
    open_pool,
    require_machines,
    require_owned,
    require_ready,
    salvage,
)
from clusterctl.actions.running_costs import report_failure, report_left
from clusterctl.actions.save_logs import save_logs
from clusterctl.errors import ProviderError, UsageError
from clusterctl.insight import cost
from clusterctl.model import Cluster, Consent, Phase, Reporter
from clusterctl.providers.protocol import Pausing
from clusterctl.state import ClusterLock, Store


@dataclass(frozen=True, slots=True)
class Stopped:
    """`hourly`: what the disks (and a NAT gateway) go on costing, in US dollars; without what has
    no known price, where `exact` is false."""

    cluster: Cluster
    jobs: tuple[int, ...]
    hourly: float
    exact: bool
    what: str = "disks"
    """What these are, in words."""


def require_pausing(cluster: Cluster) -> Pausing:
    """Its provider, if that can stop and start machines; raises UsageError."""
    provider = providers.load(require_owned(cluster).spec.provider)
    if not isinstance(provider, Pausing):
        raise UsageError(
            f"the machines of cluster {cluster.name} ({cluster.spec.provider}) cannot be stopped"
            " and started",
            hint=f"`clusterctl down {cluster.name}` removes it",
        )
    return provider


def stop(
    store: Store,
    name: str,
    report: Reporter,
    ask: Consent,
    clock: Callable[[], float] = time.time,
) -> Stopped | None:
    """None where the person said no. Safe to repeat: a cluster that is stopped stays so."""
    with ClusterLock(store.home, name, "stop", report):
        cluster = store.read_cluster(name)
        provider, folder = require_pausing(cluster), store.locate_folder(name)
        ended: tuple[int, ...] = ()
        if cluster.phase is not Phase.STOPPED:
            require_ready(cluster)
            with report_failure(cluster, report, "nothing was stopped"):
                provider.check_pausing(cluster, folder)
                require_machines(cluster, providers.list_living(cluster, folder, clock()))
            cluster = ended_workers.settle(store, cluster, report)
            open_jobs = store.list_open_jobs(cluster)
            numbers = ", ".join(str(job.id) for job in open_jobs)
            if open_jobs and not ask(f"job {numbers} is still running; end it?"):
                return None
            ended = salvage.end_jobs(store, cluster, report)
            with open_pool(store, cluster) as pool:
                save_logs(store, store.list_cluster_jobs(cluster), cluster, pool, report)
        if cluster.phase is not Phase.STOPPED:
            cluster = replace(cluster, stopping=True)
            store.save(cluster)  # killed from here on, `status` has to ask
        try:
            provider.stop(cluster, folder, report)
            cluster = providers.settle(cluster, folder, clock())
        except ProviderError:
            report_left(cluster, report, "stopped", "stop")
            raise
        cluster = replace(cluster, phase=Phase.STOPPED, stopping=False)
        store.save(cluster)
        store.add_event(name, "stopped")
    disks = [item for item in cluster.charges if item.until is None]
    what = cost.describe_stored(disks)
    return Stopped(cluster, ended, cost.sum_hourly(disks), cost.is_exact(disks), what)
