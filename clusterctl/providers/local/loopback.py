"""Nodes for those who may not make namespaces: one sshd each on a loopback address, one host."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from clusterctl.errors import ProviderError
from clusterctl.providers.local import layout
from clusterctl.providers.local.layout import Place
from clusterctl.providers.local.node_processes import NodeProcess, locate_script
from clusterctl.providers.local.processes import Process, list_pids, read_start
from clusterctl.providers.local.sshd import Server, is_locked, read_endpoint
from clusterctl.providers.shared.sshd_probe import Endpoint

_PRIVSEP = Path("/run/sshd")
"""Compiled into sshd: when root runs it, its unprivileged half is locked up in there."""

_OURS = 0o711
"""Permissions of that folder if we made it; the distribution's service makes (and resets) 0755."""


class Loopback:
    """The network of a cluster in loopback mode."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ports: dict[str, Endpoint] = {}

    def adopt(self, found: Sequence[Process]) -> bool:
        return True

    def renew(self) -> None:
        """Nothing is shared between the nodes."""

    def prune(self, kept: Sequence[Process]) -> None:
        """Nothing is left of a node whose processes are gone."""

    def listen(self, place: Place) -> tuple[Endpoint, ...]:
        """Where the node listens already, else a free port on its own address."""
        if place.name not in self._ports:
            self._ports[place.name] = read_endpoint(place) or find_free_endpoint(
                layout.parse_index(place.name)
            )
        return (self._ports[place.name],)

    def build_commands(self, places: Sequence[Place]) -> dict[str, list[str]]:
        """What to start. Ports are chosen anew: the ones of before may be taken by now."""
        if os.geteuid() == 0:
            self._let_root_in()
        for place in places:
            self._ports[place.name] = find_free_endpoint(layout.parse_index(place.name))
        hold = ["sh", locate_script("hold.sh"), self._server.path, "-D", "-e", "-f"]
        return {place.name: [*hold, str(place.config)] for place in places}

    def write_files(self, places: Sequence[Place]) -> None:
        """Loopback nodes have this machine's names."""

    def connect(self, started: Mapping[str, NodeProcess]) -> None:
        """There is nothing to plug in."""

    def _let_root_in(self) -> None:
        if is_locked(self._server.user):
            raise ProviderError(
                f"sshd refuses {self._server.user}: the account is locked in /etc/shadow",
                hint=f"unlock it without giving it a password: usermod -p '*' {self._server.user}",
            )
        with suppress(FileExistsError):
            _PRIVSEP.mkdir(_OURS)
            _PRIVSEP.chmod(_OURS)  # whatever our umask


def find_free_endpoint(index: int) -> Endpoint:
    """A free port on 127.0.0.2 (the launcher), .3 …, or on 127.0.0.1 where only that exists."""
    for address in (f"127.0.0.{index + 2}", "127.0.0.1"):
        with socket.socket() as trial, suppress(OSError):
            trial.bind((address, 0))
            return address, int(trial.getsockname()[1])
    raise ProviderError("no port can be opened on this machine's loopback interface")


def drop_privsep() -> None:
    """Removes sshd's folder if clusterctl made it and no sshd is left that may want it."""
    with suppress(OSError):
        if _PRIVSEP.stat().st_mode & 0o777 == _OURS and not _is_sshd_running():
            _PRIVSEP.rmdir()


def _is_sshd_running() -> bool:
    for pid in list_pids():
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text(errors="replace").startswith(
                "sshd"
            ) and read_start(pid):
                return True
    return False
