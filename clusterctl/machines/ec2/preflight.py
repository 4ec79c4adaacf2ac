"""What can be known in seconds, before anything costs money: tools, credentials, limits, images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import TypeVar

from clusterctl.core import catalog
from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.core.model import Cluster, ClusterSpec, Reporter
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import images, prices, quotas, refusals, spec, storage, tunnels, update
from clusterctl.machines.ec2 import network as ec2_network
from clusterctl.machines.ec2.api import (
    Api,
    Image,
    Instance,
    InstanceType,
    choose_region,
    find_instances,
)
from clusterctl.machines.ec2.network import ZoneSubnets
from clusterctl.machines.ec2.prices import Reservation
from clusterctl.machines.ec2.spec import PlannedMachine
from clusterctl.machines.ec2.storage import FileSystem
from clusterctl.machines.ec2.tunnels import Existing
from clusterctl.machines.protocol import LAUNCHER, CheckRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What AWS has for us. `zones` are to be tried in this order, `amis` are by kind of image,
    `placement` are the types that may be in a cluster placement group (none of reserved machines,
    which are where they were made); `subnets` are by zone, none where the cluster makes a network
    of its own."""

    account: str
    machines: tuple[PlannedMachine, ...]
    types: Mapping[str, InstanceType]
    zones: tuple[str, ...]
    amis: Mapping[str, str]
    placement: frozenset[str]
    owner: str = ""
    subnets: Mapping[str, ZoneSubnets] = field(default_factory=dict)
    reservation: Reservation | None = None
    nat: bool = False
    """Whether the cluster makes a NAT gateway, for workers without public addresses."""
    theirs: Image | None = None
    """The machine image of --ami."""
    file_system: FileSystem | None = None
    """What the nodes share, where it is not the launcher's folder."""
    endpoint: Existing | None = None
    """What SSH comes through, where somebody else keeps it."""


def survey(
    api: Api,
    options: ClusterSpec,
    present: Mapping[str, str],
    zone: str,
    report: Reporter,
    there: Collection[str] = (),
    id: str = "",
) -> Survey:
    """`present`: the nodes there are, with their types; `zone`: where they are, "" for nowhere yet;
    `there`: the subnets that they are in; `id`: of a cluster of which something may be there.

    Raises ProviderError or UsageError for the first thing that will not work.
    """
    if options.cloud.spot_fallback and not options.cloud.spot:
        report("--spot-fallback does nothing without --spot: the workers are on-demand")
    # Asked at the same time; what is wrong is said in the order in which it matters.
    account = run_in_background(api.find_account)
    known = run_in_background(lambda: _find_types(api, options))
    wanted = options.cloud.file_system
    shared = run_in_background(lambda: storage.find_file_system(api, wanted) if wanted else None)
    running = run_in_background(lambda: api.list_instances(states=("pending", "running")))
    zones = run_in_background(lambda: (zone,) if present and zone else _choose_zones(api, options))
    by_account, types, share = account.result(), known.result(), shared.result()
    makers = {name: kind.gpu_maker for name, kind in types.items()}
    machines = spec.plan_machines(options, makers, spec.read_present(present))
    quotas.check_types(api, options, types)
    amis = run_in_background(lambda: images.choose_image(api, options, machines))
    new = [machine for machine in machines if machine.name not in present]
    workers = sum(machine.name != LAUNCHER for machine in new)
    reserved = run_in_background(partial(prices.check_reservation, api, options, workers))
    placed, settled = storage.fill_in_network(options, share), bool(present)
    where = placed.cloud, len(new), there, options.name
    subnets = run_in_background(partial(ec2_network.choose_network, api, *where))
    endpoint = run_in_background(
        partial(tunnels.check_endpoints, api, placed, id, report, there=settled)
    )
    network = run_in_background(partial(_check_network, api, placed, new, there=settled))
    rights = run_in_background(
        lambda: _check_rights(api, options, new, amis.result(), subnets.result())
    )
    quotas.check_quotas(api, options, machines, types, present, running, report)
    found_subnets, reservation = subnets.result(), reserved.result()
    found_zones, found_amis = _keep_with_subnet(zones.result(), found_subnets), amis.result()
    found_zones = storage.keep_reachable(api, share, found_zones, found_subnets, there=settled)
    rights.result()
    network.result()
    return Survey(
        account=by_account,
        owner=api.owner,
        machines=machines,
        types=types,
        zones=_choose_reserved(found_zones, reservation),
        amis={kind: image.id for kind, image in found_amis.items()},
        # Reserved machines are where they are: only in a group that was made with them.
        placement=frozenset(
            name for name, kind in types.items() if kind.clusters and not reservation
        ),
        subnets=found_subnets,
        reservation=reservation,
        nat=options.cloud.private and not found_subnets,
        theirs=next((one for one in found_amis.values() if one.id == options.cloud.ami), None),
        file_system=share,
        endpoint=endpoint.result(),
    )


