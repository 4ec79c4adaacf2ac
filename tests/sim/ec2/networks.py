"""How many networks and addresses an account may have in a region.

Sources: Amazon VPC User Guide, "Quotas"; the texts: terraform-aws-vpc issue 429, eksctl's and
learn-terraform-provision-eks-cluster's issues (59).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.sim.ec2.wire import ApiError, Request

QUOTAS = {
    "L-F678F1CE": ("vpc", "VPCs per Region", 5.0),
    "L-A4707A72": ("vpc", "Internet gateways per Region", 5.0),
    "L-0263D0A3": ("ec2", "EC2-VPC Elastic IPs", 5.0),
}
"""Code → service, name and value: that of an account that has asked for no more."""

_MAKES = {
    "CreateVpc": ("L-F678F1CE", "vpcs", "VpcLimitExceeded", "VPCs"),
    "CreateInternetGateway": (
        "L-A4707A72",
        "internet_gateways",
        "InternetGatewayLimitExceeded",
        "internet gateways",
    ),
    "AllocateAddress": ("L-0263D0A3", "addresses", "AddressLimitExceeded", "addresses"),
}
"""Action → its quota, what moto calls the things, and what EC2 says of one too many."""


def refuse(request: Request, there: Any, changed: Mapping[str, float]) -> None:
    """Raises ApiError where the region has no room for one more. `there`: moto's model of it."""
    quota, things, code, words = _MAKES[request.action]
    if len(getattr(there, things)) + 1 > changed.get(quota, QUOTAS[quota][2]):
        raise ApiError(code, f"The maximum number of {words} has been reached.")
