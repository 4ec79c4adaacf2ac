"""What exists: of everything that costs money or stands in the way, beside the default VPC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.sim.ec2 import gaps
from tests.sim.ec2.schedules import Schedules


def everything(world: gaps.World, schedules: Schedules) -> list[str]:
    """One line each: region, kind, id, name."""
    found = [
        f"{region} {kind} {id} {name}".rstrip()
        for region in gaps.regions()
        for kind, id, name in _of(gaps.backend(region))
    ]
    found += [
        f"{one.region} placement-group {one.id} {one.name}"
        for one in world.placement_groups.values()
    ]
    found += [
        f"{one.region} spot-request {one.id}"
        for one in world.spot_requests.values()
        if one.state == "active"
    ]
    found += [f"{one.region} connect-endpoint {one.id}" for one in world.endpoints.living()]
    found += [f"{group.region} schedule-group {group.name}" for group in schedules.groups.values()]
    return sorted(found)


def _of(ec2: Any) -> Iterator[tuple[str, str, str]]:
    default = {vpc.id for vpc in ec2.vpcs.values() if vpc.is_default}
    for instance in ec2.all_instances():
        if instance.state != "terminated":
            yield "instance", instance.id, _name(instance)
    for volume in ec2.volumes.values():
        yield "volume", volume.id, _name(volume)
    for image in ec2.amis.values():
        if image.owner_id == ec2.account_id:
            yield "image", image.id, image.name
    for snapshot in ec2.snapshots.values():
        if snapshot.get_tags():
            yield "snapshot", snapshot.id, snapshot.description
    for address in ec2.addresses:
        yield "address", address.allocation_id, _name(address)
    for gateway in ec2.nat_gateways.values():
        if gateway.state != "deleted":
            yield "nat-gateway", gateway.id, _name(gateway)
    for interface in ec2.enis.values():
        yield "interface", interface.id, _name(interface)
    for pair in ec2.key_pairs.values():
        yield "key-pair", pair.id, pair.key_name
    for template in ec2.launch_templates.values():
        yield "launch-template", template.id, template.name
    for vpc in ec2.vpcs.values():
        if vpc.id not in default:
            yield "vpc", vpc.id, _name(vpc)
    for vpc_id, groups in ec2.groups.items():
        if vpc_id in ec2.vpcs and vpc_id not in default:
            for group in groups.values():
                if group.name != "default":
                    yield "security-group", group.id, group.name
    for by_zone in ec2.subnets.values():
        for subnet in by_zone.values():
            if subnet.vpc_id not in default:
                yield "subnet", subnet.id, _name(subnet)
    for gateway in ec2.internet_gateways.values():
        if not (gateway.vpc and gateway.vpc.id in default):
            yield "internet-gateway", gateway.id, _name(gateway)
    for table in ec2.route_tables.values():
        if table.vpc_id not in default and not table.main_association_id:
            yield "route-table", table.id, _name(table)


def _name(resource: Any) -> str:
    tags = {tag["key"]: tag["value"] for tag in resource.get_tags()}
    return str(tags.get("Name", ""))
