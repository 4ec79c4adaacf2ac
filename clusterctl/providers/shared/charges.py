"""Sums of what machines cost, and when a cloud has removed them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from clusterctl.charge_model import NETWORK_PARTS, Charge


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
