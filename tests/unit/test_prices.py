"""What a cluster on EC2 costs: where a price is from, the plan's table, how long a budget lasts."""

from __future__ import annotations

import time

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.core import catalog
from clusterctl.core.model import NETWORK_PARTS, Charge
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import charges as machines_charges
from clusterctl.machines.ec2 import prices
from clusterctl.machines.ec2.prices import Quote
from clusterctl.machines.ec2.spec import PlannedMachine
from clusterctl.machines.protocol import LAUNCHER

KNOWN = "g4dn.xlarge"
LISTED = catalog.PRICES[KNOWN].dollars
ZONE = "us-east-1b"


class Aws(Struct):
    """An account whose price list and spot prices are these; what is in neither is not priced."""

    on_demand: dict[str, float] = field(default_factory=dict)
    spot: dict[tuple[str, str], float] = field(default_factory=dict)
    silent: bool = False
    region: str = "us-east-1"

    def find_price(self, kind: str) -> float | None:
        if self.silent:
            raise ProviderError("AWS did not answer")
        return self.on_demand.get(kind)

    def find_spot_price(self, kind: str, *zones: str) -> float | None:
        if self.silent:
            raise ProviderError("AWS did not answer")
        return max((self.spot[kind, zone] for zone in zones), default=None)


def quotes(
    aws: Aws, *types: str, spot: tuple[str, ...] = (), zones: tuple[str, ...] = (ZONE,)
) -> tuple[dict[str, Quote], list[str]]:
    told: list[str] = []
    return prices.find_quotes(aws, types, spot=spot, zones=zones, report=told.append), told


def test_a_live_price_wins_over_the_table() -> None:
    found, told = quotes(Aws({KNOWN: 9.0, "t3.small": 8.0}), KNOWN, "t3.small", KNOWN)
    assert (found[KNOWN].dollars, found["t3.small"].dollars) == (9.0, 8.0)
    assert found[KNOWN].source == f"AWS price list, {time.strftime('%Y-%m-%d')}"
    assert told == []
    assert not {prices.NAT, prices.NAT_TRAFFIC} & found.keys(), "only private workers need one"


def test_a_spot_price_is_that_of_its_zone() -> None:
    aws = Aws({KNOWN: 9.0}, {(KNOWN, ZONE): 0.2, (KNOWN, "us-east-1a"): 0.1})
    worker = prices.name_worker_row(KNOWN)
    found, _ = quotes(aws, spot=(KNOWN,))
    assert found[worker].dollars == 0.2
    assert found[worker].source.startswith("AWS spot price, ")
    # Where it may move to another zone, it may cost what it does there.
    found, _ = quotes(aws, spot=(KNOWN,), zones=("us-east-1a", ZONE))
    assert found[worker].dollars == 0.2


def test_a_launcher_of_the_type_of_spot_workers_costs_the_whole_price() -> None:
    machines = [
        PlannedMachine(name=n, instance_type=KNOWN, image="cpu", disk=30)
        for n in ("launcher", "worker-1")
    ]
    aws = Aws({KNOWN: 9.0}, {(KNOWN, ZONE): 0.2, (KNOWN, "us-east-1a"): 0.1})
    found, _ = quotes(aws, KNOWN, spot=(KNOWN,))
    made = prices.build_charges(machines, found, 10.0)
    assert [item.hourly for item in made if item.part == "instance"] == [9.0, 0.2]
    found, _ = quotes(aws, KNOWN, spot=(KNOWN,), zones=("us-east-1a",))
    moved = prices.requote(made, found, {"launcher", "worker-1"})
    assert [item.hourly for item in moved if item.part == "instance"] == [9.0, 0.1]


def test_aws_that_does_not_answer_costs_one_line() -> None:
    """The table stands in for on-demand prices of its region; no table has spot prices."""
    found, told = quotes(Aws(silent=True), "t3.small", "t3.micro", spot=(KNOWN,))
    assert told == ["prices from the package's table: AWS did not answer"]
    assert found["t3.small"] == prices.look_up_fallback("t3.small", "us-east-1")
    assert found["t3.small"].dollars == catalog.PRICES["t3.small"].dollars
    assert found[prices.name_worker_row(KNOWN)] == Quote(None, "unknown")


