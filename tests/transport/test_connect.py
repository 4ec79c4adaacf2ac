"""Every way in which a node cannot be reached has its own words, and comes within the limit."""

from __future__ import annotations

import getpass
import logging
import os
import re
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

from clusterctl.core.model import make_error
from clusterctl.errors import NodeUnreachable, UsageError
from clusterctl.transport.ssh import SshTransport
from tests.transport.lab import Sshd, free_port, make_node, write_key
from tests.unit.tables import rows

pytestmark = pytest.mark.sshd


def fails(transport: SshTransport, *words: str, timeout: float = 10) -> None:
    """Connecting does, in these words, within the limit and what a busy machine needs."""
    started = time.monotonic()
    with closing(transport), pytest.raises(NodeUnreachable) as caught:
        transport.connect(timeout)
    assert time.monotonic() - started < timeout + 15
    error = caught.value
    assert error.exit_code == 4
    for word in (transport.node.name, *words):
        assert word in f"{error.message} {error.hint}"


def test_connects_once(transport: SshTransport) -> None:
    transport.connect(10)
    first = transport.run('echo "$SSH_CONNECTION"', timeout=10)
    transport.connect(10)
    second = transport.run('echo "$SSH_CONNECTION"', timeout=10)
    assert first.text.startswith("127.0.0.1 ")
    assert second.text == first.text


def test_picks_fast_ciphers_and_falls_back(start_sshd: Callable[..., Sshd]) -> None:
    for extra, cipher in (
        ("", "aes128-gcm@openssh.com"),
        ("Ciphers aes256-ctr\nMACs hmac-sha2-512\n", "aes256-ctr"),
    ):
        server = start_sshd(cipher, f"{extra}LogLevel DEBUG1\n")
        with closing(server.transport()) as transport:
            assert transport.run("echo hello", timeout=10).text == "hello\n"
            assert f"kex: client->server cipher: {cipher} " in server.log
            assert list(server.connections.values()) == [True]


def test_no_answer(sshd: Sshd, deaf: int) -> None:
    free = free_port()
    words: tuple[str, ...] = (f"127.0.0.1:{free}", "nothing listens on port")
    fails(sshd.transport(node=make_node(free)), *words)
    transport = sshd.transport(node=make_node(deaf))
    words = ("no answer within 0.5 s", "route, firewall or security group")
    fails(transport, *words, timeout=0.5)


def test_unknown_name(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", not_found)
    transport = sshd.transport(node=make_node(22, address="no-such-host.invalid"))
    fails(transport, "the name no-such-host.invalid is not known", "DNS")


def test_resolver_that_hangs(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [end.wait(10)][1:])
    transport = sshd.transport(node=make_node(22, address="slow.invalid"))
    try:
        fails(transport, "was not resolved within 0.3 s (DNS)", timeout=0.3)
    finally:
        end.set()


def test_resolved_name(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[localhost]:{sshd.port} {sshd.public()}\n")
    node = make_node(sshd.port, address="localhost")  # ::1 first, perhaps, where nothing listens
    with closing(sshd.transport(node=node, known_hosts=known)) as transport:
        assert transport.run("true", timeout=10).ok


@pytest.mark.parametrize(
    ("said", "hang_up", "words"),
    [
        (b"", False, ("the port is open but sshd does not answer", "within 0.4 s")),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False, ("the key exchange does not end",)),
        (b"", True, ("closed before sshd answered", "MaxStartups")),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x\r\n" * 120, False, ("is not sshd",)),
    ],
    ids=["silent", "stalls", "hangs up", "no sshd"],
)
def test_a_peer_that_is_no_sshd_of_ours(
    said: bytes, hang_up: bool, words: tuple[str, ...], sshd: Sshd, peer: Callable[..., int]
) -> None:
    fails(sshd.transport(node=make_node(peer(said, hang_up))), *words, timeout=0.399999)
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer)]


