"""Clusters that end with their program. `launch --detach` leaves a mark in the cluster's folder;
whichever command comes next after the program's end brings the outputs, and then removes it."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.structs import replace

from clusterctl.actions import shared_folder
from clusterctl.actions.common import Connected, connect_or_report, open_pool
from clusterctl.actions.costs import describe_rate
from clusterctl.actions.jobs import fetch_from, refresh_records
from clusterctl.core.job import Job
from clusterctl.core.model import Phase, Reporter
from clusterctl.core.text import count, format_time
from clusterctl.errors import ProviderError
from clusterctl.state.store import Store, find_launch_folder

IDLE = 300.0
"""Seconds after which workers of a cloud end unused, without --idle: between `up` and the start of
the program they must not, however long its packages take to resolve here."""


def describe_launch(store: Store, name: str) -> list[str]:
    """What becomes of a cluster that ends with its jobs, and what it costs until then."""
    cluster, folder = store.read_cluster(name), find_launch_folder(store, name)
    lines = [
        "when the program has ended, the next clusterctl command copies its outputs to"
        f" {folder} and removes cluster {name}"
    ]
    if cluster.charges and cluster.deadline:
        stays = [item for item in cluster.charges if item.node == cluster.launcher.name]
        lines.append(
            "until then its launcher, which keeps copies of all outputs, costs"
            f" {describe_rate(stays, 4)}; it ends at {format_time(cluster.deadline)}, and outputs"
            " that were not fetched by then are lost"
        )
    return lines


def bring(store: Store, name: str, report: Reporter) -> bool:
    """Brings the outputs of its jobs here if all of them have ended. Whether nothing is left on the
    cluster that is wanted, so that it may go.

    Raises:
        NodeUnreachable, ProviderError, UsageError: Not all could be brought; the cluster stays.
    """
    cluster, folder = store.find(name), find_launch_folder(store, name)
    if cluster is None or folder is None:
        return False
    if cluster.phase is Phase.DELETING:
        return True  # an earlier command was interrupted when everything was here
    if cluster.phase is not Phase.READY:
        return False
    jobs = [job for job in store.list_jobs() if job.cluster_id == cluster.id]
    if not jobs or not all(store.is_handed_in(job.id) for job in jobs):
        return False  # `launch` is still at it
    if cluster.deadline and cluster.deadline <= time.time():
        lost = [str(job.id) for job in jobs if not job.fetched]
        what = f"; the outputs of job {', '.join(lost)} were not fetched" if lost else ""
        report(f"cluster {name} ended at its deadline, {format_time(cluster.deadline)}{what}")
        return True
    with open_pool(store, cluster) as pool:
        going = [job for job in jobs if not job.state.ended]
        fresh = refresh_records(store, going, cluster, pool) if going else {}
        if not all(job.state.ended for job in fresh.values()):
            return False
        wanted = [job for job in store.list_cluster_jobs(cluster) if not job.fetched]
        report(f"the program on cluster {name} has ended: fetching its outputs, then removing it")
        away = connect_or_report(pool, [node.name for node in cluster.nodes], report)
        at = Connected(store, cluster, pool, report, away)
        base = folder if folder.is_dir() else Path.cwd()
        for job in wanted:
            _bring(at, job, base / f"job-{job.id}")
        if shared_folder.was_usable(store, cluster):
            shared_folder.bring(at, base)
    return True


def _bring(at: Connected, job: Job, target: Path) -> None:
    """Raises the first error if not all of it has come."""
    got = fetch_from(at, job, target)
    replace(got, gone=()).require_all()  # what is gone does not come back: nothing waits for it
    if got.brought.kept:
        raise ProviderError(
            f"{target}/{got.brought.kept[0]} was changed since it was fetched, and was kept",
            hint="move it away; the next command tries again",
        )
    files = count(len(got.brought.outputs), "file")
    at.report(f"job {job.id} {job.state.value}: {files} in {target}")
