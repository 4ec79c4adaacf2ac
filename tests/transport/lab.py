"""What the tests talk to: real sshd processes on loopback, and a network that can fail."""

from __future__ import annotations

import getpass
import os
import select
import socket
import subprocess
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.core.keys import generate
from clusterctl.core.model import Node, Role
from clusterctl.transport.diagnosis import Target
from clusterctl.transport.ssh import SshTransport

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
AuthorizedKeysFile {folder}/authorized
PidFile none
LogLevel VERBOSE
UsePAM no
UseDNS no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
# bash reads ~/.bashrc under sshd, unless it takes itself for an inner shell.
SetEnv SHLVL=1
"""


@dataclass(frozen=True)
class Sshd:
    """A server that runs, and a way to talk to it."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def identity(self) -> Path:
        return self.folder / "user"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def node(self) -> Node:
        return make_node(self.port)

    @property
    def log_ins(self) -> int:
        return self.log.count("Accepted publickey")

    @property
    def connections(self) -> dict[int, bool]:
        """This process's open ones: their ports here, and whether they send small packets at
        once."""
        found = {}
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as sock:
                    if sock.getpeername() == ("127.0.0.1", self.port):
                        at_once = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                        found[sock.getsockname()[1]] = bool(at_once)
        return found

    def public(self, name: str = "host") -> str:
        return (self.folder / f"{name}.pub").read_text().strip()

    def transport(self, **changes: object) -> SshTransport:
        arguments: dict[str, object] = {
            "identity": self.identity,
            "known_hosts": self.known_hosts,
            **changes,
        }
        node, gateway = arguments.pop("node", self.node), arguments.pop("gateway", None)
        return SshTransport(Target(node, **arguments), gateway)  # type: ignore[arg-type]


def make_node(port: int, name: str = "worker-1", **changes: object) -> Node:
    node = Node(
        name=name,
        role=Role.WORKER,
        address="127.0.0.1",
        private_address="127.0.0.1",
        ssh_port=port,
        job_port=port,
        user=getpass.getuser(),
        root="/tmp",
    )
    return replace(node, **changes)  # type: ignore[arg-type]


def write_key(path: Path) -> str:
    """Makes a key pair `path`, `path`.pub; returns the public line."""
    pair = generate()
    path.touch(mode=0o600)
    path.write_text(pair.private)
    path.with_name(path.name + ".pub").write_text(pair.public + "\n")
    return pair.public


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def start(
    binary: str, folder: Path, extra: str = "", host_keys: tuple[str, ...] = ("host",)
) -> Sshd:
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # its privilege separation folder
    folder.mkdir(exist_ok=True)
    for name in host_keys:
        if not (folder / name).exists():
            write_key(folder / name)
    (folder / "authorized").write_text(write_key(folder / "user") + "\n")
    keys = "".join(f"HostKey {folder / name}\n" for name in host_keys)
    kind_and_key = " ".join((folder / f"{host_keys[0]}.pub").read_text().split()[:2])
    for _ in range(5):  # a port that was free may be taken now
        port = free_port()
        # sshd heeds the first line of a kind.
        (folder / "config").write_text(extra + CONFIG.format(port=port, folder=folder) + keys)
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind_and_key}\n")
        log = folder / "log"
        log.write_text("")
        process = subprocess.Popen([binary, "-D", "-f", str(folder / "config"), "-E", str(log)])
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            if f"Server listening on 127.0.0.1 port {port}" in log.read_text():
                return Sshd(folder, port, process)
            time.sleep(0.005)
        process.kill()
        process.wait()
    pytest.fail("sshd did not start: " + log.read_text())


def stop(server: Sshd) -> None:
    server.process.kill()
    server.process.wait()


class Relay:
    """A network between us and a server that can be made to swallow packets, or to break."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        # The kernel is full before sshd's window is.
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.port: int = self._server.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._ended = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def swallow(self) -> None:
        self._flowing.clear()

    def cut(self) -> None:
        for sock in list(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._ended = True
        self._flowing.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._ended:
                here, _ = self._server.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [here, there]
                thread = threading.Thread(target=self._pump, args=(here, there))
                self._threads.append(thread)
                thread.start()

    def _pump(self, here: socket.socket, there: socket.socket) -> None:
        other = {here: there, there: here}
        with suppress(OSError):
            while not self._ended:
                for sock in select.select(list(other), [], [], 0.1)[0]:
                    data = sock.recv(65536)
                    if not data:
                        other[sock].shutdown(socket.SHUT_WR)
                        return
                    self._flowing.wait()
                    other[sock].sendall(data)
