"""EC2 Instance Connect Endpoints, which carry SSH inside HTTPS by the AWS CLI: whether one may be
made, and whether there is one."""

from __future__ import annotations

import re
import shlex
from typing import Any

from msgspec import Struct

from clusterctl import process
from clusterctl.core.model import ClusterSpec
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2.api import TAG, Api, check_making, read_tags

OLDEST = (2, 12)
"""The first AWS CLI that opens tunnels."""
DURATION = 3600
"""Seconds that a connection may last: AWS's limit. Whoever needs it longer connects anew."""
DENIED = "AccessDenied"
"""What the AWS CLI prints where no wait helps."""


def require_aws_cli() -> None:
    """Raises ProviderError without an AWS CLI that opens tunnels."""
    found = process.run(["aws", "--version"], timeout=30.0)
    said = re.match(r"aws-cli/(\d+)\.(\d+)", found.text)
    if said is None or (int(said[1]), int(said[2])) < OLDEST:
        raise ProviderError(
            f"--instance-connect needs the AWS CLI {'.'.join(map(str, OLDEST))} or newer, and"
            f" `aws --version` says: {found.text.strip() or found.why}",
            hint="https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
        )


def build_command(region: str, id: str, dns_name: str, address: str) -> str:
    """What carries SSH to a private address through that endpoint, as `Node.tunnel` has it."""
    options = {
        "region": region,
        "instance-connect-endpoint-id": id,
        "instance-connect-endpoint-dns-name": dns_name,
        "private-ip-address": address,
        "remote-port": "22",
        "max-tunnel-duration": str(DURATION),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return shlex.join(["aws", "ec2-instance-connect", "open-tunnel", *words])


_GONE = ("delete-complete", "create-failed")
_READY = ("create-complete", "update-in-progress", "update-complete", "update-failed")
"""States in which it takes connections: while it is changed, and when that failed, it works as
before (EC2 User Guide, "Modify an EC2 Instance Connect Endpoint")."""


class Existing(Struct, frozen=True):
    """The endpoint that somebody else keeps in the VPC, and its security groups."""

    id: str
    dns_name: str
    groups: tuple[str, ...]


def check_endpoints(api: Api, options: ClusterSpec, id: str, *, there: bool) -> Existing | None:
    """The one to use that is in the VPC already; None where one is to be made. `id`: of a cluster
    whose own may be there; `there`: it has machines. Raises ProviderError and UsageError where none
    can be used or made."""
    cloud = options.cloud
    if not cloud.instance_connect:
        return None
    # AWS wants a subnet to be asked also where nothing is made: any.
    search = [("subnet-id", list(cloud.subnet))] if cloud.subnet else [("vpc-id", [cloud.vpc])]
    filters = [{"Name": key, "Values": ids} for key, ids in search if ids != [""]]
    subnets = api.list_all("describe_subnets", "Subnets", Filters=filters)
    if filters and subnets:
        action, key = "describe_instance_connect_endpoints", "InstanceConnectEndpoints"
        of_vpc = [{"Name": "vpc-id", "Values": [subnets[0]["VpcId"]]}]
        found = api.list_all(action, key, Filters=of_vpc)
        for item in (item for item in found if item["State"] not in _GONE):
            owner = read_tags(item).get(TAG, "")
            return None if owner and owner == id else _use(item, owner)
    if subnets and not there:
        subnet = min(str(item["SubnetId"]) for item in subnets)
        hint = "--instance-connect makes an EC2 Instance Connect Endpoint"
        action = "create_instance_connect_endpoint"
        check_making(api, options.name, cloud.tag, action, hint, SubnetId=subnet)
    return None


def describe_endpoints(existing: Existing | None) -> str:
    """Of the plan: how SSH gets to the launcher."""
    whose = f"{existing.id}, which the VPC has already" if existing else "one is made"
    return (
        "SSH to the launcher goes through an EC2 Instance Connect Endpoint, which costs nothing"
        f" ({whose}); no network can connect to it directly"
    )


def _use(item: dict[str, Any], owner: str) -> Existing:
    name, vpc = str(item["InstanceConnectEndpointId"]), str(item["VpcId"])
    if owner:
        raise UsageError(
            f"{vpc} has an EC2 Instance Connect Endpoint of cluster {owner} ({name}), which serves"
            " that cluster alone, and a VPC can have one",
            hint="choose another --vpc, or leave --instance-connect out",
        )
    if item["State"] not in _READY:
        raise ProviderError(
            f"{name}, the EC2 Instance Connect Endpoint of {vpc}, is in the state {item['State']}",
            hint="wait until its state is create-complete, or choose another --vpc",
        )
    groups = tuple(map(str, item.get("SecurityGroupIds", ())))
    return Existing(name, str(item["DnsName"]), groups)
