"""Machine images of EC2, container images, and the recipes that these are built from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clusterctl.errors import UsageError


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
