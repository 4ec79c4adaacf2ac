"""Light hosts: a machine made of namespaces, up in a fifth of a second.

Its process 1 is `inside/light`, in a process namespace of its own: when that ends, the kernel
ends every process of the host, and all its changes to files lie on a tmpfs of its mount namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from tests.sim.ec2.dns import RESOLVER
from tests.sim.ec2.machines import Order
from tests.sim.ec2.network import gateway

_INSIDE = Path(__file__).parent / "inside"
_CHECKOUT = Path(__file__).parents[3]

_UNSHARE = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL"),
    "--",
)


class LightHost:
    """One host. The simulator's main thread has to start it: it dies with that thread. Others may
    ask how it is, also while it goes."""

    def __init__(self, order: Order) -> None:
        self.order = order
        order.folder.mkdir(parents=True)
        spec = order.folder / "spec.json"
        spec.write_text(json.dumps(self._spec()))
        spec.chmod(0o600)
        self._log = (order.folder / "console.log").open("wb")
        python = os.path.realpath(sys.executable)
        self._process = subprocess.Popen(
            [*_UNSHARE, python, "-IS", str(_INSIDE / "light"), str(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._said = b""
        self._reading = threading.Lock()

    def _spec(self) -> dict[str, object]:
        order = self.order
        kept = _interpreter()
        return {
            "id": order.id,
            "folder": str(order.folder),
            "hostname": order.hostname,
            "private_address": order.private,
            "prefix": order.subnet.prefixlen,
            "gateway": gateway(order.subnet),
            "resolver": RESOLVER,
            "public_keys": order.keys,
            "user_data": order.user_data,
            "docker": order.docker,
            "files": order.files,
            "python": os.path.realpath(sys.executable),
            "tools": str(_INSIDE / "light" / "tools.py"),
            "hidden": _hidden(kept),
            "kept": [str(path) for path in kept],
            "commands": _commands(),
        }

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        with self._reading, contextlib.suppress(OSError):
            if not stdout.closed:  # else its number may be that of another file
                self._said += os.read(stdout.fileno(), 4096)

    @property
    def pid(self) -> int | None:
        self._read()
        return self._process.pid if b"ready\n" in self._said else None

    def connected(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()

    def restarted(self) -> None:
        with self._reading:
            self._said = self._said.replace(b"up\n", b"")  # it says so again
        self.connected()

    @property
    def up(self) -> bool:
        self._read()
        return b"up\n" in self._said

    def ended(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        return "poweroff" if code == 0 else f"ended with {code}: {self.console()}"

    def console(self) -> str:
        return (self.order.folder / "console.log").read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with self._reading:
            for stream in (self._process.stdin, self._process.stdout, self._log):
                if stream:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        shutil.rmtree(self.order.folder, ignore_errors=True)


def _interpreter() -> list[Path]:
    """This Python with its packages: what has to be seen where all else is hidden. One that lies
    with the system's own programs is seen anyway, and must not be covered by itself.
    """
    real = Path(os.path.realpath(sys.executable)).parents[1]
    found = {Path(sys.prefix), Path(sys.base_prefix), real}
    found |= {path.resolve() for path in found}
    return sorted(found - {Path("/"), Path("/usr"), Path("/usr/local")})


def _hidden(kept: list[Path]) -> list[str]:
    """Homes, scratch folders and this checkout: no instance has them."""
    hidden = {Path("/tmp"), Path("/var/tmp"), Path("/home"), Path("/root"), _CHECKOUT}
    hidden = {path for path in hidden if path not in kept}
    covered = {path for path in hidden if any(up in hidden for up in path.parents)}
    return [str(path) for path in sorted(hidden - covered)]


def _commands() -> dict[str, str]:
    """A `python3` with torch, mpi4py and Open MPI, if this one has them: nothing to install."""
    folder = Path(sys.prefix, "bin")
    names = {"python3": "python", "mpirun": "mpirun"}
    return {name: str(folder / file) for name, file in names.items() if (folder / file).exists()}
