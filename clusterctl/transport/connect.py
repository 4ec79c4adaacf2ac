"""Logging in over an open socket: handshake, host key and our keys, under one deadline.

Imported at the first connect.
"""

from __future__ import annotations

from typing import Any

from clusterctl.transport import diagnosis
from clusterctl.transport.connection import LOST, Connection, Socket
from clusterctl.transport.credentials import Pinned, Refused, offered_keys
from clusterctl.transport.deadline import WATCHDOG, Deadline
from clusterctl.transport.route import Route


def log_in(route: Route, sock: Socket, deadline: Deadline) -> Any:
    """The client that holds the connection, as its `transport`. Raises NodeUnreachable."""
    policy = Pinned(route)
    made: list[Connection] = []

    def make(sock: Socket, disabled_algorithms: object = None) -> Connection:
        made.append(Connection(sock, policy.kinds))
        return made[-1]

    remote, attempt = route.remote, route.attempt
    remote.client.set_missing_host_key_policy(policy)
    far = deadline.left + 60  # paramiko's limits count from each step: the watchdog ends it
    try:
        with offered_keys(route) as keys, WATCHDOG.guard(deadline.at, sock.abort):
            remote.connect_kwargs = {
                "sock": sock,
                "transport_factory": make,
                "timeout": far,
                "banner_timeout": far,
                "auth_timeout": far,
                **keys,
            }
            remote.open()
            return remote
    except BaseException as error:
        stage = made[-1].stage if made else "banner"
        refused = stage == "auth" and made[-1].is_active()
        remote.client.close()
        sock.close()
        if isinstance(error, Refused):
            raise error.args[0] from None
        if isinstance(error, diagnosis.ConnectError) or not isinstance(error, LOST):
            raise
        if deadline.passed:
            raise diagnosis.timed_out(attempt, stage) from error
        if refused:
            raise diagnosis.login_refused(attempt, error) from error
        raise diagnosis.broke_off(attempt, stage, error) from error
