"""One truth about the network: which subnet and which device per node, for every library.

Open MPI and PRRTE take subnets, so that devices may be named differently from node to node; UCX,
NCCL, RCCL and Gloo take device names, which are therefore set per node by the rank wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network

from clusterctl.errors import LaunchError
from clusterctl.launch_plan import Reason
from clusterctl.model import Interface, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """`cidrs` cover the chosen address of every node, `devices` names its device there. `alone`:
    none of these devices has a second address."""

    cidrs: tuple[str, ...]
    devices: dict[str, str]
    reason: str = ""
    alone: bool = True
    ucx_devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """RDMA devices that UCX is to use beside the node's device, by node."""

    def build_node_env(self) -> dict[str, dict[str, str]]:
        """Variables per node for the libraries that take device names.

        `=` makes NCCL match the whole name: `eth1` would also match `eth10`. UCX knows a TCP
        device by its plain name.
        """
        return {
            node: {
                "GLOO_SOCKET_IFNAME": device,
                "TP_SOCKET_IFNAME": device,
                "NCCL_SOCKET_IFNAME": f"={device}",
                "UCX_NET_DEVICES": ",".join((*self.ucx_devices.get(node, ()), device)),
            }
            for node, device in self.devices.items()
        }

    def explain_reasons(self) -> tuple[Reason, ...]:
        item = "GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, UCX_NET_DEVICES"
        devices = ", ".join(f"{device} on {node}" for node, device in self.devices.items())
        return (Reason(item=item, why=f"the same network for these libraries: {devices}"),)


def solve(nodes: Sequence[Node]) -> Interconnect:
    """The network that all `nodes` share.

    A network counts when every node has a live interface in it and no two nodes have the same
    address there. The second condition is what tells docker0 and virbr0 from a real network: they
    look the same on every machine, and lead nowhere. Among the networks that count, the one that
    holds the nodes' private addresses wins, then the one with the longest prefix.
    Nodes that share none (routed subnets) are each taken at their private address.
    """
    networks = {_compute_network(item) for node in nodes for item in _list_usable(node)}
    candidates = {
        network: chosen
        for network in sorted(networks, key=lambda net: (-net.prefixlen, net))
        if (chosen := _choose_distinct(nodes, network))
    }
    private = {node.private_address for node in nodes}
    for network, chosen in candidates.items():
        if {item.address for item in chosen.values()} == private:
            return _make_result([network], chosen, f"the nodes' private addresses lie in {network}")
    at_private = {node.name: found for node in nodes if (found := _find_with_address(node))}
    if len(at_private) == len(nodes):
        routed = sorted({_compute_network(item) for item in at_private.values()})
        return _make_result(routed, at_private, "the nodes are routed to each other")
    if candidates:
        network, chosen = next(iter(candidates.items()))
        return _make_result([network], chosen, f"{network} is the network that all nodes share")
    names = ", ".join(node.name for node in nodes)
    raise LaunchError(
        f"no network connects {names}",
        hint="`clusterctl status --live` shows their interfaces; they need one subnet, or routes",
    )


def use_loopback(nodes: Sequence[Node]) -> Interconnect:
    """For nodes that are names of one host."""
    return Interconnect(cidrs=("127.0.0.0/8",), devices={node.name: "lo" for node in nodes})


def _make_result(
    networks: Sequence[IPv4Network], chosen: dict[str, Interface], reason: str
) -> Interconnect:
    return Interconnect(
        cidrs=tuple(str(network) for network in networks),
        devices={name: item.device for name, item in chosen.items()},
        reason=reason,
        alone=all(item.alone for item in chosen.values()),
    )


def _compute_network(item: Interface) -> IPv4Network:
    return IPv4Interface(f"{item.address}/{item.prefix}").network


def _list_usable(node: Node) -> list[Interface]:
    return [
        item for item in node.facts.interfaces if item.up and not item.address.startswith("127.")
    ]


def _choose_distinct(nodes: Sequence[Node], network: IPv4Network) -> dict[str, Interface]:
    """Each node's interface in `network`; empty unless all have one, with addresses that differ."""
    chosen: dict[str, Interface] = {}
    for node in nodes:
        inside = [item for item in _list_usable(node) if _compute_network(item) == network]
        if not inside:
            return {}
        preferred = [item for item in inside if item.address == node.private_address]
        chosen[node.name] = (preferred or inside)[0]
    addresses = {item.address for item in chosen.values()}
    return chosen if len(addresses) == len(chosen) else {}


def _find_with_address(node: Node) -> Interface | None:
    return next((item for item in _list_usable(node) if item.address == node.private_address), None)
