"""GPU families, images, quotas, dated prices and packages: the rows of catalog.toml, and of the
Terraform module's catalog.tf.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clusterctl.core.assets import find_folder
from clusterctl.core.model import Accelerator, NodeGroup
from clusterctl.core.text import read_table
from clusterctl.errors import UsageError

_TABLES = read_table("catalog")
# Terraform reads it, too.
_MODULE = json.loads((find_folder("infra") / "ec2" / "catalog.tf.json").read_bytes())
_EC2: dict[str, Any] = _MODULE["locals"]["catalog"]

# -------------------------------------------------------------------------------------------------
# Instance types by the family of their GPU, and what their processors can do.


class Family(Struct, frozen=True, kw_only=True):
    name: str
    instance_type: str
    image: str
    accelerator: Accelerator = Accelerator.NONE
    gpu: str = ""
    arch: str = ""


FAMILIES = {
    name: msgspec.convert({"name": name, **row}, Family) for name, row in _EC2["families"].items()
}

LAUNCHER_TYPE = "t3.micro"
SMALL_WORKERS = ("c7i.xlarge", "c7i.large", "c7i-flex.large", "t3.small")
"""Workers without GPUs for an account that may start little. The last two are in AWS's free plan:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/free-tier-plans.html"""

OF_EIGHT: dict[str, str] = _TABLES["of_eight"]
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


def guess_image_kind(group: NodeGroup) -> str:
    """The kind of machine image for these workers, by their names alone: which types have GPUs of
    whom, EC2 tells later."""
    if group.family in FAMILIES:
        return FAMILIES[group.family].image
    family = group.instance_type.partition(".")[0]
    if family in FAMILIES:
        return FAMILIES[family].image
    return "nvidia" if re.match(r"(gr?|p)\d", family) else "cpu"


DRIVER_FOR_CUDA = msgspec.convert(_TABLES["drivers"], dict[str, tuple[int, int]])

FAST = ("/sys/class/infiniband", "/sys/class/cxi", "/dev/nvidiactl", "/dev/kfd")
"""Only a machine that has one of these has more than TCP and shared memory to carry messages."""

BASELINES: dict[str, int] = _TABLES["baselines"]


def find_baseline(instance_type: str) -> int | None:
    """As in BASELINES; None for a type that is not burstable. T2 has less, where it differs."""
    family, _, size = instance_type.partition(".")
    if not re.fullmatch(r"t\d\w*", family):
        return None
    return {"xlarge": 22, "2xlarge": 17}.get(size) if family == "t2" else BASELINES.get(size)


# -------------------------------------------------------------------------------------------------
# Machine images of EC2, container images, and the recipes that these are built from.


class MachineImage(Struct, frozen=True):
    """`home` is the one of its user."""

    owner: str
    name: str
    user: str = "ubuntu"
    home: str = "/home/ubuntu"


MACHINE_IMAGES = msgspec.convert(_EC2["images"], dict[str, MachineImage])


class ContainerImage(Struct, frozen=True):
    """What runs on a kind of node: where its Python and its Open MPI are, and whom its processes
    belong to where we do not say it."""

    public: str
    python: str = "/opt/venv/bin/python"
    mpi_prefix: str = "/opt/venv"
    user: str = "root"


CONTAINER_IMAGES = msgspec.convert(_TABLES["container_images"], dict[str, ContainerImage])

RECIPES: dict[str, str] = _TABLES["recipes"]


def choose_image(kind: str, image: str, images: Mapping[str, str]) -> str:
    """What that kind of node gets: a reference, or the name of a recipe."""
    usual = kind if kind in RECIPES else CONTAINER_IMAGES[kind].public
    return images.get(kind) or image or usual


def choose_images(kinds: Iterable[str], image: str, images: Mapping[str, str]) -> dict[str, str]:
    """What each kind of node gets: a reference, or the name of a recipe. What is not chosen, by
    `image` for all nodes or `images` for those of a kind, is the recipe of the kind's own name,
    else a public image.

    Raises UsageError for a kind that the cluster does not have.
    """
    found = {kind: choose_image(kind, image, images) for kind in kinds}
    for kind in sorted(set(images) - set(found)):
        raise UsageError(
            f"--image {kind}={images[kind]}: the cluster has no {kind} nodes",
            hint=f"its kinds of nodes are {', '.join(found)}",
        )
    return found


def name_local_image(recipe: str) -> str:
    """What `image build` calls an image on this machine's engine."""
    return f"clusterctl/{recipe}:1"


class Installs(Struct, frozen=True):
    """See catalog.toml. Pairs: GB fetched, GB written."""

    start: float
    fetch: float
    disk: float
    pulled: float
    host: dict[str, tuple[float, float]]
    built: dict[str, tuple[float, float]]

    def estimate(self, fetched: float, written: float, disk: float) -> float:
        """Seconds until a node has so many GB, from its boot on. `disk`: its MB/s."""
        return self.start + 1e3 * (fetched / self.fetch + written / disk)


INSTALLS = msgspec.convert(_TABLES["installs"], Installs)

# -------------------------------------------------------------------------------------------------
# Python packages of the nodes: their versions, and the package index of torch.


NODE_PACKAGES: dict[str, list[str]] = _TABLES["node_packages"]

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


class Price(Struct, frozen=True):
    """US dollars per hour in us-east-1 (disks: per GiB and month); where and when it was read."""

    dollars: float
    source: str
    date: str


PRICE_REGION = "us-east-1"

PRICES = {
    item: Price(dollars, row["source"], row["date"])
    for row in _TABLES["prices"]
    for item, dollars in row["dollars"].items()
}


# -------------------------------------------------------------------------------------------------
# The limits of EC2 on vCPUs, and what counts towards each.


class Quota(Struct, frozen=True):
    """An EC2 limit in vCPUs. `families` are the beginnings of instance types that it counts;
    `spot_name` is what the limit of their spot instances is called, where that differs; its code is
    "" where we do not know it."""

    name: str
    on_demand: str
    families: tuple[str, ...]
    spot: str = ""
    spot_name: str = ""


QUOTAS = msgspec.convert(_TABLES["quotas"], tuple[Quota, ...])


def find_quota(instance_type: str) -> Quota | None:
    """The limit that an instance type counts towards, as far as we know it."""
    if instance_type.startswith("mac"):
        return None  # whole hosts
    return next((row for row in QUOTAS if instance_type.startswith(row.families)), None)


# -------------------------------------------------------------------------------------------------

DEFAULT_TTL = 8 * 3600.0
"""Seconds after which a cluster on EC2 ends, without --ttl."""
DEFAULT_IDLE = 3600.0
"""Seconds after which unused machines on EC2 end, without --idle."""
