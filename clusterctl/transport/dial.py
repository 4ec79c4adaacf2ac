"""From a host to an open socket: straight, through a jump host, or through a command."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from clusterctl import process
from clusterctl.transport import diagnosis
from clusterctl.transport.connection import LOST, Connection, Socket
from clusterctl.transport.deadline import Deadline
from clusterctl.transport.diagnosis import Attempt
from clusterctl.transport.session import abort_at


@dataclass(frozen=True, slots=True)
class Hop:
    """An open connection to go through, and what to call it in a message."""

    name: str
    connection: Connection


def straight(attempt: Attempt, deadline: Deadline) -> Socket:
    """Tries the host's addresses one after the other. Raises ConnectError."""
    addresses = _resolve(attempt, deadline)
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
    raise diagnosis.no_connection(attempt, failure) from failure


def through(hop: Hop, attempt: Attempt, deadline: Deadline) -> Socket:
    """A channel that `hop` forwards to the host. Raises ConnectError."""
    there = f"{attempt.address}:{attempt.port}"
    try:
        with abort_at(hop.connection, deadline):
            return Socket(
                hop.connection.open_channel(
                    "direct-tcpip",
                    (attempt.address, attempt.port),
                    ("", 0),
                    timeout=deadline.left,
                )
            )
    except paramiko.ChannelException as error:
        forbidden = error.code == 1  # RFC 4254, 5.1
        why = (
            "it does not forward connections (AllowTcpForwarding)"
            if forbidden
            else f"it gets no connection to {there}"
        )
        raise diagnosis.gateway_failed(attempt, hop.name, why, not forbidden) from error
    except LOST as error:
        # With several threads at it, paramiko may give a refusal to the wrong one.
        why = f"it gets no connection to {there}"
        if deadline.passed:
            why += f" within {deadline.seconds:g} s"
        elif not hop.connection.is_active():
            why = "the connection to it was lost"
        raise diagnosis.gateway_failed(attempt, hop.name, why, True) from error


def piped(command: str) -> Socket:
    """Talks to the stdin and stdout of a ProxyCommand.

    paramiko's own class for that does not notice when the command ends.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        argv = ["/bin/sh", "-c", f"exec >&0; exec {command}"]
        program = process.spawn(argv, stdin=theirs.fileno(), log=Path(os.devnull))

    def stop() -> None:
        program.kill()
        program.wait()

    return Socket(ours, stop)


def _resolve(attempt: Attempt, deadline: Deadline) -> list[tuple[int, Any]]:
    """Socket family and address, in the resolver's order."""
    with suppress(ValueError):
        version = ipaddress.ip_address(attempt.address).version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        return [(family, (attempt.address, attempt.port))]
    answer: list[Any] = []
    failure: list[OSError] = []

    def ask() -> None:
        try:
            answer.extend(
                socket.getaddrinfo(attempt.address, attempt.port, type=socket.SOCK_STREAM)
            )
        except OSError as error:
            failure.append(error)
        except UnicodeError as error:
            failure.append(OSError(str(error)))

    # The resolver knows no time limit.
    thread = threading.Thread(target=ask, daemon=True, name="resolve")
    thread.start()
    thread.join(deadline.left)
    if not answer:
        error = failure[0] if failure else TimeoutError()
        raise diagnosis.name_unknown(attempt, error) from error
    return [(family, address) for family, _, _, _, address in answer]
