"""`extend`: moves the deadline on all nodes, and then in the record."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from clusterctl import providers
from clusterctl.actions import Tell, made_by_us
from clusterctl.errors import UsageError
from clusterctl.insight import cost
from clusterctl.model import Cluster
from clusterctl.state import ClusterLock, Store


@dataclass(frozen=True, slots=True)
class Extended:
    """`dollars` until the new deadline, from the beginning; what has no known price is left out."""

    cluster: Cluster
    deadline: float
    dollars: float


def extend(store: Store, name: str, ttl: float, tell: Tell) -> Extended:
    """The cluster ends `ttl` seconds from now. Raises NodeUnreachable naming the nodes that keep
    their old deadline, with the later one on record, and UsageError where a budget does not last
    that long."""
    with ClusterLock(store.home, name, "extend", tell):
        cluster = made_by_us(store.cluster(name))
        provider = providers.load(cluster.spec.provider)
        now = time.time()
        rate = cost.per_hour(cluster.charges)
        dollars = cost.dollars(cluster.charges, now) + rate * ttl / 3600
        budget = cluster.spec.cloud.budget
        if budget and dollars > budget + 0.005:
            raise UsageError(
                f"that would cost ${dollars:.2f}, and the cluster's budget is ${budget:.2f}",
                hint=f"`clusterctl up {name} --budget {dollars + 0.01:.2f}` or a shorter --ttl",
            )
        if cluster.deadline is not None:
            # Some nodes may get the new one and others not: the record says what may still cost.
            store.save(replace(cluster, deadline=max(cluster.deadline, now + ttl)))
        provider.extend(cluster, store.folder(name), now + ttl)
        cluster = replace(cluster, deadline=now + ttl)
        store.save(cluster)
        store.event(name, "extended", deadline=round(now + ttl))
    return Extended(cluster, now + ttl, dollars)
