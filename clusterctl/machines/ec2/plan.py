"""What `up` says of a cluster on EC2 before it makes one: its place, its costs, its end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from clusterctl.core import catalog
from clusterctl.core.model import Charge, Reporter, Runtime, shorten
from clusterctl.core.text import count, format_span, format_time
from clusterctl.errors import ProviderError
from clusterctl.machines import charges as machines_charges
from clusterctl.machines.ec2 import prices, schedules
from clusterctl.machines.ec2.api import Instance
from clusterctl.machines.ec2.preflight import Survey
from clusterctl.machines.protocol import LAUNCHER, MAKES_IMAGE


def name_mode(region: str, spot: bool, on_demand: Sequence[str] = ()) -> str:
    """`on_demand`: the workers that are so beside spot instances."""
    beside = f" ({shorten(on_demand)} on-demand)" if on_demand else ""
    return f"{region}, spot{beside}" if spot else region


def has_fallen_back(instances: Sequence[Instance]) -> bool:
    """Whether all workers are on-demand that were asked for as spot instances."""
    workers = [item for item in instances if item.node != LAUNCHER]
    return bool(workers) and not any(item.spot for item in workers)


def requote(
    found: Survey, charges: Sequence[Charge], names: Collection[str], zone: str, report: Reporter
) -> tuple[Charge, ...]:
    """The charges with these nodes as spot instances of a zone, or on-demand (zone "")."""
    return prices.requote(charges, quote_machines(found, (zone,) if zone else (), report), names)


def quote_machines(found: Survey, spot: Sequence[str], report: Reporter) -> dict[str, prices.Quote]:
    """`spot`: the zones where workers may be spot instances; on demand without any."""
    machines = found.machines
    workers = {m.instance_type for m in machines if m.name != LAUNCHER}
    return prices.find_quotes(
        found.api,
        [m.instance_type for m in machines if m.name == LAUNCHER or not spot],
        spot=workers if spot else (),
        zones=spot,
        report=report,
        nat=found.nat,
        faster=any(machine.faster for machine in machines),
    )


class Estimate(Struct, frozen=True):
    """What a plan costs; `dear`: at most, in another zone or on demand, for which a budget has to
    last. `traffic`, `nat_traffic`: dollars for a GB to the internet, through a NAT gateway."""

    charges: tuple[Charge, ...]
    dear: tuple[Charge, ...]
    traffic: float | None
    nat_traffic: float | None = None


def estimate(
    found: Survey,
    old: Sequence[Charge],
    now: float,
    *,
    spot: bool,
    on_demand: Collection[str] = (),
    report: Reporter,
) -> Estimate:
    """`old`: the charges so far. `spot`: whether the workers are to be spot instances, but for
    those in `on_demand`, which are started again as what they are."""
    cloud = found.options.cloud

    def charge(zones: Sequence[str]) -> tuple[tuple[Charge, ...], dict[str, prices.Quote]]:
        quoted = quote_machines(found, zones, report)
        hidden = cloud.private and cloud.instance_connect
        new = prices.build_charges(
            found.machines, quoted, now, private=cloud.private, hidden=hidden
        )
        merged = prices.merge(old, new, now)
        if zones and on_demand:
            merged = requote(found, merged, on_demand, "", report)
        return merged, quoted

    usual, quoted = charge(found.zones[:1] if spot else ())
    dear = usual
    if spot and (cloud.spot_fallback or len(found.zones) > 1):
        dear, _ = charge(() if cloud.spot_fallback else found.zones)
    nat = quoted[prices.NAT_TRAFFIC].dollars if found.nat else None
    return Estimate(usual, dear, quoted[prices.TRAFFIC].dollars, nat)


def describe_plan(
    found: Survey,
    cost: Estimate,
    *,
    ssh: str,
    stopped: Collection[str],
    deadline: float,
    now: float,
) -> Iterator[str]:
    """The plan, line by line: where the machines go, what they cost and when they end. `ssh`: who
    may connect; `stopped`: the machines that start again."""
    api, options, cloud = found.api, found.options, found.options.cloud
    others = f" (then {', '.join(found.zones[1:])})" if len(found.zones) > 1 else ""
    yield (
        f"AWS account {found.account}, {api.region}, zone {found.zones[0]}{others}; {found.engine}"
    )
    for zone, place in found.subnets.items():
        apart = place.launcher != place.workers
        out = f" without public addresses, and reach the internet through {place.out}" * bool(
            place.out
        )
        yield (
            f"{'workers' if apart else 'machines'} go into {place.workers} ({zone}){out}"
            + f"; the launcher goes into {place.launcher}" * apart
        )
    if found.nat:
        who = "machines" if cloud.instance_connect else "workers"
        yield f"{who} have no public addresses: they reach the internet through a NAT gateway"
    if cloud.tag:
        yield f"tags of all that is made: {', '.join(cloud.tag)}"
    yield ssh
    yield from prices.render_table(
        found.machines,
        cost.charges,
        found.zones[0],
        deadline - now,
        cost.traffic,
        cost.nat_traffic,
    )
    for kind in dict.fromkeys(m.instance_type for m in found.machines if m.name != LAUNCHER):
        # They have `standard` credits, so that none is billed.
        if baseline := catalog.find_baseline(kind):
            yield (
                f"{kind} is burstable: it starts with few CPU credits or none, and without them it"
                f" runs at {baseline} % of its speed; {catalog.FAMILIES['cpu'].instance_type}"
                " always runs at full speed"
            )
    if options.runtime is Runtime.HOST:
        yield (
            "ranks run on the machines themselves (--runtime host), in a Python environment that is"
            " installed there; --runtime docker runs them in containers"
        )
    for workers in sorted({m.image for m in found.machines} - {LAUNCHER}):
        own = found.amis[workers]
        if workers in found.saved:
            whose = (
                f"the image of {own.maker}" if own.maker not in ("", found.owner) else "your image"
            )
            yield f"{workers} workers have nothing to install: {whose} {own.name} ({own.id})"
        elif not (cloud.ami or options.name.startswith(f"{MAKES_IMAGE}{workers}-")):
            yield (
                f"`clusterctl image ami {workers}` makes a machine image with which {workers}"
                " workers have nothing to install"
            )
    if cloud.spot:
        instead = "a spot or on-demand" if cloud.spot_fallback else "a spot"
        yield (
            f"EC2 may reclaim spot workers: {instead} machine replaces each, started by `run"
            " --on-node-loss replace` while it follows the job, else by the next `logs -f` or `up`"
        )
    yield f"every node shuts down at {format_time(deadline)}, even if this machine is off"
    try:
        yield schedules.check_schedule(api, nat=found.nat)
    except ProviderError as error:
        yield (
            f"AWS itself terminates none of them ({error.message}): {schedules.UNGUARDED}"
            + "; the NAT gateway keeps costing money then" * found.nat
        )
    yield (
        f"unused workers end after {format_span(cloud.idle)} without a job or a login; the launcher"
        " keeps their logs and outputs, and ends when all are fetched (--idle off: none ends)"
        + "; the NAT gateway costs money until `down` or the deadline"
        * found.nat
        if cloud.idle
        else "unused machines keep running until the deadline (--idle off)"
    )
    for name in sorted(stopped):
        yield f"{name} was stopped and is started again"


def render_question(machines: int, charges: Sequence[Charge], seconds: float) -> str:
    """The question that needs consent; "" if no machine starts."""
    if not machines:
        return ""
    rate, unknown = machines_charges.sum_hourly(charges)
    worst = prices.render_money(
        rate * seconds / 3600 + machines_charges.estimate_after_deadline(charges), 2
    )
    return f"start {count(machines, 'machine')} for up to {worst}{' and more' * bool(unknown)}?"
