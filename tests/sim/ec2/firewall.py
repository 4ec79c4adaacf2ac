"""Security groups and network ACLs: which packets reach a machine, and which leave it.

Its namespace filters what comes and goes by eth0, in a table that neither Docker nor anybody else
uses there (mangle), and in one load for each change. Sources: VPC User Guide, "Security group
rules" (groups stand for the private addresses of their members) and "Control subnet traffic with
network access control lists" (by number; answers need rules of their own; a subnet is open to
itself, and neither the metadata service nor the resolver is filtered); EC2 User Guide, "Security
group connection tracking" (answers come in, and connections outlive their rule).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from tests.sim.ec2.dns import RESOLVER
from tests.sim.ec2.network import IMDS, iptables, subnet_of

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
    """What its groups and the ACL of its subnet let through, as iptables has it."""
    subnet = subnet_of(instance)
    lines = [
        "*mangle",
        ":PREROUTING DROP [0:0]",
        ":POSTROUTING DROP [0:0]",
        ":ACL-IN - [0:0]",
        ":ACL-OUT - [0:0]",
        *_acl(instance, "ACL-IN", "-s", out=False),
        *_acl(instance, "ACL-OUT", "-d", out=True),
    ]
    groups = list(instance.nics[0].group_set)
    for chain, card, way, list_name, acl in (
        ("PREROUTING", "-i", "-s", "ingress_rules", "ACL-IN"),
        ("POSTROUTING", "-o", "-d", "egress_rules", "ACL-OUT"),
    ):
        lines.append(f"-A {chain} ! {card} eth0 -j ACCEPT")
        lines += (f"-A {chain} {way} {address} -j ACCEPT" for address in (IMDS, RESOLVER))
        lines.append(f"-A {chain} ! {way} {subnet} -j {acl}")
        lines.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
        found = {
            f"-A {chain} {other} {_ports(rule)} -j ACCEPT"
            for group in groups
            for rule in list(getattr(group, list_name))
            for other in _others(rule, members, way)
        }
        lines += sorted(found)
    return (*lines, "COMMIT")


def _acl(instance: Any, chain: str, way: str, *, out: bool) -> Iterator[str]:
    """The chain of an ACL, which a packet returns from or is dropped in."""
    card = instance.nics[0]
    acls = [
        acl
        for acl in card.ec2_backend.network_acls.values()
        if any(link.subnet_id == card.subnet.id for link in acl.associations)
    ]
    for entry in sorted(
        (entry for acl in acls for entry in list(acl.network_acl_entries)),
        key=lambda entry: int(entry.rule_number),
    ):
        if str(entry.egress).lower() != str(out).lower() or not entry.cidr_block:
            continue
        protocol = "" if entry.protocol == "-1" else f"-p {entry.protocol}"
        if protocol and entry.port_range_from:
            protocol += f" --dport {entry.port_range_from}:{entry.port_range_to}"
        target = "RETURN" if entry.rule_action == "allow" else "DROP"
        yield f"-A {chain} {way} {entry.cidr_block} {protocol} -j {target}"
    yield f"-A {chain} -j DROP"


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
