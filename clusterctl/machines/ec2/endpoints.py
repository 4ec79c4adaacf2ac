"""EC2 Instance Connect Endpoints, before one is made: whether it may be, and whether there is one.

Source of the quotas: EC2 User Guide, "Quotas for EC2 Instance Connect Endpoint".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterctl.core.errors import ProviderError, UsageError
from clusterctl.core.model import ClusterSpec, Reporter
from clusterctl.machines.ec2 import tags
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.failures import RefusedByAws
from clusterctl.machines.ec2.tags import TAG
from clusterctl.machines.ec2.tunnels import ConnectEndpoint

USUAL = 5
"""Of an account in a region, unless AWS has granted more."""
_GONE = ("delete-complete", "create-failed")
_READY = ("create-complete", "update-in-progress", "update-complete", "update-failed")
"""States in which it takes connections: while it is changed, and when that failed, it works as
before (EC2 User Guide, "Modify an EC2 Instance Connect Endpoint")."""


@dataclass(frozen=True, slots=True)
class Existing:
    """The endpoint that somebody else keeps in the VPC, and its security groups."""

    endpoint: ConnectEndpoint
    groups: tuple[str, ...]


def check_endpoints(
    api: Api, options: ClusterSpec, id: str, report: Reporter, *, there: bool
) -> Existing | None:
    """The one to use that is in the VPC already; None where one is to be made. `id`: of a cluster
    whose own may be there; `there`: it has machines. Raises ProviderError and UsageError where none
    can be used or made."""
    cloud = options.cloud
    if not cloud.instance_connect:
        return None
    listed = api.list_all("describe_instance_connect_endpoints", "InstanceConnectEndpoints")
    found = [item for item in listed if item["State"] not in _GONE]
    subnets = _list_subnets(api, options)
    vpc = str(subnets[0]["VpcId"]) if subnets and (cloud.vpc or cloud.subnet) else ""
    mine = next((item for item in found if vpc and item["VpcId"] == vpc), None)
    owner = _find_owner(mine) if mine else ""
    if mine and not (owner and owner == id):
        return _use(api, mine, owner)
    if not there and not mine:
        if subnets:
            _check_rights(api, options, str(subnets[0]["SubnetId"]))
        if len(found) >= USUAL:
            report(
                f"{api.region} has {len(found)} EC2 Instance Connect Endpoints, and {USUAL} are"
                " AWS's usual quota: `clusterctl gc` finds forgotten clusters"
            )
    return None


def describe_endpoints(existing: Existing | None) -> str:
    """Of the plan: how SSH gets to the launcher."""
    whose = f"{existing.endpoint.id}, which the VPC has already" if existing else "one is made"
    return (
        "SSH to the launcher goes through an EC2 Instance Connect Endpoint, which costs nothing"
        f" ({whose}); no network can connect to it directly"
    )


def _list_subnets(api: Api, options: ClusterSpec) -> list[dict[str, Any]]:
    """Those that the cluster may be in, else any: AWS wants one also where nothing is made."""
    cloud = options.cloud
    if cloud.subnet:
        filters = [{"Name": "subnet-id", "Values": list(cloud.subnet)}]
    else:
        filters = [{"Name": "vpc-id", "Values": [cloud.vpc]}] if cloud.vpc else []
    found = api.list_all("describe_subnets", "Subnets", Filters=filters)
    return sorted(found, key=lambda item: str(item["SubnetId"]))


def _find_owner(item: dict[str, Any]) -> str:
    return next((str(tag["Value"]) for tag in item.get("Tags", ()) if tag["Key"] == TAG), "")


def _use(api: Api, item: dict[str, Any], owner: str) -> Existing:
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
    endpoint = ConnectEndpoint(api.region, name, str(item["DnsName"]))
    return Existing(endpoint, tuple(map(str, item.get("SecurityGroupIds", ()))))


def _check_rights(api: Api, options: ClusterSpec, subnet: str) -> None:
    """Raises ProviderError where we may make none: Terraform would find out when machines run."""
    pairs = tags.as_list({TAG: options.name, **tags.parse_tags(options.cloud.tag)})
    try:
        api.check_right(
            "create_instance_connect_endpoint",
            SubnetId=subnet,
            TagSpecifications=[{"ResourceType": "instance-connect-endpoint", "Tags": pairs}],
        )
    except RefusedByAws as refused:
        raise ProviderError(
            f"--instance-connect: {refused.message}",
            hint=f"clusterctl makes an EC2 Instance Connect Endpoint; {refused.hint}",
        ) from refused
