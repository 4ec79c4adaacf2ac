"""What machines really cost, beside what was planned for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from clusterctl.charge_model import GATEWAY, NETWORK_PARTS, Charge
from clusterctl.model import Cluster, Phase
from clusterctl.providers.protocol import Ended, Life

DISK = "disk"
STORED = (DISK, *NETWORK_PARTS)
"""The parts of a machine and its network that cost money while it is stopped."""


def settle(
    cluster: Cluster,
    *,
    living: Collection[str],
    made: Collection[str],
    now: float,
    ends: Mapping[str, Ended] = {},
    leaving: Collection[str] = (),
) -> tuple[Charge, ...]:
    """A cluster's charges as the machines bear them out. Nodes in `living` go on, where
    `ends` does not say that they are stopped, and a NAT gateway where `ends` has no GATEWAY; those
    that were only `made` ended when `ends` says, else themselves at their deadline, or have gone by
    now; the others never were, and cost nothing. Nor does a start that was planned for a machine
    that has stood still since. A NAT gateway and its address are in `living` themselves, as
    NETWORK_PARTS: they may be there without machines, and the address without the gateway.
    `leaving`: those that may have outlived their planned end, as `find_leaving` has them."""
    gone = Ended(min(now, cluster.deadline or now))

    def end_charge(item: Charge) -> Charge:
        end = ends.get(item.node, gone)
        if item.part in NETWORK_PARTS:  # until `down`, if AWS has not removed it at the deadline
            goes_on = GATEWAY not in ends or item.part in living
            return item if goes_on else item.end_at(ends[GATEWAY].when)
        if item.node not in living:
            return item.end_at(end.when if item.part in STORED or end.ran is None else end.ran)
        return item.end_at(end.when) if end.stopped and item.part not in STORED else item

    def was_never_made(item: Charge) -> bool:
        if item.until is not None:
            return False
        end = ends.get(item.node)
        stopped = (end.when if end.stopped else end.ran) if end else None
        if stopped is not None and item.part not in STORED:
            return stopped < item.since  # `start` was cut off
        if item.part in NETWORK_PARTS and not {GATEWAY, item.part}.isdisjoint(
            {*living, *made, *ends}
        ):
            return False
        return item.node not in living and item.node not in made

    return tuple(
        end_charge(item)
        for item in _extend_last(cluster.charges, living, {**dict.fromkeys(leaving, gone), **ends})
        if not was_never_made(item)
    )


def find_leaving(cluster: Cluster, made: Collection[str]) -> frozenset[str]:
    """The nodes that an `up` was to remove which was cut off, as far as they are still among what
    was `made`: nobody has seen their end. It planned that with all else that it has noted last."""
    if cluster.phase is not Phase.CREATING:
        return frozenset()
    planned = max((max(item.since, item.until or 0.0) for item in cluster.charges), default=0.0)
    ended = {item.node for item in cluster.charges if item.until == planned}
    return frozenset(node.name for node in cluster.nodes if node.name in ended.intersection(made))


def sum_hourly(charges: Iterable[Charge]) -> tuple[float, tuple[str, ...]]:
    """Dollars per hour of all that runs, and the items whose price is unknown."""
    running = [charge for charge in charges if charge.until is None]
    unknown = dict.fromkeys(charge.item for charge in running if charge.hourly is None)
    return sum(charge.hourly or 0.0 for charge in running), tuple(unknown)


LATER = 60.0
"""Seconds after the deadline until a cloud ends what has not ended itself."""
PRECISION = 60.0
"""Seconds within which it keeps that time."""
ENDED = LATER + PRECISION
"""Seconds after the deadline until a machine has ended that did not end itself."""
RELEASE = 900.0
"""Seconds after the deadline until the address of a NAT gateway is released: the gateway holds it
until it is gone, which takes minutes."""
REMOVED = dict(zip(NETWORK_PARTS, (ENDED, RELEASE), strict=True))
"""Seconds after the deadline until each part of the network is gone."""


def sum_until_removed(charges: Iterable[Charge], deadline: float) -> float:
    """US dollars of all that ends with the deadline, a NAT gateway with every hour that has begun
    by then; without what has no known price."""
    return sum(item.compute_dollars(deadline + REMOVED.get(item.part, 0.0)) for item in charges)


SHOWN = 3600.0
"""Seconds for about which a cloud shows what has ended."""
SLACK = 900.0
"""Seconds that a machine may be started after it was planned, or before."""


def correct(charges: Sequence[Charge], lives: Sequence[Life]) -> tuple[Charge, ...]:
    """The charges with the times of whoever bills the machines, as far as those are known: a
    machine is planned before it starts, and ends before that is noticed. One that was planned once
    may have been started in several zones, or never. `lives`: those of a NAT gateway are GATEWAY's.
    """
    by_node: dict[str, list[Life]] = {}
    for life in sorted(lives, key=lambda life: life.since):
        by_node.setdefault(life.node, []).append(life)
    corrected: list[Charge] = []
    for node in dict.fromkeys(map(_name_owner, charges)):
        mine = [item for item in charges if _name_owner(item) == node]
        starts = sorted({item.since for item in mine})
        known = by_node.get(node, [])
        # The plan that each life began by: the last one before it.
        plans = [
            max((since for since in starts if since <= life.since + 1), default=starts[0])
            for life in known
        ]
        for item in mine:
            if item.part in NETWORK_PARTS and item.part != GATEWAY:
                corrected.append(item)  # their address moves with the cluster
                continue
            began = [life for life, plan in zip(known, plans, strict=True) if plan == item.since]
            if began:
                corrected += _charge_lives(item, began, _was_stopped(item, mine))
            elif not _has_never_begun(item, mine, known):
                corrected.append(_charge_stored(item, mine, known) if item.part == DISK else item)
    return tuple(corrected)


def _name_owner(item: Charge) -> str:
    """The node, or GATEWAY, whose life it is."""
    return GATEWAY if item.part in NETWORK_PARTS else item.node


def _has_never_begun(item: Charge, mine: Sequence[Charge], lives: Sequence[Life]) -> bool:
    """Of a charge that no life began by: whether there was nothing to pay. What had ended before it
    was planned was another machine; one that was stopped and not started since has no later start.
    """
    if item.until is not None and item.until <= item.since:
        return True
    ran = [one.until for one in mine if one.part == item.part and one.until is not None]
    stopped = max((until for until in ran if until <= item.since), default=-inf)
    kept = any(
        one.part == DISK and one.since < stopped and (one.until is None or one.until > item.since)
        for one in mine
    )
    return bool(item.part not in STORED and kept and lives and lives[-1].since < stopped)


def add_restarts(
    cluster: Cluster, charges: Sequence[Charge], lives: Sequence[Life], ends: Mapping[str, Ended]
) -> tuple[Charge, ...]:
    """The charges with machines of a stopped cluster that somebody has started since, in the
    console, say: from their last start on, until `ends` says that they were stopped again."""
    if cluster.phase is not Phase.STOPPED:
        return tuple(charges)
    added: list[Charge] = []
    for life in lives:
        mine = [item for item in charges if (item.node, item.part) == (life.node, "instance")]
        last = max((item.until or inf for item in mine), default=inf)
        if life.since <= last:
            continue
        again = [item for item in charges if (item.node, item.until) == (life.node, last)]
        until = ends[life.node].when if life.node in ends else life.until
        added += [replace(item, since=life.since, until=until) for item in again]
    return (*charges, *added)


def _was_stopped(item: Charge, mine: Sequence[Charge]) -> bool:
    """Whether the machine was stopped then: its disk was kept, which may be older than its last
    start."""
    disks = [one for one in mine if one.part == DISK and one.since <= item.since]
    return item.until is not None and any(
        one.until is None or one.until > item.until for one in disks
    )


def _charge_stored(item: Charge, mine: Sequence[Charge], lives: Sequence[Life]) -> Charge:
    """The disk of a machine that was stopped and started again, which ends with its last start."""
    after = [one.since for one in mine if one.part == DISK and one.since > item.since]
    last = [life for life in lives if item.since <= life.since + 1 < min(after, default=inf)]
    until = last[-1].until if last else None
    return item if until is None else replace(item, until=until)


def _charge_lives(item: Charge, lives: Sequence[Life], stopped: bool) -> list[Charge]:
    """A machine that was planned once, and started in several zones, one after the other."""
    first = _charge_life(item, lives[0], stopped)
    rest = [replace(_charge_life(item, life, stopped), since=life.since) for life in lives[1:]]
    *before, last = first, *rest
    ended = [
        replace(one, until=min(following.since, inf if one.until is None else one.until))
        for one, following in zip(before, rest, strict=True)
    ]
    return [*ended, last]


def find_made(cluster: Cluster, kept: Collection[str], lives: Sequence[Life]) -> frozenset[str]:
    """The nodes that were made, by what is `kept` on disk of their making, by their lives, and by
    the record: but an `up` that was cut off may only have planned them again."""
    ended = {item.node for item in cluster.charges if item.until is not None}
    planned = {item.node for item in cluster.charges if item.until is None and item.part != DISK}
    again = ended & planned if cluster.phase is Phase.CREATING else set()
    nodes = {node.name for node in cluster.nodes} - again
    return frozenset({*kept, *nodes, *find_seen(cluster), *(life.node for life in lives)})


def find_seen(cluster: Cluster) -> frozenset[str]:
    """The nodes, and GATEWAY, that were there when a command began which has not finished: what is
    open on the record of a `down`, and on that of an `up` what is older than its plan."""
    plan = max((item.since for item in cluster.charges), default=0.0)
    whole = cluster.phase is Phase.DELETING
    older = cluster.phase is Phase.CREATING
    return frozenset(
        _name_owner(item)
        for item in cluster.charges
        if item.part in ("instance", GATEWAY)
        and item.until is None
        and (whole or (older and item.since < plan))
    )


def _charge_life(item: Charge, life: Life, stopped: bool) -> Charge:
    """A machine that was stopped and started again has its last start alone. One that is older than
    its plan was made by an `up` that was cut off."""
    if stopped and item.until is not None and life.since > item.until:
        return item  # it was started again since
    since = life.since if life.since < item.since + SLACK else item.since
    until = item.until if life.until is None else max(since, life.until)
    if stopped and item.until is not None and until is not None:
        until = min(until, item.until)
    return replace(item, since=since, until=until)


def _extend_last(
    charges: Sequence[Charge], living: Collection[str], ends: Mapping[str, Ended]
) -> tuple[Charge, ...]:
    """A machine that lives, or ended later than was planned, is paid for: what ended last goes on,
    or went on until then."""
    parts = [item for item in charges if item.part not in NETWORK_PARTS]  # which never end before
    paid = {item.node for item in parts if item.until is None}
    last: dict[str, float] = {}
    for item in charges:
        last[item.node] = max(last.get(item.node, 0.0), item.until or 0.0)

    def prolong(item: Charge) -> Charge:
        if item.node in paid or item.until is None or item.until != last[item.node]:
            return item
        if item.node in living:
            return replace(item, until=None)
        end = ends.get(item.node)
        return replace(item, until=max(item.until, end.when)) if end else item

    return tuple(map(prolong, charges))
