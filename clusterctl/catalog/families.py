"""Instance types by the family of their GPU, and what their processors can do."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

from clusterctl.errors import UsageError
from clusterctl.model import Accelerator, NodeGroup


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