def test_the_table_says_where_its_prices_are_from() -> None:
    row = catalog.PRICES[KNOWN]
    assert prices.look_up_fallback(KNOWN, "us-east-1") == Quote(
        LISTED, f"{row.source}, read {row.date}"
    )
    for kind, region in ((KNOWN, "eu-west-1"), ("x9.huge", "us-east-1")):
        assert prices.look_up_fallback(kind, region) == Quote(None, "unknown")


MACHINES = (
    PlannedMachine(name=LAUNCHER, instance_type="t3.small", image="launcher", disk=30),
    PlannedMachine(name="worker-1", instance_type=KNOWN, image="nvidia", disk=100),
    PlannedMachine(name="worker-2", instance_type=KNOWN, image="nvidia", disk=100),
)
QUOTES = {
    "t3.small": Quote(0.5, "the list"),
    KNOWN: Quote(2.0, "the market"),
    prices.DISK: prices.look_up_fallback(prices.DISK, "us-east-1"),
    prices.ADDRESS: prices.look_up_fallback(prices.ADDRESS, "us-east-1"),
}


def charges(**changes: Quote) -> tuple[Charge, ...]:
    return prices.build_charges(MACHINES, {**QUOTES, **changes}, 10.0)


def test_every_part_of_a_machine_is_charged() -> None:
    month = catalog.PRICES[prices.DISK].dollars
    address = catalog.PRICES[prices.ADDRESS].dollars
    found = {(charge.node, charge.part): charge for charge in charges()}
    assert len(found) == 9
    worker = [found["worker-1", part] for part in ("instance", "disk", "address")]
    assert [charge.hourly for charge in worker] == [2.0, month * 100 / 730, address]
    assert [charge.item for charge in worker] == [KNOWN, "100 GiB gp3", prices.ADDRESS]
    assert worker[0].source == "the market"
    assert {charge.since for charge in found.values()} == {10.0}
    assert found[LAUNCHER, "disk"].hourly == pytest.approx(month * 30 / 730)
    [disk] = prices.build_charges(
        [replace(MACHINES[1], faster=125)],
        {**QUOTES, prices.THROUGHPUT: Quote(40.96, "the list")},
        10.0,
    )[1:2]
    assert disk.item == "100 GiB gp3 at 250 MB/s"
    assert disk.hourly == pytest.approx((100 * month + 125 * 0.04) / 730)
    known = {item: quote for item, quote in QUOTES.items() if item != KNOWN}
    dark = prices.build_charges(MACHINES, known, 10.0)
    assert {(i.hourly, i.source) for i in dark if i.item == KNOWN} == {(None, "unknown")}


LIVE = {KNOWN: 2.0, "t3.small": 0.5, prices.DISK: 0.1, prices.ADDRESS: 0.006}


def test_every_region_has_its_own_prices_of_disks_and_addresses() -> None:
    """A budget is kept by them: in Frankfurt a disk costs more than in Virginia."""
    elsewhere = Aws(LIVE, region="eu-central-1")
    found, _ = quotes(elsewhere, "t3.small", KNOWN)
    worker = {item.part: item.hourly for item in prices.build_charges(MACHINES, found, 10.0)}
    assert worker == {"instance": 2.0, "disk": 0.1 * 100 / 730, "address": 0.006}
    assert (
        machines_charges.compute_affordable_time(
            10.0, prices.build_charges(MACHINES, found, 10.0), 0.0
        )
        > 3600
    )
    # Only where nobody can be asked they are unknown: the table is that of one region.
    found, _ = quotes(replace(elsewhere, silent=True), "t3.small", KNOWN)
    assert {item.hourly for item in prices.build_charges(MACHINES, found, 10.0)} == {None}


