"""How the things of a local cluster are called and where they lie, from its id and folder alone."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.machines import protocol
from clusterctl.machines.protocol import LAUNCHER

MAX_WORKERS = 200
"""A cluster gets a /24 (or 127.0.0.x), which also holds the launcher and this machine's own end."""

SWITCH = "switch"
STARTER = "starter"
REAPER = "reaper"
SCRATCH = Path("/tmp")
"""Where the nodes' TMPDIRs lie. Fixed and short: a socket's path may have 107 characters."""


def name_nodes(workers: int) -> tuple[str, ...]:
    return protocol.name_nodes(workers, most=MAX_WORKERS, what="a local cluster")


def parse_index(name: str) -> int:
    """0 for the launcher, 1… for the workers."""
    return 0 if name == LAUNCHER else int(name.rpartition("-")[2])


class Place:
    """The files of one node. `folder` is all that the node sees of the state home, `scratch` its
    TMPDIR."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        self.name = name
        self.folder = folder
        self.scratch = scratch
        self.root = folder / "root"
        self.home = folder / "home"
        self.log = folder / "sshd.log"
        self.etc = folder / "etc"
        self.config = self.etc / "sshd_config"
        self.host_key = self.etc / "ssh_host_ed25519_key"
        self.pid_file = self.etc / "sshd.pid"  # sshd writes it once it listens
        self.authorized_keys = self.etc / "authorized_keys"
        self.hosts = self.etc / "hosts"
        self.shadow = self.etc / "shadow"


class Site:
    """One local cluster. `folder` has no symbolic links: it is what the kernel calls it."""

    def __init__(self, id: str, folder: Path) -> None:
        self.id = id
        self.folder = folder
        self.nodes = folder / "nodes"
        self.shared = folder / "shared"
        """The folder that all nodes see, at this path, if one was asked for."""
        self.short = hashlib.sha256(id.encode()).hexdigest()[:8]
        """Stands for the id where few or odd characters are not welcome."""
        self.interface = f"cctl-{self.short}"
        """This machine's end of the cable to the switch; a name has at most 15 characters."""
        self.scratch_prefix = f"cctl-{self.short}-"
        self.scratch_link = folder / "scratch"
        """Leads to the parent of the nodes' TMPDIRs, which has a name that nobody else can guess,
        and take before."""

    @property
    def scratch(self) -> Path:
        """That parent, once it is made."""
        try:
            return Path(os.readlink(self.scratch_link))
        except OSError:
            return self.scratch_link

    def make_tag(self, name: str) -> str:
        """The value of CLUSTERCTL_NODE in the environment of the processes that make up a node."""
        return f"{self.id}/{name}"

    def locate(self, name: str) -> Place:
        return Place(name, self.nodes / name, self.scratch / str(parse_index(name)))


def make_site(cluster_id: str, folder: Path) -> Site:
    check_path(folder)
    return Site(cluster_id, folder.resolve())


def check_path(folder: Path) -> None:
    """Refuses a path that sshd's configuration or Open MPI cannot hold; everything else is quoted.
    Raises UsageError."""
    text = str(folder)
    if any(char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in text):
        raise UsageError(
            f"the state home {text!r} has a control character or a byte that is not UTF-8",
            hint="set CLUSTERCTL_HOME to another folder",
        )
    if "," in text:
        raise UsageError(
            f"the state home {text!r} has a comma: Open MPI splits paths at commas",
            hint="set CLUSTERCTL_HOME to another folder",
        )


def check_new_path(folder: Path) -> None:
    """Refuses also one in which no job starts, though a cluster may be removed there: the folder of
    Open MPI's remote agent is in PATH. Raises UsageError."""
    check_path(folder)
    if ":" in str(folder):
        raise UsageError(
            f"the state home {str(folder)!r} has a colon, which separates the folders of PATH",
            hint="set CLUSTERCTL_HOME to another folder",
        )


def find_hidden(folder: Path, keep: Iterable[Path]) -> Path:
    """What nodes must not see: the whole state home (`folder` is STATE/clusters/NAME), or as much
    of it as does not hold one of `keep`, which nodes need (a home, Python, /tmp).
    """
    needed = tuple(keep)
    for candidate in (folder.parent.parent, folder.parent, folder):
        if not any(path.is_relative_to(candidate) for path in needed):
            return candidate
    raise UsageError(
        f"the cluster's folder {folder} contains files that its nodes need",
        hint="set CLUSTERCTL_HOME to a folder of its own",
    )
