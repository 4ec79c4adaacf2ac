"""Every way in which a node cannot be reached has its own words, and comes within the limit."""

from __future__ import annotations

import getpass
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.errors import NodeUnreachable
from clusterctl.transport.ssh import SshTransport
from tests.transport.lab import Sshd, free_port, make_node, write_key

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


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("Ciphers chacha20-poly1305@openssh.com\n", ("have no algorithm in common",)),
        (
            "PubkeyAuthentication no\nPasswordAuthentication yes\n",
            ("sshd does not accept keys for user", "only password"),
        ),
    ],
    ids=["ciphers", "passwords"],
)
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


def test_importing_is_cheap() -> None:
    code = "import sys, clusterctl.transport.pool; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"paramiko", "fabric", "invoke", "cryptography"} & set(done.stdout.split())