def test_private_workers_cost_a_nat_gateway_and_no_addresses() -> None:
    """The gateway is billed by the hour that has begun, and until `down`: its table says so."""
    live = {**LIVE, prices.NAT: 0.05, prices.NAT_TRAFFIC: 0.045, "t3.micro": 0.01}
    told: list[str] = []
    found = prices.find_quotes(
        Aws(live), ("t3.small", KNOWN), spot=(), zones=(), report=told.append, nat=True
    )
    made = prices.build_charges(MACHINES, found, 10.0, private=True)
    assert [item.node for item in made if item.part == "address"] == [LAUNCHER]
    gateway, address = (item for item in made if item.part in NETWORK_PARTS)
    assert (gateway.node, gateway.hourly, address.hourly) == (LAUNCHER, 0.05, 0.006)
    assert gateway.compute_dollars(70.0) == pytest.approx(0.05)
    assert gateway.compute_dollars(10.0 + 3601) == pytest.approx(0.10)
    lines = prices.render_table(MACHINES, made, ZONE, 3600.0, 0.09, 0.045)
    assert any("$0.0560/h until `clusterctl down`" in line for line in lines)
    assert any("$0.045 for each GB" in line for line in lines)
    assert [line.split()[8] for line in lines if " worker " in line] == ["$0.0000"], "addresses"
    dark = [replace(item, hourly=None) if item is gateway else item for item in made]
    lines = prices.render_table(MACHINES, dark, ZONE, 3600.0)
    assert any("its address: ?/h until `clusterctl down`" in line for line in lines)
    lines = prices.render_table(MACHINES, [i for i in made if i is not gateway], ZONE, 3600.0)
    assert not any("of the private workers" in line for line in lines)
    weeks = 1000 * machines_charges.sum_hourly(made)[0]
    weeks += machines_charges.estimate_after_deadline(made)
    lines = prices.render_table(MACHINES, made, ZONE, 3600 * 1000.0)
    assert any(f", ${weeks:.2f} until the deadline in 1,000.0 h" in line for line in lines)
    alone = [item for item in made if item.part not in NETWORK_PARTS]
    assert machines_charges.sum_hourly(made)[0] == pytest.approx(
        machines_charges.sum_hourly(alone)[0] + 0.056
    )
    silent, _ = quotes(Aws(LIVE), "t3.small", KNOWN)
    assert not [i for i in prices.build_charges(MACHINES, silent, 0.0) if i.part in NETWORK_PARTS]


def test_one_price_is_unknown_where_nobody_tells_it() -> None:
    """Of a spot instance no table has one: that of its type on demand is another."""
    elsewhere = Aws({KNOWN: 9.0}, {(KNOWN, ZONE): 0.2}, region="eu-central-1")
    assert prices.find_quote(elsewhere, KNOWN).dollars == 9.0
    assert prices.find_quote(elsewhere, KNOWN, ZONE).dollars == 0.2
    assert prices.find_quote(elsewhere, "m7.unheard") == Quote(None, "unknown")
    silent = Aws(silent=True)
    assert prices.find_quote(silent, KNOWN).dollars == LISTED
    assert prices.find_quote(silent, KNOWN, ZONE) == Quote(None, "unknown")


def test_what_costs_more_per_hour_than_agreed_is_refused() -> None:
    found, _ = quotes(Aws(LIVE), "t3.small", KNOWN)
    made = prices.build_charges(MACHINES, found, 10.0)
    rate, _ = machines_charges.sum_hourly(made)
    machines_charges.check_hourly(0.0, made)
    machines_charges.check_hourly(rate, made)
    with pytest.raises(
        UsageError, match=rf"up to \${rate:.2f}/h, more than --max-hourly 4.00"
    ) as caught:
        machines_charges.check_hourly(4.0, made)
    assert "a higher --max-hourly" in caught.value.hint
    with pytest.raises(UsageError, match=f"price of {KNOWN} is unknown") as caught:
        machines_charges.check_hourly(4.0, charges(**{KNOWN: Quote(None, "unknown")}))
    assert "a region with a known price" in caught.value.hint


def test_what_runs_is_summed_and_what_is_unknown_is_named() -> None:
    priced, unpriced, over = charges()[0], replace(charges()[3], hourly=None), charges()[6]
    running = (priced, unpriced, replace(over, until=20.0))
    assert machines_charges.sum_hourly(running) == (0.5, (KNOWN,))


@pytest.mark.parametrize(("spent", "seconds"), [(0.0, 5 * 3600.0), (9.5, 900.0), (9.95, 120.0)])
def test_a_budget_lasts_as_long_as_what_is_left_of_it(spent: float, seconds: float) -> None:
    """A machine that does not end itself is ended by AWS within two minutes of the deadline."""
    one = replace(charges()[3], hourly=2.0)
    assert machines_charges.compute_affordable_time(10.0, [one], spent) == pytest.approx(
        seconds - 120
    )


def test_a_budget_lasts_in_february_too() -> None:
    """A disk's price per month is due in 28 days."""
    disk = replace(charges()[3], part="disk", hourly=2.0, since=1769904000.0)
    seconds = machines_charges.compute_affordable_time(10.0, [disk], 0.0)
    assert disk.compute_dollars(disk.since + seconds + 120) == pytest.approx(10.0)


