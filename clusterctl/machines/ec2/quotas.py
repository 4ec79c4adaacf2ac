"""What an account may have at once in a region: vCPUs of a kind of machine, networks, addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from clusterctl.core import catalog
from clusterctl.core.clock import run_in_background
from clusterctl.core.errors import ProviderError
from clusterctl.core.model import ClusterSpec, Reporter
from clusterctl.core.text import count
from clusterctl.machines.ec2.answers import Instance, InstanceType
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.spec import PlannedMachine
from clusterctl.machines.ec2.tags import TAG
from clusterctl.machines.protocol import LAUNCHER


def check_quotas(
    api: Api,
    options: ClusterSpec,
    machines: Sequence[PlannedMachine],
    types: Mapping[str, InstanceType],
    present: Mapping[str, str],
    running: Future[list[Instance]],
    report: Reporter,
) -> None:
    """Every quota that the new machines count towards, against what runs in the account."""
    needed: dict[tuple[str, str], int] = {}
    for machine in machines:
        if machine.name in present or (options.cloud.reservation and machine.name != LAUNCHER):
            continue  # what is reserved was counted when it was reserved
        row = catalog.find_quota(machine.instance_type)
        if row is None:
            continue
        spot = options.cloud.spot and machine.name != LAUNCHER
        if spot and not row.spot:
            continue
        name = (
            f"All {row.spot_name or row.name} Spot Instance Requests"
            if spot
            else _name_quota(row.name)
        )
        key = (name, row.spot if spot else row.on_demand)
        needed[key] = needed.get(key, 0) + types[machine.instance_type].vcpus
    if not needed:
        return
    limits = {code: run_in_background(partial(api.find_quota, code)) for _, code in needed}
    taken_by_code = _count_used(api, running, report)
    for (name, code), vcpus in needed.items():
        try:
            limit = limits[code].result()
        except ProviderError as error:
            report(f"the quota {name} is not known: {error.message}")
            continue
        taken = taken_by_code.get(code, 0)
        if taken + vcpus > limit:
            raise ProviderError(
                f"the quota {name!r} ({code}) in {api.region} is {limit:g} vCPUs, of which {taken}"
                f" are in use; this cluster needs {count(vcpus, 'vCPU')} more",
                hint=render_request(code, taken + vcpus),
            )


def render_request(code: str, value: int, service: str = "ec2") -> str:
    """The command that asks AWS for a larger quota."""
    return (
        "request more: aws service-quotas request-service-quota-increase"
        f" --service-code {service} --quota-code {code} --desired-value {value}"
    )


def _name_quota(name: str) -> str:
    return f"Running On-Demand {name} instances"


def _count_used(api: Api, running: Future[list[Instance]], report: Reporter) -> dict[str, int]:
    try:
        return count_used(api, running.result())
    except ProviderError as error:
        report(f"could not list the running instances: {error.message}")
        return {}


def count_used(api: Api, running: Sequence[Instance]) -> dict[str, int]:
    """vCPUs of these instances, by quota code."""
    kinds = api.list_instance_types({item.type for item in running}) if running else {}
    vcpus: dict[str, int] = {}
    for item in running:
        row = catalog.find_quota(item.type)
        if row and item.type in kinds:
            code = row.spot if item.spot else row.on_demand
            vcpus[code] = vcpus.get(code, 0) + kinds[item.type].vcpus
    return vcpus


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a network that a region has room for so many of: the name, service and code of the
    quota, and how the parts that there are are listed."""

    quota: str
    service: str
    code: str
    action: str
    key: str


USUAL = 5
"""Every quota of PARTS, unless AWS has granted more. Source: Amazon VPC User Guide, "Quotas"."""

PARTS = (
    Part("VPCs per Region", "vpc", "L-F678F1CE", "describe_vpcs", "Vpcs"),
    Part(
        "Internet gateways per Region",
        "vpc",
        "L-A4707A72",
        "describe_internet_gateways",
        "InternetGateways",
    ),
)
"""What each network of a cluster's own has one of."""
ADDRESS = Part("EC2-VPC Elastic IPs", "ec2", "L-0263D0A3", "describe_addresses", "Addresses")
"""Of a NAT gateway; a machine's own public address is none of these."""


def check_part(api: Api, part: Part, id: str) -> None:
    """Raises ProviderError where the region has no room for one more, unless cluster `id` has its
    own. Whoever may not ask is not told."""
    try:
        found = api.list_all(part.action, part.key)
        if any(_is_of(item, id) for item in found) or len(found) < USUAL:
            return
        account = api.find_account()
        # Also the networks that other accounts share with this one are listed.
        taken = sum(item.get("OwnerId", account) == account for item in found)
        limit = USUAL if taken < USUAL else api.find_quota(part.code, part.service)
    except ProviderError:
        return
    if taken + 1 > limit:
        raise ProviderError(
            f"the quota {part.quota!r} ({part.code}) in {api.region} is {limit:g}, of which {taken}"
            " are in use; this cluster needs one more",
            hint="`clusterctl gc` finds forgotten clusters; use a network that is there (--vpc), or"
            f" another --region; or {render_request(part.code, taken + 1, part.service)}",
        )


def _is_of(item: Mapping[str, object], id: str) -> bool:
    tags = item.get("Tags", ())
    return bool(id) and {"Key": TAG, "Value": id} in (tags if isinstance(tags, list) else ())
