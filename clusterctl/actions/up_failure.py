"""An `up` that broke off: what stays on record, and what people are told of what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from clusterctl import providers
from clusterctl.actions.running_costs import report_unknown
from clusterctl.charge_model import GATEWAY
from clusterctl.errors import ClusterctlError
from clusterctl.formats import count, format_time
from clusterctl.insight import cost
from clusterctl.model import Cluster, Phase, Reporter
from clusterctl.providers.protocol import Inventoried
from clusterctl.providers.resources import describe
from clusterctl.providers.shared import ledger
from clusterctl.providers.shared.ledger import list_living
from clusterctl.state import Store


def record_failed_create(
    store: Store,
    cluster: Cluster,
    old: Cluster | None,
    report: Reporter,
    clock: Callable[[], float] = time.time,
) -> bool:
    """After an `up` that broke off: the record keeps what really costs money, and a cluster that
    was ready and has lost and gained nothing is ready. Whether it was said what there is."""
    if not cluster.charges:
        return False
    folder = store.locate_folder(cluster.name)
    try:
        looks = providers.look(cluster, folder, clock())
    except ClusterctlError as error:
        report_unknown(cluster, error, report)
        return True
    cluster, there = replace(cluster, charges=ledger.settle(cluster, looks)), list_living(looks)
    # By machine and deadline, not by name: new ones are called as those in whose place they are.
    before = {node.name: node.machine for node in old.nodes} if old else {}
    same = old and (there, cluster.deadline) == (before, old.deadline)
    if old and old.phase is Phase.READY and same:
        store.save(old)
        report(f"cluster {old.name} is unchanged and ready")
        return True
    store.save(cluster)
    gateway = any(item.part == GATEWAY and item.until is None for item in cluster.charges)
    if there or gateway:
        report(_describe_running(cluster, len(there), gateway))
    return bool(there or gateway)


def report_left(store: Store, cluster: Cluster, report: Reporter) -> None:
    """Names what an `up` that broke off has made without any machine: a network, say."""
    provider = providers.load(cluster.spec.provider)
    if not isinstance(provider, Inventoried):
        return
    with suppress(ClusterctlError):  # why `up` broke off is said next, and matters more
        if left := provider.list_left(cluster, store.locate_folder(cluster.name)):
            report(
                f"no machines are running; left over: {describe(left, ids=False)}: `clusterctl up"
                f" {cluster.name}` continues, `clusterctl down {cluster.name}` removes it"
            )


def _describe_running(cluster: Cluster, machines: int, gateway: bool) -> str:
    """What goes on costing money after an `up` that broke off, until when, and what to do."""
    name = cluster.name
    parts = [count(machines, "machine")] if machines else []
    parts += ["a NAT gateway"] if gateway else []
    one = machines + gateway == 1
    running = [item for item in cluster.charges if item.until is None]
    rate = cost.render(cost.sum_hourly(running), cost.is_exact(running))
    until = f" until {format_time(cluster.deadline)}" if cluster.deadline else ""
    return (
        f"{' and '.join(parts)} {'runs' if one else 'run'}, {rate}/h{until}: `clusterctl up {name}`"
        f" continues, `clusterctl down {name}` removes {'it' if one else 'them'}"
    )
