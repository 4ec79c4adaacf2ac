"""`status` and `list`: what the records say, and with `--live` what the machines say."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from clusterctl.actions import running_costs
from clusterctl.actions.running_costs import describe_doubts, list_machines
from clusterctl.core import assets
from clusterctl.core.clock import Deadline
from clusterctl.core.job import Job
from clusterctl.core.model import GATEWAY, Charge, Cluster, Node, Phase, shorten
from clusterctl.core.text import count, format_span
from clusterctl.errors import ClusterctlError, describe_reason
from clusterctl.insight import cost, top
from clusterctl.insight.top import GpuLook
from clusterctl.machines import providers
from clusterctl.machines.attached import BatchSite
from clusterctl.machines.deadlines import (
    CLOCK,
    NOTICED,
    describe_clocks,
    describe_difference,
    parse_answer,
    read_clock,
    render_question,
)
from clusterctl.machines.protocol import Queue
from clusterctl.state.store import Store

ANSWER = 10.0
"""Seconds that a node has to answer."""
GPU_ANSWER = 4
"""Seconds of these that its GPUs have for each of two questions."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """`live` is empty unless the node was asked."""

    node: Node
    live: str
    deadline: float | None = None
    """The node's own, if it was asked and has one."""
    gpus: tuple[GpuLook, ...] = ()
    """What they do, if the node was asked."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """`age` in seconds, money in US dollars."""

    cluster: Cluster
    nodes: tuple[NodeStatus, ...]
    jobs: tuple[Job, ...]
    age: float
    dollars_per_hour: float
    dollars: float
    queues: tuple[Queue, ...] = ()
    """Of a batch system that was asked."""
    unknown_prices: tuple[str, ...] = ()
    """Items that the two sums leave out."""
    asked: bool = False
    """Whether the money is what whoever bills the machines says of them now, not the record."""
    warnings: tuple[str, ...] = ()
    """What is wrong with the cluster and what to do, one line each."""


def read_status(
    store: Store,
    cluster: Cluster,
    *,
    live: bool = False,
    clock: Callable[[], float] = time.time,
) -> ClusterStatus:
    """From the record alone, unless `live`: then provider and nodes are asked, within deadlines,
    and money is what whoever bills the machines says of them.
    When the deadline is over, nobody has used the cluster for long, or a command that changes it
    has not finished, whoever bills it is asked in any case: the record cannot tell what runs."""
    told = _ask(store, cluster, clock) if live else _Told({})
    shut = _warn_of_lockout(store, cluster, told.answers) if live else ()
    now = clock()
    charges, uncertain = find_charges(store, cluster, now)
    known = describe_doubts(cluster, now)
    if live and charges is cluster.charges and charges and uncertain == known:
        seen = providers.settle(cluster, store.locate_folder(cluster.name), now)
        charges, uncertain = seen.charges, describe_doubts(seen, now)
    return ClusterStatus(
        cluster=cluster,
        nodes=tuple(
            NodeStatus(
                node,
                told.answers.get(node.name, ""),
                told.deadlines.get(node.name),
                told.gpus.get(node.name, ()),
            )
            for node in cluster.nodes
        ),
        jobs=tuple(store.list_open_jobs(cluster)),
        age=now - cluster.created,
        dollars_per_hour=cost.sum_hourly(charges),
        dollars=cost.sum_dollars(charges, now),
        queues=told.queues,
        unknown_prices=cost.list_unpriced(charges),
        asked=charges is not cluster.charges,
        warnings=(
            *_list_warnings(store, cluster, now),
            *uncertain,
            *_warn_of_restarted(cluster, charges),
            *_warn_of_unguarded(cluster, told.dead, told.deadlines),
            *describe_late_clock(cluster, now),
            *told.clocks,
            *shut,
        ),
    )


def _warn_of_lockout(store: Store, cluster: Cluster, told: Mapping[str, str]) -> tuple[str, ...]:
    """A warning where nodes are silent because this machine's address has changed."""
    from clusterctl.actions import allow

    why = allow.explain_lockout(store, cluster, "; ".join(told.values()))
    return (f"{why}: {allow.advise(cluster.name)}",) if why else ()


