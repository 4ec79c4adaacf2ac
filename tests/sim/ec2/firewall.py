"""Security groups: which packets reach a machine, and which leave it.

Its namespace filters what comes and goes by eth0, in a table that neither Docker nor anybody else
uses there (mangle), and in one load for each change. Sources: VPC User Guide, "Security group
rules" (groups stand for the private addresses of their members); EC2 User Guide, "Security group
connection tracking" (answers come in, and connections outlive their rule). Network ACLs let
everything through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from tests.sim.ec2.dns import RESOLVER
from tests.sim.ec2.network import IMDS, iptables

Members = dict[str, list[str]]
"""Group → the private addresses of its members."""


def members(instances: Iterable[Any]) -> Members:
    """Of moto's instances that have a network interface."""
    found: Members = {}
    for one in instances:
        for group in one.nics[0].group_set:
            found.setdefault(group.id, []).append(one.private_ip_address)
    return found


def rules(instance: Any, members: Members) -> tuple[str, ...]:
    """What its groups let through, as iptables has it."""
    lines = ["*mangle", ":PREROUTING DROP [0:0]", ":POSTROUTING DROP [0:0]"]
    groups = list(instance.nics[0].group_set)
    for chain, card, way, list_name in (
        ("PREROUTING", "-i", "-s", "ingress_rules"),
        ("POSTROUTING", "-o", "-d", "egress_rules"),
    ):
        lines.append(f"-A {chain} ! {card} eth0 -j ACCEPT")
        lines += (f"-A {chain} {way} {address} -j ACCEPT" for address in (IMDS, RESOLVER))
        lines.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
        found = {
            f"-A {chain} {other} {_ports(rule)} -j ACCEPT"
            for group in groups
            for rule in list(getattr(group, list_name))
            for other in _others(rule, members, way)
        }
        lines += sorted(found)
    return (*lines, "COMMIT")


def _others(rule: Any, members: Members, way: str) -> Iterator[str]:
    if network := rule.ip_range.get("CidrIp"):
        yield f"{way} {network}"
    for address in members.get(rule.source_group.get("GroupId", ""), ()):
        yield f"{way} {address}/32"


def _ports(rule: Any) -> str:
    protocol = rule.ip_protocol
    if protocol == "-1":
        return ""
    if protocol not in ("tcp", "udp") or rule.from_port in (None, -1):
        return f"-p {protocol}"
    return f"-p {protocol} --dport {rule.from_port}:{rule.to_port}"


def leaves(groups: Iterable[Any], members: Members, address: str, port: int) -> bool:
    """Whether the groups of an interface let it connect to that address and TCP port."""
    return any(
        rule.ip_protocol in ("-1", "tcp")
        and (rule.ip_protocol == "-1" or int(rule.from_port) <= port <= int(rule.to_port))
        and (
            address in members.get(rule.source_group.get("GroupId", ""), ())
            or IPv4Address(address) in IPv4Network(rule.ip_range.get("CidrIp") or "0.0.0.0/32")
        )
        for group in groups
        for rule in group.egress_rules
    )


class Firewall:
    """That of all machines."""

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[str, ...]] = {}

    def keep(self, id: str, pid: int, wanted: tuple[str, ...]) -> None:
        """Loads them into the network of process `pid`, unless they are there. Raises
        CalledProcessError."""
        if self._loaded.get(id) == wanted:
            return
        iptables(f"/proc/{pid}/ns/net", wanted)
        self._loaded[id] = wanted

    def forget(self, id: str) -> None:
        self._loaded.pop(id, None)