def test_a_budget_lasts_for_what_a_nat_gateway_costs_after_the_deadline() -> None:
    """AWS bills each hour of it that has begun, and removes it and its address later."""
    since = 1.77e9
    parts = (*NETWORK_PARTS, "instance")
    mine = [replace(charges()[3], part=part, hourly=0.5, since=since) for part in parts]
    for dollars in (2.5, 3.0, 3.1, 3.9):
        deadline = since + machines_charges.compute_affordable_time(dollars, mine, 0.0)
        gateway, address, machine = mine
        spent = machine.compute_dollars(deadline) + gateway.compute_dollars(deadline + 60)
        assert spent + address.compute_dollars(deadline + 900) <= dollars
        assert machine.compute_dollars(deadline) > 0.2
    with pytest.raises(UsageError, match=r"--budget \$0.60 is spent"):
        machines_charges.compute_affordable_time(0.6, mine, 0.0)


def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    one = charges()[3]
    with pytest.raises(UsageError) as caught:
        machines_charges.compute_affordable_time(10.0, [replace(one, hourly=None)], 0.0)
    assert KNOWN in caught.value.message
    assert "leave --budget out" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        machines_charges.compute_affordable_time(10.0, [one], 10.0)
    assert "$10.00 is spent" in caught.value.message
    assert caught.value.hint


def table(*found: Charge) -> list[str]:
    return list(prices.render_table(MACHINES, found, ZONE, 7200.0))


def test_workers_at_another_price_have_a_row_of_their_own() -> None:
    """One that is on-demand where the others are spot instances."""
    made = charges()
    last = next(item for item in reversed(made) if item.part == "instance")
    dear = [replace(item, hourly=6.0) if item is last else item for item in made]
    _, _, first, second, *_ = table(*dear)
    assert [line.split()[0:3:2] for line in (first, second)] == [["1", KNOWN], ["1", KNOWN]]
    assert [line.split()[6] for line in (first, second)] == ["$2.0000", "$6.0000"]


def test_the_plan_folds_equal_machines_and_adds_up() -> None:
    month, address = catalog.PRICES[prices.DISK].dollars, catalog.PRICES[prices.ADDRESS].dollars
    disks = [month * 30 / 730, 2 * month * 100 / 730]
    head, launcher, workers, total, *sources = table(*charges())
    assert head.split("  ")[0] == "nodes"
    assert head.split()[:4] == ["nodes", "type", "zone", "disk"]
    assert head.endswith("$/h")
    assert launcher.split() == [
        *["1", "launcher", "t3.small", ZONE, "30", "GiB", "$0.5000"],
        *[f"${disks[0]:.4f}", f"${address:.4f}", f"${0.5 + disks[0] + address:.4f}"],
    ]
    assert workers.split() == [
        *["2", "worker", KNOWN, ZONE, "100", "GiB", "$4.0000"],
        *[f"${disks[1]:.4f}", f"${2 * address:.4f}", f"${4 + disks[1] + 2 * address:.4f}"],
    ]
    # Columns stand below each other.
    assert head.index("type") == launcher.index("t3.small") == workers.index(KNOWN)
    assert launcher == launcher.strip()
    rate = 4.5 + sum(disks) + 3 * address
    assert total.startswith(f"${rate:.4f}/h, ${2 * rate:.2f} until the deadline in 2.0 h")
    assert total.endswith("; traffic to the internet is extra")
    assert "(up to $0.09 per GB)" in prices.render_table(MACHINES, charges(), ZONE, 7200.0, 0.09)[3]
    assert [line.partition(": ")[0::2] for line in sources] == [
        ("prices of instances", "the list"),
        ("prices of disks, public IPv4", prices.look_up_fallback(prices.DISK, "us-east-1").source),
        ("prices of instances", "the market"),
    ]


def test_the_plan_with_an_unknown_price_is_a_lower_bound() -> None:
    found = charges(**{KNOWN: Quote(None, "unknown")})
    _, launcher, workers, total, *rest = table(*found)
    assert "?" not in launcher
    assert workers.split()[6] == workers.split()[-1] == "?"
    assert total.startswith("at least $")
    assert ", at least $" in total
    assert [line for line in rest if line.startswith("?")] == [f"? price of {KNOWN} unknown"]
    assert not any("prices of" in line and "unknown" in line for line in rest)


def test_the_plan_leaves_out_what_has_ended() -> None:
    over = replace(charges()[3], until=5.0, hourly=77.0, source="long ago")
    assert table(over, *charges()) == table(*charges())
