"""The provider that CONTRIBUTING shows: its nodes are plain sshd processes of this machine."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterctl.core import keys
from clusterctl.core.model import Cluster, ClusterSpec, Node, Reporter, Role
from clusterctl.machines.protocol import Created, Features, Provider, ProviderPlan

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "sshd"


class ProcessesProvider(Provider):
    features = Features(pythons=(sys.executable,), shares_machine=True, instant=True)

    def plan(self, spec: ClusterSpec, *rest: Any, ahead: Path | None = None) -> ProviderPlan:
        disk = f" with {spec.cloud.disk} GB each" if spec.cloud.disk else ""
        line = f"{spec.workers + 1} sshd on this machine{disk}"
        return ProviderPlan(mode="processes", mode_reason="", one_host=True, lines=(line,))

    def create(self, cluster: Cluster, folder: Path, report: Reporter) -> Created:
        names = ["launcher", *(f"worker-{n}" for n in range(1, cluster.spec.workers + 1))]
        nodes = tuple(_node(folder / "nodes" / name) for name in names)
        return Created(nodes=nodes, host_keys={n: keys.ensure(folder / "nodes" / n) for n in names})

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        running = {path.stem for path in folder.glob("nodes/*.pid")}
        return {n.name: "running" if n.name in running else "gone" for n in cluster.nodes}

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        for pid in folder.glob("nodes/*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGTERM)
        shutil.rmtree(folder / "nodes", ignore_errors=True)


def _node(key: Path) -> Node:
    """Its sshd writes `NAME.pid` when it listens, and removes it when it ends."""
    port_file, root = key.with_suffix(".port"), key.with_suffix(".root")
    root.mkdir(parents=True, exist_ok=True)
    keys.ensure(key)
    if not key.with_suffix(".pid").exists():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port_file.write_text(str(free.getsockname()[1]))
        ssh = key.parents[1] / "ssh"
        options = {
            "ListenAddress": f"127.0.0.1:{port_file.read_text()}",
            "HostKey": key,
            "PidFile": key.with_suffix(".pid"),
            "AuthorizedKeysFile": f"{ssh}/user.pub {ssh}/mesh.pub",
            "StrictModes": "no",
            "SetEnv": f"HOME={root}",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        subprocess.run([SSHD, "-f", "/dev/null", *words], check=True)
    port = int(port_file.read_text())
    return Node(
        name=key.name,
        role=Role.LAUNCHER if key.name == "launcher" else Role.WORKER,
        address="127.0.0.1",
        private_address="127.0.0.1",
        ssh_port=port,
        job_port=port,
        user=getpass.getuser(),
        root=str(root),
    )
