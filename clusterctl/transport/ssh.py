"""A node over SSH: one persistent connection, opened at first use, opened anew when it was lost.

Our own nodes are reached by paramiko, hosts of the user's by fabric where keys let us in directly,
else by their own `ssh`. Importing this module is cheap: all that comes with the first connect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from clusterctl.core.clock import Deadline, now, run_in_background
from clusterctl.core.model import NodeResult
from clusterctl.transport import copying, diagnosis
from clusterctl.transport.diagnosis import FAILURES, ConnectError, Target
from clusterctl.transport.protocol import OnStdout

if TYPE_CHECKING:
    from clusterctl.transport.connect import Destination
    from clusterctl.transport.openssh import LogIn, Master
    from clusterctl.transport.session import Connection, Session, Socket


CONNECT_LIMIT = 10.0
"""Seconds that a connection which is opened in passing may take, whatever the command may take: a
node that hangs is named before anybody wonders. `connect` has its own limit."""

SLICE = 0.25
"""Seconds of waiting for another attempt, after which we look whether somebody is asked."""


def preload() -> None:
    """Loads paramiko and fabric in the background: the first connection need not wait for it."""
    run_in_background(partial(import_module, "clusterctl.transport.connect"))


class SshTransport:
    """A Transport, through `gateway` if there is one. Safe to use from many threads: up to ten
    commands run at a time, others wait."""

    def __init__(self, target: Target, gateway: SshTransport | None = None) -> None:
        self.node = target.node
        self._target, self._gateway = target, gateway
        self._connecting = threading.Lock()
        self._socket: Socket | LogIn | None = None
        self._connection: Connection | Master | None = None
        self.may_ask = False
        """Whether another connection may ask somebody for a password."""
        self._denied: ConnectError | None = None
        """Somebody was asked, and could not let us in: nobody is asked twice."""
        self._client: Any = None
        """What ends it."""

    def connect(self, timeout: float) -> None:
        self._ensure_connected(Deadline(timeout))

    def renew(self, gateway: SshTransport | None) -> SshTransport:
        """Another one to the same node, through this gateway, without a connection."""
        return SshTransport(self._target, gateway)

    def read_host_key(self) -> str:
        """The node's public key as the open connection has verified it: `ssh-ed25519 AAAA…`."""
        connection = self._find_alive()
        if connection is None:
            raise diagnosis.explain(self._target, "not-connected")
        if key := connection.read_host_key():
            return key
        raise diagnosis.explain(self._target, "unlisted-key")

    def run(
        self, command: str, *, stdin: bytes = b"", timeout: float, on_stdout: OnStdout | None = None
    ) -> NodeResult:
        def collect(start: copying.StartCommand) -> NodeResult:
            with start(command, collect=True, on_stdout=on_stdout) as session:
                try:
                    with suppress(BrokenPipeError):  # a command need not read its input
                        session.send(stdin)
                    session.send_eof()
                    result = NodeResult(node="", exit_code=session.wait())
                except FAILURES as error:
                    result = diagnosis.make_failed_result(error, timeout)
                out, err = session.take_output()
                return replace(result, stdout=out, stderr=err)

        return self._run_action(collect, timeout)

    def open(self, command: str, *, timeout: float = 30.0) -> Session:
        try:
            return self._start_session(Deadline(timeout), command, collect=False)
        except (diagnosis.Failure, OSError) as error:
            raise self._target.make_error(diagnosis.describe_failure(error, timeout)) from error

    def put(self, source: Path, target: str, *, timeout: float) -> NodeResult:
        return self._run_action(lambda start: copying.put(start, source, target), timeout)

    def get(
        self, source: str, target: Path, *, timeout: float, begun: Path | None = None
    ) -> NodeResult:
        return self._run_action(lambda start: copying.get(start, source, target, begun), timeout)

    def close(self) -> None:
        sock, self._socket = self._socket, None
        client, self._client = self._client, None
        self._connection = None
        if sock is not None:
            sock.abort()
        if client is not None:
            client.close()

    def _run_action(
        self, action: Callable[[copying.StartCommand], NodeResult], timeout: float
    ) -> NodeResult:
        started = time.monotonic()
        try:
            result = action(partial(self._start_session, Deadline(timeout)))
        except FAILURES as error:
            result = diagnosis.make_failed_result(error, timeout)
        return replace(result, node=self.node.name, seconds=time.monotonic() - started)

    def _start_session(
        self, deadline: Deadline, command: str, *, collect: bool, on_stdout: OnStdout | None = None
    ) -> Session:
        """Connects if need be and starts `command`. Raises FAILURES."""
        limit = deadline.limit(CONNECT_LIMIT)
        at = limit.at
        connection = self._ensure_connected(limit)
        deadline.at += limit.at - at  # somebody was asked
        from clusterctl.transport.session import Session

        return Session(connection, command, deadline, collect=collect, on_stdout=on_stdout)

    def _find_alive(self) -> Connection | Master | None:
        connection = self._connection
        return connection if connection and connection.is_active() else None

    def _ensure_connected(self, deadline: Deadline) -> Connection | Master:
        if connection := self._find_alive():
            return connection
        while not self._connecting.acquire(timeout=min(deadline.left, SLICE)):
            if getattr(self._socket, "asks", False):
                deadline.at = max(deadline.at, now() + CONNECT_LIMIT)
            elif deadline.passed:
                raise diagnosis.explain(self._target, "slow-attempt", seconds=deadline.seconds)
        try:
            return self._find_alive() or self._reconnect(deadline)
        finally:
            self._connecting.release()

    def _reconnect(self, deadline: Deadline) -> Connection | Master:
        from clusterctl.transport import connect as transport_connect
        from clusterctl.transport.connect import Destination

        if self._denied:
            raise self._denied
        self.close()
        destination = Destination(self._target, deadline)
        target = destination.target
        if destination.needs_openssh:
            return self._reconnect_by_ssh(destination, None, deadline)
        if self._gateway is not None:
            name = f"gateway {self._gateway.node.name}"
            try:
                hop: Any = self._gateway._ensure_connected(deadline)
            except ConnectError as error:
                raise target.make_behind_error(name, error.what, error.transient) from error
            sock = transport_connect.open_through(hop, name, target, deadline)
        elif target.node.tunnel:
            sock = transport_connect.open_piped(target.node.tunnel)
        else:
            sock = transport_connect.open_direct(target, deadline)
        self._socket = sock
        try:
            remote = destination.log_in(sock, deadline)
        except ConnectError as error:
            if not (target.use_ssh_config and error.by_ssh):
                raise
            return self._reconnect_by_ssh(destination, error, deadline)
        self._client, connection = remote.client, remote.transport
        self._connection = connection
        return connection  # type: ignore[no-any-return]  # fabric is untyped

    def _reconnect_by_ssh(
        self, destination: Destination, otherwise: ConnectError | None, deadline: Deadline
    ) -> Master:
        attempt = self._socket = destination.start_openssh(otherwise)
        try:
            self._client = self._connection = attempt.log_in(deadline)
            self.may_ask = True
        except ConnectError as error:
            self._denied = error if attempt.questions else None
            raise
        return self._connection
