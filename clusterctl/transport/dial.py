"""From a host to an open socket: straight, through a jump host, a tunnel, or a command."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import paramiko

from clusterctl import process
from clusterctl.errors import ClusterctlError
from clusterctl.timeouts import Deadline, run_in_background
from clusterctl.transport import diagnosis
from clusterctl.transport.connection import LOST, Connection, Socket
from clusterctl.transport.diagnosis import Target
from clusterctl.transport.session import abort_at


def open_direct(target: Target, deadline: Deadline) -> Socket:
    """Tries the host's addresses one after the other. Raises ConnectError."""
    addresses = _resolve(target, deadline)
    failure: OSError = TimeoutError()
    for index, (family, address) in enumerate(addresses):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # An address that swallows packets leaves the others their share.
            sock.settimeout(max(deadline.left / (len(addresses) - index), 0.001))
            sock.connect(address)
            return Socket(sock)
        except OSError as error:
            sock.close()
            failure = error
    raise diagnosis.explain_no_connection(target, failure, deadline.seconds) from failure


def open_through(hop: Connection, name: str, target: Target, deadline: Deadline) -> Socket:
    """A channel that `hop`, called `name`, forwards to the host. Raises ConnectError."""
    why, transient = f"it cannot connect to {':'.join(map(str, target.place))}", True
    try:
        with abort_at(hop, deadline):
            return Socket(
                hop.open_channel("direct-tcpip", target.place, ("", 0), timeout=deadline.left)
            )
    except LOST as error:
        # With several threads at it, paramiko may give a refusal to the wrong one.
        if isinstance(error, paramiko.ChannelException):
            if error.code == 1:  # RFC 4254, 5.1
                why, transient = "it does not forward connections (AllowTcpForwarding)", False
        elif deadline.passed:
            why += f" within {deadline.seconds:.3g} s"
        elif not hop.is_active():
            why = "the connection to it was lost"
        raise target.make_behind_error(name, why, transient) from error


def open_tunnelled(target: Target, deadline: Deadline) -> Socket:
    """Through what the node's provider connects by. Raises ConnectError."""
    if target.open_tunnel is None:
        raise target.make_error("nothing here can open a tunnel to it")
    try:
        tunnel = target.open_tunnel(target.node, deadline.left)
    except TimeoutError as error:
        what = f"the tunnel to it was not open within {deadline.seconds:.3g} s"
        raise target.make_error(what, transient=True) from error
    except ClusterctlError as error:
        raise target.make_error(error.message, error.hint, transient=error.transient) from error
    return Socket(tunnel.sock, why=tunnel.why)


def open_piped(command: str) -> Socket:
    """Over a ProxyCommand: paramiko's own class for that does not notice when it ends."""
    ours, program = process.converse(["/bin/sh", "-c", f"exec {command}"])
    return Socket(ours, partial(process.finish, program, 0))


def _resolve(target: Target, deadline: Deadline) -> list[tuple[int, Any]]:
    """Socket family and address, in the resolver's order."""
    lookup = run_in_background(  # the resolver knows no time limit
        lambda: socket.getaddrinfo(*target.place, type=socket.SOCK_STREAM)
    )
    try:
        answer = deadline.await_result(lookup)
    except (OSError, UnicodeError) as error:
        raise diagnosis.explain_unknown_name(target, error, deadline.seconds) from error
    return [(family, address) for family, _, _, _, address in answer]
