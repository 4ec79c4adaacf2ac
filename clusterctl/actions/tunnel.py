"""The ProxyCommand of plain ssh, for nodes that have a tunnel: what ssh writes goes to the node's
sshd, and what that answers to ssh."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from clusterctl import process
from clusterctl.core.clock import run_in_background
from clusterctl.core.model import Cluster
from clusterctl.errors import ClusterctlError, NodeUnreachable
from clusterctl.machines import providers
from clusterctl.state.home import Home
from clusterctl.state.store import Store
from clusterctl.transport.protocol import Tunnel
from clusterctl.transport.ssh import CONNECT_LIMIT

PIECE = 65536
"""Bytes."""
SETTINGS = (
    *("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
)
"""Variables that an editor which was not started in this shell would not have."""


def list_commands(store: Store, cluster: Cluster) -> dict[str, str]:
    """For a ssh_config, by the names of the nodes that have a tunnel."""
    home = str(store.home.path.absolute())
    # A proxy's password is not written down.
    values = {name: os.environ.get(name, "") for name in SETTINGS}
    settings = [f"{name}={value}" for name, value in values.items() if value and "@" not in value]
    return {
        node.name: shlex.join(
            [
                "env",
                *settings,
                *process.build_own_program("actions.tunnel", home, cluster.name, node.name),
            ]
        ).replace("%", "%%")
        for node in cluster.nodes
        if node.tunnel
    }


def main() -> None:
    """With a state home, and the names of a cluster and a node of it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    home, name, wanted = sys.argv[1:]
    try:
        cluster = Store(Home(Path(home))).read_cluster(name)
        opens = providers.find_tunnel(cluster)
        node = next((one for one in cluster.nodes if one.name == wanted), None)
        if opens is None or node is None:
            raise NodeUnreachable(f"no tunnel leads to {wanted} of cluster {name}")
        carry(opens(node, CONNECT_LIMIT))
    except TimeoutError:
        sys.exit(f"clusterctl: the tunnel to {wanted} was not open within {CONNECT_LIMIT:g} s")
    except ClusterctlError as error:
        hint = f"; {error.hint}" if error.hint else ""
        sys.exit(f"clusterctl: {error.message}{hint}")


def carry(tunnel: Tunnel) -> None:
    """Until the node's side closes it, or ssh does. Raises NodeUnreachable where it has broken."""
    run_in_background(partial(_send, tunnel))
    with tunnel.sock as sock, suppress(OSError):
        while data := sock.recv(PIECE):
            view = memoryview(data)
            while view:
                view = view[os.write(sys.stdout.fileno(), view) :]
    if why := tunnel.why():
        raise NodeUnreachable(why)


def _send(tunnel: Tunnel) -> None:
    with suppress(OSError):
        while data := os.read(sys.stdin.fileno(), PIECE):
            tunnel.sock.sendall(data)
    with suppress(OSError):
        tunnel.sock.shutdown(socket.SHUT_WR)
