"""What machines really cost, beside what was planned for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from clusterctl.model import Charge, Cluster
from clusterctl.providers.protocol import Ended

STORED = "disk"
"""The part of a machine that costs money while it is stopped."""


def settle(
    cluster: Cluster,
    *,
    living: Collection[str],
    made: Collection[str],
    now: float,
    ends: Mapping[str, Ended] = {},
) -> tuple[Charge, ...]:
    """A cluster's charges as the machines bear them out. Nodes in `living` go on, where
    `ends` does not say that they are stopped; those that were only `made` ended when `ends` says,
    else themselves at their deadline, or have gone by now; the others never were, and cost
    nothing."""
    gone = Ended(min(now, cluster.deadline or now))

    def bear_out(item: Charge) -> Charge:
        end = ends.get(item.node, gone)
        if item.node not in living:
            return item.ended(end.when)
        return item.ended(end.when) if end.stopped and item.part != STORED else item

    return tuple(
        bear_out(item)
        for item in _going_on(cluster.charges, living)
        if item.until is not None or item.node in living or item.node in made
    )


def _going_on(charges: Sequence[Charge], living: Collection[str]) -> tuple[Charge, ...]:
    """A machine that lives is paid for, though its end was planned: what ended last goes on."""
    paid = {item.node for item in charges if item.until is None}
    last: dict[str, float] = {}
    for item in charges:
        last[item.node] = max(last.get(item.node, 0.0), item.until or 0.0)
    return tuple(
        replace(item, until=None)
        if item.node in living and item.node not in paid and item.until == last[item.node]
        else item
        for item in charges
    )
