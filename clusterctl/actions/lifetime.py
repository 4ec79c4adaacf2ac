"""`extend`, `stop` and `allow`: until when machines run, and from where they can be reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from clusterctl.actions import costs, outputs
from clusterctl.actions.common import (
    Connected,
    open_pool,
    open_store,
    require_machines,
    require_owned,
    require_ready,
)
from clusterctl.actions.costs import report_failure
from clusterctl.actions.jobs import list_numbers, save_logs
from clusterctl.core.job import Job
from clusterctl.core.model import NETWORK_PARTS, Cluster, Consent, Phase, Reporter, shorten
from clusterctl.core.text import format_time
from clusterctl.errors import ClusterctlError, NodeUnreachable, ProviderError, UsageError
from clusterctl.machines import charges, providers
from clusterctl.machines.protocol import Cloud
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store

# -------------------------------------------------------------------------------------------------
# `allow`: from which networks a cluster can be connected to.


def advise_allow(cluster: str) -> str:
    """What to do where this machine is not let in."""
    return f"`clusterctl allow -c {cluster}` opens the cluster to your present address"


def allow(store: Store, name: str, networks: Sequence[str], report: Reporter) -> tuple[str, ...]:
    """Lets connections in from these networks, or from this machine's address where none are given,
    and from no others. A later `up` keeps to it."""
    with ClusterLock(store.home, name, "allow", report):
        cluster = require_owned(store.read_cluster(name))
        provider = providers.load_provider(cluster.spec.provider)
        if not isinstance(provider, Cloud):
            raise UsageError(
                f"cluster {name} ({cluster.spec.provider}) has no firewall rules of clusterctl",
                hint="`clusterctl status --live` shows which nodes answer",
            )
        allowed = provider.allow(cluster, store.locate_folder(name), networks)
        # "": the address that this machine has at the next `up`.
        kept = ",".join(allowed) if networks else ""
        cloud = replace(cluster.spec.cloud, ssh_cidr=kept)
        store.save(replace(cluster, spec=replace(cluster.spec, cloud=cloud)))
        store.add_event(name, "allowed", networks=list(allowed))
    return allowed


def explain_lockout(store: Store, cluster: Cluster, said: str) -> str:
    """Why the nodes do not answer this machine, as far as their provider knows; "" for nothing.
    `said` is what became of connecting to them."""
    if "no answer" not in said:
        return ""
    provider = providers.load_provider(cluster.spec.provider)
    return provider.explain_shut_out(cluster, store.locate_folder(cluster.name))


def explain_allowed(error: NodeUnreachable) -> ClusterctlError:
    """The error, with the reason why the nodes do not answer this machine, if there is one."""
    try:
        store = open_store()
        cluster = store.read_cluster(error.cluster)
        if ended := costs.explain_ended_workers(store, cluster):
            return ended
        why = explain_lockout(store, cluster, error.message)
    except ClusterctlError:
        return error
    return (
        NodeUnreachable(f"{error.message}; {why}", hint=advise_allow(error.cluster))
        if why
        else error
    )


# -------------------------------------------------------------------------------------------------
# `extend`: moves the deadline on all nodes, and then in the record.


def extend(
    store: Store,
    name: str,
    ttl: float,
    report: Reporter,
    consent: Consent,
    clock: Callable[[], float] = time.time,
) -> tuple[Cluster, float]:
    """The cluster, which ends `ttl` seconds from now, and what it will have cost by then in US
    dollars, without what has no known price.

    Raises NodeUnreachable naming the nodes that keep their old deadline, with the later one on
    record, and UsageError where a budget does not last that long, machines run that are no nodes
    yet, or an end that comes sooner is not agreed to. ProviderError where the cloud keeps the old
    one: then nothing has changed."""
    with ClusterLock(store.home, name, "extend", report):
        cluster = require_owned(store.read_cluster(name))
        if cluster.phase is Phase.STOPPED:
            raise UsageError(
                f"cluster {name} is stopped: its deadline cannot be changed",
                hint=f"`clusterctl start {name}` first",
            )
        provider = providers.load_provider(cluster.spec.provider)
        folder = store.locate_folder(name)
        cluster = costs.settle(store, cluster, report, clock)
        now = clock()
        with report_failure(cluster, report, "the deadline was not changed"):
            _require_whole(cluster, folder, now)
            now -= provider.measure_clock(cluster, folder, report)
        end = float(int(now + ttl))  # as nodes keep it: none ends before the record's time
        dollars = charges.sum_until_removed(cluster.charges, end)
        charges.check_extension(cluster, end, dollars)
        question = _ask_about_sooner_end(store, cluster, end, now)
        if question and not consent(question):
            raise UsageError(
                f"aborted; the deadline of cluster {name} stays as it is", hint="choose a later end"
            )
        if cluster.deadline is not None:
            # Some nodes may get the new one and others not: the record says what may still cost.
            store.save(replace(cluster, deadline=max(cluster.deadline, end)))
        try:
            with report_failure(cluster, report, "the deadline was not changed"):
                provider.extend(cluster, folder, end)
        except ProviderError:
            store.save(cluster)  # no node was told
            raise
        except NodeUnreachable as error:
            error.cluster = name  # whose command line says why: this machine may be shut out
            raise
        cluster = replace(cluster, deadline=end)
        store.save(cluster)
        store.add_event(name, "extended", deadline=round(end))
        try:
            provider.label_deadline(cluster, folder, end)
        except ProviderError as error:
            report(f"the tags in the cloud still show the old deadline: {error.message}")
    return cluster, dollars


def _ask_about_sooner_end(store: Store, cluster: Cluster, end: float, now: float) -> str:
    """What to ask where something would end sooner than it does now; "" for nothing."""
    before = cluster.deadline
    if before is not None and (before <= now or before <= end):
        return ""  # it is over, or only gets longer
    running = [str(job.id) for job in store.list_open_jobs(cluster) if not _is_done_by(job, end)]
    if before is None and not running:
        return ""
    instead = f" instead of {format_time(before)}" if before else ""
    jobs = f", with jobs running: {', '.join(running)}" if running else ""
    return (
        f"cluster {cluster.name} would end at {format_time(end)}{instead}{jobs}; move the deadline?"
    )


def _is_done_by(job: Job, end: float) -> bool:
    """Whether the job's own time limit ends it before."""
    return bool(job.spec.timeout and job.started and job.started + job.spec.timeout <= end)


