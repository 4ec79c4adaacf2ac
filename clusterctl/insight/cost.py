"""Money of a cluster, from the charges in its record. Pure; US dollars, seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from clusterctl.core.model import NETWORK_PARTS, Charge


def sum_dollars(charges: Iterable[Charge], now: float) -> float:
    """Spent so far, without what has no known price."""
    return sum(charge.compute_dollars(now) for charge in charges)


def sum_hourly(charges: Iterable[Charge]) -> float:
    """What runs now costs this much, without what has no known price."""
    return sum(charge.hourly or 0.0 for charge in charges if charge.until is None)


def list_unpriced(charges: Iterable[Charge]) -> tuple[str, ...]:
    """Items whose price nobody said."""
    return tuple(dict.fromkeys(charge.item for charge in charges if charge.hourly is None))


def sum_between(charges: Iterable[Charge], start: float, end: float, now: float) -> float:
    """Spent from `start` to `end`; the minute that is billed at least begins with the charge."""
    return sum(
        item.sum_between(max(start, item.since), min(end, item.since + item.count_seconds(now)))
        for item in charges
    )


def is_exact(charges: Iterable[Charge]) -> bool:
    """Whether every price is known."""
    return all(item.hourly is not None for item in charges)


def describe_stored(charges: Iterable[Charge]) -> str:
    """What goes on costing money while machines are stopped, in words."""
    network = any(item.part in NETWORK_PARTS and item.until is None for item in charges)
    return "disks and NAT gateway" if network else "disks"


def render_cost(dollars: float, exact: bool, digits: int = 2) -> str:
    """`$1.10`, or `at least $1.10` without what has no known price."""
    return f"{'' if exact else 'at least '}${dollars:.{digits}f}"


class Line(Struct, frozen=True):
    """One row of a receipt: equal items folded. `hours` is their sum; `dollars` None: unknown."""

    part: str
    item: str
    count: int
    hours: float
    hourly: float | None
    dollars: float | None


def make_receipt(charges: Sequence[Charge], now: float) -> tuple[Line, ...]:
    """Hours × price by part, in the order in which they were first charged; without what was
    removed before it was there."""
    groups: dict[tuple[str, str, float | None], list[Charge]] = {}
    for charge in charges:
        if not charge.count_seconds(now):
            continue
        groups.setdefault((charge.part, charge.item, charge.hourly), []).append(charge)
    lines = []
    for (part, item, hourly), mine in groups.items():
        hours = sum(charge.count_seconds(now) for charge in mine) / 3600
        total = None if hourly is None else sum_dollars(mine, now)
        lines.append(Line(part, item, len(mine), hours, hourly, total))
    order = ("instance", "disk", "address", *NETWORK_PARTS)
    return tuple(sorted(lines, key=lambda line: order.index(line.part)))
