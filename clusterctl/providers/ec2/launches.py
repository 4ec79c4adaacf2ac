"""Large groups of workers: launched by one call of EC2 for up to a hundred, beside Terraform.

EC2 lets five calls of RunInstances through and then two a second, and Terraform makes one for each
machine (docs/adr/0021). A tag with the range of their numbers, and EC2's index of each machine
within its call, tell their names; Terraform knows nothing of them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import ProviderError
from clusterctl.model import Reporter
from clusterctl.node_results import shorten
from clusterctl.providers.ec2 import cleanup, failures
from clusterctl.providers.ec2.answers import ENDED, LIVING, Image, Instance
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.instances import (
    AT_A_TIME,
    SETTLE,
    find_instances,
    terminate_instances,
)
from clusterctl.providers.ec2.numbers import MOST_TEXT, TAG, write
from clusterctl.providers.ec2.spec import PlannedMachine
from clusterctl.providers.ec2.tags import as_list, filter_by_cluster
from clusterctl.timeouts import Deadline

AT_ONCE = 100
"""Machines of one call; EC2 starts all of them or none. AWS asks for several calls beyond that:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html"""
LIMIT = 300.0
"""Seconds that EC2 may take from the call until all machines run."""
NAMING = 8
"""Calls at the same time that give each machine its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all workers of a cluster have in common. `network`: the module's output `launch`;
    `images` by kind; `user_data` by node; `block`: the reservation is a Capacity Block; `nonce`:
    another one for each launch."""

    cluster_id: str
    tags: Mapping[str, str]
    network: Mapping[str, Any]
    images: Mapping[str, Image]
    user_data: Mapping[str, str]
    spot: bool
    placement: Collection[str]
    reservation: str
    block: bool
    nonce: str


def launch(
    api: Api,
    machines: Sequence[PlannedMachine],
    terms: Terms,
    report: Reporter,
    started: Callable[[Sequence[str]], None] = lambda names: None,
) -> None:
    """Starts these workers and waits until they run; `started` is told the names of each call that
    EC2 has accepted. Raises ProviderError; CapacityError where the zone has no room: the machines
    of earlier calls then run."""
    began = time.monotonic()
    ids: set[str] = set()
    for some in _split_calls(machines):
        names = [machine.name for machine in some]
        report(f"{shorten(names)}: starting")
        try:
            answer = api.call("run_instances", **build_request(some, terms))
        except ProviderError:
            _await_tags(api, terms.cluster_id, ids)
            raise
        started(names)
        ids |= {str(item["InstanceId"]) for item in answer["Instances"]}
    if machines:
        wanted = {machine.name for machine in machines}
        _await_running(api, terms.cluster_id, wanted, ids)
        took = time.monotonic() - began
        report(f"{shorten(sorted(wanted, key=_read_number))}: running after {took:.1f} s")


def build_request(machines: Sequence[PlannedMachine], terms: Terms) -> dict[str, Any]:
    """The arguments of RunInstances for machines of one kind, as infra/ec2 has them for one."""
    first, count = machines[0], len(machines)
    image = terms.images[first.image]
    network = terms.network
    numbers = write([_read_number(machine.name) for machine in machines])
    said = {**terms.tags, TAG: numbers, "Name": f"{terms.cluster_id}-workers"}
    kinds = {"instance": said, "volume": terms.tags, "network-interface": terms.tags}
    if terms.spot:
        kinds["spot-instances-request"] = terms.tags
    asked: dict[str, Any] = {
        "ImageId": image.id,
        "InstanceType": first.instance_type,
        "MinCount": count,
        "MaxCount": count,
        "UserData": terms.user_data[first.name],
        "InstanceInitiatedShutdownBehavior": "terminate",
        "EbsOptimized": not first.instance_type.startswith("t2."),
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": image.device,
                "Ebs": {
                    "VolumeType": "gp3",
                    "VolumeSize": first.disk,
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": as_list(tags)} for kind, tags in kinds.items()
        ],
    }
    asked |= _build_network(first.instance_type, network, terms.spot)
    group = network["reserved_group"] or (
        network["placement_group"] if first.instance_type in terms.placement else ""
    )
    if group:
        asked["Placement"] = {"GroupName": group}
    if first.instance_type.startswith(("t2.", "t3", "t4")):
        asked["CreditSpecification"] = {"CpuCredits": "standard"}
    asked |= _build_market(terms)
    # The same launch has the same token, so that an answer which got lost starts nothing twice.
    content = "\n".join((terms.nonce, numbers, first.instance_type, str(network["subnet_id"])))
    return {**asked, "ClientToken": hashlib.sha256(content.encode()).hexdigest()}


def _build_network(instance_type: str, network: Mapping[str, Any], spot: bool) -> dict[str, Any]:
    """Of a request: the key, and the interfaces, which the template of a type with EFA has."""
    asked: dict[str, Any] = {}
    if network["key_name"]:
        asked["KeyName"] = network["key_name"]
    templates = network["templates"]
    usual = (instance_type, "workers")
    # Those of on-demand workers beside spot instances, where there are such.
    own = () if spot else tuple(f"{key}-on-demand" for key in usual)
    if template := next((templates[key] for key in (*own, *usual) if key in templates), None):
        asked["LaunchTemplate"] = {
            "LaunchTemplateId": template["id"],
            "Version": str(template["version"]),
        }
    else:
        asked["NetworkInterfaces"] = [
            {
                "DeviceIndex": 0,
                "SubnetId": network["subnet_id"],
                "Groups": list(network["groups"]),
                "AssociatePublicIpAddress": not network["private"],
                "DeleteOnTermination": True,
            }
        ]
    return asked


def _build_market(terms: Terms) -> dict[str, Any]:
    """Of a request: how machines are bought, and in which reservation."""
    asked: dict[str, Any] = {}
    if terms.spot:
        asked["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
            },
        }
    elif terms.block:
        asked["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if terms.reservation:
        target = {"CapacityReservationId": terms.reservation}
        asked["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
    return asked


def name_machines(api: Api, cluster_id: str, instances: Iterable[Instance]) -> None:
    """Gives each machine its own name in the console. Nothing depends on it."""

    def name_one(item: Instance) -> None:
        both = {"Name": f"{cluster_id}-{item.node}", "clusterctl:node": item.node}
        with suppress(ProviderError):
            api.call("create_tags", Resources=[item.id], Tags=as_list(both))

    with ThreadPoolExecutor(NAMING) as pool:
        list(pool.map(name_one, instances))


def end(api: Api, cluster_id: str, instances: Sequence[Instance]) -> None:
    """Ends these machines and waits until they are gone: they hold their network. Raises
    ProviderError."""
    ids = {item.id for item in instances}
    listed = sorted(ids)
    for first in range(0, len(listed), AT_A_TIME):
        api.call("terminate_instances", InstanceIds=listed[first : first + AT_A_TIME])
    limit = Deadline(cleanup.LIMIT)
    while left := [
        item.node
        for item in api.list_instances(filter_by_cluster(cluster_id), states=LIVING)
        if item.id in ids
    ]:
        if limit.passed:
            raise ProviderError(
                f"{shorten(sorted(left, key=_read_number))} does not end within"
                f" {cleanup.LIMIT:g} s",
                hint="check it in the EC2 console, and run the same command again",
            )
        time.sleep(cleanup.PAUSE)


def end_unknown(
    api: Api, cluster_id: str, known: Container[str], report: Reporter, *, settle: float = 0.0
) -> None:
    """Ends the machines that Terraform does not know (`known`: what its state speaks of) and would
    wait for, for twenty minutes: they hold the network that it removes. `settle`: seconds in which
    EC2 may show more of them, after a launch that was cut off. Raises ProviderError."""
    until = time.monotonic() + settle
    while True:
        last = time.monotonic() >= until  # a look that takes long is not the last one
        found = [item for item in find_instances(api, cluster_id) if item.id not in known]
        if found:
            names = shorten(sorted(item.node or item.id for item in found))
            report(f"ending {names}")
            # With the others, which are billed meanwhile.
            terminate_instances(api, cluster_id)
            end(api, cluster_id, found)
        if last:
            return
        time.sleep(min(cleanup.PAUSE, settle))


def build_rows(instances: Iterable[Instance]) -> list[dict[str, Any]]:
    """As the module's output `nodes` has them."""
    return [
        {
            "name": item.node,
            "role": "worker",
            "id": item.id,
            "instance_type": item.type,
            "zone": item.zone,
            "address": item.address,
            "private_address": item.private_address,
        }
        for item in sorted(instances, key=lambda item: _read_number(item.node))
    ]


