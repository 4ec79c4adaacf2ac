"""`environment.yml` of conda, as far as an index of Python packages has what it names. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from clusterctl.errors import UsageError

SUFFIXES = (".yml", ".yaml")

RENAMED = {"pytorch": "torch", "pytorch-cpu": "torch", "py-opencv": "opencv-python"}
"""Packages that have another name there."""

LEFT_OUT = re.compile(
    r"python|pip|setuptools|wheel|conda|cudatoolkit|cudnn|nccl|pytorch-cuda|pytorch-mutex|cuda-\S+"
    r"|openmpi|mpich|mpi|nodejs|compilers|(c|cxx|fortran)-compiler|gcc\S*|gxx\S*|gfortran\S*"
    r"|libgcc\S*|_\S+|\S+-ng|\S+[-_]linux-64|r-\S+|numpy-base|blas|libblas|openblas|libopenblas"
    r"|mkl|intel-openmp|libgomp|llvm-openmp|bzip2|ca-certificates|libffi|libuuid|ncurses|openssl"
    r"|readline|sqlite|tk|xz|zlib|ffmpeg|git|make"
)
"""What is no Python package (or another one in an index), or what the nodes have themselves."""

_ITEM = re.compile(r"(\s*)-\s+(.*?)\s*(?:\s#.*)?$")
_SPEC = re.compile(r"(?:[\w.-]+::)?([A-Za-z0-9_.-]+)\s*([=<>!~][\w=<>!~,.*+ -]*)?")


class Environment(NamedTuple):
    """`lines`: those of a requirements file. `left_out`: what of the file is not in them."""

    lines: tuple[str, ...]
    left_out: tuple[str, ...]


def read(path: Path, text: str) -> Environment:
    """What its `dependencies` ask for. Raises UsageError for a line that is not understood."""
    lines: list[str] = []
    left_out: list[str] = []
    inside, depth, by_pip = False, 0, False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        item = _ITEM.match(line)
        if item is None:
            key = line.split("#")[0].strip()
            inside, by_pip = key == "dependencies:", False
            if key.startswith("channels:"):
                left_out.append("its channels")
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
            translated = _translate(entry, f"{path}, line {number}")
            (lines if translated else left_out).append(translated or entry)
    return Environment(tuple(lines), tuple(left_out))


def _translate(entry: str, where: str) -> str:
    """`numpy=1.26=py311_0` as conda means it, `numpy==1.26.*`; "" for what is left out."""
    found = _SPEC.fullmatch(entry)
    if found is None:
        raise UsageError(
            f"{where} is not understood: {entry!r}",
            hint="write NAME or NAME=VERSION, or `--requirements none`",
        )
    name, rest = found[1].lower(), (found[2] or "").replace(" ", "")
    if LEFT_OUT.fullmatch(name):
        return ""
    name = RENAMED.get(name, name)
    if rest.startswith("=") and not rest.startswith("=="):
        version, _, _ = rest[1:].partition("=")  # a build is conda's own
        rest = f"=={version}" if version.endswith("*") else f"=={version}.*"
    return name + rest
