"""The machine images that exist, in every region. moto's own are years old."""

from __future__ import annotations

import json
from pathlib import Path

CANONICAL = "099720109477"
AMAZON = "898082745236"

UBUNTU = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server"
UBUNTU_24 = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server"
NVIDIA = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)"
NVIDIA_24 = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04)"
NVIDIA_SINGLE = "Deep Learning Base AMI with Single CUDA (Ubuntu 24.04)"
AMAZON_LINUX = "al2023-ami-2023.9.20260512.0-kernel-6.1-x86_64"

UBUNTU_ARM = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-arm64-server"

ROWS = (
    (CANONICAL, f"{UBUNTU_ARM}-20260511", "2026-05-11", "ami-0a0000000000e2201"),
    (CANONICAL, f"{UBUNTU}-20250305", "2025-03-05", "ami-0a0000000000c2201"),
    (CANONICAL, f"{UBUNTU}-20260511", "2026-05-11", "ami-0a0000000000c2202"),
    (CANONICAL, f"{UBUNTU_24}-20260513", "2026-05-13", "ami-0a0000000000c2401"),
    (AMAZON, f"{NVIDIA} 20250301", "2025-03-01", "ami-0a0000000000d2201"),
    (AMAZON, f"{NVIDIA} 20260508", "2026-05-08", "ami-0a0000000000d2202"),
    (AMAZON, f"{NVIDIA_24} 20260508", "2026-05-08", "ami-0a0000000000d2401"),
    (AMAZON, f"{NVIDIA_SINGLE} 20260619", "2026-06-19", "ami-0a0000000000d2402"),
    (AMAZON, f"{NVIDIA_SINGLE} 20260717", "2026-07-17", "ami-0a0000000000d2403"),
    (AMAZON, AMAZON_LINUX, "2026-05-12", "ami-0a0000000000a2301"),
)
"""Owner, name, date, id: two generations of each, so that "most recent" has something to choose."""


def write(path: Path) -> None:
    """The file that MOTO_AMIS_PATH names."""
    images = [
        {
            "ami_id": ami,
            "name": name,
            "description": name,
            "owner_id": owner,
            "public": True,
            "virtualization_type": "hvm",
            "architecture": "arm64" if "arm64" in name else "x86_64",
            "state": "available",
            "creation_date": f"{date}T00:00:00.000Z",
            "platform": None,
            "image_type": "machine",
            "hypervisor": "xen",
            "root_device_name": "/dev/sda1" if owner == CANONICAL else "/dev/xvda",
            "root_device_type": "ebs",
            "sriov": "simple",
        }
        for owner, name, date, ami in ROWS
    ]
    path.write_text(json.dumps(images))


def snapshot(name: str | None) -> int:
    """GiB of the root disk of the image of this name. Source: the block device mappings that
    DescribeImages has for Canonical's images and for AWS's Deep Learning Base images."""
    return 75 if "Deep Learning" in (name or "") else 8


def has_docker(name: str | None) -> bool:
    """Whether machines of the image of this name come with Docker."""
    return any(part in (name or "") for part in ("Deep Learning", "clusterctl-nvidia"))
