"""`status` and `list`: what the records say, and with `--live` what the machines say."""

from __future__ import annotations

import time
from dataclasses import dataclass

from clusterctl.model import Cluster, Job, Node
from clusterctl.state import Store


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """`live` is empty unless the node was asked."""

    node: Node
    live: str


@dataclass(frozen=True, slots=True)
class Status:
    """`age` in seconds, money in US dollars."""

    cluster: Cluster
    nodes: tuple[NodeStatus, ...]
    jobs: tuple[Job, ...]
    age: float
    dollars_per_hour: float
    dollars: float


def status(store: Store, cluster: Cluster, *, live: bool = False) -> Status:
    """From the record alone, unless `live`: then provider and nodes are asked, within deadlines."""
    answers: dict[str, str] = {}
    if live:
        answers = _ask(store, cluster)
    jobs = tuple(
        job for job in store.jobs() if job.cluster_id == cluster.id and not job.state.ended
    )
    return Status(
        cluster=cluster,
        nodes=tuple(NodeStatus(node, answers.get(node.name, "")) for node in cluster.nodes),
        jobs=jobs,
        age=time.time() - cluster.created,
        dollars_per_hour=0.0,
        dollars=0.0,
    )


def statuses(store: Store) -> tuple[Status, ...]:
    return tuple(status(store, cluster) for cluster in store.clusters())


def _ask(store: Store, cluster: Cluster) -> dict[str, str]:
    from clusterctl import providers
    from clusterctl.actions import connected

    told = providers.load(cluster.spec.provider).describe(cluster, store.folder(cluster.name))
    running = [node.name for node in cluster.nodes if told.get(node.name) == "running"]
    with connected(store, cluster) as pool:
        results = pool.run("exec cat /proc/loadavg", running, timeout=10)
    for result in results:
        if result.ok:
            told[result.node] = f"running, load {result.text.split()[0]}"
        else:
            told[result.node] = f"machine runs, SSH does not answer: {result.error}"
    return told
