"""Which engine carries MPI's messages, and what NCCL, RCCL and UCC are told: from facts alone.

An engine counts only where every node of the job has it: a flag for a component that one Open MPI
was built without would end the job there. Open MPI's own documentation names the parameters:
https://docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/ and, for UCC,
https://docs.open-mpi.org/en/v5.0.x/tuning-apps/coll-tuned.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterctl.errors import LaunchError
from clusterctl.model import Accelerator, Node

Flag = tuple[tuple[str, ...], str]
"""Words of a command line, and why they are there."""

Row = tuple[str, str, str]
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
class Abilities:
    """What the nodes of one job can do together."""

    nodes: tuple[Node, ...]
    backend: str

    def built(self, *components: str) -> bool:
        """Every Open MPI has these, as `framework:component`."""
        return all(set(components) <= set(node.facts.mpi_components) for node in self.nodes)

    @property
    def vendors(self) -> frozenset[Accelerator]:
        return frozenset(node.facts.accelerator for node in self.nodes if node.facts.gpus)

    @property
    def mixed(self) -> bool:
        return len(self.vendors) > 1

    @property
    def over_mpi(self) -> bool:
        """GPU gradients go through MPI."""
        return bool(self.vendors) and (
            self.backend == "mpi" or (self.mixed and self.backend == "auto")
        )

    @property
    def rdma(self) -> bool:
        """Every UCX sees an RDMA device."""
        return all(rdma_devices(node) for node in self.nodes)

    @property
    def gpu_ucx(self) -> bool:
        """Every UCX beside a GPU can read that GPU's memory."""
        return all(
            COPY[node.facts.accelerator] in _transports(node)
            for node in self.nodes
            if node.facts.gpus
        )

    @property
    def efa(self) -> bool:
        """Every libfabric sees an Elastic Fabric Adapter."""
        return all("efa" in node.facts.fabrics for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Engine:
    """A row of ENGINES: `fits` decides, the first that does is taken."""

    name: str
    fits: Callable[[Abilities], bool]
    flags: tuple[Flag, ...]


TCP = Engine(
    "TCP",
    lambda can: True,
    ((("--mca", "pml", "ob1"), "the engine that drives these transports"),),
)

ENGINES = (
    Engine(
        "UCX over RDMA",
        lambda can: can.built("pml:ucx") and can.rdma and (not can.over_mpi or can.gpu_ucx),
        ((("--mca", "pml", "ucx"), "every node's UCX sees an RDMA device"),),
    ),
    Engine(
        "EFA",
        lambda can: can.built("pml:cm", "mtl:ofi") and can.efa and not can.over_mpi,
        (
            (("--mca", "pml", "cm"), "EFA is driven by libfabric, below Open MPI's cm"),
            (("--mca", "mtl", "ofi"), "libfabric, which sees an EFA device on every node"),
        ),
    ),
    Engine(
        "UCX over TCP, for GPU memory",
        lambda can: can.built("pml:ucx") and can.over_mpi and can.gpu_ucx,
        (
            (("--mca", "pml", "ucx"), "UCX reads and writes the memory of every GPU in the job"),
            (("--mca", "pml_ucx_tls", "any"), "without it UCX is refused where there is no RDMA"),
            (("--mca", "pml_ucx_devices", "any"), "the same: TCP devices count too"),
        ),
    ),
    TCP,
)

UCC: tuple[Flag, ...] = (
    (("--mca", "coll_ucc_enable", "1"), "UCC's collectives work on GPU memory; off by default"),
    (("--mca", "coll_ucc_priority", "100"), "before Open MPI's own collectives"),
)


@dataclass(frozen=True, slots=True)
class MpiTransport:
    """What `choose` came to."""

    engine: str
    flags: tuple[Flag, ...]
    env: tuple[Row, ...]
    ucx_devices: dict[str, tuple[str, ...]]
    """RDMA devices by node, where UCX is to use them."""
    notes: tuple[str, ...]


def choose(backend: str, nodes: Sequence[Node]) -> MpiTransport:
    """Raises LaunchError for NCCL among GPUs of two vendors."""
    can = Abilities(tuple(nodes), backend)
    if can.mixed and backend == "nccl":
        raise LaunchError(
            "NCCL and RCCL cannot talk to each other, and this job has AMD and NVIDIA GPUs",
            hint="--backend mpi (or auto), or the nodes of one vendor",
        )
    engine = next(row for row in ENGINES if row.fits(can))
    ucx = ("--mca", "pml", "ucx") in [words for words, _ in engine.flags]
    ucc = ucx and can.over_mpi and can.built("coll:ucc")
    return MpiTransport(
        engine=engine.name,
        flags=engine.flags + (UCC if ucc else ()),
        env=_env(can, ucx, engine.name),
        ucx_devices={node.name: rdma_devices(node) for node in nodes} if ucx and can.rdma else {},
        notes=_notes(can, ucx, ucc),
    )


def rdma_devices(node: Node) -> tuple[str, ...]:
    """Such as `mlx5_0:1`, from what `ucx_info -d` said."""
    pairs = (item.partition("/") for item in node.facts.ucx)
    found = (device for transport, _, device in pairs if transport.startswith(RDMA) and device)
    return tuple(dict.fromkeys(found))


def _transports(node: Node) -> set[str]:
    return {item.partition("/")[0] for item in node.facts.ucx}


def _env(can: Abilities, ucx: bool, engine: str) -> tuple[Row, ...]:
    rows: list[Row] = []
    if can.mixed and can.backend == "auto":
        why = "NCCL and RCCL cannot talk to each other: gradients of both go over MPI"
        rows.append(("CLUSTERCTL_BACKEND", "mpi", why))
    if ucx and can.over_mpi and Accelerator.AMD in can.vendors:
        why = "an AMD GPU without Large BAR: its memory is never loaded and stored directly"
        rows += [(name, "0", why) for name in NO_LARGE_BAR]
    if engine == "EFA" or (can.efa and _plugged(can)):
        rows.append(("FI_PROVIDER", "efa", "libfabric's provider for EFA, found on every node"))
    return tuple(rows)


def _plugged(can: Abilities) -> bool:
    """NCCL finds its OFI plug-in wherever there is a GPU."""
    gpus = [node for node in can.nodes if node.facts.gpus]
    return bool(gpus) and all(node.facts.nccl_net for node in gpus)


def _notes(can: Abilities, ucx: bool, ucc: bool) -> tuple[str, ...]:
    notes = []
    if can.over_mpi and not ucx:
        notes.append(
            "MPI cannot reach GPU memory on every node: gradients go through host memory"
            f" ({_lacking(can)})"
        )
    if ucx and can.over_mpi and not ucc:
        notes.append("no UCC in Open MPI on every node: its own collectives, over UCX")
    without = [node.name for node in can.nodes if node.facts.gpus and not node.facts.nccl_net]
    if can.efa and without and not can.over_mpi:
        notes.append(
            f"EFA is there, but NCCL finds no OFI plug-in on {', '.join(without)}: it uses"
            " TCP (install aws-ofi-nccl, and run ldconfig)"
        )
    return tuple(notes)


def _lacking(can: Abilities) -> str:
    no_pml = [node.name for node in can.nodes if "pml:ucx" not in node.facts.mpi_components]
    if no_pml:
        return f"Open MPI has no UCX on {', '.join(no_pml)}"
    blind = [
        node.name
        for node in can.nodes
        if node.facts.gpus and COPY[node.facts.accelerator] not in _transports(node)
    ]
    return f"UCX sees no GPU on {', '.join(blind)}"
