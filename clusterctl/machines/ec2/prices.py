"""What a cluster costs: live prices where AWS answers, else the dated table, else `?`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.core import catalog
from clusterctl.core.clock import run_in_background
from clusterctl.core.model import (
    GATEWAY,
    GATEWAY_ADDRESS,
    HOURS_PER_MONTH,
    NETWORK_PARTS,
    Charge,
    Reporter,
)
from clusterctl.errors import ProviderError
from clusterctl.machines import charges as machines_charges
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.spec import PlannedMachine
from clusterctl.machines.protocol import LAUNCHER

ADDRESS, DISK, TRAFFIC = "public IPv4", "gp3 GiB-month", "GB to the internet"
THROUGHPUT = "gp3 GiBps-month"
SNAPSHOT = "snapshot GiB-month"
NAT, NAT_TRAFFIC = "NAT gateway", "GB through a NAT gateway"
"""Rows of catalog.PRICES that are no instance types."""


class Quote(Struct, frozen=True):
    """US dollars per hour, None: unknown. `source` is for people."""

    dollars: float | None
    source: str


def look_up_fallback(item: str, region: str) -> Quote:
    """From the dated table; another region than the table's has no price there."""
    known = catalog.PRICES.get(item)
    if known is None or region != catalog.PRICE_REGION:
        return Quote(None, "unknown")
    return Quote(known.dollars, f"{known.source}, read {known.date}")


def find_quote(api: Api, item: str, *zones: str, report: Reporter = lambda line: None) -> Quote:
    """Of an instance type, or of what a row of the table is called; of spot instances of a type in
    the dearest of these zones."""
    live = None
    try:
        live = api.find_spot_price(item, *zones) if zones else api.find_price(item)
    except ProviderError as error:
        report(f"prices from the package's table: {error.message}")
    if live is not None:
        source = "AWS spot price" if zones else "AWS price list"
        return Quote(live, f"{source}, {time.strftime('%Y-%m-%d')}")
    return Quote(None, "unknown") if zones else look_up_fallback(item, api.region)


def find_quotes(
    api: Api,
    types: Iterable[str],
    *,
    spot: Iterable[str],
    zones: Sequence[str],
    report: Reporter = lambda line: None,
    nat: bool = False,
    faster: bool = False,
) -> dict[str, Quote]:
    """A quote per instance type, per `name_worker_row` of those in `spot` (in the dearest of the
    zones), and per row of the table that is none, those of a NAT gateway with `nat`, of faster
    disks with `faster`. An API that does not answer costs one line, not the plan.
    """
    told: list[str] = []
    ask = partial(find_quote, api, report=told.append)
    usual = (*types, DISK, ADDRESS, TRAFFIC)
    items = dict.fromkeys((*usual, *(NAT, NAT_TRAFFIC) * nat, *(THROUGHPUT,) * faster))
    asked = {item: run_in_background(partial(ask, item)) for item in items}
    asked |= {name_worker_row(kind): run_in_background(partial(ask, kind, *zones)) for kind in spot}
    found = {item: answer.result() for item, answer in asked.items()}
    for line in told[:1]:
        report(line)
    return found


def name_worker_row(kind: str) -> str:
    """The row of a type whose workers have another price than the launcher: only they are spot
    instances."""
    return f"worker {kind}"


def _find_quote(quotes: Mapping[str, Quote], node: str, kind: str) -> Quote | None:
    own = None if node == LAUNCHER else quotes.get(name_worker_row(kind))
    return own or quotes.get(kind)


def price_disk(ask: Callable[[str], Quote], gib: float, faster: float) -> float | None:
    """US dollars an hour of a gp3 disk that has `faster` MB/s more than usual ones: AWS's price of
    those is of 1024. `ask`: the quote of a row of the table."""
    size, speed = ask(DISK).dollars, ask(THROUGHPUT).dollars if faster else 0.0
    if size is None or speed is None:
        return None
    return (size * gib + speed * faster / 1024) / HOURS_PER_MONTH


def build_charges(
    machines: Sequence[PlannedMachine],
    quotes: Mapping[str, Quote],
    since: float,
    *,
    private: bool = False,
    hidden: bool = False,
) -> tuple[Charge, ...]:
    """What every part of every machine costs per hour. `private`: workers have no public addresses;
    `hidden`: the launcher has none either. A NAT gateway is counted where it has a quote."""
    gib, address = quotes[DISK], quotes[ADDRESS]
    found: list[tuple[str, str, str, Quote]] = []
    if nat := quotes.get(NAT):
        found = [(LAUNCHER, GATEWAY, NAT, nat), (LAUNCHER, GATEWAY_ADDRESS, ADDRESS, address)]
    for machine in machines:
        name, kind = machine.name, machine.instance_type
        disk = price_disk(quotes.__getitem__, machine.disk, machine.faster)
        quote = _find_quote(quotes, name, kind) or Quote(None, "unknown")
        found.append((name, "instance", kind, quote))
        found.append((name, "disk", machine.describe_disk("gp3"), Quote(disk, gib.source)))
        if not (hidden if name == LAUNCHER else private):
            found.append((name, "address", ADDRESS, address))
    return tuple(
        Charge(
            node=node,
            part=part,
            item=item,
            hourly=quote.dollars,
            source=quote.source,
            since=since,
        )
        for node, part, item, quote in found
    )


