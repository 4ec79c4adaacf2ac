"""TAGI's layers against cuTAGI's own, which its wheel brings."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import tagi_layers
from tests.sim.engine import cache

WHEEL = "pytagi==0.2.1"


def install(folder: Path, gcc: str, nm: str) -> str:
    """The wheel in `folder`, and what stands in for NCCL; returns why it cannot be had, or ""."""
    if (folder / "libnccl.so.2").exists():
        return ""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    argv += ["--only-binary", ":all:", "--target", str(folder), WHEEL]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    # The wheel is linked to NCCL, 350 MB of which nothing is called here: its names are enough.
    (library,) = folder.glob("cutagi*.so")
    symbols = subprocess.run([nm, "-D", library], capture_output=True, text=True, check=True).stdout
    names = re.findall(r" U (nccl\w+)", symbols)
    code = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)
    made = folder / f"stub.{os.getpid()}"
    subprocess.run([gcc, "-shared", "-x", "c", "-", "-o", made], input=code, text=True, check=True)
    made.rename(folder / "libnccl.so.2")
    return ""


@pytest.fixture(scope="module")
def differences(need: Any) -> dict[str, float]:
    """Of all networks, in one process: the library's mistakes must not end ours."""
    need(ctypes.util.find_library("mpi_cxx") is not None, "pytagi needs Open MPI 4 (libmpi_cxx)")
    folder = cache() / f"pytagi-{sys.implementation.cache_tag}"
    problem = install(folder, need("gcc"), need("nm"))
    need(problem == "", f"{WHEEL} cannot be installed: {problem}")
    done = subprocess.run(
        [sys.executable, tagi_layers.__file__, "--pytagi", folder],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done
    found: dict[str, float] = json.loads(done.stdout)["largest_relative_difference"]
    return found


@pytest.mark.parametrize("network", tagi_layers.NETWORKS)
def test_four_steps_are_cutagis_own(differences: dict[str, float], network: str) -> None:
    assert differences[network] < tagi_layers.LIMIT
