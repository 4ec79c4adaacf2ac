"""What is kept before machines go: jobs are ended, logs saved, outputs fetched or given up."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from clusterctl.actions import connect_or_report, open_pool, shared_folder
from clusterctl.actions.jobs import Fetched
from clusterctl.actions.save_logs import SAVE_LIMIT, save_logs
from clusterctl.actions.unfetched import (
    Unfetched,
    agree_blind,
    agree_to_lose,
    bring,
    bring_shared,
    describe_loss,
    find_unfetched,
    list_numbers,
)
from clusterctl.errors import ClusterctlError, describe_reason
from clusterctl.job_model import GRACE, Job
from clusterctl.jobs import control
from clusterctl.model import Cluster, Consent, Phase, Reporter, Role
from clusterctl.state import Store
from clusterctl.timeouts import Deadline
from clusterctl.transport.pool import Pool

LIMIT = 120.0
"""Seconds that all that comes before destroying may take, without the answers of a person, without
fetching, and without what jobs take to save (--grace): machines are billed meanwhile."""

LOOK_LIMIT = 60.0
"""Of these, seconds for looking for outputs."""

END_LIMIT = 40.0
"""Seconds for ending jobs: somewhat more than one needs where a node does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What became of the cluster's jobs."""

    cancelled: tuple[int, ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    """Jobs with outputs that go unfetched, and how many bytes they are."""
    fetched: tuple[Fetched, ...] = ()
    shared: shared_folder.BroughtFolder | None = None
    """The copy of the shared folder that was made here."""


def save(
    store: Store,
    cluster: Cluster,
    living: Collection[str] | None,
    report: Reporter,
    ask: Consent,
    unfetched: Unfetched,
    act: str,
) -> Saved | None:
    """Ends running jobs, copies logs, and does with outputs as `unfetched` says. Nodes that do not
    answer lose their part, and it is said. `living`: those that are not gone for good; None: all.
    """
    # On machines that are not ours jobs would run on: ending those has no deadline.
    store.check_jobs(cluster)
    jobs = store.list_cluster_jobs(cluster)
    saving = max((job.spec.save_time for job in jobs if not job.state.ended), default=GRACE) - GRACE
    deadline = Deadline(LIMIT + saving if not cluster.attached else math.inf)
    look = deadline.limit(LOOK_LIMIT)
    shares = shared_folder.was_usable(store, cluster)
    if not (jobs or shares):
        return Saved()
    if cluster.phase is Phase.STOPPED:
        report(
            f"its machines are stopped: `clusterctl start {cluster.name}` if you need their files"
        )
        blind = agree_blind(cluster, jobs, living, shares, unfetched, act, report)
        return Saved() if blind else None
    with open_pool(store, cluster) as pool:
        away = connect_or_report(pool, [node.name for node in cluster.nodes], report)
        for name, why in away.items():
            report(f"files on {name} cannot be saved: {why}")
        here = cluster.drop_nodes(away)
        if all(node.role is Role.WORKER for node in here.nodes):
            blind = agree_blind(cluster, jobs, living, shares, unfetched, act, report)
            return Saved() if blind else None
        try:
            jobs = _refresh(store, jobs, here, pool, look)
        except (ClusterctlError, OSError) as error:
            report(f"not everything can be saved: {describe_reason(error)}")
        found, unknown = find_unfetched(jobs, here, pool, look, away)
        loss = describe_loss(found, unknown)
        if shares:
            there = shared_folder.look(cluster, pool, away, look.left)
            loss += [there.text] * there.worth_asking
        running = [job for job in jobs if not job.state.ended]
        with deadline.pause():
            if running and not ask(f"job {list_numbers(running)} is still running; end it?"):
                return None
            if not agree_to_lose(cluster, loss, unfetched, act, report):
                return None
        limit = deadline.limit(END_LIMIT + saving if not cluster.attached else math.inf)
        cancelled = _cancel(store, running, here, pool, limit, report)
        save_logs(store, jobs, cluster, pool, report, min(SAVE_LIMIT, deadline.left), away)
        fetched = bring(store, jobs, cluster, pool, away, unfetched, report)
        shared = bring_shared(cluster, pool, away, unfetched, report) if shares else None
    brought = {got.job for got in fetched}
    still = tuple((number, size) for number, size in found if number not in brought)
    return Saved(cancelled=cancelled, lost=still, fetched=tuple(fetched), shared=shared)


def end_jobs(store: Store, cluster: Cluster, report: Reporter) -> tuple[int, ...]:
    """Ends open jobs unasked, as far as nodes answer: on machines that are not ours they would go
    on after us. Returns those that were ended."""
    jobs = store.list_open_jobs(cluster)
    if not jobs:
        return ()
    ended: list[int] = []
    with open_pool(store, cluster) as pool:
        away = connect_or_report(pool, [node.name for node in cluster.nodes], report)
        here = cluster.drop_nodes(away)
        for job in jobs:
            try:
                if cluster.launcher.name in away:
                    control.kill_processes(job, cluster, pool)
                else:
                    store.save_job(control.cancel(job, here, pool, report))
                    ended.append(job.id)
            except (ClusterctlError, OSError) as error:
                report(f"job {job.id} could not be ended cleanly: {describe_reason(error)}")
    return tuple(ended)


def _refresh(
    store: Store, jobs: list[Job], cluster: Cluster, pool: Pool, deadline: Deadline
) -> list[Job]:
    going = [job for job in jobs if not job.state.ended]
    asked = control.refresh_all(going, cluster, pool, deadline=deadline)
    fresh = {job.id: job for job in asked}
    for job in going:
        if fresh[job.id] != job:
            store.save_job(fresh[job.id])
    return [fresh.get(job.id, job) for job in jobs]


def _cancel(
    store: Store,
    jobs: list[Job],
    cluster: Cluster,
    pool: Pool,
    deadline: Deadline,
    report: Reporter,
) -> tuple[int, ...]:
    """Ends these jobs, all at the same time; returns those that have ended. Names those that have
    not by the deadline."""
    if jobs:
        report(f"ending job {list_numbers(jobs)}")
    failed: dict[int, str] = {}
    for job in jobs:
        if not deadline.passed:
            try:
                control.ask_to_end(job, cluster, pool, deadline)
            except (ClusterctlError, OSError) as error:
                failed[job.id] = describe_reason(error)
    ended, late = list[int](), list[Job]()
    for job in jobs:
        if job.id in failed:
            continue
        try:
            done = control.wait_for_end(job, cluster, pool, deadline, report)
            if done.state.ended:
                store.save_job(done)
                ended.append(job.id)
            else:
                late.append(job)
        except (ClusterctlError, OSError) as error:
            failed[job.id] = describe_reason(error)
    for number, why in failed.items():
        report(f"job {number} could not be ended cleanly: {why}")
    if late:
        numbers, seconds = list_numbers(late), f"{deadline.seconds:.0f} s"
        report(f"job {numbers} did not end within {seconds}: removing the machines anyway")
    return tuple(ended)
