"""Sums of what machines cost, and when a cloud has removed them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from clusterctl.core.model import (
    GATEWAY,
    HOURS_PER_MONTH,
    NETWORK_PARTS,
    Charge,
    Cluster,
    ClusterSpec,
)
from clusterctl.core.text import format_time
from clusterctl.errors import UsageError


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


# -------------------------------------------------------------------------------------------------
# --budget and --max-hourly: how long a budget lasts, and what it refuses. Pure; US dollars.


SHORTEST_MONTH = 28 * 24.0
"""Hours of February: a disk's price per month is due in each one."""
LEAST = 60.0
"""Seconds that machines get whose budget is spent: their agents look at the deadline by then."""
SHORTEST = 600.0
"""Seconds of the shortest life that is worth starting: machines take minutes to get ready."""


def _exceeds(dollars: float, budget: float) -> bool:
    """By what is shown of it: whole cents."""
    return dollars > budget + 0.005


def _require_prices(option: str, charges: Iterable[Charge]) -> float:
    """US dollars per hour of what is to run. Raises UsageError where a price is unknown."""
    rate, unknown = sum_hourly(charges)
    if unknown:
        raise UsageError(
            f"{option} needs every price, but the price of {', '.join(unknown)} is unknown",
            hint=f"leave {option} out, or choose an instance type and a region with a known price",
        )
    return rate


def check_hourly(most: float, charges: Iterable[Charge]) -> None:
    """Raises UsageError where what is to run costs more per hour, or where a price is unknown."""
    if most and (rate := _require_prices("--max-hourly", charges)) > most + 0.00005:
        raise UsageError(
            f"that costs up to ${rate:.2f}/h, more than --max-hourly {most:.2f}",
            hint="fewer --workers, a smaller type, or a higher --max-hourly",
        )


def estimate_after_deadline(charges: Iterable[Charge]) -> float:
    """US dollars that a NAT gateway and its address may cost beyond their price per hour until the
    deadline: every hour that has begun counts, and AWS removes them later than the machines."""
    begun = {GATEWAY: 1.0}
    return sum(
        (item.hourly or 0.0) * (begun.get(item.part, 0.0) + REMOVED[item.part] / 3600)
        for item in charges
        if item.part in NETWORK_PARTS and item.until is None
    )


def estimate_overrun(charges: Iterable[Charge]) -> float:
    """US dollars that machines may cost after the deadline, if they do not end themselves then."""
    return sum_hourly(i for i in charges if i.part not in NETWORK_PARTS)[0] * ENDED / 3600


def compute_affordable_time(budget: float, charges: Iterable[Charge], spent: float) -> float:
    """Seconds that a budget in US dollars lasts in any month, with what comes after the deadline.
    Raises UsageError where a price is unknown or nothing is left."""
    charges = tuple(charges)
    _require_prices("--budget", charges)
    left = budget - spent - estimate_after_deadline(charges)
    if left <= 0:
        raise UsageError(
            f"--budget ${budget:.2f} is spent: ${budget - left:.2f} so far",
            hint="raise it, or take the cluster down",
        )
    return max(0.0, left / _compute_highest_rate(charges) * 3600 - ENDED)


def _compute_highest_rate(charges: Sequence[Charge]) -> float:
    """US dollars per hour in the shortest month."""
    disks, _ = sum_hourly(item for item in charges if item.part == "disk")
    return sum_hourly(charges)[0] + disks * (HOURS_PER_MONTH / SHORTEST_MONTH - 1)


def limit_life(options: ClusterSpec, charges: Sequence[Charge], now: float) -> float:
    """Seconds that machines which are about to start can run for the budget. Raises UsageError
    where they would end before they are ready, too."""
    budget, spent = options.cloud.budget, options.cloud.spent + _sum_spent(charges, now)
    lasts = compute_affordable_time(budget, charges, spent)
    if lasts < SHORTEST:
        least = spent + estimate_after_deadline(charges)
        least += _compute_highest_rate(charges) * (SHORTEST + ENDED) / 3600
        raise UsageError(
            f"--budget {budget:g} lasts for {lasts:.0f} s: the machines would end"
            " before they are ready",
            hint=f"give at least {least + 0.01:.2f}, fewer --workers or a smaller type",
        )
    return lasts


