"""Why a node cannot be reached, in words that name the likely layer. Pure.

`paramiko` is looked at by class name only, so that this module costs nothing to import.
"""

from __future__ import annotations

import errno
import re
import socket
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from clusterctl.core.keys import name_host
from clusterctl.core.model import Node, NodeResult
from clusterctl.core.text import decode_table
from clusterctl.errors import ClusterctlError, NodeUnreachable


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

    def __init__(
        self, who: str, what: str, *, hint: str = "", transient: bool = False, by_ssh: bool = False
    ) -> None:
        """`by_ssh`: OpenSSH itself may do better."""
        super().__init__(f"{who}: {what}", hint=hint, transient=transient)
        self.what, self.by_ssh = what, by_ssh


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
    cut = isinstance(error, ConnectionError)
    hint = error.hint if isinstance(error, ConnectError) and not error.transient else ""
    return NodeResult(node="", error=why, cut=cut, errno=here, hint=hint)


class Target(Struct, frozen=True):
    """What to connect to and with what.

    For nodes of ours the user's ssh_config, agent and default keys are left alone: `identity` is
    the only key, and `known_hosts` the only truth. With `use_ssh_config`, for hosts that are the
    user's, all of them count, `Node.ssh_port` 0 and `Node.user` "" mean "as ssh_config says", and
    the user's known_hosts is asked where ours is silent. An unknown key is refused in any case.
    """

    node: Node
    identity: Path | None
    known_hosts: Path
    use_ssh_config: bool = False

    @property
    def place(self) -> tuple[str, int]:
        return self.node.address, self.node.ssh_port

    def make_error(
        self, what: str, hint: str = "", *, transient: bool = False, by_ssh: bool = False
    ) -> ConnectError:
        address = self.node.address
        host = f"[{address}]" if ":" in address else address
        who = f"{self.node.name} ({host}:{self.node.ssh_port})"
        return ConnectError(who, what, hint=hint, transient=transient, by_ssh=by_ssh)

    def make_behind_error(self, gateway: str, why: str, transient: bool) -> ConnectError:
        return self.make_error(f"not reachable through {gateway}: {why}", transient=transient)


# -------------------------------------------------------------------------------------------------
# What is said of each failure: rows of diagnosis.toml.


class _Saying(msgspec.Struct, frozen=True):
    """`ssh`: what OpenSSH says then, a regular expression; its groups are words of the others."""

    what: str
    hint: str = ""
    transient: bool = False
    by_ssh: bool = False
    ssh: str = ""


@cache
def _read_sayings() -> dict[str, _Saying]:
    return decode_table(Path(__file__).with_name("diagnosis.toml"), dict[str, _Saying])


def explain(target: Target, failure: str, **values: object) -> ConnectError:
    """The error for that row, with these words in it."""
    row, node = _read_sayings()[failure], target.node
    words = {
        **{"name": node.address, "port": node.ssh_port, "user": node.user, "expected": ""},
        "listed": name_host(node.address, node.ssh_port),
        **{"known_hosts": target.known_hosts, **values},
    }
    what, hint = row.what.format_map(words), row.hint.format_map(words)
    return target.make_error(what, hint, transient=row.transient, by_ssh=row.by_ssh)


def explain_ssh(target: Target, said: str, seconds: float, jumps: bool) -> ConnectError | None:
    """Why OpenSSH failed that has said that. `jumps`: it went through hosts that it may name."""
    for name, row in _read_sayings().items():
        if row.ssh and (found := re.search(row.ssh, said, re.MULTILINE)):
            words = {key: value.strip() for key, value in found.groupdict("").items()}
            words = {"said": found[0].strip(), **words}
            error = explain(target, name, seconds=seconds, **words)
            where = words.get("name", target.node.address), words.get("port", target.node.ssh_port)
            if jumps and tuple(map(str, where)) != tuple(map(str, target.place)):
                return target.make_behind_error(
                    f"jump host {where[0]}", error.what, error.transient
                )
            return error
    return None


def explain_unknown_name(target: Target, error: Exception, seconds: float) -> ConnectError:
    """`error` is what the resolver said: socket.gaierror, UnicodeError or TimeoutError."""
    if isinstance(error, TimeoutError):
        return explain(target, "slow-name", seconds=seconds)
    again = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
    said = getattr(error, "strerror", "") or error
    return explain(target, "name-not-resolved-now" if again else "unknown-name", said=said)


def explain_no_connection(target: Target, error: OSError, seconds: float) -> ConnectError:
    """`error` is what TCP's connect said."""
    if isinstance(error, ConnectionRefusedError):
        failure = "refused"
    elif isinstance(error, TimeoutError):
        failure = "no-answer"
    elif error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        failure = "no-route"
    else:
        failure = "no-connection"
    return explain(target, failure, said=error.strerror or error, seconds=seconds)


def explain_timeout(target: Target, stage: str, seconds: float) -> ConnectError:
    """The deadline passed on an open TCP connection; `stage` as in Connection.stage."""
    return explain(target, f"slow-{stage}", seconds=seconds)


def explain_break(target: Target, stage: str, error: BaseException, keys: str) -> ConnectError:
    """The SSH handshake failed before the deadline, and not for the key. `keys` were offered."""
    failure = f"broken-{stage}" if stage in ("banner", "auth") else "broken-kex"
    if "Indecipherable" in str(error):
        failure = "no-sshd"
    elif type(error).__name__ == "IncompatiblePeer":
        failure = "no-common-algorithm"
    said = f": {error}" if str(error) else ""
    return explain(target, failure, said=said, keys=keys)


def explain_refused_login(target: Target, error: BaseException, keys: str) -> ConnectError:
    """sshd took none of `keys`."""
    methods = getattr(error, "allowed_types", ())
    if methods and "publickey" not in methods:
        failure = "no-keys-accepted"
    elif "No authentication methods" in str(error):
        failure = "no-keys-to-offer"
    else:
        failure = "refused-keys"
    return explain(target, failure, keys=keys, methods=", ".join(methods))
