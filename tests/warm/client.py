"""Programs that begin in a Python which has imported their modules already (`server.py`)."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.warm import late

HERE = Path(__file__).parent
BEGIN = HERE / "begin.py"


class Late(subprocess.TimeoutExpired):
    """A program did not end in its time: what it had said, and what it and all it had started were
    doing before they were ended."""

    doing = ""

    def __str__(self) -> str:
        said = [(one or b"").decode(errors="replace")[-3000:] for one in (self.output, self.stderr)]
        return f"{super().__str__()}\n{self.doing}\n" + "\n".join(said)


class Warm:
    """Processes of `python` with these modules. It starts when the first one is wanted."""

    def __init__(self, python: str, *modules: str) -> None:
        self._argv = [python, str(HERE / "server.py")]
        self._modules = modules
        self._server: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def address(self) -> str:
        """Where `begin.py` finds it."""
        if self._folder is None:  # a socket's path has to be short
            self._folder = tempfile.TemporaryDirectory(dir="/tmp")
        path = f"{self._folder.name}/socket"
        if self._server is None:
            self._server = subprocess.Popen(
                [*self._argv, path, *self._modules],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            while not os.path.exists(path):
                assert self._server.poll() is None, "it did not start"
                time.sleep(0.02)
        return path

    def close(self) -> None:
        server, folder = self._server, self._folder
        self._server = self._folder = None
        if server and folder:
            assert server.stdin is not None
            server.stdin.close()
            server.wait(10)
            folder.cleanup()

    def run(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` does, with the output as text and nothing to read. Whoever has its
        output at the end of its time is ended, too."""
        said: dict[int, bytearray] = {}
        with socket.socket(socket.AF_UNIX) as connection, selectors.DefaultSelector() as selector:
            connection.connect(self.address())
            selector.register(connection, selectors.EVENT_READ)
            said[connection.fileno()] = bytearray()
            out, err = self._begin(connection, {"argv": argv, "cwd": str(cwd), "env": dict(env)})
            with open(out, "rb", buffering=0) as stdout, open(err, "rb", buffering=0) as stderr:
                for stream in (stdout, stderr):
                    selector.register(stream, selectors.EVENT_READ)
                    said[stream.fileno()] = bytearray()
                end = time.monotonic() + timeout
                while selector.get_map():
                    ready = selector.select(max(0.0, end - time.monotonic()))
                    if not ready:
                        failed = Late(argv, timeout, bytes(said[out]), bytes(said[err]))
                        for pid in late.holders((out, err)) - {self._server and self._server.pid}:
                            failed.doing += late.picture(pid)
                            with suppress(ProcessLookupError):
                                os.kill(pid, signal.SIGKILL)
                        raise failed
                    for key, _ in ready:
                        data = os.read(key.fd, 1 << 16)
                        said[key.fd] += data
                        if not data:
                            selector.unregister(key.fileobj)
            _, status = said[connection.fileno()].split()
        text = (said[stream].decode(errors="replace") for stream in (out, err))
        return subprocess.CompletedProcess(argv, os.waitstatus_to_exitcode(int(status)), *text)

    @staticmethod
    def _begin(connection: socket.socket, order: Mapping[str, object]) -> tuple[int, int]:
        """Where its stdout and stderr can be read."""
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            data = json.dumps(order).encode() + b"\n"
            socket.send_fds(connection, [data], [nothing, to_out, to_err])
        finally:
            for number in (nothing, to_out, to_err):
                os.close(number)
        return out, err


def clusterctl(python: str = sys.executable) -> Warm:
    """For `-m clusterctl …`, with what its commands load when they need it."""
    return Warm(python, "clusterctl.*", "boto3", "python_terraform")


@cache
def shared() -> Warm:
    """The one of this process of tests."""
    warm = clusterctl()
    atexit.register(warm.close)
    return warm
