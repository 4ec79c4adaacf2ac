"""The optimizer in C++ (workloads/cpp/mpi_sgd.hpp) for Python, through bindings compiled here.

    from trainlib.cpp_sgd import CppSGD

    optimizer = CppSGD(model.parameters(), lr=0.01, momentum=0.9)

The first use compiles, for a minute: once per node and content, with the node's C++ compiler and
the wrapper `mpicxx`, in torch's folder of extensions (`TORCH_EXTENSIONS_DIR`).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from trainlib import mpi
from trainlib.errors import StartError, WorkloadError
from trainlib.program import print_line
from trainlib.ranks import discover

COMPILE_S = 900.0
"""Seconds that the compiler may take."""

_SOURCE = Path(__file__).resolve().parent / "mpi_sgd_python.cpp"
_NAME = "trainlib_mpi_sgd"
_OPTIONS = ("lr", "momentum", "dampening", "weight_decay", "nesterov")


class CppSGD(torch.optim.Optimizer):
    """`trainlib.mpi_sgd.MpiSGD` computed by C++, for parameters in single and double precision.

    Messages go through host memory. All groups are given at the beginning; their options may
    change between steps. Gradients are averaged inside `step`.

    Raises:
        StartError: MPI cannot be used, or there is no compiler.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        sync_iterations: int = 1,
    ) -> None:
        if sync_iterations < 1:
            raise ValueError(f"sync_iterations is {sync_iterations}, less than 1")
        if nesterov and (momentum <= 0 or dampening):
            raise ValueError("nesterov needs a momentum above 0, and no dampening")
        values = (lr, momentum, dampening, weight_decay, nesterov)
        self._optimizer: Any = None  # add_param_group() looks at it
        super().__init__(params, dict(zip(_OPTIONS, values, strict=True)))
        ranks = discover()
        if ranks.world > 1:
            mpi.start(ranks)
        made = load().MpiSGD([group["params"] for group in self.param_groups], sync_iterations)
        if made.world != ranks.world:
            raise StartError(
                f"the C++ optimizer sees {made.world} of {ranks.world} ranks: mpicxx belongs to "
                "another MPI than mpi4py's",
                "put the mpicxx of the launcher's MPI first on PATH",
            )
        self._optimizer = made

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._optimizer is not None:
            raise ValueError("CppSGD takes all groups at the beginning")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        self._optimizer.step([tuple(group[name] for name in _OPTIONS) for group in groups])
        return loss

    @torch.no_grad()
    def synchronize(self) -> None:
        """Average the weights now, if steps were made since they last were. All ranks call it."""
        self._optimizer.synchronize()

    def state_dict(self) -> dict[str, Any]:
        """As `MpiSGD` has it: each can load the other's."""
        tensors = [tensor for group in self.param_groups for tensor in group["params"]]
        for tensor, buffer in zip(tensors, self._optimizer.get_momentum(), strict=True):
            if buffer is not None:
                self.state[tensor]["momentum_buffer"] = buffer
        return {**super().state_dict(), "steps": self._optimizer.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        tensors = [tensor for group in self.param_groups for tensor in group["params"]]
        buffers = [self.state.get(tensor, {}).get("momentum_buffer") for tensor in tensors]
        self._optimizer.set_momentum(buffers)
        self._optimizer.steps = int(state_dict.get("steps", 0))


@functools.cache
def load() -> Any:
    """The module of the bindings, compiled if this content has not been.

    Raises:
        StartError: There is no compiler.
        WorkloadError: It could not compile.
    """
    wrapper = shutil.which("mpicxx")
    if wrapper is None or shutil.which("c++") is None:
        raise StartError(
            f"no {'c++' if wrapper else 'mpicxx'} on {socket.gethostname()} to compile the C++ "
            "optimizer",
            "apt-get install g++ libopenmpi-dev there, or leave out --optimizer cpp",
        )
    header = _SOURCE.parent.parent / "cpp" / "mpi_sgd.hpp"
    content = hashlib.sha256(_SOURCE.read_bytes() + header.read_bytes())
    content.update(f"{torch.__version__} {sys.version} {os.uname().machine} {wrapper}".encode())
    given = os.environ.get("TORCH_EXTENSIONS_DIR") or "~/.cache/torch_extensions"
    folder = Path(given).expanduser() / f"{_NAME}-{content.hexdigest()[:16]}"
    library = folder / f"{_NAME}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            # The ranks of a node wait for the first one. The system unlocks for one that is killed.
            with contextlib.suppress(OSError):  # a file system without locks: each compiles
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                _compile(folder, library, wrapper)
    except OSError as error:
        raise WorkloadError(
            f"{folder} cannot be written ({error.strerror})",
            "name a folder with TORCH_EXTENSIONS_DIR=DIR",
        ) from error
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(library))
    spec = importlib.util.spec_from_loader(_NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _compile(folder: Path, library: Path, wrapper: str) -> None:
    if discover().rank == 0:
        print_line("Compiling the C++ optimizer; the next run finds it compiled")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        try:
            subprocess.run(
                [sys.executable, "-m", "trainlib.cpp_sgd", scratch],
                check=True,
                cwd=_SOURCE.parent.parent,
                env={**os.environ, "CXX": wrapper},
                timeout=COMPILE_S,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except subprocess.SubprocessError as error:
            said = (getattr(error, "output", None) or b"").decode(errors="replace")
            lines = [line for line in said.splitlines() if "error" in line] or [str(error)]
            raise WorkloadError(
                f"the C++ optimizer does not compile on {socket.gethostname()}: {lines[0]}",
                "its headers need g++ 11 or newer and Python's (python3-dev)",
            ) from error
        os.replace(Path(scratch) / f"{_NAME}.so", library)


def _build(folder: Path) -> None:
    """Compiles into `folder`, in a process of its own: it prints much, and may hang."""
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    libraries = Path(torch.__file__).parent / "lib"
    extension = CppExtension(
        *(_NAME, [str(_SOURCE)]),
        extra_compile_args=["-O2", "-g0"],
        extra_link_args=[f"-Wl,-rpath,{libraries}"],
    )
    kind = BuildExtension.with_options(use_ninja=False, no_python_abi_suffix=True)
    command: Any = kind(Distribution({"ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder), str(folder / "objects")
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
