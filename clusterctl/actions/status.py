"""`status` and `list`: what the records say, and with `--live` what the machines say."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from clusterctl.actions import costs
from clusterctl.core.clock import Deadline
from clusterctl.core.model import Cluster, Node, Phase, shorten
from clusterctl.insight import cost
from clusterctl.machines import deadlines, providers
from clusterctl.state.store import Store

if TYPE_CHECKING:
    from clusterctl.core.job import Job
    from clusterctl.insight.top import GpuLook

ANSWER = 10.0
"""Seconds that a node has to answer."""
GPU_ANSWER = 4
"""Seconds of these that its GPUs have for each of two questions."""


class NodeStatus(Struct):
    """`live` is empty unless the node was asked."""

    node: Node
    live: str = ""
    deadline: float | None = None
    """The node's own, if it was asked and has one."""
    gpus: tuple[GpuLook, ...] = ()
    """What they do, if the node was asked."""


class ClusterStatus(Struct, frozen=True):
    """`age` in seconds, money in US dollars."""

    cluster: Cluster
    nodes: list[NodeStatus]
    jobs: tuple[Job, ...]
    age: float
    dollars_per_hour: float
    dollars: float
    queues: str | None = ""
    """What a batch system that was asked says of them; None: nothing."""
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
    asked = _ask(store, cluster, clock) if live else None
    nodes, queues, wrong = asked or ([NodeStatus(node) for node in cluster.nodes], "", [])
    now = clock()
    charges, uncertain = costs.find_charges(store, cluster, now, ask=live)
    return ClusterStatus(
        cluster=cluster,
        nodes=nodes,
        jobs=tuple(store.list_open_jobs(cluster)),
        age=now - cluster.created,
        dollars_per_hour=cost.sum_hourly(charges),
        dollars=cost.sum_dollars(charges, now),
        queues=queues,
        unknown_prices=cost.list_unpriced(charges),
        asked=charges is not cluster.charges,
        warnings=(
            *_warn_of_deadline(store, cluster, now),
            *_warn_of_stopped_files(store, cluster),
            *uncertain,
            *costs.describe_late_clock(cluster, now),
            *wrong,
        ),
    )


def _warn_of_deadline(store: Store, cluster: Cluster, now: float) -> tuple[str, ...]:
    """A warning where nothing would end the cluster at its deadline."""
    if not cluster.deadline or cluster.phase not in (Phase.READY, Phase.STOPPED):
        return ()
    provider = providers.load_provider(cluster.spec.provider)
    trouble = provider.find_deadline_trouble(cluster, store.locate_folder(cluster.name))
    over = cluster.phase is Phase.STOPPED or cluster.deadline <= now
    advice = f"down {cluster.name}` removes it" if over else f"up {cluster.name}` starts it again"
    return (f"{trouble}: `clusterctl {advice}",) if trouble else ()


def _warn_of_stopped_files(store: Store, cluster: Cluster) -> list[str]:
    """What a stopped cluster may have that nobody has fetched, as `down` would say."""
    if cluster.phase is not Phase.STOPPED:
        return []
    from clusterctl.actions import outputs  # most clusters are not stopped

    jobs = store.list_cluster_jobs(cluster)
    lines = outputs.list_unseen(store, cluster, jobs, [node.name for node in cluster.nodes])
    return [
        f"{line}: its machines are stopped; `clusterctl start {cluster.name}` before you fetch them"
        for line in lines
    ]


ASKED_AT_ONCE = 16


def list_statuses(store: Store) -> tuple[ClusterStatus, ...]:
    """Of all clusters. AWS is asked about several at the same time."""
    clusters, now, read = store.list_clusters(), time.time(), partial(read_status, store)
    if not any(costs.is_uncertain(store, cluster, now) for cluster in clusters):
        return tuple(map(read, clusters))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return tuple(pool.map(read, clusters))


def read_live(text: str) -> tuple[str, float | None, bool]:
    """What a node prints of itself: its load (`unknown` where it does not say), its own deadline,
    and whether the agent for that is alive."""
    load, *lines = text.splitlines() or [""]
    first = next(iter(load.split()), "unknown")
    return (first, *deadlines.parse_answer(lines))


def _render_live_question(node: Node) -> str:
    """sh for its load, its deadline, its clock, and what its GPUs do."""
    asked = f"cat /proc/loadavg; {deadlines.render_question()}; {deadlines.CLOCK}"
    if node.facts.gpus:
        from clusterctl.jobs import submit

        settings = {"of_jobs": True, "seconds": GPU_ANSWER}
        asked += f"; ({submit.render_question(node, 0, 'show_gpus', settings)})"
    return f"{asked}\nexit 0"


def _ask(
    store: Store, cluster: Cluster, clock: Callable[[], float]
) -> tuple[list[NodeStatus], str | None, list[str]]:
    """What the machines say, the queues of a batch system, and what is wrong."""
    from clusterctl.actions.common import open_pool
    from clusterctl.actions.lifetime import advise_allow, explain_lockout
    from clusterctl.insight import top
    from clusterctl.jobs import control
    from clusterctl.machines.attached import BatchSite

    folder = store.locate_folder(cluster.name)
    provider = providers.load_provider(cluster.spec.provider)
    if isinstance(provider, BatchSite):
        answers, queues, wrong = provider.look(cluster, folder)
        return [NodeStatus(n, answers.get(n.name, "")) for n in cluster.nodes], queues, wrong
    answers = provider.describe(cluster, folder)
    nodes = {node.name: NodeStatus(node, answers.get(node.name, "")) for node in cluster.nodes}
    running = [name for name, node in nodes.items() if node.live == "running"]
    with open_pool(store, cluster) as pool:
        commands = {name: _render_live_question(cluster.node(name)) for name in running}
        results = pool.run(commands, running, timeout=ANSWER)
        going = [job for job in store.list_open_jobs(cluster) if store.is_handed_in(job.id)]
        if going and any(r.ok and r.node == cluster.launcher.name for r in results):
            for job in control.refresh_all(going, cluster, pool, deadline=Deadline(ANSWER)):
                store.save_job(job)
    shown: dict[str, float | None] = {}
    dead = []
    for result in results:
        node = nodes[result.node]
        if not result.ok:
            machine = "" if cluster.attached else "machine runs, "
            node.live = f"{machine}SSH does not answer: {result.error}"
            continue
        load, node.deadline, kept = read_live(result.text)
        node.live = f"running, load {load}"
        node.gpus = top.read_gpus(result.text, cluster.id)
        shown[result.node] = deadlines.read_clock(result.text)
        dead += [] if kept else [result.node]
    armed = {name: node.deadline for name, node in nodes.items() if node.deadline is not None}
    unguarded = deadlines.describe_difference(cluster, armed)
    if dead:
        unguarded = (
            f"the deadline agent on {shorten(dead)} has died, and the deadline ends nothing there:"
            f" `clusterctl down {cluster.name}` removes the cluster"
        )
    clocks = () if cluster.attached else deadlines.describe_clocks(shown, clock())
    shut = explain_lockout(store, cluster, "; ".join(node.live for node in nodes.values()))
    lines = (unguarded, *clocks, f"{shut}: {advise_allow(cluster.name)}" if shut else "")
    return list(nodes.values()), "", [line for line in lines if line]
