"""Jump hosts, the user's ssh_config, agent and proxy commands: honoured for their hosts only."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.errors import NodeUnreachable, UsageError
from tests.transport.lab import Sshd, free_port, make_node, write_key

pytestmark = pytest.mark.sshd

GARBAGE = """\
Host *
  User nobody
  Port 1
  ProxyJump nowhere.invalid
  ProxyCommand false
  IdentityFile ~/.ssh/missing
  HostName nowhere.invalid
  StrictHostKeyChecking no
  ConnectTimeout soon
  ForwardAgent perhaps
this-is-no-line
"""

RELAY = """\
import os, select, socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for source in select.select([0, sock], [], [])[0]:
        if source == 0:
            sock.sendall(os.read(0, 65536) or sys.exit())
        else:
            os.write(1, sock.recv(65536) or sys.exit())
"""


@pytest.fixture
def agent_seen() -> Iterator[list[object]]:
    """An agent's socket; the list holds the visits."""
    visits: list[object] = []
    path = Path(os.environ["HOME"]) / "agent"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            try:
                while True:
                    sock, _ = server.accept()
                    visits.append(1)
                    sock.close()
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        yield visits
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_our_nodes_see_nothing_of_the_users(
    sshd: Sshd,
    home: Path,
    agent_seen: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (home / ".ssh/config").write_text(GARBAGE)
    (home / ".ssh/id_ed25519").write_text("no key")
    for name in (".fabric.yaml", ".invoke.yaml"):
        (home / name).write_text("gateway: [")
    monkeypatch.setenv("FABRIC_GATEWAY", "nowhere.invalid")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
    with closing(sshd.transport()) as transport:
        assert transport.run("true", timeout=10).ok
    write_key(home / "stranger")
    with (
        closing(sshd.transport(identity=home / "stranger")) as transport,
        pytest.raises(NodeUnreachable, match="refused user"),
    ):
        transport.connect(10)
    assert not agent_seen


def test_ssh_config_is_honoured(sshd: Sshd, home: Path) -> None:
    (home / ".ssh/config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile ~/.ssh/missing\n"
        f"  IdentityFile {sshd.identity}\n  ForwardAgent yes\n  ConnectTimeout 5\n"
    )
    shutil.copy(sshd.known_hosts, home / ".ssh/known_hosts")
    node = make_node(0, address="box", user=make_node(1).user)
    silent = home / "ours"
    with closing(
        sshd.transport(node=node, identity=None, known_hosts=silent, use_ssh_config=True)
    ) as transport:
        assert transport.run("true", timeout=10).ok
    assert not silent.exists()


def test_our_known_hosts_overrule_the_users(sshd: Sshd, home: Path) -> None:
    shutil.copy(sshd.known_hosts, home / ".ssh/known_hosts")
    ours = home / "ours"
    ours.write_text(f"[127.0.0.1]:{sshd.port} {write_key(home / 'other')}\n")
    with (
        closing(sshd.transport(known_hosts=ours, use_ssh_config=True)) as transport,
        pytest.raises(NodeUnreachable, match="host key has changed"),
    ):
        transport.connect(10)


def test_host_key_checks_cannot_be_switched_off(sshd: Sshd, home: Path) -> None:
    (home / ".ssh/config").write_text(
        "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
    )
    with (
        closing(sshd.transport(known_hosts=home / "none", use_ssh_config=True)) as transport,
        pytest.raises(NodeUnreachable, match="is not known"),
    ):
        transport.connect(10)


@pytest.mark.parametrize("only", [False, True])
def test_agent_and_default_keys(
    sshd: Sshd,
    home: Path,
    need: Callable[[str], str],
    only: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key that ssh_config names comes first, though the agent is full of others."""
    sock = str(home / "real-agent")
    agent = subprocess.Popen([need("ssh-agent"), "-D", "-a", sock], stdout=subprocess.DEVNULL)
    try:
        while not Path(sock).exists():
            time.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", sock)
        keys = [home / f"other-{i}" for i in range(8)]
        for key in keys:
            write_key(key)
        subprocess.run([need("ssh-add"), "-q", *keys, sshd.identity], check=True)
        public = home / ".ssh/box"
        public.write_text("locked away: the agent has it\n")
        shutil.copy(sshd.identity.with_name("user.pub"), home / ".ssh/box.pub")
        (home / ".ssh/config").write_text(
            f"Host *\n  IdentityFile {public}\n" + "  IdentitiesOnly yes\n" * only
        )
        with closing(sshd.transport(identity=None, use_ssh_config=True)) as transport:
            transport.connect(10)
    finally:
        agent.kill()
        agent.wait()


def test_default_key(sshd: Sshd, home: Path) -> None:
    shutil.copy(sshd.identity, home / ".ssh/id_ed25519")
    with closing(sshd.transport(identity=None, use_ssh_config=True)) as transport:
        transport.connect(10)


def test_bad_ssh_config(sshd: Sshd, home: Path) -> None:
    (home / ".ssh/config").write_text("this-is-no-line\n")
    with closing(sshd.transport(use_ssh_config=True)) as transport:
        with pytest.raises(UsageError, match="ssh_config cannot be read"):
            transport.connect(10)
        assert "ssh_config cannot be read" in transport.run("true", timeout=10).error


def test_proxy_jump(sshd: Sshd, start_sshd: Callable[..., Sshd], home: Path) -> None:
    first, second = start_sshd("first"), start_sshd("second")
    (home / ".ssh/config").write_text(
        f"Host *\n  ProxyJump first,second\n"
        f"Host first\n  HostName 127.0.0.1\n  Port {first.port}\n  IdentityFile {first.identity}\n"
        f"Host second\n  HostName 127.0.0.1\n  Port {second.port}\n"
        f"  IdentityFile {second.identity}\n"
        f"Host box\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.identity}\n"
    )
    known = [server.known_hosts.read_text() for server in (first, second, sshd)]
    (home / ".ssh/known_hosts").write_text("".join(known))
    node = make_node(0, address="box")
    arguments = {"node": node, "identity": None, "use_ssh_config": True}
    with closing(sshd.transport(**arguments, known_hosts=home / "none")) as transport:
        assert transport.run("true", timeout=10).ok
    assert (first.log_ins, second.log_ins) == (1, 1)
    # A jump host's key is checked as strictly.
    (home / ".ssh/known_hosts").write_text(known[0] + known[2])
    with (
        closing(sshd.transport(**arguments, known_hosts=home / "none")) as transport,
        pytest.raises(NodeUnreachable, match=r"through jump host second: .* is not known"),
    ):
        transport.connect(10)


def test_jump_hosts_in_a_circle(sshd: Sshd, home: Path) -> None:
    (home / ".ssh/config").write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    transport = sshd.transport(node=make_node(0, address="a"), use_ssh_config=True)
    with closing(transport), pytest.raises(NodeUnreachable, match="form a loop"):
        transport.connect(10)


def test_gateway(sshd: Sshd, start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    gate = start_sshd("gate")
    with (
        closing(gate.transport(node=make_node(gate.port, "bastion"))) as gateway,
        closing(sshd.transport(gateway=gateway)) as transport,
    ):
        assert transport.run("cat", stdin=b"x" * 3_000_000, timeout=10).stdout == b"x" * 3_000_000
        assert transport.run("exit 3", timeout=10).exit_code == 3
        source = tmp_path / "source"
        source.write_bytes(os.urandom(3_000_000))
        assert transport.put(source, str(tmp_path / "there"), timeout=10).ok
        assert (tmp_path / "there").read_bytes() == source.read_bytes()
        # The gateway dies: what goes through it ends, and says so.
        started = time.monotonic()
        threading.Timer(0.3, gateway.close).start()
        result = transport.run("sleep 200", timeout=200)
        assert result.error == "the connection was lost"
        assert time.monotonic() - started < 100
        assert transport.run("true", timeout=10).ok


def test_gateway_that_fails_is_named(
    sshd: Sshd,
    start_sshd: Callable[..., Sshd],
    peer: Callable[..., int],
) -> None:
    gate = start_sshd("gate", "AllowTcpForwarding no\n")
    closed = start_sshd("closed")
    free = free_port()
    silent = peer()
    for port, server, target, words in (
        (free, gate, sshd.port, "gateway bastion: nothing listens on port"),
        (gate.port, gate, sshd.port, "gateway bastion: it does not forward connections"),
        (closed.port, closed, free, f"gateway bastion: it cannot connect to 127.0.0.1:{free}"),
        (closed.port, closed, silent, "the port is open but sshd does not answer"),
    ):
        gateway = server.transport(node=make_node(port, "bastion"))
        transport = sshd.transport(node=make_node(target), gateway=gateway)
        with closing(gateway), closing(transport):
            with pytest.raises(NodeUnreachable) as caught:
                transport.connect(1)
            assert words in caught.value.message
            assert caught.value.message.startswith("worker-1 (127.0.0.1:")


def test_proxy_command(sshd: Sshd, home: Path) -> None:
    (home / "relay.py").write_text(RELAY)
    (home / ".ssh/config").write_text(
        f"Host *\n  ProxyCommand {sys.executable} {home}/relay.py %h %p\n"
    )
    with closing(sshd.transport(use_ssh_config=True)) as transport:
        assert transport.run("cat", stdin=b"x" * 500_000, timeout=10).stdout == b"x" * 500_000


def test_proxy_command_that_ends(sshd: Sshd, home: Path) -> None:
    (home / ".ssh/config").write_text("Host *\n  ProxyCommand exit 1\n")
    started = time.monotonic()
    with (
        closing(sshd.transport(use_ssh_config=True)) as transport,
        pytest.raises(NodeUnreachable, match="closed before sshd answered"),
    ):
        transport.connect(200)
    assert time.monotonic() - started < 100
