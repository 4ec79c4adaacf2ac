"""`environment.yml` of conda, as far as an index of Python packages has what it names. Pure."""

from __future__ import annotations

import re
from pathlib import Path

from clusterctl.errors import UsageError

RENAMED = {"pytorch": "torch", "pytorch-cpu": "torch", "py-opencv": "opencv-python"}
"""Packages that have another name there."""

LEFT_OUT = re.compile(
    r"python|pip|setuptools|wheel|conda|cudatoolkit|cudnn|nccl|pytorch-cuda|pytorch-mutex|cuda-\S+"
    r"|openmpi|mpich|mpi|nodejs|compilers|gcc\S*|gxx\S*|libgcc\S*|_libgcc_mutex|_openmp_mutex"
)
"""What is no Python package, or what the nodes have themselves."""

_ITEM = re.compile(r"(\s*)-\s+(.*?)\s*(?:\s#.*)?$")
_SPEC = re.compile(r"(?:[\w.-]+::)?([A-Za-z0-9_.-]+)\s*([=<>!~][\w=<>!~,.*+ -]*)?")


def read(path: Path, text: str) -> str:
    """The lines of a requirements file that its `dependencies` make. Raises UsageError."""
    lines: list[str] = []
    inside, depth, by_pip = False, 0, False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        item = _ITEM.match(line)
        if item is None:
            inside, by_pip = line.split("#")[0].strip() == "dependencies:", False
            continue
        if not inside:
            continue
        indent, entry = len(item[1]), item[2].strip("'\"")
        if entry == "pip:":
            by_pip, depth = True, indent
        elif by_pip and indent > depth:
            lines.append(entry)
        else:
            by_pip = False
            lines += _translate(entry, f"{path}, line {number}")
    if not lines:
        raise UsageError(f"{path} names no packages for Python", hint="check its `dependencies`")
    return "".join(f"{line}\n" for line in lines)


def _translate(entry: str, where: str) -> list[str]:
    """`numpy=1.26=py311_0` as conda means it, `numpy==1.26.*`; nothing for what is left out."""
    found = _SPEC.fullmatch(entry)
    if found is None:
        raise UsageError(f"{where} is not understood: {entry!r}", hint="NAME or NAME=VERSION")
    name, rest = found[1].lower(), (found[2] or "").replace(" ", "")
    if LEFT_OUT.fullmatch(name):
        return []
    name = RENAMED.get(name, name)
    if rest.startswith("=") and not rest.startswith("=="):
        version, _, _ = rest[1:].partition("=")  # a build is conda's own
        rest = f"=={version}" if version.endswith("*") else f"=={version}.*"
    return [name + rest]
