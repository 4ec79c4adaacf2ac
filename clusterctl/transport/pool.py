"""All nodes of a cluster: one connection each, and the same thing done on many at a time."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex

from msgspec.structs import replace

from clusterctl import process
from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.core.model import Cluster, Node, NodeResult
from clusterctl.errors import FULL, UsageError
from clusterctl.transport.diagnosis import FAILURES, Target, make_failed_result
from clusterctl.transport.protocol import OnStdout, Transport
from clusterctl.transport.ssh import SshTransport

# -------------------------------------------------------------------------------------------------
# This machine as a node: the login node of a batch system that clusterctl itself runs on.


class LocalTransport:
    """A Transport without a network: commands run as our children, files are copied."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def connect(self, timeout: float) -> None:
        return None

    def run(
        self, command: str, *, stdin: bytes = b"", timeout: float, on_stdout: OnStdout | None = None
    ) -> NodeResult:
        started = time.monotonic()
        argv = ["/bin/sh", "-c", command]
        result = process.run(argv, timeout=timeout, stdin=stdin, cwd=Path.home())
        if on_stdout:
            on_stdout(result.stdout)
        code = result.exit_code
        return replace(
            result,
            node=self.node.name,
            exit_code=code if code is None or code >= 0 else 128 - code,
            seconds=time.monotonic() - started,
        )

    def open(self, command: str, *, timeout: float = 30.0) -> LocalChannel:
        return LocalChannel(command)

    def put(self, source: Path, target: str, *, timeout: float) -> NodeResult:
        return self._copy(source, Path(target), timeout)

    def get(
        self, source: str, target: Path, *, timeout: float, begun: Path | None = None
    ) -> NodeResult:
        return self._copy(Path(source), target, timeout)

    def _copy(self, source: Path, target: Path, timeout: float) -> NodeResult:
        started = time.monotonic()
        result = NodeResult(node="", exit_code=0)
        try:
            # On a file server that hangs, no signal ends a copy.
            Deadline(timeout).await_result(run_in_background(partial(_copy, source, target)))
        except TimeoutError as error:
            result = make_failed_result(error, timeout)
        except OSError as error:
            where = error.filename or source
            here = error.errno if error.errno in FULL else 0  # a node's path is one of ours, too
            result = NodeResult(
                node="", error=f"{where}: {error.strerror or error}", errno=here or 0
            )
        return replace(result, node=self.node.name, seconds=time.monotonic() - started)

    def close(self) -> None:
        return None


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        return
    scratch = target.with_name(f".{target.name}.{token_hex(4)}.new")
    try:
        shutil.copy2(source, scratch)
        scratch.replace(target)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


class LocalChannel:
    """A Channel to a child of ours, as its stdin and stdout."""

    def __init__(self, command: str) -> None:
        self._ours, self._child = process.converse(["/bin/sh", "-c", command], cwd=Path.home())

    def send(self, data: bytes, timeout: float) -> None:
        self._ours.settimeout(timeout)
        self._ours.sendall(data)

    def receive(self, timeout: float) -> bytes:
        self._ours.settimeout(timeout)
        try:
            return self._ours.recv(1 << 16)
        except BlockingIOError as error:
            raise TimeoutError from error
        except ConnectionResetError:
            return b""

    def fileno(self) -> int:
        return self._ours.fileno()

    def close(self) -> None:
        self._ours.close()
        process.finish(self._child, 0)


# -------------------------------------------------------------------------------------------------

LIMIT = 32
"""Nodes at a time: more of them is slower, also for 64 nodes."""
HEARING = 1.0
"""Seconds after which Python looks for a Ctrl-C that came just before a wait began."""

Action = Callable[[str], NodeResult]
"""What to do for the node of that name."""
OnDone = Callable[[NodeResult], None]
"""Is told each result as it comes, in other threads."""


