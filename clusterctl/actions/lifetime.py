"""`extend`: moves the deadline on all nodes, and then in the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.actions import allow, running_costs
from clusterctl.actions.common import require_machines, require_owned
from clusterctl.actions.running_costs import report_failure
from clusterctl.core.job import Job
from clusterctl.core.model import Cluster, Consent, Phase, Reporter, shorten
from clusterctl.core.text import format_time
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError
from clusterctl.insight import cost
from clusterctl.machines import charges, providers
from clusterctl.machines.protocol import Cloud, Provider
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store


@dataclass(frozen=True, slots=True)
class Extended:
    """`dollars` until the new deadline, from the beginning; at least that where not every price is
    known (`exact`)."""

    cluster: Cluster
    deadline: float
    dollars: float
    exact: bool


def extend(
    store: Store,
    name: str,
    ttl: float,
    report: Reporter,
    consent: Consent,
    clock: Callable[[], float] = time.time,
) -> Extended:
    """The cluster ends `ttl` seconds from now. Raises NodeUnreachable naming the nodes that keep
    their old deadline, with the later one on record, and UsageError where a budget does not last
    that long, machines run that are no nodes yet, or an end that comes sooner is not agreed to.
    ProviderError where the cloud keeps the old one: then nothing has changed."""
    with ClusterLock(store.home, name, "extend", report):
        cluster = require_owned(store.read_cluster(name))
        if cluster.phase is Phase.STOPPED:
            raise UsageError(
                f"cluster {name} is stopped: its deadline cannot be changed",
                hint=f"`clusterctl start {name}` first",
            )
        provider = providers.load_provider(cluster.spec.provider)
        folder = store.locate_folder(name)
        cluster = running_costs.settle(store, cluster, report, clock)
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
            _let_in(store, cluster, provider, error, consent)
            provider.extend(cluster, folder, end)
        cluster = replace(cluster, deadline=end)
        store.save(cluster)
        store.add_event(name, "extended", deadline=round(end))
        try:
            provider.label_deadline(cluster, folder, end)
        except ProviderError as error:
            report(f"the tags in the cloud still show the old deadline: {error.message}")
    return Extended(cluster, end, dollars, cost.is_exact(cluster.charges))


def _let_in(
    store: Store, cluster: Cluster, provider: Provider, error: NodeUnreachable, consent: Consent
) -> None:
    """Opens the cluster to this machine where its address has changed and that is agreed to; raises
    the error otherwise."""
    why = allow.explain_lockout(store, cluster, error.message)
    if not why or not isinstance(provider, Cloud):
        raise error
    explained = NodeUnreachable(f"{error.message}; {why}", hint=allow.advise(cluster.name))
    try:
        agreed = consent(f"{why}: open it to this address instead?")
    except UsageError:
        raise explained from error
    if not agreed:
        raise explained from error
    provider.allow(cluster, store.locate_folder(cluster.name), ())


def _ask_about_sooner_end(store: Store, cluster: Cluster, end: float, now: float) -> str:
    """What to ask where something would end sooner than it does now; "" for nothing."""
    before = cluster.deadline
    if before is not None and (before <= now or before <= end):
        return ""  # it is over, or only gets longer
    running = [str(job.id) for job in store.list_open_jobs(cluster) if not _is_done_by(job, end)]
    if before is None and not running:
        return ""
    jobs = f"job {', '.join(running)} {'is' if len(running) == 1 else 'are'} running"
    instead = f"at {format_time(end)}" + (f" instead of {format_time(before)}" if before else "")
    return (
        f"cluster {cluster.name} would end {instead}"
        + f", and {jobs}" * bool(running)
        + "; move the deadline?"
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
    if not cluster.charges or (cluster.phase is Phase.READY and not over):
        return
    there = providers.list_living(cluster, folder, now)
    require_machines(cluster, there)
    if strangers := sorted(node for node in there if not cluster.has(node)):
        are = "is no node" if len(strangers) == 1 else "are no nodes"
        raise UsageError(f"{shorten(strangers)} of cluster {name} {are} yet", hint=first)
