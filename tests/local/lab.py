"""A local cluster as its user meets it: made by the provider, entered with the system's own ssh."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.core import keys
from clusterctl.core.model import Cluster, ClusterSpec, Node, NodeGroup, Phase
from clusterctl.machines.local.layout import Site, make_site
from clusterctl.machines.local.provider import LocalProvider
from clusterctl.machines.protocol import Created

ROOT = Path(__file__).resolve().parents[2]
DRIVE = Path(__file__).with_name("drive.py")


def cluster(cluster_id: str, workers: int, mode: str = "", shared: bool = False) -> Cluster:
    groups = (NodeGroup(count=workers),)
    spec = ClusterSpec(name="demo", provider="local", groups=groups, shared=shared)
    return Cluster(id=cluster_id, spec=spec, phase=Phase.CREATING, created=0.0, mode=mode)


def folder_of(home: Path) -> Path:
    """The cluster's folder in a state home, with the keys that `up` makes before it calls us."""
    folder = home / "clusters" / "demo"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys.ensure(folder / "ssh" / "user")
    keys.ensure(folder / "ssh" / "mesh")
    return folder


@dataclass
class Lab:
    """One cluster. `outside` is a folder for what ssh needs, whose path is not a test of ssh."""

    home: Path
    outside: Path
    mode: str = ""
    shared: bool = False
    id: str = field(default_factory=lambda: f"demo-{uuid.uuid4().hex}")
    nodes: dict[str, Node] = field(default_factory=dict)
    host_keys: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return folder_of(self.home)

    @property
    def site(self) -> Site:
        return make_site(self.id, self.folder)

    def cluster(self, workers: int | None = None) -> Cluster:
        wanted = len(self.nodes) - 1 if workers is None else workers
        return cluster(self.id, max(wanted, 1), self.mode, self.shared)

    def up(self, workers: int) -> Created:
        made = LocalProvider().create(self.cluster(workers), self.folder, self.said.append)
        self.learn(made.nodes, made.host_keys)
        return made

    def learn(self, nodes: tuple[Node, ...], host_keys: dict[str, str]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.host_keys = host_keys
        shutil.copy(self.folder / "ssh" / "user", self.outside / "key")
        (self.outside / "key").chmod(0o600)
        known = (
            f"[{node.address}]:{node.ssh_port} {host_keys[node.name]}\n"
            if node.ssh_port != 22
            else f"{node.address} {host_keys[node.name]}\n"
            for node in nodes
        )
        (self.outside / "known_hosts").write_text("".join(known))

    def describe(self) -> dict[str, str]:
        return LocalProvider().describe(self.cluster(), self.folder)

    def down(self) -> None:
        LocalProvider().destroy(self.cluster(), self.folder, self.said.append)

    def argv(self, name: str, *command: str) -> list[str]:
        node = self.nodes[name]
        options = (
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.outside}/known_hosts",
            "GlobalKnownHostsFile=none",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "ConnectTimeout=5",
        )
        return [
            *("ssh", "-F", "none", "-i", str(self.outside / "key"), "-p", str(node.ssh_port)),
            *(word for option in options for word in ("-o", option)),
            *(f"{node.user}@{node.address}", "--", *command),
        ]

    def ssh(self, name: str, command: str) -> str:
        """What the command said. It has to succeed."""
        done = subprocess.run(
            self.argv(name, command), capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 0, f"{name}: {command}: {done.returncode}: {done.stderr}"
        return done.stdout.strip()

    def leftovers(self) -> list[str]:
        """Whatever of this cluster the machine still knows, found without the provider's help."""
        left = [name for _, name in socket.if_nameindex() if name == self.site.interface]
        left += [str(path) for path in Path("/tmp").glob(f"{self.site.scratch_prefix}*")]
        left += [str(path) for path in self.folder.iterdir() if path.name != "ssh"]
        left += [str(path) for path in Path("/run").glob("netns/*") if self.site.short in path.name]
        mounts = Path("/proc/self/mountinfo").read_text()
        left += [line for line in mounts.splitlines() if self.site.short in line]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                left += [f"{entry.name} {what}" for what in self._traces(entry)]
        return left

    def _traces(self, entry: Path) -> list[str]:
        """Signs that a process belongs to the cluster: environment, command line, open files."""
        try:
            texts = [(entry / name).read_bytes() for name in ("environ", "cmdline")]
            texts += [os.fsencode(os.readlink(path)) for path in (entry / "fd").iterdir()]
        except OSError:
            return []
        ours = (os.fsencode(self.id), os.fsencode(self.folder))
        return [repr(text[:200]) for text in texts if any(mark in text for mark in ours)]


def drive(lab: Lab, verb: str, workers: int, *options: str) -> list[str]:
    """The command line of a process of its own that does `verb` to the lab's cluster."""
    words = [sys.executable, str(DRIVE), verb, str(lab.home), lab.id, str(workers), lab.mode]
    return ["env", f"PYTHONPATH={ROOT}", *words, *options]