class Pool(AbstractContextManager["Pool"]):
    """Connections to `nodes`, opened when they are first used, in parallel, and kept.

    `Node.via` names another node of the pool to go through; a node without an address is this
    machine itself. A context manager: leaving it closes all connections. Arguments as in Target;
    raises UsageError for a bad `via`.
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
                target = Target(node, identity, known_hosts, use_ssh_config)
                self._add(target, ())

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

    def _add(self, target: Target, behind: tuple[str, ...]) -> SshTransport:
        node, gateway = target.node, None
        made = self._transports.get(node.name)
        if isinstance(made, SshTransport):
            return made
        behind = (*behind, node.name)
        if node.via:
            if node.via not in self._nodes or node.via in behind:
                raise UsageError(
                    f"{node.name} goes through {node.via}, which is not another node of the cluster"
                )
            gateway = self._add(replace(target, node=self._nodes[node.via]), behind)
        made = self._transports[node.name] = SshTransport(target, gateway)
        return made

    def find_transport(self, name: str) -> Transport:
        """The node's. KeyError."""
        return self._transports[name]

    def connect(
        self,
        names: Sequence[str] | None = None,
        *,
        timeout: float,
        on_done: OnDone | None = None,
    ) -> tuple[NodeResult, ...]:
        """Opens the connections; what fails is said in `error`."""

        def connect(name: str) -> NodeResult:
            self._transports[name].connect(timeout)
            return NodeResult(node=name, exit_code=0)

        return self.call_each(connect, names, on_done=on_done)

    def connect_ahead(self, names: Sequence[str], *, timeout: float) -> None:
        """The same in the background, for nodes that are needed soon. What fails is tried again
        when they are."""
        for name in names:
            run_in_background(partial(self._transports[name].connect, timeout))

    def probe(self, names: Sequence[str], *, timeout: float) -> tuple[NodeResult, ...]:
        """Opens new connections to these nodes, beside those that are open: TCP on one that was cut
        off says for half a minute neither that it is dead nor that it is not."""
        fresh: dict[str, SshTransport] = {}

        def renew(name: str) -> SshTransport | None:
            open_one = self._transports.get(name)
            if name in fresh or not isinstance(open_one, SshTransport):
                return fresh.get(name)
            if not open_one.may_ask:
                # One gateway for all: an endpoint of AWS takes 20 connections.
                fresh[name] = open_one.renew(renew(self._nodes[name].via))
            return fresh.get(name)

        def probe(name: str) -> NodeResult:
            transport = fresh.get(name) or self._transports[name]
            return transport.run("true", timeout=timeout)

        for name in names:
            renew(name)
        try:
            return self.call_each(probe, names)
        finally:
            for transport in fresh.values():
                transport.close()

    def run(
        self,
        command: str | Mapping[str, str],
        names: Sequence[str] | None = None,
        *,
        stdin: bytes | Mapping[str, bytes] = b"",
        timeout: float,
        on_stdout: Callable[[str, bytes], None] | None = None,
        on_done: OnDone | None = None,
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
        return self.call_each(run, names, on_done=on_done)

    def call_each(
        self,
        action: Action,
        names: Sequence[str] | None = None,
        *,
        on_done: OnDone | None = None,
    ) -> tuple[NodeResult, ...]:
        """Calls `action` with each name, that of a node as a rule, for at most LIMIT at a time.

        Results in the order of the names (by default all, as given to the pool). What a transport
        raises becomes an `error`; a bug in `action` is raised when all have ended. Ctrl-C cuts the
        connections that are still busy and is raised at once.
        """
        chosen = list(self._nodes) if names is None else list(names)
        results: list[Future[NodeResult]] = [Future() for _ in chosen]
        waiting = deque(zip(chosen, results, strict=True))

        def work() -> None:
            with suppress(IndexError):  # nothing is waiting any more
                while True:
                    name, result = waiting.popleft()
                    _answer(result, action, name, on_done)

        try:
            # Not an executor: its threads keep the interpreter alive after Ctrl-C.
            for _ in range(min(LIMIT, len(chosen))):
                run_in_background(work)
            while wait(results, HEARING).not_done:
                pass
        except BaseException:
            waiting.clear()
            for name, result in zip(chosen, results, strict=True):
                if not result.done() and name in self._transports:
                    self._transports[name].close()
            raise
        return tuple(result.result() for result in results)

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer(future: Future[NodeResult], action: Action, name: str, on_done: OnDone | None) -> None:
    started = time.monotonic()
    try:
        try:
            result = action(name)
        except FAILURES as error:
            seconds = time.monotonic() - started
            result = replace(make_failed_result(error, seconds), node=name, seconds=seconds)
        if on_done:
            on_done(result)
        future.set_result(result)
    except BaseException as error:
        future.set_exception(error)