def check_until(
    options: ClusterSpec, charges: Sequence[Charge], deadline: float, now: float
) -> None:
    """Raises UsageError where the budget does not last until the deadline of machines that run, or
    where a price is unknown."""
    budget, spent = options.cloud.budget, _sum_cost(options, charges, now)
    seconds = compute_affordable_time(budget, charges, spent)
    total = _sum_cost_until(options, charges, deadline)
    if _exceeds(total, budget):
        more, minutes = f"--budget {total + 0.01:.2f}", int(seconds / 60)
        sooner = f"first an earlier end: `clusterctl extend {options.name} --ttl {minutes}m`"
        raise UsageError(
            f"until {format_time(deadline)} that costs ${total:.2f}, more than --budget"
            f" {budget:.2f}",
            hint=f"{more}, fewer --workers, or {sooner}"
            if minutes > 0
            else f"{more}, or `clusterctl down {options.name}`: ${spent:.2f} is spent already",
        )


def shorten(options: ClusterSpec, charges: Sequence[Charge], deadline: float, now: float) -> float:
    """The deadline, or an earlier one where the budget does not last until then: machines may have
    run in other zones before those that run now."""
    budget = options.cloud.budget
    total = _sum_cost_until(options, charges, deadline)
    if not _exceeds(total, budget) or sum_hourly(charges)[1]:
        return deadline
    try:
        seconds = compute_affordable_time(budget, charges, _sum_cost(options, charges, now))
    except UsageError:
        seconds = LEAST
    return float(int(min(deadline, now + max(seconds, LEAST))))


def _sum_cost(options: ClusterSpec, charges: Iterable[Charge], now: float) -> float:
    return options.cloud.spent + sum(charge.compute_dollars(now) for charge in charges)


def _sum_cost_until(options: ClusterSpec, charges: Sequence[Charge], deadline: float) -> float:
    """US dollars if nobody runs `down`."""
    return options.cloud.spent + sum_until_removed(charges, deadline) + estimate_overrun(charges)


def check_extension(cluster: Cluster, end: float, dollars: float) -> None:
    """`dollars`: what a later deadline makes the cluster cost. Raises UsageError where its budget
    is less, or where a price is unknown of what is to run longer."""
    budget, name = cluster.spec.cloud.budget, cluster.name
    dollars += estimate_overrun(cluster.charges) + cluster.spec.cloud.spent
    later = not cluster.deadline or end > cluster.deadline
    _, unknown = sum_hourly(cluster.charges)
    if budget and later and unknown:
        raise UsageError(
            f"the price of {', '.join(unknown)} is unknown, and the cluster's budget is"
            f" ${budget:.2f}: clusterctl cannot tell whether it lasts until then",
            hint=f"`clusterctl down {name}`, and create it again without --budget",
        )
    if budget and _exceeds(dollars, budget):
        raise UsageError(
            f"that would cost ${dollars:.2f}, and the cluster's budget is ${budget:.2f}",
            hint=f"`clusterctl up {name} --budget {dollars + 0.01:.2f}` or a shorter --ttl",
        )


def take_off(spec: ClusterSpec, dollars: float) -> ClusterSpec:
    """The options for another region, after so much was spent in the one before. Raises UsageError
    where that was all of the budget."""
    budget, spent = spec.cloud.budget, spec.cloud.spent + dollars
    if budget and budget <= spent:
        raise UsageError(
            f"--budget ${budget:.2f} is spent: ${spent:.2f} in other regions",
            hint="nothing is left running; give a higher --budget, or name other --regions",
        )
    return replace(spec, cloud=replace(spec.cloud, spent=spent))


def _sum_spent(charges: Sequence[Charge], now: float) -> float:
    """US dollars that a cluster which is made again has cost before: by machines that have ended,
    and by a NAT gateway, which has not."""
    return sum(
        charge.compute_dollars(now)
        for charge in charges
        if charge.until is not None or (charge.part in NETWORK_PARTS and charge.since < now)
    )