def find_charges(
    store: Store, cluster: Cluster, now: float
) -> tuple[Sequence[Charge], tuple[str, ...]]:
    """What the cluster has cost, and what a person should know of that. From the record alone, as
    long as no command changes the machines or was interrupted at that, and they are not to have
    ended themselves by now."""
    name, over = cluster.name, _is_overdue(cluster, now)
    try:
        if over or _is_unfinished(cluster):
            seen = providers.settle(cluster, store.locate_folder(name), now)
            more = _warn_of_outliving if over else _warn_of_stopping
            return seen.charges, (*describe_doubts(seen, now), *more(seen, seen.charges))
        if running_costs.may_have_ended(store, cluster, now):
            found = running_costs.look(store, cluster, now)
            return found.charges, found.lines
    except ClusterctlError as error:
        why = describe_reason(error)
        if over:
            said = (
                f"the deadline of cluster {name} has passed, and it is unknown whether its machines"
                f" are still running ({why}); the costs assume that they are: `clusterctl down"
                f" {name}` removes it"
            )
        elif _is_unfinished(cluster):
            said = (
                f"it is unknown which machines of cluster {name} are running ({why}); the costs"
                " shown are those that were planned, and assume that all are"
            )
        else:
            said = (
                f"it is unknown whether unused workers have ended ({why}); the costs shown assume"
                " that they are still running"
            )
        return cluster.charges, (said,)
    return cluster.charges, describe_doubts(cluster, now)


def _list_warnings(store: Store, cluster: Cluster, now: float) -> tuple[str, ...]:
    if not cluster.deadline or cluster.phase not in (Phase.READY, Phase.STOPPED):
        return ()
    provider = providers.load_provider(cluster.spec.provider)
    trouble = provider.find_deadline_trouble(cluster, store.locate_folder(cluster.name))
    if not trouble:
        return ()
    over = cluster.deadline <= now or cluster.phase is Phase.STOPPED
    advice = f"down {cluster.name}` removes it" if over else f"up {cluster.name}` starts it again"
    return (f"{trouble}: `clusterctl {advice}",)


def describe_late_clock(cluster: Cluster, now: float) -> tuple[str, ...]:
    """A warning where this machine's clock shows an earlier time than at `up`."""
    behind = cluster.created - now
    if behind <= NOTICED:
        return ()
    return (
        f"this machine's clock is at least {format_span(round(behind / 60) * 60)} behind, by the"
        " creation of the cluster: ages and costs are wrong until it is set"
        " (`timedatectl set-ntp true`)",
    )


def _warn_of_restarted(cluster: Cluster, charges: Sequence[Charge]) -> tuple[str, ...]:
    """A warning where machines of a stopped cluster run."""
    if cluster.phase is not Phase.STOPPED:
        return ()
    running = sorted(i.node for i in charges if i.part == "instance" and i.until is None)
    if not running:
        return ()
    are = "is" if len(running) == 1 else "are"
    return (
        f"cluster {cluster.name} is stopped, but {shorten(running)} {are} running, not started by"
        f" clusterctl: `clusterctl stop {cluster.name}` stops what runs",
    )


def _warn_of_unguarded(
    cluster: Cluster, dead: Sequence[str], kept: Mapping[str, float]
) -> tuple[str, ...]:
    """A warning where nodes have lost the agent that ends them at their deadline, or keep another
    one than is on record."""
    if not dead:
        return tuple(filter(None, (describe_difference(cluster, kept),)))
    return (
        f"the deadline agent on {shorten(dead)} has died, and the deadline ends nothing there:"
        f" `clusterctl down {cluster.name}` removes the cluster",
    )


def _is_overdue(cluster: Cluster, now: float) -> bool:
    """Whether it costs money and its deadline is over."""
    return bool(cluster.charges and cluster.deadline and cluster.deadline < now)


def _is_unfinished(cluster: Cluster) -> bool:
    """Whether a command changes its machines, or was interrupted at that: the record has what is
    planned."""
    changing = cluster.stopping or cluster.phase in (Phase.CREATING, Phase.DELETING)
    return bool(cluster.charges) and changing


def _warn_of_stopping(cluster: Cluster, charges: Sequence[Charge]) -> tuple[str, ...]:
    """A warning where a `stop` was interrupted."""
    if not cluster.stopping:
        return ()
    going = [item for item in charges if item.until is None]
    running = sum(item.part == "instance" for item in going)
    many = f"{count(running, 'machine')} {'is' if running == 1 else 'are'} still running"
    return (
        f"`stop` has not finished for cluster {cluster.name}:"
        f" {many if running else 'no machine is running'}, {_render_rate(going, 4)}:"
        f" `clusterctl stop {cluster.name}` completes it, `clusterctl start {cluster.name}` starts"
        " it again",
    )


