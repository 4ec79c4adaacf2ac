"""Which engine carries MPI's messages, and what NCCL, RCCL and UCC are told: from facts alone.

An engine counts only where every node of the job has it: a flag for a component that one Open MPI
was built without would end the job there. Open MPI's own documentation names the parameters:
https://docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/ and, for UCC,
https://docs.open-mpi.org/en/v5.0.x/tuning-apps/coll-tuned.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.errors import LaunchError
from clusterctl.model import Accelerator, Node

Flag = tuple[tuple[str, ...], str]
"""Words of a command line, and why they are there."""

Variable = tuple[str, str, str]
"""A variable, its value, and why."""

RDMA = ("rc_", "dc_", "ud_")
"""How the transports of UCX begin that need an RDMA device."""

COPY = {Accelerator.NVIDIA: "cuda_copy", Accelerator.AMD: "rocm_copy"}
"""The transport that a UCX built for the vendor's GPUs has."""

NO_LARGE_BAR = (
    "UCX_ROCM_COPY_D2H_THRESH",
    "UCX_ROCM_COPY_H2D_THRESH",
    "UCC_EC_ROCM_REDUCE_HOST_LIMIT",
    "UCC_EC_ROCM_COPY_HOST_LIMIT",
    "OMPI_MCA_mpi_accelerator_rocm_memcpyD2H_limit",
    "OMPI_MCA_mpi_accelerator_rocm_memcpyH2D_limit",
)
"""All 0: never load and store GPU memory from the processor. g4ad has no Large BAR, so that crashes
there (openucx/ucc#1043)."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A row of ENGINES. The first row counts of which the nodes have all `needs`:

    `rdma`, `efa`: every UCX, or every libfabric, sees such a device. `gpu`: GPU gradients go
    through MPI, `host`: they do not. `memory`: UCX reads whatever memory gradients lie in. `amd`:
    there are GPUs of AMD, `mixed`: of NVIDIA too. `plug-in`: NCCL finds its OFI plug-in wherever
    there is a GPU. Others are what every Open MPI was built with, as `framework:component`.
    """

    name: str
    needs: tuple[str, ...]
    flags: tuple[Flag, ...]

    @property
    def pml(self) -> str:
        """A word for the tables of what goes with it."""
        return next(words[2] for words, _ in self.flags if words[1] == "pml")


UCX_WITHOUT_RDMA: tuple[Flag, ...] = (
    (("--mca", "pml_ucx_tls", "any"), "without it UCX is refused where there is no RDMA"),
    (("--mca", "pml_ucx_devices", "any"), "the same: TCP devices count too"),
)
TCP = Engine(
    "TCP",
    (),
    ((("--mca", "pml", "ob1"), "the engine that drives these transports"),),
)

ENGINES = (
    Engine(
        "UCX over RDMA",
        ("pml:ucx", "rdma", "memory"),
        ((("--mca", "pml", "ucx"), "UCX finds an RDMA device on every node"),),
    ),
    Engine(
        "EFA",
        ("pml:cm", "mtl:ofi", "efa", "host"),
        (
            (("--mca", "pml", "cm"), "EFA is driven by libfabric, below Open MPI's cm"),
            (("--mca", "mtl", "ofi"), "libfabric, which finds an EFA device on every node"),
        ),
    ),
    Engine(
        "UCX over TCP, for GPU memory",
        ("pml:ucx", "gpu", "memory"),
        (
            (("--mca", "pml", "ucx"), "UCX reads and writes the memory of every GPU in the job"),
            *UCX_WITHOUT_RDMA,
        ),
    ),
    TCP,
)

UCC_NEEDS = ("ucx", "gpu", "coll:ucc")
UCC: tuple[Flag, ...] = (
    (("--mca", "coll_ucc_enable", "1"), "UCC's collectives work on GPU memory; off by default"),
    (("--mca", "coll_ucc_priority", "100"), "before Open MPI's own collectives"),
)

_NEVER_DIRECT = "an AMD GPU without Large BAR: its memory is never loaded and stored directly"
_PROVIDER: Variable = ("FI_PROVIDER", "efa", "libfabric's provider for EFA, found on every node")
VARIABLES: tuple[tuple[tuple[str, ...], tuple[Variable, ...]], ...] = (
    (("ucx", "gpu", "amd"), tuple((name, "0", _NEVER_DIRECT) for name in NO_LARGE_BAR)),
    (("cm",), (_PROVIDER,)),
    (("efa", "plug-in"), (_PROVIDER,)),
)
"""What else is told to ranks, by what it needs."""


@dataclass(frozen=True, slots=True)
class MpiTransport:
    """What `choose` came to."""

    engine: str
    flags: tuple[Flag, ...]
    env: tuple[Variable, ...]
    ucx_devices: dict[str, tuple[str, ...]]
    """RDMA devices by node, where UCX is to use them."""
    notes: tuple[str, ...]


def choose(backend: str, nodes: Sequence[Node]) -> MpiTransport:
    """Raises LaunchError for NCCL among GPUs of two vendors."""
    can = _list_abilities(backend, nodes)
    if "mixed" in can and backend == "nccl":
        raise LaunchError(
            "NCCL and RCCL cannot talk to each other, and this job has AMD and NVIDIA GPUs",
            hint="--backend mpi (or auto), or use nodes of one vendor",
        )
    engine = next(row for row in ENGINES if can.issuperset(row.needs))
    can |= {engine.pml}
    rows: list[Variable] = []
    if "mixed" in can and backend == "auto":
        why = "NCCL and RCCL cannot talk to each other: gradients of both go over MPI"
        rows.append(("CLUSTERCTL_BACKEND", "mpi", why))
    rows += [row for needs, more in VARIABLES if can.issuperset(needs) for row in more]
    by_node = (
        {node.name: list_rdma_devices(node) for node in nodes} if {"ucx", "rdma"} <= can else {}
    )
    return MpiTransport(
        engine=engine.name,
        flags=engine.flags + (UCC if can.issuperset(UCC_NEEDS) else ()),
        env=tuple(dict.fromkeys(rows)),
        ucx_devices=by_node,
        notes=_note_limits(can, nodes),
    )


def _list_abilities(backend: str, nodes: Sequence[Node]) -> frozenset[str]:
    """What the nodes of a job can do together, in the words of `Engine.needs`."""
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
