"""One truth about the network: which subnet and which device per node, for every library.

Open MPI and PRRTE take subnets, so that devices may be named differently from node to node; UCX,
NCCL, RCCL and Gloo take device names, which are therefore set per node by the rank wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from ipaddress import IPv4Interface, IPv4Network

from msgspec import Struct, field

from clusterctl.core import assets
from clusterctl.core.job import Reason
from clusterctl.core.model import Accelerator, Interface, Node
from clusterctl.errors import LaunchError


class Interconnect(Struct, frozen=True, kw_only=True):
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


# -------------------------------------------------------------------------------------------------
# Which engine carries MPI's messages, and what NCCL, RCCL and UCC are told: from facts alone, by
# network.toml.


Flag = tuple[tuple[str, ...], str]
"""Words of a command line, and why they are there."""

Variable = tuple[str, str, str]
"""A variable, its value, and why."""

RDMA = ("rc_", "dc_", "ud_")
"""How the transports of UCX begin that need an RDMA device."""

COPY = {Accelerator.NVIDIA: "cuda_copy", Accelerator.AMD: "rocm_copy"}
"""The transport that a UCX built for the vendor's GPUs has."""


class Engine(Struct, frozen=True):
    """What carries messages, and what it needs in the words of network.toml."""

    name: str
    needs: tuple[str, ...]
    flags: tuple[Flag, ...]

    @property
    def pml(self) -> str:
        """A word for the tables of what goes with it."""
        return next(words[2] for words, _ in self.flags if words[1] == "pml")


class FlagRow(Struct, frozen=True):
    """Flags, and what they need."""

    needs: tuple[str, ...]
    flags: tuple[Flag, ...]


class VariableRow(Struct, frozen=True):
    """Variables with one value, and what they need."""

    needs: tuple[str, ...]
    names: tuple[str, ...]
    value: str
    why: str


class NetworkTables(Struct, frozen=True):
    """network.toml."""

    engines: tuple[Engine, ...]
    ucc: FlagRow
    variables: tuple[VariableRow, ...]


@cache
def load_tables() -> NetworkTables:
    return assets.load_table("launch/network.toml", NetworkTables)


def list_flags_without_rdma() -> tuple[Flag, ...]:
    """What UCX needs where there is no RDMA."""
    (engine,) = (row for row in load_tables().engines if {"pml:ucx", "gpu"} <= set(row.needs))
    return engine.flags


class MpiTransport(Struct, frozen=True):
    """What `choose` came to."""

    engine: str
    flags: tuple[Flag, ...]
    env: tuple[Variable, ...]
    ucx_devices: dict[str, tuple[str, ...]]
    """RDMA devices by node, where UCX is to use them."""
    notes: tuple[str, ...]


def choose_transport(backend: str, nodes: Sequence[Node]) -> MpiTransport:
    """Raises LaunchError for NCCL among GPUs of two vendors."""
    can = _list_abilities(backend, nodes)
    if "mixed" in can and backend == "nccl":
        raise LaunchError(
            "NCCL and RCCL cannot talk to each other, and this job has AMD and NVIDIA GPUs",
            hint="--backend mpi (or auto), or use nodes of one vendor",
        )
    tables = load_tables()
    engine = next(row for row in tables.engines if can.issuperset(row.needs))
    can |= {engine.pml}
    rows: list[Variable] = []
    if "mixed" in can and backend == "auto":
        why = "NCCL and RCCL cannot talk to each other: gradients of both go over MPI"
        rows.append(("CLUSTERCTL_BACKEND", "mpi", why))
    for row in tables.variables:
        if can.issuperset(row.needs):
            rows += [(name, row.value, row.why) for name in row.names]
    by_node = (
        {node.name: list_rdma_devices(node) for node in nodes} if {"ucx", "rdma"} <= can else {}
    )
    return MpiTransport(
        engine=engine.name,
        flags=engine.flags + (tables.ucc.flags if can.issuperset(tables.ucc.needs) else ()),
        env=tuple(dict.fromkeys(rows)),
        ucx_devices=by_node,
        notes=_note_limits(can, nodes),
    )


def _list_abilities(backend: str, nodes: Sequence[Node]) -> frozenset[str]:
    """What the nodes of a job can do together, in the words of network.toml."""
    with_gpu = [node for node in nodes if node.facts.gpus]
    vendors = {node.facts.accelerator for node in with_gpu}
    mixed = len(vendors) > 1
    over_mpi = bool(vendors) and (backend == "mpi" or (mixed and backend == "auto"))
    words = {
        "rdma": all(list_rdma_devices(node) for node in nodes),
        "efa": all("efa" in node.facts.fabrics for node in nodes),
        "gpu": over_mpi,
        "host": not over_mpi,
        "memory": not over_mpi or not _find_blind(nodes),
        "amd": Accelerator.AMD in vendors,
        "mixed": mixed,
        "plug-in": bool(with_gpu) and all(node.facts.nccl_net for node in with_gpu),
    }
    built = (frozenset(node.facts.mpi_components) for node in nodes)
    return frozenset.intersection(*built) | {word for word, holds in words.items() if holds}


def list_rdma_devices(node: Node) -> tuple[str, ...]:
    """Such as `mlx5_0:1`, from what `ucx_info -d` said."""
    pairs = (item.partition("/") for item in node.facts.ucx)
    found = (device for transport, _, device in pairs if transport.startswith(RDMA) and device)
    return tuple(dict.fromkeys(found))


def _find_blind(nodes: Sequence[Node]) -> list[str]:
    """Nodes whose UCX cannot read the memory of their GPUs."""
    return [
        node.name
        for node in nodes
        if node.facts.gpus
        and COPY[node.facts.accelerator] not in {item.partition("/")[0] for item in node.facts.ucx}
    ]


def _note_limits(can: frozenset[str], nodes: Sequence[Node]) -> tuple[str, ...]:
    notes = []
    if "gpu" in can and "ucx" not in can:
        no_pml = [node.name for node in nodes if "pml:ucx" not in node.facts.mpi_components]
        lacking = f"Open MPI has no UCX on {', '.join(no_pml)}"
        if not no_pml:
            lacking = f"UCX finds no GPU on {', '.join(_find_blind(nodes))}"
        notes.append(
            "MPI cannot reach GPU memory on every node: gradients go through host memory"
            f" ({lacking})"
        )
    if {"gpu", "ucx"} <= can and "coll:ucc" not in can:
        notes.append("no UCC in Open MPI on every node: its own collectives, over UCX")
    without = [node.name for node in nodes if node.facts.gpus and not node.facts.nccl_net]
    if {"efa", "host"} <= can and without:
        notes.append(
            f"EFA is there, but NCCL finds no OFI plug-in on {', '.join(without)}: it uses"
            " TCP (install aws-ofi-nccl, and run ldconfig)"
        )
    return tuple(notes)