def _read_number(node: str) -> int:
    return int(node.rpartition("-")[2])


def _split_calls(machines: Sequence[PlannedMachine]) -> list[list[PlannedMachine]]:
    """Machines of one kind together, no more than one call may start, nor than a tag can name."""
    found: list[list[PlannedMachine]] = []
    for machine in sorted(
        machines, key=lambda one: (one.instance_type, one.image, _read_number(one.name))
    ):
        last = found[-1] if found else []
        same = last and (last[0].instance_type, last[0].image) == (
            machine.instance_type,
            machine.image,
        )
        numbers = [_read_number(one.name) for one in (*last, machine)]
        if same and len(last) < AT_ONCE and len(write(numbers)) <= MOST_TEXT:
            last.append(machine)
        else:
            found.append([machine])
    return found


def _await_tags(api: Api, cluster_id: str, ids: Collection[str]) -> None:
    """Waits until EC2 shows these machines by their tags: who ends them looks for them so."""
    limit = Deadline(SETTLE)
    with suppress(ProviderError):
        while not limit.passed:
            shown = api.list_instances(filter_by_cluster(cluster_id), states=(*LIVING, *ENDED))
            if {item.id for item in shown} >= set(ids):
                return
            time.sleep(cleanup.PAUSE)


def _await_running(api: Api, cluster_id: str, names: Collection[str], ids: Collection[str]) -> None:
    """Until all of these run, and are found by their tags; `ids`: their machines, which EC2 may not
    show yet, while it shows earlier ones of the same names. Raises ProviderError for those that end
    instead."""
    limit = Deadline(LIMIT)
    while True:
        found = [item for item in find_instances(api, cluster_id) if item.node in names]
        if {item.node for item in found if item.state == "running"} >= set(names):
            return
        ended = api.list_instances(filter_by_cluster(cluster_id), states=ENDED)
        lost = [item for item in ended if item.id in ids and item.why]
        living = {item.node for item in found}
        for item in lost:
            if item.node not in living:
                raise failures.make_refusal(
                    f"starting {item.node}", item.why, "it ended at once", api.region
                )
        if limit.passed:
            missing = sorted(set(names) - living, key=_read_number) or sorted(
                names, key=_read_number
            )
            raise ProviderError(
                f"{shorten(missing)} does not run within {LIMIT:g} s",
                hint="`clusterctl up` continues, `clusterctl down` removes everything",
                transient=True,
            )
        time.sleep(cleanup.PAUSE)
