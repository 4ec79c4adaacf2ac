"""What machines really cost, beside what was planned for them. Pure."""

from __future__ import annotations

from collections.abc import Collection

from clusterctl.model import Charge, Cluster


def settled(
    cluster: Cluster, *, living: Collection[str], made: Collection[str], now: float
) -> tuple[Charge, ...]:
    """A cluster's charges as the machines bear them out. Nodes in `living` go on; those that were
    only `made` ended themselves at their deadline, or have gone by now; the others never were, and
    cost nothing."""
    gone = min(now, cluster.deadline or now)
    return tuple(
        item if item.node in living else item.ended(gone)
        for item in cluster.charges
        if item.until is not None or item.node in living or item.node in made
    )
