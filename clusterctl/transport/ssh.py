"""A node over SSH: one persistent connection, opened at first use, opened anew when it was lost.

Importing this module is cheap: paramiko and fabric come with the first connect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.core.model import NodeResult
from clusterctl.transport import copying, diagnosis
from clusterctl.transport.diagnosis import FAILURES, ConnectError, Target
from clusterctl.transport.protocol import MAX_DEPTH, OnStdout

if TYPE_CHECKING:
    from clusterctl.transport.session import Connection, Session, Socket


CONNECT_LIMIT = 10.0
"""Seconds that a connection which is opened in passing may take, whatever the command may take: a
node that hangs is named before anybody wonders. `connect` has its own limit."""


def preload() -> None:
    """Loads paramiko and fabric in the background: the first connection need not wait for it."""
    run_in_background(partial(import_module, "clusterctl.transport.connect"))


class SshTransport:
    """A Transport, through `gateway` if there is one. Safe to use from many threads: up to ten
    commands run at a time, others wait. `depth`: how many jump hosts of the user's lead to it."""

    def __init__(self, target: Target, gateway: SshTransport | None = None, depth: int = 0) -> None:
        self.node = target.node
        self._target, self._gateway, self._depth = target, gateway, depth
        self._jumps: list[SshTransport] = []
        self._connecting = threading.Lock()
        self._socket: Socket | None = None
        self._remote: Any = None

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
        key: Any = connection.get_remote_server_key()
        return f"{key.get_name()} {key.get_base64()}"

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
        remote, self._remote = self._remote, None
        jumps, self._jumps = self._jumps, []
        if sock is not None:
            sock.abort()
        if remote is not None:
            remote.client.close()
        for jump in reversed(jumps):
            jump.close()

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
        connection = self._ensure_connected(deadline.limit(CONNECT_LIMIT))
        from clusterctl.transport.session import Session

        return Session(connection, command, deadline, collect=collect, on_stdout=on_stdout)

    def _find_alive(self) -> Connection | None:
        remote = self._remote
        connection: Connection | None = remote and remote.transport
        return connection if connection and connection.is_active() else None

    def _ensure_connected(self, deadline: Deadline) -> Connection:
        if connection := self._find_alive():
            return connection
        if not deadline.wait(lambda left: self._connecting.acquire(timeout=left)):
            raise diagnosis.explain(self._target, "slow-attempt", seconds=deadline.seconds)
        try:
            return self._find_alive() or self._reconnect(deadline)
        finally:
            self._connecting.release()

    def _reconnect(self, deadline: Deadline) -> Connection:
        from clusterctl.transport import connect as transport_connect
        from clusterctl.transport.connect import Destination

        self.close()
        destination = Destination(self._target)
        target = destination.target
        kind, gateway = "gateway", self._gateway
        if gateway is None:
            kind, gateway = "jump host", self._jump_through(destination.jumps)
        if gateway is not None:
            name = f"{kind} {gateway.node.name}"
            try:
                hop = gateway._ensure_connected(deadline)
            except ConnectError as error:
                raise target.make_behind_error(name, error.what, error.transient) from error
            sock = transport_connect.open_through(hop, name, target, deadline)
        elif command := destination.proxy or target.node.tunnel:
            sock = transport_connect.open_piped(command)
        else:
            sock = transport_connect.open_direct(target, deadline)
        self._socket = sock
        self._remote = destination.log_in(sock, deadline)
        connection: Connection = self._remote.transport
        return connection

    def _jump_through(self, hosts: list[str]) -> SshTransport | None:
        """The last of the user's jump hosts, each of which is reached through the one before."""
        gateway = None
        for host in hosts:
            if self._depth == MAX_DEPTH:
                raise self._target.make_error("the jump hosts in your ssh_config form a loop")
            node = replace(self.node, name=host, address=host, ssh_port=0, user="")
            target = replace(self._target, node=node, use_ssh_config=True)
            gateway = SshTransport(target, gateway, self._depth + 1)
            self._jumps.append(gateway)
        return gateway
