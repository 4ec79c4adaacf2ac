"""This machine as a node: the login node of a batch system that clusterctl itself runs on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex

from clusterctl import process
from clusterctl.errors import FULL
from clusterctl.model import Node, NodeResult
from clusterctl.timeouts import Deadline, run_in_background
from clusterctl.transport import OnStdout
from clusterctl.transport.diagnosis import make_failed_result


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

    def put(
        self, source: Path, target: str, *, timeout: float, without: Collection[str] = ()
    ) -> NodeResult:
        return self._copy(source, Path(target), timeout)

    def get(self, source: str, target: Path, *, timeout: float, partly: bool = False) -> NodeResult:
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
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self._ours.close()
        process.finish(self._child, 0)