def test_slow_steps_do_not_add_up(sshd: Sshd) -> None:
    """A line every 0.2 s before the banner: each step is within the limit, the whole is not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        end = threading.Event()

        def drip() -> None:
            sock, _ = server.accept()
            with sock:
                while not end.wait(0.2):
                    sock.sendall(b"please hold the line\r\n")

        thread = threading.Thread(target=drip)
        thread.start()
        transport = sshd.transport(node=make_node(server.getsockname()[1]))
        try:
            fails(transport, "sshd does not answer", timeout=0.7)
        finally:
            end.set()
            thread.join()


def test_log_in_stalls(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(
        extra="AuthorizedKeysFile none\nAuthorizedKeysCommand /bin/sleep 3\n"
        f"AuthorizedKeysCommandUser {getpass.getuser()}\n"
    )
    fails(server.transport(), "sshd does not answer the log-in", timeout=0.7)


def fingerprint(path: Path) -> str:
    done = subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def test_changed_host_key(start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    server = start_sshd()
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {write_key(tmp_path / 'old')}\n")
    expected = fingerprint(tmp_path / "old.pub")
    offered = fingerprint(server.folder / "host.pub")
    words = (f"expected {expected}", f"offered {offered}", "nothing was sent")
    fails(server.transport(), "host key has changed", *words)
    assert "authenticating user" not in server.log
    assert "Accepted" not in server.log


def test_unknown_host_key_is_not_learned(sshd: Sshd, tmp_path: Path, home: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("")
    offered = fingerprint(sshd.folder / "host.pub")
    words = (f"host key {offered} is not known", "nothing was sent", str(known))
    fails(sshd.transport(known_hosts=known), *words)
    fails(sshd.transport(known_hosts=tmp_path / "missing"), "is not known")
    # The user's own file is not asked for nodes of ours.
    (home / ".ssh/known_hosts").write_text(sshd.known_hosts.read_text())
    fails(sshd.transport(known_hosts=known), *words)
    assert known.read_text() == ""


def test_revoked_host_key(sshd: Sshd, tmp_path: Path) -> None:
    line = sshd.known_hosts.read_text()
    known = tmp_path / "known_hosts"
    known.write_text(f"{line}@revoked {line}")
    fails(sshd.transport(known_hosts=known), "marked as revoked")


def test_host_key_rotation(start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    server = start_sshd()
    line = server.known_hosts.read_text()
    other = f"[127.0.0.1]:{server.port} {write_key(tmp_path / 'other')}\n"
    for text in (line + other, other + line):
        server.known_hosts.write_text(text)
        with closing(server.transport()) as transport:
            transport.connect(10)


def test_asks_for_the_kind_of_host_key_that_it_knows(start_sshd: Callable[..., Sshd]) -> None:
    folder = Path(os.environ["HOME"])
    for kind in ("ecdsa", "rsa"):
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", folder / kind], check=True)
        extra = f"HostKey {folder / kind}\n"
        server = start_sshd(kind, extra)
        public = " ".join((folder / f"{kind}.pub").read_text().split()[:2])
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {public}\n")
        with closing(server.transport()) as transport:
            transport.connect(10)


def test_refused_key(sshd: Sshd, tmp_path: Path) -> None:
    write_key(tmp_path / "stranger")
    transport = sshd.transport(identity=tmp_path / "stranger")
    fails(transport, "refused user", str(tmp_path / "stranger"), "authorized_keys")


@rows("extra, words", "connect.a_server_that_nobody_can_log_in_to")
def test_a_server_that_nobody_can_log_in_to(
    extra: str, words: tuple[str, ...], start_sshd: Callable[..., Sshd]
) -> None:
    fails(start_sshd(extra=extra).transport(), *words)


def test_identity_that_is_of_no_use(sshd: Sshd, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    fails(sshd.transport(identity=missing), f"the key {missing} cannot be read")
    garbage = tmp_path / "garbage"
    garbage.write_text("no key\n")
    fails(sshd.transport(identity=garbage), f"{garbage} is not a usable private key")
    locked = tmp_path / "locked"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)]
    subprocess.run(make, check=True)
    fails(sshd.transport(identity=locked), f"the key {locked} has a passphrase")


def test_failure_prints_nothing(
    sshd: Sshd,
    peer: Callable[..., int],
    capfd: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger("paramiko").propagate = False  # pytest's own handler is not a user's
    try:
        fails(sshd.transport(node=make_node(peer(hang_up=True))))
    finally:
        logging.getLogger("paramiko").propagate = True
    assert capfd.readouterr() == ("", "")


# -------------------------------------------------------------------------------------------------
# Jump hosts, the user's ssh_config, agent and proxy commands: honoured for their hosts only.


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


def test_a_refused_host_key_comes_with_the_way_out(sshd: Sshd, home: Path) -> None:
    """Also where a command of ours met it, and the job's error is made of the result."""
    files = home / ".ssh/known_hosts", home / "ours"
    for file in files:
        file.write_text(f"[127.0.0.1]:{sshd.port} {write_key(home / file.name)}\n")

    def refuse() -> str:
        with closing(sshd.transport(known_hosts=files[1], use_ssh_config=True)) as transport:
            return make_error("starting it", transport.run("true", timeout=10)).hint

    way = re.search(r"ssh-keygen -R '(.*)', the same with -f (\S+), and attach", refuse())
    assert way
    assert way[2] == str(files[1])
    for file in (files[1], files[0]):
        assert "if it was reinstalled" in refuse()
        subprocess.run(["ssh-keygen", "-R", way[1], "-f", file], check=True, capture_output=True)
    scan = re.search(r"then: (ssh-keyscan .*)", refuse())
    assert scan
    subprocess.run(["sh", "-c", scan[1]], check=True, capture_output=True, timeout=20)
    with closing(sshd.transport(known_hosts=files[1], use_ssh_config=True)) as transport:
        assert transport.run("true", timeout=10).ok


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
        f"Host first\n  HostName 127.0.0.1\n  Port {first.port}\n  IdentityFile {first.identity}\n"
        f"Host second\n  HostName 127.0.0.1\n  Port {second.port}\n"
        f"  IdentityFile {second.identity}\n"
        f"Host box\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.identity}\n"
        f"  ProxyJump first,second\n"
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
        pytest.raises(NodeUnreachable) as caught,
    ):
        transport.connect(10)
    offered = f"{fingerprint(second.folder / 'host.pub')} of [127.0.0.1]:{second.port}"
    assert f"host key {offered} is not known; nothing was sent" in caught.value.message


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
    (home / ".ssh/config").write_text("Host *\n  ProxyCommand sh -c 'echo gone >&2'\n")
    started = time.monotonic()
    with (
        closing(sshd.transport(use_ssh_config=True)) as transport,
        pytest.raises(NodeUnreachable, match=r"\): gone(\n→ |$)"),
    ):
        transport.connect(200)
    assert time.monotonic() - started < 100
