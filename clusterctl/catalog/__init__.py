"""Tables: GPU families, images, quotas, dated prices and packages. Standard library only."""

from __future__ import annotations

from clusterctl.catalog.families import (
    DRIVER_FOR_CUDA,
    FAMILIES,
    FAST,
    LAUNCHER_TYPE,
    MORE_ARCHES,
    ONE_SIZE,
    Family,
    choose_instance_type,
    find_baseline,
    find_family,
    name_workers,
)
from clusterctl.catalog.images import (
    COMPILED_FOR,
    COMPILING,
    CONTAINER_IMAGES,
    MACHINE_IMAGES,
    RECIPES,
    ContainerImage,
    MachineImage,
    choose_images,
    name_local_image,
)
from clusterctl.catalog.packages import BUNDLED, NODE_PACKAGES, ROCM, TORCH_INDEX
from clusterctl.catalog.prices import PRICE_REGION, PRICES
from clusterctl.catalog.quotas import QUOTAS, Quota, find_quota

__all__ = [
    "BUNDLED",
    "COMPILED_FOR",
    "COMPILING",
    "CONTAINER_IMAGES",
    "DEFAULT_IDLE",
    "DEFAULT_TTL",
    "DRIVER_FOR_CUDA",
    "FAMILIES",
    "FAST",
    "LAUNCHER_TYPE",
    "MACHINE_IMAGES",
    "MORE_ARCHES",
    "NODE_PACKAGES",
    "ONE_SIZE",
    "PRICES",
    "PRICE_REGION",
    "QUOTAS",
    "RECIPES",
    "ROCM",
    "TORCH_INDEX",
    "ContainerImage",
    "Family",
    "MachineImage",
    "Quota",
    "choose_images",
    "choose_instance_type",
    "find_baseline",
    "find_family",
    "find_quota",
    "name_local_image",
    "name_workers",
]

DEFAULT_TTL = 8 * 3600.0
"""Seconds after which a cluster on EC2 ends, without --ttl."""
DEFAULT_IDLE = 3600.0
"""Seconds after which unused workers on EC2 end, without --idle."""