def _check_network(
    api: Api, options: ClusterSpec, new: Collection[PlannedMachine], *, there: bool
) -> None:
    if new:
        ec2_network.check_new_network(api, options, there=there)


def survey_cluster(
    api: Api,
    options: ClusterSpec,
    current: Cluster | None,
    report: Reporter,
) -> tuple[Survey, list[Instance]]:
    """Also the machines there are: by AWS, for a record may have been cut off."""
    if current:
        # It tells soonest that nobody answers; the survey asks it again, beside other questions.
        update.check_account(current, api.find_account())
    running = find_instances(api, current.id) if current else []
    instances = [item for item in running if item.node]
    zone = instances[0].zone if instances else ""
    settled = bool(current and current.nodes)
    if current and instances:
        update.check_settings(options, current, zone if settled else "")
    there = {item.subnet for item in instances} if settled else set()
    hidden = options.cloud.private and not options.cloud.instance_connect
    if there and (options.cloud.vpc or options.cloud.subnet) and not hidden:
        # Further machines go where the others are.
        options = replace(options, cloud=replace(options.cloud, subnet=tuple(there)))
    present = {item.node: item.type for item in instances}
    id = current.id if current else ""
    found = survey(api, options, present, zone if settled else "", report, there, id)
    if zone in found.zones:
        # An `up` that was cut off goes on there, and may still leave for where there is room.
        others = (other for other in found.zones if other != zone)
        found = replace(found, zones=(zone, *others))
    return found, instances


NOTICED = 30.0
"""Seconds that a clock may be wrong before it is said."""
_EXACT = 2.0
"""Seconds that an answer may take, and that its date is rounded by."""


def check_clock(ahead: float, report: Reporter = lambda line: None) -> float:
    """Seconds to take off this machine's clock, to have AWS's time: `ahead`, unless that is next to
    nothing. Raises WrongClock beyond what AWS accepts."""
    if abs(ahead) > refusals.SKEW:
        raise refusals.make_clock_error(ahead)
    if abs(ahead) > NOTICED:
        report(f"{refusals.describe_skew(ahead)}: the deadline is computed with AWS's time")
    return ahead if abs(ahead) > _EXACT else 0.0


