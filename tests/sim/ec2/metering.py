"""Tells the bill what begins and what ends: calls of the API, machines that switch themselves off,
schedules that are due. All of these come to the models that are amended here."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timezone
from typing import Any

from tests.sim.ec2 import gaps, market
from tests.sim.ec2.bill import Bill, Use
from tests.sim.ec2.wire import Request


def install(world: gaps.World, bill: Bill) -> None:
    """Once in a process, after `amended.install`."""
    _meter_machines(world, bill)
    _meter_gateways(world, bill)


def _meter_machines(world: gaps.World, bill: Bill) -> None:
    from moto.core.utils import utcnow
    from moto.ec2.models.elastic_block_store import EBSBackend
    from moto.ec2.models.instances import Instance, InstanceBackend

    launch, terminate = InstanceBackend.run_instances, Instance.terminate
    stop, start, delete = Instance.stop, Instance.start, EBSBackend.delete_volume

    def run_instances(self: Any, *args: Any, **kwargs: Any) -> Any:
        reservation = launch(self, *args, **kwargs)
        request: Request | None = getattr(gaps.current, "request", None)
        for instance in reservation.instances:
            # One that ended before it ran costs nothing, and the same token is the same launch.
            if request and instance.state == "running" and not bill.knows(instance.id):
                _begin(world, bill, request, instance)
        return reservation

    def terminate_it(self: Any) -> Any:
        before = terminate(self)
        bill.end(self.id, "instance", "address", when=time.time())
        return before

    def stop_it(self: Any) -> Any:
        before = stop(self)
        bill.end(self.id, "instance", "address", when=time.time())
        return before

    def start_it(self: Any) -> Any:
        """EC2 User Guide, "DescribeInstances": the launch time is that of the last start."""
        stopped = self.state == "stopped"
        before = start(self)
        if stopped:
            self.launch_time = utcnow()
            bill.resume(self.id, when=time.time(), address=bool(self.public_ip_address))
        return before

    def delete_volume(self: Any, volume_id: str) -> Any:
        volume = delete(self, volume_id)
        request: Request | None = getattr(gaps.current, "request", None)
        asked = request is not None and request.action == "DeleteVolume"
        # That of a machine which ends goes with it.
        bill.end(volume_id, "disk", when=time.time() + (0.0 if asked else world.slow_end))
        return volume

    InstanceBackend.run_instances = run_instances  # type: ignore[method-assign]
    Instance.terminate = terminate_it  # type: ignore[method-assign]
    Instance.stop = stop_it  # type: ignore[method-assign]
    Instance.start = start_it  # type: ignore[method-assign]
    EBSBackend.delete_volume = delete_volume  # type: ignore[method-assign]


def _meter_gateways(world: gaps.World, bill: Bill) -> None:
    from moto.ec2.models.nat_gateways import NatGatewayBackend

    unmake = NatGatewayBackend.delete_nat_gateway

    def available(gateway: Any) -> None:
        """Source: VPC pricing: the hours in which a NAT gateway is provisioned and available."""
        tags = {tag["key"]: tag["value"] for tag in gateway.get_tags()}
        use = Use(
            gateway.id,
            tags.get("clusterctl:cluster", ""),
            "launcher",
            "gateway",
            "NAT gateway",
            market.NAT["NatGateway-Hours"][1],
            time.time(),
        )
        bill.begin(use)
        bill.begin(replace(use, part="gateway address", price=market.ADDRESS))

    def delete_nat_gateway(self: Any, *args: Any, **kwargs: Any) -> Any:
        gateway = unmake(self, *args, **kwargs)
        bill.end(gateway.id, "gateway", "gateway address", when=time.time())
        return gateway

    world.nat.available = available
    NatGatewayBackend.delete_nat_gateway = delete_nat_gateway  # type: ignore[method-assign]


def _begin(world: gaps.World, bill: Bill, request: Request, instance: Any) -> None:
    form = request.parameters
    tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
    whose = {
        "cluster": tags.get("clusterctl:cluster", ""),
        "node": tags.get("clusterctl:node", ""),
        "since": instance.launch_time.replace(tzinfo=timezone.utc).timestamp(),
    }
    kind, there = instance.instance_type, instance.ec2_backend
    zones = [zone.name for zone in there.describe_availability_zones()]
    price = market.on_demand(kind, request.region, world.prices)
    if instance.lifecycle == "spot":
        price = market.spot(kind, zones.index(instance.placement.zone), world.prices)
    # Source: EC2 User Guide, "Unlimited mode for burstable performance instances".
    usual = "unlimited" if kind.startswith(("t3", "t4g")) else "standard"
    unlimited = form.get("CreditSpecification.CpuCredits", usual) == "unlimited"
    machine = Use(instance.id, part="instance", item=kind, price=price or 0.0, **whose)
    bill.begin(replace(machine, unlimited=unlimited))
    if instance.public_ip_address:
        address = market.ADDRESS
        bill.begin(Use(instance.id, part="address", item="public IPv4", price=address, **whose))
    for _, block in instance.get_block_device_mapping:
        volume = there.volumes[block.volume_id]
        disk = volume.volume_type or "gp2"
        monthly = market.disk(disk, request.region) * volume.size
        said = [one.get("Ebs.Throughput") for one in request.structured("BlockDeviceMapping")]
        monthly += market.faster(max(map(int, filter(None, said)), default=0), request.region)
        item = f"{volume.size} GiB {disk}"
        bill.begin(Use(volume.id, part="disk", item=item, price=monthly, **whose))
