"""Logging in to a host: its settings, the keys that we offer, and those that it may show.

Imported at the first connect; fabric only for hosts that are the user's.
"""

from __future__ import annotations

import getpass
import os
import shlex
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from clusterctl import process
from clusterctl.core import keys as core_keys
from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.core.model import Node
from clusterctl.transport import diagnosis, openssh
from clusterctl.transport.diagnosis import ConnectError, Target
from clusterctl.transport.session import LOST, Connection, Socket, paramiko

# -------------------------------------------------------------------------------------------------
# Whether a host shows a key that we know: else the connection ends before a word is sent.


class KnownKeysOnly(paramiko.RejectPolicy):  # type: ignore[misc]  # untyped
    """Lets in the keys that we know, several per host, and no other (ConnectError); learns and
    saves nothing. `ours`: they are of our own file.

    paramiko's own table stays empty, so that it asks for every host.
    """

    def __init__(self, target: Target, names: Sequence[str], settings: openssh.SshSettings) -> None:
        """`names`: under which the host may be listed. `settings`: ssh_config's for it."""
        self._target = target
        port = target.node.ssh_port
        self.keys = core_keys.find_keys_in(
            [target.known_hosts], [core_keys.name_host(name, port) for name in names]
        )
        self.ours = bool(self.keys)
        if target.use_ssh_config and not self.keys:
            # A user's host on which our own file is silent: what the user's files say.
            alias = openssh.get(settings, "hostkeyalias")
            theirs = [alias or core_keys.name_host(target.node.address, port)]
            words = [
                openssh.get(settings, f"{whose}knownhostsfile") for whose in ("user", "global")
            ]
            files = [Path(name).expanduser() for name in shlex.split(" ".join(words))]
            self.keys = core_keys.find_keys_in(files, theirs)

    @property
    def kinds(self) -> list[str]:
        return [key.kind for key in self.keys if not key.revoked]

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        offered = core_keys.compute_fingerprint(key.asbytes())
        same = [known for known in self.keys if known.blob == key.asbytes()]
        good = [known for known in self.keys if not known.revoked]
        if any(known.revoked for known in same):
            what = f"its host key {offered} is marked as revoked; nothing was sent"
            raise self._target.make_error(what)
        if same:
            return
        whose, expected = "host" if self._target.use_ssh_config else "node", ""
        if good:
            alike = [known for known in good if known.kind == key.get_name()] or good
            prints = " or ".join(core_keys.compute_fingerprint(known.blob) for known in alike)
            expected = f"expected {prints}, "
        row = f"{whose}-key-{'changed' if good else 'missing'}"
        raise diagnosis.explain(self._target, row, offered=offered, expected=expected)


# -------------------------------------------------------------------------------------------------

FAR = 1e9
"""Seconds that paramiko gives each step of a log-in, by a clock that may be set meanwhile: our
watchdog ends it."""


class _Ours:
    """What is used of a fabric.Connection, for a node of which no ssh_config has anything to say:
    fabric takes longer to load than the log-in itself."""

    def __init__(self, node: Node) -> None:
        self.host = node.address
        self.user, self.port = node.user, node.ssh_port
        self.ssh_config: dict[str, Any] = {}
        self.client = paramiko.SSHClient()
        self.connect_kwargs: dict[str, Any] = {}
        self.transport: Any = None

    def open(self) -> None:
        place = {"hostname": self.host, "username": self.user, "port": self.port}
        self.client.connect(**place, **self.connect_kwargs)
        self.transport = self.client.get_transport()


def _make_theirs(node: Node, settings: openssh.SshSettings) -> Any:
    """A fabric.Connection, with what OpenSSH says of the host."""
    import fabric

    config = paramiko.SSHConfig()
    wanted = ("hostname", "port", "user", "identityfile")
    config.parse([f"{word} {value}" for word in wanted for value in settings.get(word, ())])
    return fabric.Connection(
        node.address,
        user=node.user or None,
        port=node.ssh_port or None,
        # Lazy: the configuration files of fabric and invoke stay unread.
        config=fabric.Config(lazy=True, ssh_config=config),
        gateway=False,
        forward_agent=False,
    )


