"""moto's models of EC2, amended: types, zones, addresses, and what a launch makes of instances."""

from __future__ import annotations

import copy
import threading
import time
from typing import Any

from tests.sim.ec2 import images, nat
from tests.sim.ec2.addresses import Addresses
from tests.sim.ec2.gaps import (
    SpotRequest,
    World,
    backend,
    current,
    is_spot,
    new_tags,
    regions,
)
from tests.sim.ec2.wire import Request


def _addresses_in_use() -> set[str]:
    backends = [backend(region) for region in regions()]
    found = {one.public_ip for each in backends for one in list(each.enis.values())}
    found |= {one.public_ip for each in backends for one in list(each.addresses)}
    return found - {None}


LOCAL_ZONE = "us-east-1-bos-1a"
"""The account has opted in to it, so that offerings name it, too. Source: EC2 User Guide,
"AWS Local Zones": opting in adds them to a region's zones, with names like us-west-2-lax-1a."""


_LOCAL_TYPES = ("t3.micro", "t3.xlarge", "c7i.xlarge", "g4dn.xlarge")


def _add_local_zone() -> None:
    from moto.ec2.models import instance_types as types

    rows = types.INSTANCE_TYPE_OFFERINGS["availability-zone"]["us-east-1"]
    rows.extend({"InstanceType": kind, "Location": LOCAL_ZONE} for kind in _LOCAL_TYPES)


_G4AD = {"xlarge": (4, 16), "2xlarge": (8, 32), "4xlarge": (16, 64)}
"""Size → vCPUs and GiB, with one GPU each."""


def _add_types() -> None:
    """moto's tables know no AMD GPUs: they are like NVIDIA's of the same size."""
    from moto.ec2.models import instance_types as types

    for size, (cores, memory) in _G4AD.items():
        name, like = f"g4ad.{size}", f"g4dn.{size}"
        row = copy.deepcopy(types.INSTANCE_TYPES[like])
        row["InstanceType"] = name
        row["VCpuInfo"] |= {"DefaultVCpus": cores, "DefaultCores": cores // 2}
        row["MemoryInfo"]["SizeInMiB"] = memory * 1024
        (gpu,) = row["GpuInfo"]["Gpus"]
        gpu |= {"Manufacturer": "AMD", "Name": "Radeon Pro V520"}
        gpu["MemoryInfo"]["SizeInMiB"] = row["GpuInfo"]["TotalGpuMemoryInMiB"] = 8192
        types.INSTANCE_TYPES[name] = row
        types.InstanceTypeBackend.instance_types.append(types.InstanceType(name))
        for by_region in types.INSTANCE_TYPE_OFFERINGS.values():
            for rows in by_region.values():
                # Offered in fewer places than the other: in two zones of a region.
                found = [one for one in rows if one["InstanceType"] == like][:2]
                rows.extend({**one, "InstanceType": name} for one in found)


def _look_tags_up() -> None:
    """For the tags of each resource, moto went through those of all: for a page of 256 instances
    that was half of its time."""
    from moto.ec2.models.core import TaggedEC2Resource
    from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix

    def get_tags(self: Any) -> list[dict[str, str]]:
        tags = self.ec2_backend.tags.get(self.id, {}) if self.id else {}
        kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(self.id), "") if tags else ""
        return [
            {"resource_id": self.id, "key": key, "value": value, "resource_type": kind}
            for key, value in tags.items()
        ]

    TaggedEC2Resource.get_tags = get_tags  # type: ignore[method-assign]


def install(world: World) -> None:
    """Amends moto's models. Once in a process, before the first request."""
    _add_types()
    _add_local_zone()
    _look_tags_up()
    nat.install(world.nat, lambda: world.slow_end)
    _amend_addresses()
    _amend_launches(world)
    _amend_templates()
    _amend_ends(world)
    _amend_images(world)


def _amend_addresses() -> None:
    from moto.core.serialize import return_if_not_empty
    from moto.ec2.models import elastic_ip_addresses, elastic_network_interfaces
    from moto.ec2.responses.instances import EC2BaseResponse

    addresses = Addresses(_addresses_in_use)
    elastic_network_interfaces.random_public_ip = addresses.take
    elastic_ip_addresses.random_ip = addresses.take
    # moto says that a stopped instance has an association without an address: the provider takes
    # that for a public address.
    shown = EC2BaseResponse.RESPONSE_KEY_PATH_TO_TRANSFORMER
    shown["InstanceNetworkInterface.Association"] = return_if_not_empty


def _amend_launches(world: World) -> None:
    from moto.ec2.models.instances import InstanceBackend

    lock = threading.Lock()
    launch = InstanceBackend.run_instances

    def run_instances(self: Any, *args: Any, **kwargs: Any) -> Any:
        request: Request | None = getattr(current, "request", None)
        if request is None or request.action != "RunInstances":
            reservation = launch(self, *args, **kwargs)
            world.complete |= {instance.id for instance in reservation.instances}
            return reservation
        token = request.parameters.get("ClientToken")
        with lock:
            # Twice the same token is the same launch: what a client that got no answer relies on.
            if token and token in world.launched:
                return world.launched[token]
        reservation = launch(self, *args, **kwargs)
        for instance in reservation.instances:
            _amend(world, request, instance)
            world.complete.add(instance.id)
        if token:
            world.launched[token] = reservation
        return reservation

    InstanceBackend.run_instances = run_instances  # type: ignore[method-assign]


