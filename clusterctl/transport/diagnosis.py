"""Why a node cannot be reached, in words that name the likely layer. Pure.

`paramiko` is looked at by class name only, so that this module costs nothing to import.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import ClusterctlError, NodeUnreachable
from clusterctl.model import Node


class Failure(Exception):
    """What came between us and the end of a command or a copy, as NodeResult.error says it."""


FAILURES = (Failure, ClusterctlError, OSError)
"""What a session may raise."""


class ConnectError(NodeUnreachable):
    """`what` leaves the node and its address out: equal failures of many nodes fold into one."""

    def __init__(self, who: str, what: str, *, hint: str = "", transient: bool = False) -> None:
        super().__init__(f"{who}: {what}", hint=hint, transient=transient)
        self.what = what


def failure(error: BaseException, seconds: float) -> str:
    """One of FAILURES in words; `seconds` was the limit."""
    if isinstance(error, ConnectError):
        return error.what
    if isinstance(error, ClusterctlError):
        return error.message
    if isinstance(error, TimeoutError):
        return f"did not end within {seconds:g} s"
    return str(error)


def _at(node: str, address: str, port: int) -> str:
    return f"{node} ({f'[{address}]' if ':' in address else address}:{port})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to connect to and with what: as in SshTransport."""

    node: Node
    identity: Path | None
    known_hosts: Path
    use_ssh_config: bool

    def error(self, what: str, *, transient: bool = False) -> ConnectError:
        node = self.node
        return ConnectError(_at(node.name, node.address, node.ssh_port), what, transient=transient)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What was tried. `seconds` is the limit, `key` says in words which keys were offered."""

    node: str
    address: str
    port: int
    user: str
    key: str
    seconds: float

    def error(self, what: str, *, hint: str = "", transient: bool = False) -> ConnectError:
        who = _at(self.node, self.address, self.port)
        return ConnectError(who, what, hint=hint, transient=transient)

    def behind(self, gateway: str, why: str, transient: bool) -> ConnectError:
        return self.error(f"not reachable through {gateway}: {why}", transient=transient)


def name_unknown(attempt: Attempt, error: Exception) -> ConnectError:
    """`error` is what the resolver said (socket.gaierror, UnicodeError or TimeoutError)."""
    if isinstance(error, TimeoutError):
        return attempt.error(
            f"the name {attempt.address} was not resolved within {attempt.seconds:g} s (DNS)",
            hint="check this machine's resolver, or use an address",
            transient=True,
        )
    return attempt.error(
        f"the name {attempt.address} is not known (DNS: {getattr(error, 'strerror', '') or error})",
        hint="check the spelling, or use an address",
        transient=isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN,
    )


def no_connection(attempt: Attempt, error: OSError) -> ConnectError:
    """`error` is what TCP's connect said."""
    if isinstance(error, ConnectionRefusedError):
        return attempt.error(
            f"nothing listens on port {attempt.port}: is sshd running on the node?",
            hint="a machine that boots refuses until its sshd is up",
            transient=True,
        )
    if isinstance(error, TimeoutError):
        return attempt.error(
            f"no answer within {attempt.seconds:g} s: address, route, firewall or security group",
            hint=f"check that port {attempt.port} of the node is open to this machine's address",
            transient=True,
        )
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return attempt.error(
            f"no route to it ({error.strerror}): is the machine up, and this one on its network?",
            transient=True,
        )
    return attempt.error(f"TCP connection failed: {error.strerror or error}", transient=True)


def timed_out(attempt: Attempt, stage: str) -> ConnectError:
    """The deadline passed on an open TCP connection; `stage` as in Connection.stage."""
    what = {
        "banner": "the port is open but sshd does not answer",
        "kex": "sshd answers but the key exchange does not end",
        "auth": "sshd does not decide about the key",
    }[stage]
    return attempt.error(
        f"{what} (within {attempt.seconds:g} s)",
        hint="the node may be overloaded, out of memory, or still booting",
        transient=True,
    )


def broke_off(attempt: Attempt, stage: str, error: BaseException) -> ConnectError:
    """The SSH handshake failed before the deadline, and not for the key."""
    if "Indecipherable" in str(error):
        return attempt.error(
            f"what listens on port {attempt.port} is not sshd",
            hint="check the port",
        )
    if type(error).__name__ == "IncompatiblePeer":
        return attempt.error(f"sshd shares no algorithm with us: {error}")
    if stage == "banner":
        return attempt.error(
            "the connection was closed before sshd said a word: it may be overloaded "
            "(MaxStartups), booting, or not let this address in",
            transient=True,
        )
    if stage == "auth":
        return attempt.error(
            f"sshd closed the connection during the log-in of user {attempt.user} with "
            f"{attempt.key}: too many keys refused (MaxAuthTries), or the user is locked out",
        )
    return attempt.error(
        "the connection broke during the key exchange" + (f": {error}" if str(error) else ""),
        transient=True,
    )


def login_refused(attempt: Attempt, error: BaseException) -> ConnectError:
    """sshd did not take our keys."""
    offers = getattr(error, "allowed_types", ())
    if offers and "publickey" not in offers:
        what = f"sshd takes no keys for user {attempt.user}, only {', '.join(offers)}"
    elif "No authentication methods" in str(error):
        what = f"there is no key to show for user {attempt.user} ({attempt.key})"
    else:
        what = f"sshd refused user {attempt.user} with {attempt.key}"
    return attempt.error(
        what, hint=f"is its public half in ~{attempt.user}/.ssh/authorized_keys on the node?"
    )