def _require_whole(cluster: Cluster, folder: Path, now: float) -> None:
    """Raises UsageError unless all machines are nodes that can be told: the others would keep the
    old deadline, and nobody would know. The record of a ready cluster is sure of them, until its
    deadline; then whoever bills them is asked."""
    name, first = cluster.name, f"`clusterctl up {cluster.name}` completes it first"
    if not cluster.nodes:
        raise UsageError(f"cluster {name} has no nodes yet", hint=first)
    over = cluster.deadline is not None and cluster.deadline <= now
    if not cluster.charges:
        return
    if cluster.phase is Phase.READY and not over:
        going = [item for item in cluster.charges if item.until is None]
        require_machines(cluster, [i.node for i in going if i.part not in NETWORK_PARTS])
        return
    there = providers.list_living(cluster, folder, now)
    require_machines(cluster, there)
    if strangers := sorted(node for node in there if not cluster.has(node)):
        are = "is no node" if len(strangers) == 1 else "are no nodes"
        raise UsageError(f"{shorten(strangers)} of cluster {name} {are} yet", hint=first)


# -------------------------------------------------------------------------------------------------
# `stop`: ends jobs, and switches the machines off. Their disks stay.


def require_pausing(cluster: Cluster) -> Cloud:
    """Its provider, if that can stop and start machines; raises UsageError."""
    provider = providers.load_provider(require_owned(cluster).spec.provider)
    if not isinstance(provider, Cloud):
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
) -> tuple[Cluster, tuple[int, ...]] | None:
    """The cluster, and the jobs that were ended; None where the person said no. Safe to repeat: a
    cluster that is stopped stays so."""
    with ClusterLock(store.home, name, "stop", report):
        cluster = store.read_cluster(name)
        provider, folder = require_pausing(cluster), store.locate_folder(name)
        ended: tuple[int, ...] = ()
        if cluster.phase is not Phase.STOPPED:
            require_ready(cluster)
            with report_failure(cluster, report, "nothing was stopped"):
                provider.check_pausing(cluster, folder)
                require_machines(cluster, providers.list_living(cluster, folder, clock()))
            cluster = costs.settle(store, cluster, report)
            open_jobs = store.list_open_jobs(cluster)
            numbers = list_numbers(open_jobs)
            if open_jobs and not ask(f"job {numbers} is still running; end it?"):
                return None
            ended = outputs.end_jobs(store, cluster, report)
            with open_pool(store, cluster) as pool:
                at = Connected(store, cluster, pool, report)
                save_logs(at, store.list_cluster_jobs(cluster))
            cluster = replace(cluster, stopping=True)
            store.save(cluster)  # killed from here on, `status` has to ask
        try:
            provider.stop(cluster, folder, report)
            cluster = providers.settle(cluster, folder, clock())
        except ProviderError:
            with suppress(ProviderError):  # what has stopped or ended is told while it is shown
                providers.look(cluster, folder, clock())
            costs.report_left(cluster, report, "stopped", "stop")
            raise
        except KeyboardInterrupt:
            costs.report_left(cluster, report, "stopped", "stop")
            raise
        cluster = replace(cluster, phase=Phase.STOPPED, stopping=False)
        store.save(cluster)
        store.add_event(name, "stopped")
    return cluster, ended
