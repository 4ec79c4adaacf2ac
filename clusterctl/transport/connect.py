"""Opening SSH connections: name → TCP → jump hosts → host key → log-in, under one deadline.

fabric works out what to connect to and with what (the user's ssh_config included); the socket, the
host key check and the limits are ours. Imported at the first connect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fabric
import paramiko

from clusterctl.errors import UsageError
from clusterctl.transport import diagnosis, dial, ssh_config
from clusterctl.transport.connection import LOST, Connection, Socket
from clusterctl.transport.credentials import Pinned, Refused, Target, in_words, shown
from clusterctl.transport.deadline import WATCHDOG, Deadline
from clusterctl.transport.diagnosis import Attempt, ConnectError
from clusterctl.transport.dial import Hop


def open_chain(
    target: Target, deadline: Deadline, hop: Hop | None, on_socket: Callable[[Socket], None]
) -> list[Any]:
    """The fabric connections to the target: its jump hosts from ssh_config, nearest first, then it.

    `hop` is a gateway of ours. `on_socket` hears of every socket, so that the caller can cut it.
    Raises NodeUnreachable, or UsageError for a bad ssh_config.
    """
    try:
        settings = (
            ssh_config.load(target.host, target.port, target.user)
            if target.use_ssh_config
            else paramiko.SSHConfig()
        )
    except (paramiko.ConfigParseError, ValueError) as error:
        raise UsageError(f"your ssh_config cannot be read: {error}") from error
    # Lazy: the configuration files of fabric and invoke stay unread.
    config = fabric.Config(lazy=True, ssh_config=settings)
    chain: list[Any] = []
    try:
        _extend(chain, target, config, deadline, hop, on_socket, 0)
    except BaseException:
        close_chain(chain)
        raise
    return chain


def close_chain(chain: list[Any]) -> None:
    """Closes the connections, the farthest first."""
    for remote in reversed(chain):
        remote.client.close()


def _extend(
    chain: list[Any],
    target: Target,
    config: Any,
    deadline: Deadline,
    hop: Hop | None,
    on_socket: Callable[[Socket], None],
    depth: int,
) -> None:
    remote = _connection(target, config)
    attempt = Attempt(
        node=target.node,
        address=remote.host,
        port=int(remote.port),
        user=remote.user,
        key=in_words(target, remote),
        seconds=deadline.seconds,
    )
    proxy = ""
    if hop is None:
        for name in ssh_config.jumps(remote.ssh_config, remote.original_host):
            if depth == ssh_config.MAX_DEPTH:
                raise attempt.error("the jump hosts of your ssh_config lead in a circle")
            # fabric takes `user@host:port` apart.
            jump = replace(target, node=name, host=name, port=0, user="")
            try:
                _extend(chain, jump, config, deadline, hop, on_socket, depth + 1)
            except ConnectError as error:
                raise diagnosis.gateway_failed(
                    attempt, f"jump host {name}", error.what, error.transient
                ) from error
            hop = Hop(f"jump host {name}", chain[-1].transport)
        proxy = ssh_config.proxy_command(remote.ssh_config)
    if hop is not None:
        sock = dial.through(hop, attempt, deadline)
    else:
        sock = dial.piped(proxy) if proxy else dial.straight(attempt, deadline)
    on_socket(sock)
    try:
        _log_in(remote, target, attempt, sock, deadline)
    except BaseException:
        remote.client.close()
        sock.close()
        raise
    chain.append(remote)


def _connection(target: Target, config: Any) -> Any:
    try:
        remote = fabric.Connection(
            target.host,
            user=target.user or None,
            port=target.port or None,
            config=config,
            gateway=False,  # fabric would let jump hosts in whatever key they show
            forward_agent=False,
        )
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"{target.node}: your ssh_config holds a bad value for {target.host}: {error}"
        ) from error
    remote.connect_timeout = None  # the deadline rules
    return remote


def _log_in(
    remote: Any, target: Target, attempt: Attempt, sock: Socket, deadline: Deadline
) -> None:
    policy = Pinned(target, remote, attempt)
    made: list[Connection] = []

    def make(sock: Socket, disabled_algorithms: object = None) -> Connection:
        made.append(Connection(sock, policy.kinds))
        return made[-1]

    remote.client.set_missing_host_key_policy(policy)
    far = deadline.left + 60  # paramiko's limits count from each step: the watchdog ends it
    try:
        with (
            shown(target, remote, attempt) as keys,
            WATCHDOG.guard(deadline.at, sock.abort),
        ):
            remote.connect_kwargs = {
                "sock": sock,
                "transport_factory": make,
                "timeout": far,
                "banner_timeout": far,
                "auth_timeout": far,
                **keys,
            }
            remote.open()
    except Refused as refusal:
        raise refusal.args[0] from None
    except ConnectError:
        raise
    except LOST as error:
        stage = made[-1].stage if made else "banner"
        if deadline.passed:
            raise diagnosis.timed_out(attempt, stage) from error
        if stage == "auth" and made[-1].is_active():
            raise diagnosis.login_refused(attempt, error) from error
        raise diagnosis.broke_off(attempt, stage, error) from error
