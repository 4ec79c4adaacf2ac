"""All nodes of a cluster: one connection each, and the same thing done on many at a time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

from clusterctl.errors import UsageError
from clusterctl.model import Cluster, Node, NodeResult
from clusterctl.transport import Transport
from clusterctl.transport.diagnosis import FAILURES, failure
from clusterctl.transport.local import LocalTransport
from clusterctl.transport.ssh import SshTransport

LIMIT = 32
"""Nodes at a time: more of them is slower, also for 64 nodes."""

Action = Callable[[str], NodeResult]
"""What to do for the node of that name."""


class Pool:
    """Connections to `nodes`, opened when they are first used, in parallel, and kept.

    `Node.via` names another node of the pool to go through; a node without an address is this
    machine itself. A context manager: leaving it closes all connections. Arguments as in
    SshTransport; raises UsageError for a bad `via`.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        identity: Path | None,
        known_hosts: Path,
        use_ssh_config: bool = False,
    ) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._transports: dict[str, Transport] = {}
        for node in nodes:
            if node.here:
                self._transports[node.name] = LocalTransport(node)
            else:
                self._add(node, identity, known_hosts, use_ssh_config, ())

    @classmethod
    def of(cls, cluster: Cluster, ssh: Path) -> Pool:
        """A cluster's nodes. `ssh` is the folder with its keys: `user`, unless the user's own let
        in, and `known_hosts`."""
        theirs = cluster.identity
        own = ssh / "user" if theirs is None else Path(theirs) if theirs else None
        return cls(
            cluster.nodes,
            identity=own,
            known_hosts=ssh / "known_hosts",
            use_ssh_config=theirs is not None,
        )

    def _add(
        self,
        node: Node,
        identity: Path | None,
        known_hosts: Path,
        use_ssh_config: bool,
        behind: tuple[str, ...],
    ) -> SshTransport:
        made = self._transports.get(node.name)
        if not isinstance(made, SshTransport):
            gateway = None
            if node.via:
                if node.via not in self._nodes or node.via in (node.name, *behind):
                    raise UsageError(
                        f"{node.name} is to be reached via {node.via}, which is no other node"
                    )
                behind = (*behind, node.name)
                hop = self._nodes[node.via]
                gateway = self._add(hop, identity, known_hosts, use_ssh_config, behind)
            made = SshTransport(
                node,
                identity=identity,
                known_hosts=known_hosts,
                gateway=gateway,
                use_ssh_config=use_ssh_config,
            )
            self._transports[node.name] = made
        return made

    def transport(self, name: str) -> Transport:
        """The node's. KeyError."""
        return self._transports[name]

    def connect(
        self, names: Sequence[str] | None = None, *, timeout: float, limit: int = LIMIT
    ) -> tuple[NodeResult, ...]:
        """Opens the connections; what fails is said in `error`."""

        def connect(name: str) -> NodeResult:
            self._transports[name].connect(timeout)
            return NodeResult(node=name, exit_code=0)

        return self.each(connect, names, limit=limit)

    def run(
        self,
        command: str | Mapping[str, str],
        names: Sequence[str] | None = None,
        *,
        stdin: bytes | Mapping[str, bytes] = b"",
        timeout: float,
        limit: int = LIMIT,
        on_stdout: Callable[[str, bytes], None] | None = None,
    ) -> tuple[NodeResult, ...]:
        """Runs a command on each node: the same, or one per node name; likewise for `stdin`.
        `on_stdout` gets a node's name and what its command prints, as it comes, in other threads.

        `timeout`, in seconds, is each node's own, connecting included. Without `names`: on all
        nodes, or on those that `command` names. Never raises for what a node does.
        """

        def run(name: str) -> NodeResult:
            return self._transports[name].run(
                command if isinstance(command, str) else command[name],
                stdin=stdin if isinstance(stdin, bytes) else stdin.get(name, b""),
                timeout=timeout,
                on_stdout=partial(on_stdout, name) if on_stdout else None,
            )

        if names is None and not isinstance(command, str):
            names = [name for name in self._nodes if name in command]
        return self.each(run, names, limit=limit)

    def each(
        self, action: Action, names: Sequence[str] | None = None, *, limit: int = LIMIT
    ) -> tuple[NodeResult, ...]:
        """Calls `action` with each node's name, for at most `limit` nodes at a time.

        Results in the order of the names (by default all, as given to the pool). What a transport
        raises becomes an `error`; a bug in `action` is raised when all have ended. Ctrl-C cuts the
        connections that are still busy and is raised at once.
        """
        chosen = list(self._nodes) if names is None else list(names)
        return _FanOut(action, {name: self._transports[name] for name in chosen}, chosen).run(limit)

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _FanOut:
    """Not concurrent.futures: its threads keep the interpreter alive after Ctrl-C."""

    def __init__(
        self, action: Action, transports: Mapping[str, Transport], names: Sequence[str]
    ) -> None:
        self._action = action
        self._transports = transports
        self._names = names
        self._waiting = deque(range(len(names)))
        self._results: dict[int, NodeResult] = {}
        self._bugs: list[BaseException] = []
        self._ended = threading.Condition()

    def run(self, limit: int) -> tuple[NodeResult, ...]:
        count = len(self._names)
        for _ in range(min(limit, count)):
            threading.Thread(target=self._work, daemon=True, name="fan-out").start()
        try:
            with self._ended:
                while len(self._results) < count:
                    self._ended.wait()
        except BaseException:
            self._waiting.clear()
            for index, name in enumerate(self._names):
                if index not in self._results:
                    self._transports[name].close()
            raise
        if self._bugs:
            raise self._bugs[0]
        return tuple(self._results[index] for index in range(count))

    def _work(self) -> None:
        while True:
            try:
                index = self._waiting.popleft()
            except IndexError:
                return
            result = self._one(self._names[index])
            with self._ended:
                self._results[index] = result
                self._ended.notify()

    def _one(self, name: str) -> NodeResult:
        started = time.monotonic()
        try:
            return self._action(name)
        except FAILURES as error:
            why = failure(error, time.monotonic() - started)
        except BaseException as error:
            self._bugs.append(error)
            why = repr(error)
        return NodeResult(node=name, error=why, seconds=time.monotonic() - started)