def _amend_templates() -> None:
    from moto.ec2.models.launch_templates import LaunchTemplate

    write = LaunchTemplate.create_version

    def create_version(self: Any, data: dict[str, Any], description: str) -> Any:
        """moto puts the template's own tags among those of what is made from it."""
        specs = data.get("TagSpecifications", ())
        kept = [one for one in specs if one["ResourceType"] != "launch-template"]
        others = {key: value for key, value in data.items() if key != "TagSpecifications"}
        return write(self, {**others, **({"TagSpecifications": kept} if kept else {})}, description)

    LaunchTemplate.create_version = create_version  # type: ignore[method-assign]
    # moto shows the tags that a template was made with, whatever became of them.
    LaunchTemplate.tags = property(LaunchTemplate.get_tags, lambda self, made: None)  # type: ignore[assignment]


def _amend_ends(world: World) -> None:
    from moto.ec2.models.instances import Instance

    terminate = Instance.terminate

    def terminate_once(self: Any) -> Any:
        """Its interface is gone after the first time, and moto stumbles over that."""
        if self.state in ("terminated", "shutting-down"):
            return copy.copy(self.instance_state)
        held = {group.id for group in self.security_groups} | {self.subnet_id, self.vpc_id}
        before = terminate(self)
        if world.slow_end:
            world.ending[self.id] = (time.monotonic() + world.slow_end, held)
            self.instance_state.name, self.instance_state.code = "shutting-down", 32
        return before

    Instance.terminate = terminate_once  # type: ignore[method-assign]
    told = Instance.state_transition_reason.fget

    def transition(self: Any) -> str:
        """As EC2 writes it. `end_of` has other words for what moto takes for a person's wish."""
        said = str(told(self)).replace("UTC", "GMT")
        return str(getattr(self, "other_words", {}).get(said, said))

    Instance.state_transition_reason = property(transition)  # type: ignore[assignment]


def _amend_images(world: World) -> None:
    from moto.ec2.models.amis import Ami

    mappings = Ami.block_device_mappings.fget
    assert mappings

    def block_device_mappings(self: Any) -> list[dict[str, Any]]:
        """moto's are all of one size."""
        found: list[dict[str, Any]] = mappings(self)
        for disk in found:
            if "Ebs" in disk:
                size = world.saved.find_size(self.id) or images.snapshot(self.name)
                disk["Ebs"]["VolumeSize"] = size
        return found

    Ami.block_device_mappings = property(block_device_mappings)  # type: ignore[assignment]
    get = Ami.get_filter_value

    def get_filter_value(self: Any, name: str, *rest: Any) -> Any:
        """moto does not know the filter for snapshots."""
        if name == "block-device-mapping.snapshot-id":
            return [d["Ebs"].get("SnapshotId") for d in self.block_device_mappings if "Ebs" in d]
        return get(self, name, *rest)

    Ami.get_filter_value = get_filter_value  # type: ignore[method-assign]


def _amend(world: World, request: Request, instance: Any) -> None:
    form = request.parameters
    instance.placement.group_name = form.get("Placement.GroupName", "")
    if not instance.security_groups:
        instance.security_groups = list(instance.nics[0].group_set)
    # An interface that was made by the launch goes with its instance unless told otherwise.
    for number, nic in instance.nics.items():
        said = form.get(f"NetworkInterface.{number + 1}.DeleteOnTermination")
        given = form.get(f"NetworkInterface.{number + 1}.NetworkInterfaceId")
        nic.delete_on_termination = said == "true" if said else not given
        if not given:
            nic.add_tags(new_tags(request, "network-interface"))
    disks = {one.get("DeviceName"): one for one in request.structured("BlockDeviceMapping")}
    for device, block in instance.get_block_device_mapping:
        volume = instance.ec2_backend.volumes[block.volume_id]
        said = disks.get(device, {})
        if volume.volume_type == "gp3":
            volume.iops = int(said.get("Ebs.Iops", volume.iops or 3000))
            volume.throughput = int(said.get("Ebs.Throughput", 125))
    if is_spot(request):
        options = "InstanceMarketOptions.SpotOptions"
        spot = SpotRequest(
            request.region,
            instance,
            form.get(f"{options}.SpotInstanceType", "one-time"),
            form.get(f"{options}.InstanceInterruptionBehavior", "terminate"),
            tags=new_tags(request, "spot-instances-request"),
        )
        world.spot_requests[spot.id] = spot
        instance.lifecycle = "spot"
        instance.spot_instance_request_id = spot.id
