"""Network ACLs of the user's own subnets: what they certainly keep from a cluster. Pure.

Their rules are looked at by number, the first that fits counts, and answers need rules of their
own: VPC User Guide, "Control subnet traffic with network access control lists". Traffic within a
subnet, to AWS's DNS and to the metadata service is not filtered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

ANYWHERE = IPv4Network("0.0.0.0/0")
_INSIDE = tuple(
    map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))
)
"""Networks that are no part of the internet."""

_ALL, _TCP = "-1", "6"
_LAST = 32767
"""The number of the rule `*`, which denies what no other rule has matched."""
Ports = tuple[int, int]
SSH, HTTP, HTTPS = (22, 22), (80, 80), (443, 443)
ANSWERS = (32768, 60999)
"""Where Linux expects answers: https://docs.kernel.org/networking/ip-sysctl.html"""
ANY_ANSWERS = (1024, 65535)
"""Where other systems and translators of addresses do."""


@dataclass(frozen=True, slots=True)
class Acl:
    """`rules` as EC2 has them."""

    id: str
    rules: Sequence[Mapping[str, Any]]

    def find_block(self, ports: Ports, networks: Sequence[IPv4Network], *, out: bool) -> str:
        """What keeps it from letting anything through to (`out`), or from, any of these networks on
        any of these TCP ports; "" where it may let something through. ANYWHERE is the internet."""
        found = [self._find_block(ports, network, out) for network in networks]
        return found[0] if all(found) else ""

    def _find_block(self, ports: Ports, network: IPv4Network, out: bool) -> str:
        for rule in sorted(self.rules, key=lambda rule: int(rule["RuleNumber"])):
            if bool(rule["Egress"]) != out or str(rule["Protocol"]) not in (_ALL, _TCP):
                continue
            if "CidrBlock" not in rule:
                continue  # of IPv6, which clusters do not use
            theirs = IPv4Network(rule["CidrBlock"], strict=False)
            first, last = _read_ports(rule)
            if not theirs.overlaps(network) or last < ports[0] or first > ports[1]:
                continue
            if network == ANYWHERE and any(map(theirs.subnet_of, _INSIDE)):
                continue
            if rule["RuleAction"] == "allow":
                return ""
            whole = network.subnet_of(theirs) and first <= ports[0] and ports[1] <= last
            if whole and int(rule["RuleNumber"]) != _LAST:
                return f"rule {rule['RuleNumber']}"
        return "no rule allows it"


def _read_ports(rule: Mapping[str, Any]) -> Ports:
    said = rule.get("PortRange") if str(rule["Protocol"]) == _TCP else None
    return (int(said["From"]), int(said["To"])) if said else (0, 65535)


def find_for_subnet(subnet: str, found: Sequence[Mapping[str, Any]]) -> Acl | None:
    """The one that a subnet has, among those of its VPC; None where that is not told."""
    for item in found:
        if any(link.get("SubnetId") == subnet for link in item.get("Associations", ())):
            return Acl(str(item["NetworkAclId"]), list(item.get("Entries", ())))
    return None


def find_ssh_trouble(acl: Acl | None, sources: Sequence[IPv4Network]) -> str:
    """Why the launcher could not be reached from there; "" where it can, as far as this tells."""
    if acl is None:
        return ""
    wanted, who = sources or (ANYWHERE,), ", ".join(map(str, sources)) or "anywhere"
    if why := acl.find_block(SSH, wanted, out=False):
        return f"its network ACL {acl.id} blocks SSH from {who} (TCP 22, {why})"
    if why := acl.find_block(ANY_ANSWERS, wanted, out=True):
        return f"its network ACL {acl.id} blocks answers of SSH to {who} (TCP 1024-65535, {why})"
    return ""


def find_internet_trouble(acl: Acl | None, *, http: bool) -> str:
    """Why machines could not fetch packages; "" as above. `http`: whether they also need port 80,
    where Ubuntu's packages are."""
    if acl is None:
        return ""
    for ports in (HTTPS, *([HTTP] if http else [])):
        if why := acl.find_block(ports, [ANYWHERE], out=True):
            return (
                f"its network ACL {acl.id} blocks traffic to the internet (TCP {ports[0]}, {why}),"
                " so machines could not fetch packages"
            )
    if why := acl.find_block(ANSWERS, [ANYWHERE], out=False):
        return (
            f"its network ACL {acl.id} blocks answers from the internet (TCP 32768-60999, {why}),"
            " so machines could not fetch packages"
        )
    return ""


def find_pair_trouble(
    workers: Acl | None, inner: IPv4Network, launcher: Acl | None, outer: IPv4Network
) -> str:
    """Why the launcher and workers in another subnet could not talk; "" as above. `inner`, `outer`:
    the networks of their subnets."""
    # The launcher connects to workers by SSH, and what it starts there connects back to it.
    for acl, ports, other, out, what in (
        (workers, SSH, outer, False, "from the launcher"),
        (workers, ANSWERS, outer, False, "from the launcher"),
        (workers, ANSWERS, outer, True, "to the launcher"),
        (launcher, SSH, inner, True, "to the workers"),
        (launcher, ANSWERS, inner, True, "to the workers"),
        (launcher, ANSWERS, inner, False, "from the workers"),
    ):
        if acl and (why := acl.find_block(ports, [other], out=out)):
            port = "-".join(map(str, dict.fromkeys(ports)))
            return f"network ACL {acl.id} blocks traffic {what} ({other}, TCP {port}, {why})"
    return ""
