"""A node over SSH: one persistent connection, opened at first use, opened anew when it was lost.

Importing this module is cheap: paramiko and fabric come with the first connect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ClusterctlError
from clusterctl.model import Node, NodeResult
from clusterctl.transport import OnStdout
from clusterctl.transport.deadline import Deadline
from clusterctl.transport.diagnosis import (
    FAILURES,
    Attempt,
    ConnectError,
    failure,
    gateway_failed,
)

if TYPE_CHECKING:
    from clusterctl.transport.connection import Connection, Socket
    from clusterctl.transport.session import Session


CONNECT_LIMIT = 10.0
"""Seconds that a connection which is opened in passing may take, whatever the command may take: a
node that hangs is named before anybody wonders. `connect` has its own limit."""


def warm() -> None:
    """Loads paramiko and fabric in the background: the first connection need not wait for it."""
    module = "clusterctl.transport.connect"
    threading.Thread(target=import_module, args=(module,), daemon=True, name="warm").start()


class SshTransport:
    """A Transport. Safe to use from many threads: up to ten commands run at a time, others wait.

    Nodes of ours: the user's ssh_config, agent and default keys are left alone, `identity` is the
    only key and `known_hosts` the only truth. With `use_ssh_config`, for hosts that are the
    user's: all of them count, `Node.ssh_port` 0 and `Node.user` "" mean "as ssh_config says", and
    the user's known_hosts is asked where ours is silent. An unknown key is refused in any case.
    """

    def __init__(
        self,
        node: Node,
        *,
        identity: Path | None,
        known_hosts: Path,
        gateway: SshTransport | None = None,
        use_ssh_config: bool = False,
    ) -> None:
        self.node = node
        self._identity = identity
        self._known_hosts = known_hosts
        self._gateway = gateway
        self._use_ssh_config = use_ssh_config
        self._connecting = threading.Lock()
        self._chain: list[Any] = []
        self._socket: Socket | None = None

    def connect(self, timeout: float) -> None:
        self._connected(Deadline(timeout))

    def host_key(self) -> str:
        """The node's public key as the open connection has verified it: `ssh-ed25519 AAAA…`."""
        connection = self._alive()
        if connection is None:
            raise self._attempt(0).error("there is no connection", transient=True)
        key: Any = connection.get_remote_server_key()
        return f"{key.get_name()} {key.get_base64()}"

    def session(
        self, command: str, deadline: Deadline, *, collect: bool, on_stdout: OnStdout | None = None
    ) -> Session:
        """Connects if need be and starts `command`. For this package; raises FAILURES."""
        connection = self._connected(Deadline(min(deadline.left, CONNECT_LIMIT)))
        from clusterctl.transport.session import Session

        return Session(connection, command, deadline, collect=collect, on_stdout=on_stdout)

    def run(
        self, command: str, *, stdin: bytes = b"", timeout: float, on_stdout: OnStdout | None = None
    ) -> NodeResult:
        def collect(deadline: Deadline) -> NodeResult:
            name = self.node.name
            with self.session(command, deadline, collect=True, on_stdout=on_stdout) as session:
                try:
                    if stdin:
                        # A command need not read its input.
                        with suppress(BrokenPipeError):
                            session.send(stdin, deadline)
                    session.send_eof(deadline)
                    code = session.exit_code(deadline)
                except FAILURES as error:
                    out, err = session.output()
                    why = failure(error, timeout)
                    return NodeResult(node=name, stdout=out, stderr=err, error=why)
                out, err = session.output()
                return NodeResult(node=name, exit_code=code, stdout=out, stderr=err)

        return self._result(collect, timeout)

    def open(self, command: str, *, timeout: float = 30.0) -> SshChannel:
        deadline = Deadline(timeout)
        try:
            return SshChannel(self.session(command, deadline, collect=False))
        except ClusterctlError:
            raise
        except FAILURES as error:
            raise self._attempt(timeout).error(failure(error, timeout)) from error

    def put(self, source: Path, target: str, *, timeout: float) -> NodeResult:
        from clusterctl.transport.put import put

        return self._result(lambda deadline: put(self, source, target, deadline), timeout)

    def get(self, source: str, target: Path, *, timeout: float) -> NodeResult:
        from clusterctl.transport.get import get

        return self._result(lambda deadline: get(self, source, target, deadline), timeout)

    def close(self) -> None:
        sock, self._socket = self._socket, None
        chain, self._chain = self._chain, []
        if sock is not None:
            sock.abort()
        if chain:
            from clusterctl.transport.connect import close_chain

            close_chain(chain)

    def _result(self, action: Callable[[Deadline], NodeResult], timeout: float) -> NodeResult:
        started = time.monotonic()
        try:
            result = action(Deadline(timeout))
        except FAILURES as error:
            result = NodeResult(node=self.node.name, error=failure(error, timeout))
        return replace(result, seconds=time.monotonic() - started)

    def _connected(self, deadline: Deadline) -> Connection:
        connection = self._alive()
        if connection is not None:
            return connection
        if not self._connecting.acquire(timeout=deadline.left):
            raise self._attempt(deadline.seconds).error(
                f"another attempt to connect did not end within {deadline.seconds:g} s",
                transient=True,
            )
        try:
            return self._alive() or self._reconnect(deadline)
        finally:
            self._connecting.release()

    def _alive(self) -> Connection | None:
        chain = self._chain
        if chain and chain[-1].transport.is_active():
            connection: Connection = chain[-1].transport
            return connection
        return None

    def _reconnect(self, deadline: Deadline) -> Connection:
        from clusterctl.transport.connect import open_chain
        from clusterctl.transport.credentials import Target
        from clusterctl.transport.dial import Hop

        self.close()
        hop = None
        if self._gateway is not None:
            name = f"gateway {self._gateway.node.name}"
            try:
                hop = Hop(name, self._gateway._connected(deadline))
            except ConnectError as error:
                attempt = self._attempt(deadline.seconds)
                raise gateway_failed(attempt, name, error.what, error.transient) from error
        target = Target(
            node=self.node.name,
            host=self.node.address,
            port=self.node.ssh_port,
            user=self.node.user,
            identity=self._identity,
            known_hosts=self._known_hosts,
            use_ssh_config=self._use_ssh_config,
        )
        chain = open_chain(target, deadline, hop, self._remember)
        self._chain = chain
        connection: Connection = chain[-1].transport
        return connection

    def _remember(self, sock: Socket) -> None:
        self._socket = sock

    def _attempt(self, seconds: float) -> Attempt:
        node = self.node
        return Attempt(
            node=node.name,
            address=node.address,
            port=node.ssh_port,
            user=node.user,
            key="",
            seconds=seconds,
        )


class SshChannel:
    """A Channel."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def send(self, data: bytes, timeout: float) -> None:
        self._session.send(data, Deadline(timeout))

    def receive(self, timeout: float) -> bytes:
        return self._session.receive(Deadline(timeout))

    def close(self) -> None:
        self._session.close()
