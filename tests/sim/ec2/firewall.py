"""Security groups: which packets a machine lets in.

Its namespace filters what comes by eth0, in a table that neither Docker nor anybody else uses there
(mangle), and in one load for each change. Sources: VPC User Guide, "Security group rules" (groups
stand for the private addresses of their members); EC2 User Guide, "Security group connection
tracking" (answers come in, and connections outlive their rule).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tests.sim.ec2.network import iptables

Members = dict[str, list[str]]
"""Group → the private addresses of its members."""


def members(instances: Iterable[Any]) -> Members:
    """Of moto's instances that have a network interface."""
    found: Members = {}
    for one in instances:
        for group in one.nics[0].group_set:
            found.setdefault(group.id, []).append(one.private_ip_address)
    return found


def rules(instance: Any, members: Members) -> frozenset[str]:
    """What its groups let in, as iptables has it."""
    return frozenset(
        f"{source} {_ports(rule)}".strip()
        for group in instance.nics[0].group_set
        for rule in list(group.ingress_rules)
        for source in _sources(rule, members)
    )


def _sources(rule: Any, members: Members) -> Iterator[str]:
    if network := rule.ip_range.get("CidrIp"):
        yield f"-s {network}"
    for address in members.get(rule.source_group.get("GroupId", ""), ()):
        yield f"-s {address}/32"


def _ports(rule: Any) -> str:
    protocol = rule.ip_protocol
    if protocol == "-1":
        return ""
    if protocol not in ("tcp", "udp") or rule.from_port in (None, -1):
        return f"-p {protocol}"
    return f"-p {protocol} --dport {rule.from_port}:{rule.to_port}"


class Firewall:
    """That of all machines."""

    def __init__(self) -> None:
        self._loaded: dict[str, frozenset[str]] = {}

    def keep(self, id: str, pid: int, wanted: frozenset[str]) -> None:
        """Loads them into the network of process `pid`, unless they are there. Raises
        CalledProcessError."""
        if self._loaded.get(id) == wanted:
            return
        lines = [
            "*mangle",
            ":PREROUTING DROP [0:0]",
            "-A PREROUTING ! -i eth0 -j ACCEPT",
            "-A PREROUTING -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            *(f"-A PREROUTING {rule} -j ACCEPT" for rule in sorted(wanted)),
            "COMMIT",
        ]
        iptables(f"/proc/{pid}/ns/net", lines)
        self._loaded[id] = wanted

    def forget(self, id: str) -> None:
        self._loaded.pop(id, None)
