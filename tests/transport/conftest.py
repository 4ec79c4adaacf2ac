"""Servers and misbehaving peers, as fixtures."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from clusterctl.transport.ssh import SshTransport
from tests.transport.lab import Relay, Sshd, make_node, start, stop


@pytest.fixture(scope="session")
def sshd(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One server for all tests that change nothing about it."""
    server = start(need("sshd"), tmp_path_factory.mktemp("sshd"))
    yield server
    stop(server)


@pytest.fixture
def start_sshd(need: Callable[[str], str], tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Starts servers of a test's own: a name for the folder, more lines for the configuration."""
    with ExitStack() as stack:

        def one(name: str = "own", extra: str = "", host_keys: tuple[str, ...] = ("host",)) -> Sshd:
            server = start(need("sshd"), tmp_path / name, extra, host_keys)
            stack.callback(stop, server)
            return server

        yield one


@pytest.fixture
def transport(sshd: Sshd) -> Iterator[SshTransport]:
    with closing(sshd.transport()) as one:
        yield one


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's empty home, with an .ssh folder, and no agent."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    folder = Path.home()
    (folder / ".ssh").mkdir()
    return folder


@pytest.fixture
def peer() -> Iterator[Callable[..., int]]:
    """A peer that accepts, says something, and then nothing more, or hangs up if told so."""
    with ExitStack() as stack:

        def listen(words: bytes = b"", hang_up: bool = False) -> int:
            server = socket.create_server(("127.0.0.1", 0))
            taken: list[socket.socket] = []

            def serve() -> None:
                with suppress(OSError):
                    while True:
                        sock, _ = server.accept()
                        sock.sendall(words)
                        if hang_up:
                            sock.close()
                        else:
                            taken.append(sock)

            def end() -> None:
                server.shutdown(socket.SHUT_RDWR)
                server.close()
                thread.join()
                for sock in taken:
                    sock.close()

            thread = threading.Thread(target=serve)
            thread.start()
            stack.callback(end)
            port: int = server.getsockname()[1]
            return port

        yield listen


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port that answers nothing at all, as behind a firewall: its queue is full."""
    with ExitStack() as stack:
        server = stack.enter_context(closing(socket.socket()))
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            sock = stack.enter_context(closing(socket.socket()))
            sock.setblocking(False)
            sock.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@pytest.fixture
def relay(sshd: Sshd) -> Iterator[Relay]:
    with closing(Relay(sshd.port)) as one:
        yield one


@pytest.fixture
def relayed(sshd: Sshd, relay: Relay, tmp_path: Path) -> Iterator[SshTransport]:
    """A transport to the server through the relay."""
    known = tmp_path / "known_hosts"
    known.write_text(sshd.known_hosts.read_text().replace(str(sshd.port), str(relay.port)))
    with closing(sshd.transport(node=make_node(relay.port), known_hosts=known)) as one:
        yield one