def _find_types(api: Api, options: ClusterSpec) -> dict[str, InstanceType]:
    names = spec.list_types(options)
    types = api.list_instance_types(names)
    with_gpu = {group.instance_type for group in options.groups if group.family != "cpu"}
    for name in names:
        if name not in types:
            # Whoever wants no GPU is not offered one.
            families = catalog.FAMILIES if name in with_gpu else ("cpu",)
            usual = [catalog.FAMILIES[family].instance_type for family in families]
            usual.append(catalog.LAUNCHER_TYPE)
            close = get_close_matches(name, usual, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "check the name, or --region"
            if name in usual:
                hint = "not every region has every type: choose another --region, or another type"
            raise UsageError(f"EC2 has no instance type {name!r} in {api.region}", hint=hint)
    return types


def _check_rights(
    api: Api,
    options: ClusterSpec,
    new: Sequence[PlannedMachine],
    amis: Mapping[str, Image],
    subnets: Mapping[str, ZoneSubnets],
) -> None:
    """Raises ProviderError where AWS would not let us start a machine of one of these kinds."""
    asked = {}
    place = next(iter(subnets.values()), ZoneSubnets("", ""))
    for machine in new:
        worker = machine.name != LAUNCHER
        spot = options.cloud.spot and worker
        public = not options.cloud.private or not (worker or options.cloud.instance_connect)
        asked[spot, public, machine.instance_type] = run_in_background(
            partial(
                api.check_launch_right,
                machine.instance_type,
                amis[machine.image],
                disk=machine.disk,
                spot=spot,
                cluster=options.name,
                subnet=place.workers if worker else place.launcher,
                public=public,
                more_tags=ec2_api.parse_tags(options.cloud.tag),
            )
        )
    for answer in asked.values():
        answer.result()


def _choose_zones(api: Api, options: ClusterSpec) -> tuple[str, ...]:
    names = ", ".join(spec.list_types(options))
    offering = api.list_zones(spec.list_types(options))
    if not offering:
        raise ProviderError(
            f"no zone of {api.region} offers all of {names}",
            hint="choose another --region or --instance-type",
        )
    wanted = options.cloud.zones or offering
    local = [zone for zone in wanted if zone.startswith(f"{api.region}-")]
    if local:
        raise UsageError(
            f"--zones {','.join(local)}: a Local or Wavelength Zone, and a cluster needs an"
            " availability zone",
            hint=f"zones that offer all of {names}: {', '.join(offering)}",
        )
    elsewhere = [zone for zone in wanted if not zone.startswith(api.region)]
    if elsewhere:
        raise UsageError(
            f"--zones {','.join(elsewhere)}: the region is {api.region}",
            hint=f"zones there that offer all of {names}: {', '.join(offering)};"
            " or name another --region",
        )
    zones = tuple(zone for zone in wanted if zone in offering)
    if not zones:
        raise ProviderError(
            f"{', '.join(wanted)}: no such zone offers all of {names}",
            hint=f"zones that do: {', '.join(offering)}",
        )
    return zones


def _keep_with_subnet(zones: Sequence[str], subnets: Mapping[str, ZoneSubnets]) -> tuple[str, ...]:
    """The zones in which the cluster can be, in the order of the subnets. Raises UsageError."""
    if not subnets:
        return tuple(zones)
    both = tuple(zone for zone in subnets if zone in zones)
    if not both:
        where = ", ".join(f"{place.workers} in {zone}" for zone, place in subnets.items())
        raise UsageError(
            f"no subnet is in a zone that offers all machines of the cluster: {where}",
            hint=f"zones that do: {', '.join(zones)}",
        )
    return both


def _choose_reserved(zones: tuple[str, ...], reservation: Reservation | None) -> tuple[str, ...]:
    """The zones in which the cluster can be. Raises UsageError where the reserved machines are in
    another."""
    if reservation is None or not reservation.zone:
        return zones
    if reservation.zone not in zones:
        raise UsageError(
            f"{reservation.id} is in {reservation.zone}, and the cluster can be in"
            f" {', '.join(zones)} only",
            hint="correct --zones, --subnet or --launcher-type, or choose another --reservation",
        )
    return (reservation.zone,)


# -------------------------------------------------------------------------------------------------
# `check` for EC2: what `up` would look at, as rows for people. Nothing is made.
#
# Every question has one short attempt, and all of them together a deadline: without a network this
# is told, not waited for.


LIMIT = 12.0
"""Seconds for everything together."""

WORKERS = 2
"""As many as `up` makes where nobody says it."""

T = TypeVar("T")


class _Asked:
    """Answers by the deadline; what goes wrong is a finding."""

    def __init__(self, subject: str, end: Deadline) -> None:
        self._subject = subject
        self._end = end
        self.wrong: CheckRow | None = None

    def get(self, future: Future[T]) -> T | None:
        try:
            return self._end.await_result(future)
        except ProviderError as error:
            self.wrong = CheckRow("warning", self._subject, error.message, error.hint)
        except TimeoutError:
            self.wrong = CheckRow(
                "warning",
                self._subject,
                f"AWS did not answer within {LIMIT:g} s",
                "check your network, your proxy and AWS_ENDPOINT_URL",
            )
        return None


def diagnose() -> tuple[CheckRow, ...]:
    """Credentials; then every quota, and for every family its zones and its machine image."""
    end = Deadline(LIMIT)
    asked = _Asked("AWS", end)
    region = asked.get(run_in_background(choose_region))
    api = Api(region or "", hurried=True)
    account = asked.get(run_in_background(api.find_account)) if region else None
    if account is None:
        assert asked.wrong
        return (_make_row(asked.wrong),)
    names = {row.instance_type for row in catalog.FAMILIES.values()} | {catalog.LAUNCHER_TYPE}
    types = run_in_background(partial(api.list_instance_types, names))
    used = run_in_background(
        lambda: quotas.count_used(api, api.list_instances(states=("pending", "running")))
    )
    rows: list[Callable[[], CheckRow]] = []
    others: dict[str, dict[str, str]] = {"quotas of other types": {}, "spot quotas": {}}
    for quota in catalog.QUOTAS:
        if quota.spot:
            name = quota.spot_name or quota.name
            others["spot quotas"][name.partition(" (")[0]] = quota.spot
        if any(catalog.find_quota(name) == quota for name in names):
            limit = run_in_background(partial(api.find_quota, quota.on_demand))
            rows.append(partial(_check_quota, api, quota, limit, types, used, end))
        else:
            others["quotas of other types"][quota.name] = quota.on_demand
    found_others = run_in_background(
        lambda: [_describe_quotas(api, codes) for codes in others.values()]
    )
    rows += [
        partial(_check_others, found_others, n, subject, end) for n, subject in enumerate(others)
    ]
    for family in catalog.FAMILIES.values():
        zones = run_in_background(
            partial(api.list_zones, (family.instance_type, catalog.LAUNCHER_TYPE))
        )
        image = catalog.MACHINE_IMAGES[family.image]
        found = run_in_background(partial(api.find_image, image.owner, image.name))
        rows.append(partial(_check_family, api, family, zones, found, end))
    return (CheckRow("ok", "AWS", f"account {account}, {api.region}"), *(row() for row in rows))


def _make_row(finding: CheckRow) -> CheckRow:
    text = f"{finding.text}; needed for clusters on EC2"
    return CheckRow(finding.level, finding.subject, text, finding.hint)


def _check_quota(
    api: Api,
    quota: catalog.Quota,
    limit: Future[float],
    types: Future[dict[str, InstanceType]],
    used: Future[dict[str, int]],
    end: Deadline,
) -> CheckRow:
    """Whether the largest of the default clusters that count towards it would fit."""
    subject = f"quota {quota.name.partition(' (')[0]}"
    asked = _Asked(subject, end)
    vcpus, known, running = asked.get(limit), asked.get(types), asked.get(used)
    if vcpus is None or known is None or running is None:
        assert asked.wrong
        return asked.wrong
    taken = running.get(quota.on_demand, 0)
    command, needs = max(_list_defaults(quota, known), key=lambda row: row[1], default=("", 0))
    text = f"{vcpus:g} vCPUs in {api.region}, {taken} in use"
    if taken + needs <= vcpus:
        return CheckRow("ok", subject, text)
    hint = quotas.render_request(quota.on_demand, taken + needs)
    return CheckRow("warning", subject, f"{text}; `{command}` takes {needs}", hint)


def _describe_quotas(api: Api, codes: dict[str, str]) -> str:
    """What these quotas are, one asked after the other: AWS lets few such questions through at a
    time, and what a default cluster needs is asked beside them."""
    said = []
    for name, code in codes.items():
        try:
            said.append(f"{name} {api.find_quota(code):g}")
        except ProviderError:
            said.append(f"{name} ?")
    return ", ".join(said)


def _check_others(found: Future[list[str]], row: int, subject: str, end: Deadline) -> CheckRow:
    """Quotas that no cluster needs which people make by default."""
    asked = _Asked(subject, end)
    texts = asked.get(found)
    if texts is None:
        assert asked.wrong
        return asked.wrong
    return CheckRow("ok", subject, f"vCPUs: {texts[row]}")


def _list_defaults(
    quota: catalog.Quota, known: dict[str, InstanceType]
) -> Iterable[tuple[str, int]]:
    """What a person would type, and the vCPUs that it counts towards this quota."""
    for family in catalog.FAMILIES.values():
        option = f"--cpu {family.instance_type}" if family.name == "cpu" else f"--gpu {family.name}"
        counted = [
            number * known[name].vcpus
            for name, number in ((family.instance_type, WORKERS), (catalog.LAUNCHER_TYPE, 1))
            if name in known and catalog.find_quota(name) == quota
        ]
        yield f"clusterctl up {option}", sum(counted)


def _check_family(
    api: Api,
    family: catalog.Family,
    zones: Future[tuple[str, ...]],
    image: Future[str],
    end: Deadline,
) -> CheckRow:
    subject = f"EC2 {family.name}"
    asked = _Asked(subject, end)
    offering, ami = asked.get(zones), asked.get(image)
    if offering is None or ami is None:
        assert asked.wrong
        return asked.wrong
    if not offering:
        text = f"no zone of {api.region} offers {family.instance_type}"
        return CheckRow("warning", subject, text, "choose another --region or --instance-type")
    where = f"{family.instance_type} in {', '.join(offering)}"
    if not ami:
        row = catalog.MACHINE_IMAGES[family.image]
        text = f"{where}, but no machine image {row.name!r} of {row.owner}"
        return CheckRow("warning", subject, text, "name one with --ami, or choose another --region")
    return CheckRow("ok", subject, f"{where}; image {ami}")