def _warn_of_outliving(cluster: Cluster, charges: Sequence[Charge]) -> tuple[str, ...]:
    """A warning where something runs after the deadline."""
    there, going = list_machines(charges), [item for item in charges if item.until is None]
    if not going:
        return ()
    remove = f"{_render_rate(going, 2)}: `clusterctl down {cluster.name}` removes it"
    if there:
        many = f"{count(len(there), 'machine')} {'is' if len(there) == 1 else 'are'} still running"
        return (
            f"the deadline of cluster {cluster.name} has passed, but {many} ({shorten(there)}),"
            f" {remove}",
        )
    gateway = any(item.part == GATEWAY for item in going)
    network = "its NAT gateway" if gateway else "the address of its NAT gateway"
    return (
        f"the machines of cluster {cluster.name} have ended at their deadline, but {network} still"
        f" costs {remove}",
    )


def _render_rate(charges: Sequence[Charge], digits: int) -> str:
    return f"{cost.render_cost(cost.sum_hourly(charges), cost.is_exact(charges), digits)}/h"


ASKED_AT_ONCE = 16


def list_statuses(store: Store) -> tuple[ClusterStatus, ...]:
    """Of all clusters. AWS is asked about several at the same time."""
    clusters, now = store.list_clusters(), time.time()
    if not any(
        _is_overdue(c, now) or _is_unfinished(c) or running_costs.may_have_ended(store, c, now)
        for c in clusters
    ):
        return tuple(read_status(store, cluster) for cluster in clusters)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return tuple(pool.map(lambda cluster: read_status(store, cluster), clusters))


def read_live(text: str) -> tuple[str, float | None, bool]:
    """What a node prints of itself: its load (`unknown` where it does not say), its own deadline,
    and whether the agent for that is alive."""
    load, *lines = text.splitlines() or [""]
    first = next(iter(load.split()), "unknown")
    return (first, *parse_answer(lines))


@dataclass(slots=True)
class _Told:
    """What the machines say, by node, and the deadlines that they keep themselves; `dead`: those
    that have lost the agent for it; `clocks`: a line for each that is wrong."""

    answers: dict[str, str]
    deadlines: dict[str, float] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)
    clocks: tuple[str, ...] = ()
    queues: tuple[Queue, ...] = ()
    gpus: dict[str, tuple[GpuLook, ...]] = field(default_factory=dict)


def _render_live_question(node: Node) -> str:
    """sh for its load, its deadline, its clock, and what its GPUs do."""
    asked = f"cat /proc/loadavg; {render_question()}; {CLOCK}"
    if node.facts.gpus:
        asked += "\n" + assets.render("insight/gpus.sh.j2", seconds=GPU_ANSWER, jobs=True)
    return f"{asked}\nexit 0"


def _ask(store: Store, cluster: Cluster, clock: Callable[[], float]) -> _Told:
    from clusterctl.actions.common import open_pool
    from clusterctl.jobs import control

    provider, folder = (
        providers.load_provider(cluster.spec.provider),
        store.locate_folder(cluster.name),
    )
    if isinstance(provider, BatchSite):
        answers, queues = provider.look(cluster, folder)
        return _Told(answers, queues=queues)
    found = _Told(provider.describe(cluster, folder))
    told = found.answers
    running = [node.name for node in cluster.nodes if told.get(node.name) == "running"]
    with open_pool(store, cluster) as pool:
        commands = {name: _render_live_question(cluster.node(name)) for name in running}
        results = pool.run(commands, running, timeout=ANSWER)
        going = [job for job in store.list_open_jobs(cluster) if store.is_handed_in(job.id)]
        if going and any(r.ok and r.node == cluster.launcher.name for r in results):
            for job in control.refresh_all(going, cluster, pool, deadline=Deadline(ANSWER)):
                store.save_job(job)
    shown: dict[str, float | None] = {}
    for result in results:
        if result.ok:
            load, armed, kept = read_live(result.text)
            shown[result.node] = read_clock(result.text)
            found.gpus[result.node] = top.read_gpus(result.text, cluster.id)
            told[result.node] = f"running, load {load}"
            if armed is not None:
                found.deadlines[result.node] = armed
            if not kept:
                found.dead.append(result.node)
        else:
            told[result.node] = f"SSH does not answer: {result.error}"
            if not cluster.attached:
                told[result.node] = f"machine runs, {told[result.node]}"
    if not cluster.attached:
        found.clocks = describe_clocks(shown, clock())
    return found
