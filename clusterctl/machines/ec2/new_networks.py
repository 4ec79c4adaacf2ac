"""A network of the cluster's own, before it is made: whether the account lets us make it, and
whether anybody could reach it."""

from __future__ import annotations

from functools import partial
from typing import Any

from clusterctl.core.clock import run_in_background
from clusterctl.core.errors import ProviderError
from clusterctl.core.model import ClusterSpec
from clusterctl.machines.ec2 import quotas, tags
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.failures import RefusedByAws
from clusterctl.machines.ec2.tags import TAG

CIDR = "10.77.0.0/16"
"""As infra/ec2 has it."""

_OPEN_NETWORK, _NEW_OUTWARDS = "off", "block-ingress"

_THEIRS = "use a network that your administrators have made: --vpc ID, or --subnet"


def check_new_network(api: Api, options: ClusterSpec, id: str = "", *, there: bool = False) -> None:
    """Raises ProviderError for the first thing that would stop Terraform halfway. `id`: of a
    cluster whose network may be there already; `there`: it has machines in it."""
    cloud = options.cloud
    if cloud.vpc or cloud.subnet:
        return
    hidden = cloud.private and cloud.instance_connect
    asked = [run_in_background(partial(_check_open, api, hidden=hidden))]
    if not there:
        parts = [*quotas.PARTS, *([quotas.ADDRESS] if cloud.private else [])]
        asked.append(run_in_background(partial(_check_network_rights, api, options)))
        asked += [run_in_background(partial(quotas.check_part, api, part, id)) for part in parts]
    for answer in asked:
        answer.result()


def _check_network_rights(api: Api, options: ClusterSpec) -> None:
    """Many organizations let only administrators make networks."""
    made = {TAG: options.name, **tags.parse_tags(options.cloud.tag)}

    def make_tags(kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": tags.as_list(made)}]

    try:
        api.check_right("create_vpc", CidrBlock=CIDR, TagSpecifications=make_tags("vpc"))
        kind = "internet-gateway"
        api.check_right("create_internet_gateway", TagSpecifications=make_tags(kind))
        if options.cloud.private:
            kind = "elastic-ip"
            api.check_right("allocate_address", Domain="vpc", TagSpecifications=make_tags(kind))
    except RefusedByAws as refused:
        raise ProviderError(refused.message, hint=f"{_THEIRS}; {refused.hint}") from refused


def _check_open(api: Api, *, hidden: bool) -> None:
    """Raises ProviderError where SSH to a new network would time out: EC2 makes it all the same.
    `hidden`: no machine has a public address, and traffic goes out through a NAT gateway."""
    try:
        mode = api.find_block_mode()
    except ProviderError:
        return  # who may not ask is not told
    if mode != _OPEN_NETWORK and not (hidden and mode == _NEW_OUTWARDS):
        raise ProviderError(
            f"VPC Block Public Access is on in {api.region} ({mode}): the launcher of a new network"
            " could not be reached from the internet",
            hint="choose a --vpc that is excluded from it, another --region, or have an"
            " administrator switch it off: `aws ec2 modify-vpc-block-public-access-options"
            " --internet-gateway-block-mode off`"
            + "; or connect without public addresses: --instance-connect --private"
            * (mode == _NEW_OUTWARDS),
        )
