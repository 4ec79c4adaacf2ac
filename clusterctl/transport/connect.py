"""Logging in to a host: its settings, the keys that we offer, and those that it may show.

fabric reads the settings, from the user's ssh_config where it counts. Imported at the first
connect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fabric
import paramiko

from clusterctl.errors import UsageError
from clusterctl.timeouts import WATCHDOG, Deadline
from clusterctl.transport import diagnosis, ssh_config
from clusterctl.transport.connection import LOST, Connection, Socket
from clusterctl.transport.diagnosis import ConnectError, Target
from clusterctl.transport.host_key_check import KnownKeysOnly

FAR = 1e9
"""Seconds that paramiko gives each step of a log-in, by a clock that may be set meanwhile: our
watchdog ends it."""


class Destination:
    """`target` with the address, port and user that its settings say, and the way there: through
    the hosts `jumps`, nearest first, or over the command `proxy`. Raises UsageError for a bad
    ssh_config."""

    def __init__(self, target: Target) -> None:
        node = target.node
        theirs = target.use_ssh_config
        try:
            settings = paramiko.SSHConfig()
            if theirs:
                settings = ssh_config.load(node.address, node.ssh_port, node.user)
            # fabric takes `user@host:port` apart, which ProxyJump may hold.
            self.remote: Any = fabric.Connection(
                node.address,
                user=node.user or None,
                port=node.ssh_port or None,
                # Lazy: the configuration files of fabric and invoke stay unread.
                config=fabric.Config(lazy=True, ssh_config=settings),
                gateway=False,  # fabric would let jump hosts in whatever key they show
                forward_agent=False,
            )
            port = int(self.remote.port)
        except (paramiko.ConfigParseError, ValueError, KeyError) as error:
            raise UsageError(
                f"{node.name}: your ssh_config cannot be read for {node.address}: {error}"
            ) from error
        self.remote.connect_timeout = None  # the deadline rules
        self.settings: dict[str, Any] = self.remote.ssh_config
        self.names = (node.address, self.remote.original_host, self.remote.host)
        self.jumps = ssh_config.list_jumps(self.settings, self.remote.original_host)
        self.proxy = ssh_config.find_proxy_command(self.settings)
        # paramiko would stumble over a file that is missing.
        named = self.settings.get("identityfile", ())
        self.identity_files = [name for name in named if Path(name).is_file()]
        resolved = replace(node, address=self.remote.host, ssh_port=port, user=self.remote.user)
        self.target = replace(target, node=resolved)

    @property
    def keys(self) -> str:
        """Which keys we offer, in words."""
        identity = self.target.identity
        if not self.target.use_ssh_config:
            return f"the key {identity}"
        named = [str(identity)] if identity else []
        return "the keys of " + ", ".join([*named, *self.identity_files, "agent", "~/.ssh"])

    def log_in(self, sock: Socket, deadline: Deadline) -> Any:
        """The fabric connection over `sock`, whose `transport` is a Connection. Raises
        NodeUnreachable."""
        policy = KnownKeysOnly(self.target, self.names, self.settings)
        self.remote.client.set_missing_host_key_policy(policy)
        try:
            with _list_offers(self) as keys, WATCHDOG.guard(deadline.at, sock.abort):
                self.remote.connect_kwargs = {
                    "sock": sock,
                    "transport_factory": lambda sock, **_: Connection(sock, policy.kinds),
                    **dict.fromkeys(("timeout", "banner_timeout", "auth_timeout"), FAR),
                    **keys,
                }
                self.remote.open()
                return self.remote
        except BaseException as error:
            connection: Any = self.remote.client.get_transport()
            stage = connection.stage if connection else "banner"
            refused = stage == "auth" and connection.is_active()
            self.remote.client.close()
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
    others = destination.settings.get("identitiesonly") != "yes"
    with closing(paramiko.Agent()) as agent:
        yield {
            "pkey": key or _find_in_agent(agent, destination.identity_files),
            "key_filename": destination.identity_files,
            "allow_agent": others,
            "look_for_keys": others,
        }


def _load(path: Path, target: Target) -> Any:
    try:
        return paramiko.PKey.from_path(path)
    except OSError as error:
        raise target.make_error(f"the key {path} cannot be read: {error.strerror}") from error
    except TypeError as error:
        raise target.make_error(
            f"the key {path} has a passphrase, which clusterctl does not ask for",
            "load it into ssh-agent, and leave out --identity",
        ) from error
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise target.make_error(f"{path} is not a usable private key: {error}") from error


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
