"""Removes the files of nodes and says what of a cluster is still there."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from clusterctl.providers.local import layout
from clusterctl.providers.local.layout import Place, Site
from clusterctl.providers.local.processes import find_network, list_pids


def remove_tree(path: Path) -> None:
    """Removes a folder, also where a program left folders in it that it had closed to itself; of a
    link in its place, the link."""
    if path.is_symlink():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except PermissionError:
        _open_up(path)
        shutil.rmtree(path)


def _open_up(folder: Path) -> None:
    folder.chmod(0o700)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _open_up(Path(entry.path))


def remove_node(place: Place) -> None:
    remove_tree(place.folder)
    remove_tree(place.scratch)


def find_scratch_folders(site: Site) -> list[Path]:
    """The parents of the nodes' temporary folders, by name; nobody else's of that name."""
    folders = sorted(layout.SCRATCH.glob(f"{site.scratch_prefix}*"))
    return [folder for folder in folders if _is_mine(folder)]


def _is_mine(folder: Path) -> bool:
    with suppress(FileNotFoundError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def find_surplus(site: Site, names: Iterable[str]) -> list[Place]:
    """Nodes that have files here but are not wanted."""
    wanted = set(names)
    found: set[str] = set()
    with suppress(FileNotFoundError):
        found = {path.name for path in site.nodes.glob("worker-*")}
    return [site.locate(name) for name in sorted(found - wanted)]


def find_remnants(site: Site, networks: Iterable[int]) -> list[str]:
    """What is left besides the cluster's own processes, in words.

    `networks` are the namespaces that it had: a stranger who entered one keeps it alive.
    """
    held = set(networks)
    left = [f"process {pid} inside its network" for pid in list_pids() if find_network(pid) in held]
    if site.interface in (name for _, name in socket.if_nameindex()):
        left.append(f"interface {site.interface}")
    folders = (site.nodes, site.shared, *find_scratch_folders(site))
    return left + [str(path) for path in folders if path.exists()]
