"""From where the launcher accepts SSH: what was said, else this machine's public address alone.

Rules are for IPv4: the VPC has no IPv6 addresses, so that nobody could come from one.
"""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from clusterctl.core.errors import ProviderError, UsageError
from clusterctl.core.model import Reporter
from clusterctl.machines.ec2 import tags
from clusterctl.machines.ec2.api import Api

WHO_AM_I = "https://checkip.amazonaws.com"
ANYBODY = "0.0.0.0/0"
LIMIT = 3.0
"""Seconds that asking for our address may take."""

DESCRIPTION = "Whoever made the cluster"
"""Of the rules, as infra/ec2 has it."""


def parse_network(option: str, text: str) -> str:
    """An IPv4 network as AWS wants it: `203.0.113.7` is `203.0.113.7/32`. UsageError names the
    option."""
    try:
        return str(IPv4Network(text, strict=False))
    except ValueError as error:
        try:
            IPv6Network(text, strict=False)
        except ValueError:
            why = f"is not a network: {error}"
        else:
            why = "is not an IPv4 network, and clusters on EC2 have no IPv6 addresses"
        raise UsageError(f"{option} {text!r} {why}", hint="for example 203.0.113.7/32") from error


def parse_networks(option: str, text: str) -> str:
    """As `parse_network`, for several with commas between them."""
    return ",".join(dict.fromkeys(parse_network(option, one.strip()) for one in text.split(",")))


def ask_my_address() -> str:
    """This machine's public IPv4 address. OSError, ValueError.

    SSH takes no proxy: one in HTTPS_PROXY would tell its own address. It is asked where nobody
    answers without it."""
    try:
        return _ask(urllib.request.ProxyHandler({}))
    except OSError:
        proxies = urllib.request.getproxies()
        if urllib.parse.urlsplit(WHO_AM_I).scheme not in proxies:
            raise
        return _ask(urllib.request.ProxyHandler(proxies))


def _ask(proxies: urllib.request.ProxyHandler) -> str:
    with urllib.request.build_opener(proxies).open(WHO_AM_I, timeout=LIMIT) as answer:
        return parse_address(answer.read(100).decode())


def parse_address(text: str) -> str:
    """An IPv4 address as it was answered. ValueError says what else it is."""
    found = ip_address(text.strip())
    if isinstance(found, IPv6Address):
        raise ValueError(f"{found} is an IPv6 address, and clusters on EC2 have no IPv6 addresses")
    return str(found)


def resolve_ssh_cidr(said: str, before: str, ask: Callable[[], str], report: Reporter) -> str:
    """`said` with --ssh-cidr, else what `ask` answers, else what it was `before`: "" for nothing.
    Raises UsageError where nobody knows."""
    if said:
        wanted = parse_networks("--ssh-cidr", said)
        if ANYBODY in wanted.split(","):
            report(
                f"the launcher's SSH is open to the whole internet ({ANYBODY}); it takes keys only"
            )
        return wanted
    try:
        return f"{ask()}/32"
    except (OSError, ValueError) as error:
        if before:
            report(f"{WHO_AM_I} does not answer; SSH stays open to {before}")
            return before
        raise UsageError(
            f"{WHO_AM_I} did not return this machine's public address: {error}",
            hint="give it: --ssh-cidr 203.0.113.7/32",
        ) from error


def describe_ssh_cidr(said: str, ask: Callable[[], str], *, old: bool) -> str:
    """Of the plan: from where SSH will be open, and who says so. `old`: the cluster is there."""
    if said:
        networks_said = parse_networks("--ssh-cidr", said)
        everybody = ": the whole internet, with keys only" * (ANYBODY in networks_said.split(","))
        return f"SSH to the launcher is open to {networks_said} (--ssh-cidr){everybody}"
    try:
        return f"SSH to the launcher is open to {ask()}/32 (your address, by {WHO_AM_I})"
    except (OSError, ValueError) as error:
        if old:
            return f"SSH to the launcher stays open to the same networks ({WHO_AM_I}: {error})"
        return (
            f"SSH to the launcher: {WHO_AM_I} did not return this machine's public address"
            f" ({error}); give it with --ssh-cidr"
        )


def explain_shut_out(allowed: str, ask: Callable[[], str]) -> str:
    """Why this machine is not let in; "" where it is, or where that is not known."""
    try:
        address = ask()
    except (OSError, ValueError):
        return ""
    if any(IPv4Address(address) in IPv4Network(one) for one in allowed.split(",") if one):
        return ""
    return f"this machine's address is now {address}, and SSH is open to {allowed or 'no address'}"


def change(api: Api, cluster_id: str, wanted: Sequence[str]) -> None:
    """Lets SSH in from these networks, then from no others. Raises ProviderError."""
    found = api.list_all(
        "describe_security_groups", "SecurityGroups", Filters=[tags.filter_by_cluster(cluster_id)]
    )
    group = next((item for item in found if item["GroupName"] == f"{cluster_id}-ssh"), None)
    if group is None:
        raise ProviderError(
            f"the security group {cluster_id}-ssh is gone", hint="`clusterctl up` creates it again"
        )
    present = {
        item["CidrIp"]
        for rule in group["IpPermissions"]
        if rule.get("FromPort") == 22
        for item in rule["IpRanges"]
    }
    for action, networks in (
        ("authorize_security_group_ingress", [one for one in wanted if one not in present]),
        ("revoke_security_group_ingress", sorted(present.difference(wanted))),
    ):
        if networks:
            api.call(action, GroupId=group["GroupId"], IpPermissions=[_build_rule(networks)])


def _build_rule(networks: Sequence[str]) -> dict[str, Any]:
    return {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "IpRanges": [{"CidrIp": one, "Description": DESCRIPTION} for one in networks],
    }