class Destination:
    """`target` with the address, port and user that its settings say. Raises UsageError for a bad
    ssh_config."""

    def __init__(self, target: Target, deadline: Deadline) -> None:
        node = self._asked = target.node
        self.settings: openssh.SshSettings = {}
        if target.use_ssh_config:
            self.settings = openssh.read_settings(target, deadline)
            words = [openssh.get(self.settings, word) for word in ("hostname", "port", "user")]
            node = replace(node, address=words[0], ssh_port=int(words[1]), user=words[2])
        else:
            user = node.user or getpass.getuser()
            node = replace(node, ssh_port=node.ssh_port or 22, user=user)
        self.identity_files: list[str] = []
        self.target = replace(target, node=node)
        names = (self._asked.address, node.address)
        self.policy = KnownKeysOnly(self.target, names, self.settings)

    @property
    def needs_openssh(self) -> bool:
        """Whether fabric does not know the way there, or a connection is open that needs none."""
        settings = self.settings
        return any(openssh.get(settings, way) for way in openssh.WAYS) or openssh.is_open(settings)

    def start_openssh(self, otherwise: ConnectError | None = None) -> openssh.LogIn:
        """A log-in by OpenSSH; `otherwise` is raised where that knows nothing better."""
        return openssh.LogIn(self._asked, self.target, self.policy, self.settings, otherwise)

    @property
    def keys(self) -> str:
        """Which keys we offer, in words."""
        identity = self.target.identity
        if not self.target.use_ssh_config:
            return f"the key {identity}"
        named = [str(identity)] if identity else []
        return "the keys of " + ", ".join([*named, *self.identity_files, "agent"])

    def log_in(self, sock: Socket, deadline: Deadline) -> Any:
        """The connection over `sock`, as fabric's, whose `transport` is a Connection. Raises
        NodeUnreachable."""
        theirs = self.target.use_ssh_config
        remote: Any
        remote = _make_theirs(self._asked, self.settings) if theirs else _Ours(self.target.node)
        remote.connect_timeout = None  # the deadline rules
        # paramiko would stumble over a file that is missing.
        named = remote.ssh_config.get("identityfile", ())
        self.identity_files = [name for name in named if Path(name).is_file()]
        remote.client.set_missing_host_key_policy(self.policy)
        try:
            with _list_offers(self) as keys, deadline.enforce(sock.abort):
                remote.connect_kwargs = {
                    "sock": sock,
                    "transport_factory": lambda sock, **_: Connection(sock, self.policy.kinds),
                    **dict.fromkeys(("timeout", "banner_timeout", "auth_timeout"), FAR),
                    **keys,
                }
                remote.open()
                return remote
        except BaseException as error:
            connection: Any = remote.client.get_transport()
            stage = connection.stage if connection else "banner"
            refused = stage == "auth" and connection.is_active()
            remote.client.close()
            sock.close()
            if isinstance(error, ConnectError) or not isinstance(error, LOST):
                raise
            if why := sock.why():
                raise self.target.make_error(why, transient=True) from error
            if deadline.passed:
                raise diagnosis.explain_timeout(self.target, stage, deadline.seconds) from error
            if refused:
                raise diagnosis.explain_refused_login(self.target, error, self.keys) from error
            raise diagnosis.explain_break(self.target, stage, error, self.keys) from error


@contextmanager
def _list_offers(destination: Destination) -> Iterator[dict[str, Any]]:
    """The arguments of paramiko's connect that say which keys to offer, best first.

    Raises ConnectError for an identity file that cannot be used.
    """
    identity = destination.target.identity
    key = _load(identity, destination.target) if identity else None
    if not destination.target.use_ssh_config:
        yield {"pkey": key, "allow_agent": False, "look_for_keys": False}
        return
    others = openssh.get(destination.settings, "identitiesonly") != "yes"
    with closing(paramiko.Agent()) as agent:
        yield {
            "pkey": key or _find_in_agent(agent, destination.identity_files),
            "key_filename": destination.identity_files,
            "allow_agent": others,
            "look_for_keys": False,  # ssh_config names those, too
        }


def _load(path: Path, target: Target) -> Any:
    try:
        return paramiko.PKey.from_path(path)
    except OSError as error:
        said = error.strerror
        raise diagnosis.explain(target, "unreadable-key", path=path, said=said) from error
    except TypeError as error:
        raise diagnosis.explain(target, "locked-key", path=path) from error
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise diagnosis.explain(target, "unusable-key", path=path, said=error) from error


def _find_in_agent(agent: Any, files: list[str]) -> Any:
    """The agent's key that ssh_config names: to be tried first, for sshd counts what it refuses."""
    words = (_read_text(Path(name + ".pub")).split() for name in files)
    wanted = {fields[1] for fields in words if len(fields) > 1}
    return next((key for key in agent.get_keys() if key.get_base64() in wanted), None)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# -------------------------------------------------------------------------------------------------
# From a host to an open socket: straight, through a jump host, or a command.


COMPLAINTS = 2000
"""Bytes of what a command prints to stderr that are shown."""


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
        with deadline.enforce(hop.sock.abort):
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


def open_piped(command: str) -> Socket:
    """Over a ProxyCommand: paramiko's own class for that does not notice when it ends."""
    import tempfile  # seldom used

    said: list[bytes] = []
    errors, name = tempfile.mkstemp()
    os.unlink(name)
    ours, program = process.converse(["/bin/sh", "-c", f"exec {command}"], errors=errors)
    ending = ExitStack()
    ending.callback(os.close, errors)
    ending.callback(lambda: said.append(os.pread(errors, COMPLAINTS, 0)))
    ending.callback(process.finish, program, 0)
    return Socket(ours, ending.close, lambda: _join_lines(b"".join(said)))


def _join_lines(data: bytes) -> str:
    return " ".join(data.decode(errors="replace").split())


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
