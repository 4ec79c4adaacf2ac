"""Which library carries the collectives: what each rank has, and the choice all of them make.

| name | carries gradients by | where |
|---|---|---|
| `nccl` | NCCL, or RCCL on AMD | GPU tensors, one GPU per rank, one vendor |
| `mpi` | torch's own MPI backend where it was built in | under mpirun or srun --mpi=pmix |
| `mpi` | else a DDP communication hook over mpi4py's Allreduce; gloo only sets up | the same |
| `gloo` | gloo | everywhere |
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from trainlib import mpi
from trainlib.errors import StartError, UsageError
from trainlib.ranks import Ranks

if TYPE_CHECKING:
    import torch

NAMES = ("auto", "gloo", "nccl", "mpi")
ALLOW_CPU = "CLUSTERCTL_ALLOW_CPU"
PRESET = "CLUSTERCTL_BACKEND"

#: `auto` takes the first that works on all ranks. Measured for small messages on CPU between two
#: hosts over TCP: MPI 0.01-0.1 ms, gloo 1.7-2.1 ms.
_FASTEST_FIRST = {"cuda": ("nccl", "mpi", "gloo"), "cpu": ("mpi", "gloo")}


@dataclass(frozen=True)
class Capability:
    """What one rank has to offer; exchanged between the ranks as JSON."""

    host: str
    device: str = "cpu"
    """Where its tensors are: `cpu` or `cuda` (torch's name on AMD too)."""
    gpu: str = ""
    """Identity of the physical GPU, "" on CPU."""
    vendor: str = ""
    """`nvidia`, `amd`, or "" on CPU."""
    gloo: bool = True
    nccl: bool = False
    mpi_native: bool = False
    mpi_problem: str = ""
    """Why `mpi` cannot be used on this rank, "" if it can."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Capability:
        return Capability(**json.loads(text))


def read_preset(env: Mapping[str, str] | None = None) -> str:
    """The backend that whoever starts the program has chosen (`clusterctl run --backend`).

    Raises:
        UsageError: The variable names no backend.
    """
    name = (os.environ if env is None else env).get(PRESET, "auto")
    if name not in NAMES:
        raise UsageError(f"{PRESET}={name} is not a backend", f"one of {', '.join(NAMES)}")
    return name


def probe(ranks: Ranks, wanted: str, device: torch.device) -> Capability:
    """What this rank can use; MPI is looked for only if `wanted` could mean it."""
    import torch.distributed as dist

    # On GPUs only if it was built CUDA-aware, which cannot be asked: mpi4py goes through the host.
    native = dist.is_mpi_available() and device.type == "cpu"
    problem = "not asked for"
    if wanted in ("auto", "mpi"):
        problem = mpi.find_launch_problem(ranks) or ("" if native else mpi.find_import_problem())
    gpu = ""
    if device.type == "cuda":
        gpu = _identify_gpu(device)
    return Capability(
        host=socket.gethostname(),
        device=device.type,
        gpu=gpu,
        vendor=name_vendor(device),
        gloo=dist.is_gloo_available(),
        nccl=dist.is_nccl_available(),
        mpi_native=native,
        mpi_problem=problem,
    )


def choose(wanted: str, capabilities: Sequence[Capability]) -> str:
    """The backend for these ranks, `gloo`, `nccl` or `mpi`: pure, so every rank finds the same.

    Args:
        wanted: One of `NAMES`.
        capabilities: One per rank, in the order of the ranks.

    Raises:
        StartError: What was asked for does not work on all ranks, and why.
    """
    if wanted != "auto":
        problem = _PROBLEMS[wanted](capabilities)
        if problem:
            raise StartError(f"backend {wanted} is not possible: {problem}", _TODO[wanted])
        return wanted
    for name in _FASTEST_FIRST[capabilities[0].device]:
        if not _PROBLEMS[name](capabilities):
            return name
    raise StartError(
        f"no backend works on all ranks: {_find_gloo_problem(capabilities)}",
        "install a torch with gloo on every node",
    )


def explain_no_nccl(capabilities: Sequence[Capability]) -> str:
    """Why ranks with GPUs do not talk over NCCL, "" if they do or have none."""
    return _find_nccl_problem(capabilities) if capabilities[0].device == "cuda" else ""


def pick_device(ranks: Ranks, everyone_has_gpus: bool) -> torch.device:
    """This rank's GPU if all ranks have one, else the CPU."""
    import torch

    if not everyone_has_gpus:
        return torch.device("cpu")
    # Where the launcher shows each rank only its own GPU there is only index 0.
    device = torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def count_gpus(allow_cpu: bool, env: Mapping[str, str] | None = None) -> int:
    """How many GPUs this rank sees.

    Raises:
        StartError: None, and the CPU is not allowed instead.
    """
    import torch

    env = os.environ if env is None else env
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0 and not (allow_cpu or env.get(ALLOW_CPU) == "1"):
        build = " (this torch is built without GPU support)" if not _is_gpu_build() else ""
        raise StartError(
            f"no GPU is visible to this program{build}",
            f"run it on a GPU node, or pass --allow-cpu (or set {ALLOW_CPU}=1)",
        )
    return count


def mask_gpus(numbers: Sequence[int]) -> UsageError | None:
    """Shows torch these GPUs alone, before it looks: of those that the launcher shows this rank.

    Returned, not raised, is that one is not there: MPI, which the ranks agree over, may look too.
    """
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    name = next((name for name in names if name in os.environ), names[1])
    shown = os.environ.get(name)
    own = [one for one in shown.split(",") if one] if shown is not None else None
    if own is None:
        own = [str(number) for number in range(max(numbers, default=-1) + 1)]
    if not all(0 <= number < len(own) for number in numbers):
        wanted = " ".join(map(str, numbers))
        return UsageError(
            f"--gpu {wanted}: {name}={shown or ''} shows {len(own)} GPUs",
            "give numbers from 0 on, of those that the launcher shows",
        )
    if numbers:
        os.environ[name] = ",".join(own[number] for number in numbers)
    return None


def name_vendor(device: torch.device) -> str:
    """Of the GPU that this torch is built for: `nvidia`, `amd`, or "" on CPU."""
    import torch

    if device.type != "cuda":
        return ""
    return "amd" if torch.version.hip else "nvidia"


def _is_gpu_build() -> bool:
    import torch

    return bool(torch.version.cuda or torch.version.hip)


def _identify_gpu(device: torch.device) -> str:
    """Unique per physical GPU: its UUID, else host and PCI address (a mask renumbers indices)."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", ""))
    if len(uuid.replace("-", "").strip("0")) > 8:  # some of AMD's have one for all: 0, or "XX"
        return uuid
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    address = [str(getattr(properties, name, device.index)) for name in names]
    return f"{socket.gethostname()}/{':'.join(address)}"


def _find_first(capabilities: Sequence[Capability], problem: Callable[[Capability], str]) -> str:
    """The first rank's problem with its rank and host, "" if no rank has one."""
    for rank, capability in enumerate(capabilities):
        text = problem(capability)
        if text:
            return f"{text} (rank {rank} on {capability.host})"
    return ""


def _find_gloo_problem(capabilities: Sequence[Capability]) -> str:
    return _find_first(capabilities, lambda c: "" if c.gloo else "torch is built without gloo")


def _find_nccl_problem(capabilities: Sequence[Capability]) -> str:
    problem = _find_first(
        capabilities,
        lambda c: (
            "its tensors are on the CPU and NCCL needs a GPU"
            if c.device != "cuda"
            else ("" if c.nccl else "torch is built without NCCL/RCCL")
        ),
    )
    if problem:
        return problem
    vendors = sorted({c.vendor for c in capabilities})
    if len(vendors) > 1:
        return f"NCCL and RCCL cannot talk to each other and the job mixes {' and '.join(vendors)}"
    seen: dict[str, int] = {}
    for rank, capability in enumerate(capabilities):
        if capability.gpu in seen:
            # Otherwise NCCL aborts or hangs: pytorch/examples#1279.
            return (
                f"ranks {seen[capability.gpu]} and {rank} share one GPU on {capability.host}, "
                "NCCL needs one per rank"
            )
        seen[capability.gpu] = rank
    return ""


def _find_mpi_problem(capabilities: Sequence[Capability]) -> str:
    problem = _find_first(capabilities, lambda c: c.mpi_problem)
    if problem:
        return problem
    if len({c.mpi_native for c in capabilities}) > 1:
        return "torch has its own MPI backend on some ranks and not on others"
    return ""


_PROBLEMS = {"gloo": _find_gloo_problem, "nccl": _find_nccl_problem, "mpi": _find_mpi_problem}
_TODO = {
    "gloo": "install a torch with gloo on every node, or pass --backend auto",
    "nccl": "run one rank per GPU of one vendor, or pass --backend auto",
    "mpi": "start the program with mpirun or srun --mpi=pmix, or pass --backend auto",
}