def merge(old: Sequence[Charge], new: Sequence[Charge], now: float) -> tuple[Charge, ...]:
    """What has been running stays as it began; what is no longer wanted ends now."""
    key = {(charge.node, charge.part, charge.item): charge for charge in new}
    merged = []
    for charge in old:
        if charge.until is None and key.pop((charge.node, charge.part, charge.item), None) is None:
            charge = replace(charge, until=now)
        merged.append(charge)
    return (*merged, *key.values())


def requote(
    charges: Sequence[Charge], quotes: Mapping[str, Quote], nodes: Collection[str]
) -> tuple[Charge, ...]:
    """The instances of these nodes that run, at other prices, from their beginning."""
    return tuple(
        replace(charge, hourly=quote.dollars, source=quote.source)
        if charge.part == "instance"
        and charge.until is None
        and charge.node in nodes
        and (quote := _find_quote(quotes, charge.node, charge.item))
        else charge
        for charge in charges
    )


def render_rate(charges: Iterable[Charge]) -> str:
    """Dollars per hour of all that runs, for people."""
    dollars, unknown = machines_charges.sum_hourly(charges)
    return f"{'at least ' if unknown else ''}{render_money(dollars)}"


def render_money(dollars: float | None, digits: int = 4) -> str:
    return "?" if dollars is None else f"${dollars:.{digits}f}"


_PARTS = {"instance": "instances", "disk": "disks", "address": "public IPv4"}
_SOURCES = _PARTS | dict.fromkeys(NETWORK_PARTS, "NAT gateway")


def render_table(
    machines: Sequence[PlannedMachine],
    charges: Sequence[Charge],
    zone: str,
    seconds: float,
    traffic: float | None = None,
    nat_traffic: float | None = None,
) -> tuple[str, ...]:
    """The plan for people: equal machines folded, dollars per hour by part, and the sum until the
    deadline. `traffic`, `nat_traffic`: dollars for a GB to the internet, through a NAT gateway."""
    running = [charge for charge in charges if charge.until is None]
    hourly: dict[str, dict[str, float | None]] = {}
    for charge in running:
        hourly.setdefault(charge.node, {})[charge.part] = charge.hourly
    rows = Counter[tuple[str, str, str, tuple[float | None, ...]]]()
    for machine in machines:
        role = LAUNCHER if machine.name == LAUNCHER else "worker"
        each = tuple(hourly[machine.name].get(part, 0.0) for part in _PARTS)
        rows[role, machine.instance_type, machine.describe_disk(), each] += 1
    cells: list[tuple[str, ...]] = [("nodes", "type", "zone", "disk", *_PARTS.values(), "$/h")]
    for (role, kind, disk, each), number in rows.items():
        sums = [None if price is None else price * number for price in each]
        sums.append(None if None in sums else sum(price or 0.0 for price in sums))
        cells.append((f"{number} {role}", kind, zone, disk, *map(render_money, sums)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    network = [charge for charge in running if charge.part in NETWORK_PARTS]
    if any(charge.part == GATEWAY for charge in network):
        price = render_rate(network) if all(one.hourly is not None for one in network) else "?"
        lines.append(
            f"NAT gateway of the private workers, with its address: {price}/h until"
            " `clusterctl down`, also while the cluster is stopped, and"
            f" {render_money(nat_traffic, 3)} for each GB that they download"
        )
    rate, unknown = machines_charges.sum_hourly(charges)
    total = rate * seconds / 3600 + machines_charges.estimate_after_deadline(charges)
    lines.append(
        f"{render_rate(charges)}/h, {'at least ' if unknown else ''}{render_money(total, 2)} until"
        f" the deadline in {seconds / 3600:,.1f} h; traffic to the internet is extra"
        + (f" (up to {render_money(traffic, 2)} per GB)" if traffic else "")
    )
    lines += [f"? price of {item} unknown" for item in unknown]
    sources: dict[str, dict[str, None]] = {}
    for charge in running:
        if charge.hourly is not None:
            sources.setdefault(charge.source, {})[_SOURCES[charge.part]] = None
    lines += [f"prices of {', '.join(parts)}: {source}" for source, parts in sources.items()]
    return tuple(lines)
