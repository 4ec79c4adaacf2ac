"""Why a node cannot be reached, in words that name the likely layer. Pure.

`paramiko` is looked at by class name only, so that this module costs nothing to import.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from clusterctl.core.model import Node, NodeResult
from clusterctl.errors import ClusterctlError, NodeUnreachable
from clusterctl.transport.protocol import OpenTunnel


class Failure(Exception):
    """What came between us and the end of a command or a copy, as NodeResult.error says it.
    `errno`: that of a file of this machine."""

    def __init__(self, text: str, errno: int = 0) -> None:
        super().__init__(text)
        self.errno = errno


FAILURES = (Failure, ClusterctlError, OSError)
"""What a session may raise."""


class ConnectError(NodeUnreachable):
    """`what` leaves the node and its address out: equal failures of many nodes fold into one."""

    def __init__(self, who: str, what: str, *, hint: str = "", transient: bool = False) -> None:
        super().__init__(f"{who}: {what}", hint=hint, transient=transient)
        self.what = what


def describe_failure(error: BaseException, seconds: float) -> str:
    """One of FAILURES in words; `seconds` was the limit."""
    if isinstance(error, ConnectError):
        return error.what
    if isinstance(error, ClusterctlError):
        return error.message
    if isinstance(error, TimeoutError):
        return f"did not end within {seconds:g} s"
    return str(error)


def make_failed_result(error: BaseException, seconds: float) -> NodeResult:
    """What a node's command or copy came to that ended with one of FAILURES, as above."""
    why = describe_failure(error, seconds)
    here = error.errno if isinstance(error, Failure) else 0
    return NodeResult(node="", error=why, cut=isinstance(error, ConnectionError), errno=here)


@dataclass(frozen=True, slots=True)
class Target:
    """What to connect to and with what.

    For nodes of ours the user's ssh_config, agent and default keys are left alone: `identity` is
    the only key, and `known_hosts` the only truth. With `use_ssh_config`, for hosts that are the
    user's, all of them count, `Node.ssh_port` 0 and `Node.user` "" mean "as ssh_config says", and
    the user's known_hosts is asked where ours is silent. An unknown key is refused in any case.
    `open_tunnel` connects to nodes that have a tunnel.
    """

    node: Node
    identity: Path | None
    known_hosts: Path
    use_ssh_config: bool = False
    open_tunnel: OpenTunnel | None = None

    @property
    def place(self) -> tuple[str, int]:
        return self.node.address, self.node.ssh_port

    def make_error(self, what: str, hint: str = "", *, transient: bool = False) -> ConnectError:
        address = self.node.address
        host = f"[{address}]" if ":" in address else address
        who = f"{self.node.name} ({host}:{self.node.ssh_port})"
        return ConnectError(who, what, hint=hint, transient=transient)

    def make_behind_error(self, gateway: str, why: str, transient: bool) -> ConnectError:
        return self.make_error(f"not reachable through {gateway}: {why}", transient=transient)


def explain_unknown_name(target: Target, error: Exception, seconds: float) -> ConnectError:
    """`error` is what the resolver said: socket.gaierror, UnicodeError or TimeoutError."""
    name = target.node.address
    if isinstance(error, TimeoutError):
        what = f"the name {name} was not resolved within {seconds:.3g} s (DNS)"
        hint = "check this machine's resolver, or use an address"
        return target.make_error(what, hint, transient=True)
    return target.make_error(
        f"the name {name} is not known (DNS: {getattr(error, 'strerror', '') or error})",
        "check the spelling, or use an address",
        transient=isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN,
    )


def explain_no_connection(target: Target, error: OSError, seconds: float) -> ConnectError:
    """`error` is what TCP's connect said."""
    port, said, hint = target.node.ssh_port, error.strerror or error, ""
    if isinstance(error, ConnectionRefusedError):
        what = f"nothing listens on port {port}: is sshd running on the node?"
        hint = "a machine that is starting up refuses connections until its sshd runs"
    elif isinstance(error, TimeoutError):
        what = f"no answer within {seconds:.3g} s: address, route, firewall or security group"
        hint = f"check that port {port} of the node is open to this machine's address"
    elif error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        what = f"no route to it ({said}): is the machine up, and this one on its network?"
    else:
        what = f"TCP connection failed: {said}"
    return target.make_error(what, hint, transient=True)


def explain_timeout(target: Target, stage: str, seconds: float) -> ConnectError:
    """The deadline passed on an open TCP connection; `stage` as in Connection.stage."""
    what = {
        "banner": "the port is open but sshd does not answer",
        "kex": "sshd answers but the key exchange does not end",
        "auth": "sshd does not answer the log-in",
    }[stage]
    hint = "the node may be overloaded, out of memory, or still booting"
    return target.make_error(f"{what} (within {seconds:.3g} s)", hint, transient=True)


def explain_break(target: Target, stage: str, error: BaseException, keys: str) -> ConnectError:
    """The SSH handshake failed before the deadline, and not for the key. `keys` were offered."""
    if "Indecipherable" in str(error):
        what = f"what listens on port {target.node.ssh_port} is not sshd"
        return target.make_error(what, "check the port")
    if type(error).__name__ == "IncompatiblePeer":
        return target.make_error(f"sshd and this client have no algorithm in common: {error}")
    if stage == "auth":
        return target.make_error(
            f"sshd closed the connection during the log-in of user {target.node.user} with "
            f"{keys}: too many keys refused (MaxAuthTries), or the user is locked out",
        )
    if stage == "banner":
        what = (
            "the connection was closed before sshd answered: sshd may be overloaded "
            "(MaxStartups), starting up, or refusing this machine's address"
        )
    else:
        said = f": {error}" if str(error) else ""
        what = f"the connection broke during the key exchange{said}"
    return target.make_error(what, transient=True)


def explain_refused_login(target: Target, error: BaseException, keys: str) -> ConnectError:
    """sshd took none of `keys`."""
    user, methods = target.node.user, getattr(error, "allowed_types", ())
    if methods and "publickey" not in methods:
        what = f"sshd does not accept keys for user {user}, only {', '.join(methods)}"
    elif "No authentication methods" in str(error):
        what = f"there is no key to offer for user {user} ({keys})"
    else:
        what = f"sshd refused user {user} with {keys}"
    return target.make_error(
        what, f"is its public half in ~{user}/.ssh/authorized_keys on the node?"
    )
