"""Hosts that only the user's own `ssh` gets into: open masters, passwords, passphrases."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from queue import Queue

import pytest

from clusterctl.core.clock import Deadline
from clusterctl.errors import NodeUnreachable, UsageError
from clusterctl.transport import diagnosis, openssh
from clusterctl.transport.connect import Destination
from clusterctl.transport.diagnosis import Target
from clusterctl.transport.session import ConnectionLost, Session
from clusterctl.transport.ssh import SshTransport
from tests.conftest import Need
from tests.e2e.cli import wait_for
from tests.terminal import Terminal
from tests.transport.lab import Sshd, make_node, start, stop, write_key
from tests.transport.test_connect import RELAY
from tests.unit.tables import rows

pytestmark = pytest.mark.sshd


def by_name(server: Sshd, home: Path, lines: str, **changes: object) -> SshTransport:
    """A transport to the host `box` of an ssh_config with these lines."""
    (home / ".ssh/config").write_text(f"Host box\n  HostName 127.0.0.1\n{lines}")
    (home / ".ssh/known_hosts").write_text(server.known_hosts.read_text())
    arguments = {"identity": None, "use_ssh_config": True, "known_hosts": home / "none"}
    node = make_node(0, address="box")
    return server.transport(**{"node": node, **arguments, **changes})


def write_proxy(server: Sshd, home: Path) -> str:
    """The lines of an ssh_config by which its key lets us in, and only OpenSSH finds the way."""
    (home / "relay.py").write_text(RELAY)
    key = f"  Port {server.port}\n  IdentityFile {server.identity}\n"
    key += "  IgnoreUnknown UseKeychain\n  UseKeychain yes\n  RemoteCommand false\n"
    return f"{key}  ProxyCommand {sys.executable} {home}/relay.py %h %p\n"


def masters() -> list[str]:
    """Command lines of ssh processes that this test's clusterctl has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                theirs = f"HOME={Path.home()}".encode() in (folder / "environ").read_bytes()
            except OSError:
                continue
            if theirs and "ControlPath=" in words:
                found.append(words)
    return found


# -------------------------------------------------------------------------------------------------
# Connections that the user has open.


@pytest.fixture
def master(sshd: Sshd, home: Path, need: Need) -> Iterator[str]:
    """A connection that the user has open; the lines of their ssh_config, without a key."""
    path = home / "m-%r@%h:%p"
    lines = f"  Port {sshd.port}\n  ControlPath {path}\n  IdentityFile {home}/none\n"
    lines += "  IdentitiesOnly yes\n"
    (home / "open").write_text(f"Host box\n  HostName 127.0.0.1\n{lines}")
    ssh = [need("ssh"), "-F", str(home / "open"), "-o", f"UserKnownHostsFile={sshd.known_hosts}"]
    opening = ("-i", str(sshd.identity), "-M", "-N", "-f")
    subprocess.run([*ssh, *opening, "box"], check=True, timeout=20)
    try:
        yield lines
    finally:
        subprocess.run([*ssh, "-O", "exit", "box"], check=True, timeout=20, capture_output=True)


def test_a_connection_that_is_open_is_used_and_left_open(
    sshd: Sshd, home: Path, master: str, tmp_path: Path
) -> None:
    before = sshd.log_ins
    (tmp_path / "source").mkdir()
    (tmp_path / "source/data").write_bytes(os.urandom(3_000_000))
    with closing(by_name(sshd, home, master)) as transport:
        result = transport.run("echo out; echo err >&2; cat; exit 7", stdin=b"in", timeout=10)
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\nin", b"err\n", 7)
        assert transport.put(tmp_path / "source", str(tmp_path / "there"), timeout=20).ok
        assert transport.get(str(tmp_path / "there"), tmp_path / "back", timeout=20).ok
        with closing(transport.open("while read line; do echo got $line; done")) as channel:
            channel.send(b"one\n", 10)
            assert channel.receive(10) == b"got one\n"
        kind = sshd.public().split()[:2]
        assert transport.read_host_key().split() == kind
    unlisted = by_name(sshd, home, master)
    (home / ".ssh/known_hosts").write_text("")
    with closing(unlisted):
        unlisted.connect(10)
        with pytest.raises(NodeUnreachable, match="in no known_hosts file"):
            unlisted.read_host_key()
    assert (tmp_path / "back/data").read_bytes() == (tmp_path / "source/data").read_bytes()
    with closing(by_name(sshd, home, master)) as again:
        assert again.run("true", timeout=10).ok
    assert sshd.log_ins == before
    assert not masters()


@pytest.fixture
def stopped(sshd: Sshd, home: Path, master: str) -> Iterator[Callable[[], Path]]:
    """Stops that connection's process; its socket."""
    path = home / f"m-root@127.0.0.1:{sshd.port}"
    check = ["ssh", "-S", str(path), "-O", "check", "box"]
    said = subprocess.run(check, capture_output=True, text=True, timeout=20, check=True).stderr
    process = int(said.partition("pid=")[2].partition(")")[0])

    def stop_it() -> Path:
        os.kill(process, signal.SIGSTOP)
        return path

    yield stop_it
    os.kill(process, signal.SIGCONT)


@pytest.mark.parametrize("waiting", [0, 200])
def test_an_open_connection_that_is_dead_is_named(
    waiting: int, sshd: Sshd, home: Path, master: str, stopped: Callable[[], Path], tmp_path: Path
) -> None:
    """Like an sshd that is silent, whatever the command may take, and however many wait for it."""
    path, source = str(stopped()), tmp_path / "file"
    source.write_text("text")
    with ExitStack() as stack:
        for _ in range(waiting):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            sock.connect_ex(path)
        transport = stack.enter_context(closing(by_name(sshd, home, master)))
        with pytest.raises(NodeUnreachable, match=r"does not answer \(within 0.5 s\)") as caught:
            transport.connect(0.5)
        assert caught.value.exit_code == 4
        assert caught.value.transient
        if not waiting:
            return
        results = Queue[str]()
        for action in (
            lambda: transport.run("true", timeout=3600).error,
            lambda: transport.put(source, str(tmp_path / "there"), timeout=3600).error,
            lambda: transport.get(str(source), tmp_path / "back", timeout=3600).error,
            lambda: str(refused(lambda: transport.open("cat", timeout=3600))),
        ):
            threading.Thread(
                target=lambda action=action: results.put(action()), daemon=True
            ).start()
        for _ in range(4):
            said = results.get(timeout=60)
            assert "does not answer (within 10 s)" in said or "another attempt" in said


def refused(action: Callable[[], object]) -> NodeUnreachable:
    with pytest.raises(NodeUnreachable) as caught:
        action()
    return caught.value


def test_an_open_connection_that_dies_cuts_what_runs(
    master: str, stopped: Callable[[], Path], home: Path, sshd: Sshd
) -> None:
    path = home / f"m-root@127.0.0.1:{sshd.port}"
    with closing(openssh.Master(path, ())) as connection:
        connection.watch(keepalive=0.1, silence=1)
        with Session(connection, "echo ready; cat", Deadline(3600), collect=False) as session:
            assert session.receive(10) == b"ready\n"
            time.sleep(0.5)
            session.send(b"still there\n")
            assert session.receive(10) == b"still there\n"
            stopped()
            with pytest.raises(ConnectionLost):
                session.receive(60)
        with pytest.raises(ConnectionLost):
            Session(connection, "true", Deadline(3600), collect=True)


def test_a_connection_stays_where_ssh_config_says_so(sshd: Sshd, home: Path) -> None:
    """As one of `ssh HOST` would: whoever types a second factor types it once a day."""
    lines = write_proxy(sshd, home) + "  ControlMaster auto\n  ControlPersist 60\n"
    lines += f"  ControlPath {home}/stays\n"
    before = sshd.log_ins
    for _ in range(2):
        with closing(by_name(sshd, home, lines)) as transport:
            assert transport.run("echo hello", timeout=20).text == "hello\n"
    assert sshd.log_ins == before + 1
    end = ["ssh", "-S", f"{home}/stays", "-O", "exit", "box"]
    subprocess.run(end, check=True, capture_output=True, timeout=20)


def test_too_many_sessions(start_sshd: Callable[..., Sshd], home: Path) -> None:
    server = start_sshd(extra="MaxSessions 1\n")
    proxy = write_proxy(server, home)
    with closing(by_name(server, home, proxy)) as transport:
        with closing(transport.open("echo ready; cat")) as first:
            assert first.receive(10) == b"ready\n"
            assert "MaxSessions" in transport.run("true", timeout=20).error
        assert transport.run("echo again", timeout=10).text == "again\n"


def test_a_lost_connection_is_opened_again(start_sshd: Callable[..., Sshd], home: Path) -> None:
    server = start_sshd()
    proxy = write_proxy(server, home)
    with closing(by_name(server, home, proxy)) as transport:
        result = transport.run("kill $PPID; sleep 60", timeout=60)
        assert (result.exit_code, result.error) == (None, "the connection was lost")
        assert transport.run("exit 255", timeout=10).exit_code == 255
    wait_for(lambda: not masters(), 10, "the master's end")


HELD = """
import sys, time
from pathlib import Path
from clusterctl.core.model import Node, Role
from clusterctl.transport.diagnosis import Target
from clusterctl.transport.ssh import SshTransport
node = Node(name="login", role=Role.LOGIN, address="box", private_address="box", ssh_port=0,
            job_port=0, user="", root="")
"""
TRY = """
def connect(name="login"):
    transport = SshTransport(Target(node, None, Path("/none"), use_ssh_config=True))
    result = transport.run("echo $0 hello", timeout=10)
    print(result.error or result.text.strip(), flush=True)
    return transport
"""


def test_a_killed_process_leaves_no_connection(sshd: Sshd, home: Path) -> None:
    proxy = write_proxy(sshd, home)
    by_name(sshd, home, proxy)
    program = f"{HELD}{TRY}kept = connect()\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"/bin/sh hello\n"
        assert len(masters()) >= 1
        process.kill()
    wait_for(lambda: not masters(), 10, "the master's end")


# -------------------------------------------------------------------------------------------------
# ssh_config is read by OpenSSH.


def test_ssh_config_is_what_openssh_makes_of_it(home: Path) -> None:
    (home / ".ssh/config").write_text(
        f"Include {home}/.ssh/more/*.conf\nHost a\n  User one\n  Include {home}/none\n  Port 7\n"
        'Match host a exec "test %h = a"\n  IdentityFile /by-exec\n'
        "Match final host final.example\n  Port 9\n"
    )
    (home / ".ssh/more").mkdir()
    (home / ".ssh/more/x.conf").write_text("Host b\n  HostName final.example\n  User two\n")

    def resolve(name: str, port: int = 0) -> tuple[str, int, str]:
        target = Target(make_node(port, address=name, user=""), None, home / "none", True)
        node = Destination(target, Deadline(20)).target.node
        return node.address, node.ssh_port, node.user

    assert resolve("a") == ("a", 7, "one")
    assert resolve("b") == ("final.example", 9, "two")
    assert resolve("a", 8) == ("a", 8, "one")
    (home / ".ssh/config").write_text("this-is-no-line\n")
    with pytest.raises(UsageError, match=r"ssh_config cannot be read for a: .*this-is-no-line"):
        resolve("a")


# -------------------------------------------------------------------------------------------------
# Questions.


PAM = """\
#!/bin/sh
exec unshare -m sh -c '
    mount --bind {folder}/pam /etc/pam.d/sshd; mount --bind {folder}/shadow /etc/shadow
    exec {sshd} "$@"' sshd "$@"
"""
HASH = "$5$saltsalt$7nms7uea33j6nUc5B/QNWbGgEhGAZc61YUN0rQzogB0"  # "Hello world!"


@pytest.fixture
def asking(need: Need, need_root: None, tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Starts a server that wants a password, and perhaps more; root's was set on `day`."""
    servers: list[Sshd] = []
    if not Path("/etc/pam.d/sshd").exists():
        pytest.skip("needs Debian's openssh-server")

    def one(extra: str, day: int = 20000) -> Sshd:
        shadow = Path("/etc/shadow").read_text().splitlines()
        others = [line for line in shadow if not line.startswith("root:")]
        lines = [f"root:{HASH}:{day}:0:99999:7:::", *others, ""]
        (tmp_path / "shadow").write_text("\n".join(lines))
        (tmp_path / "pam").write_text(
            "auth required pam_unix.so\naccount required pam_unix.so\n"
            "session required pam_permit.so\npassword required pam_unix.so\n"
        )
        program = tmp_path / "sshd"
        program.write_text(PAM.format(folder=tmp_path, sshd=need("sshd")))
        program.chmod(0o755)
        extra += "UsePAM yes\nPermitRootLogin yes\n"
        servers.append(start(str(program), tmp_path / "asks", extra))
        return servers[-1]

    yield one
    for server in servers:
        stop(server)


CAUGHT = "except Exception as error: print(error.message, error.exit_code, sep='\\n')"


def alone(program: str) -> list[str]:
    """What a program prints that has no terminal, wherever the tests run."""
    argv = [sys.executable, "-c", f"{HELD}{TRY}{program}"]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=True, timeout=100, start_new_session=True
    )
    return done.stdout.splitlines()


def on_terminal(program: str) -> Terminal:
    argv = ["setsid", "--ctty", "--wait", sys.executable, "-c", textwrap.dedent(program)]
    return Terminal(argv, keyboard=True, width=200)


def type_answers(terminal: Terminal, *answers: tuple[str, bytes]) -> list[str]:
    """Answers each of these questions when it is asked; the screen at the end."""
    for number, (question, answer) in enumerate(answers, start=1):
        while sum(question in line for line in terminal.screen.text) < [
            one for one, _ in answers[:number]
        ].count(question):
            terminal.until_more()
        terminal.send(answer)
    return terminal.wait()


BOTH = "PubkeyAuthentication no\nPasswordAuthentication yes\nKbdInteractiveAuthentication yes\n"
BOTH += "AuthenticationMethods password,keyboard-interactive\n"


def test_a_password_and_a_second_factor_are_asked_once(
    asking: Callable[..., Sshd], home: Path
) -> None:
    server = asking(BOTH)
    by_name(server, home, f"  Port {server.port}\n  User root\n")
    program = f"{HELD}{TRY}kept = connect()\nprint(kept.run('echo again', timeout=9).text)"
    terminal = on_terminal(program)
    with closing(terminal):
        secret = b"Hello world!\n"
        questions = (("root@127.0.0.1's password:", secret), ("Password:", secret))
        said = type_answers(terminal, *questions)
    assert said[-2:] == ["/bin/sh hello", "again"]
    assert "Hello world!" not in terminal.raw
    assert terminal.process.returncode == 0
    assert server.log.count("Accepted keyboard-interactive") == 1
    assert not masters()


def test_a_command_that_connects_again_asks_no_more(
    asking: Callable[..., Sshd], home: Path
) -> None:
    """Such as `detach`, which looks for outputs first."""
    server = asking("PubkeyAuthentication no\nPasswordAuthentication yes\n")
    by_name(server, home, f"  Port {server.port}\n  User root\n")
    again = "connect().close()\n" * 3
    with closing(on_terminal(f"{HELD}{TRY}{again}")) as terminal:
        said = type_answers(terminal, ("root@127.0.0.1's password:", b"Hello world!\n"))
    assert said[-3:] == ["/bin/sh hello"] * 3
    assert server.log.count("Accepted password") == 1
    wait_for(lambda: not masters(), 10, "the master's end")


def test_a_wrong_password_is_asked_for_again_and_then_no_more(
    asking: Callable[..., Sshd], home: Path
) -> None:
    server = asking("PubkeyAuthentication no\nPasswordAuthentication yes\nMaxAuthTries 3\n")
    by_name(server, home, f"  Port {server.port}\n  User root\n  NumberOfPasswordPrompts 2\n")
    program = f"{HELD}{TRY}kept = connect()\nprint(kept.run('true', timeout=9).error)"
    with closing(on_terminal(program)) as terminal:
        said = type_answers(terminal, *[("root@127.0.0.1's password:", b"wrong\n")] * 2)
    why = 'sshd refused user root with what was answered to "root@127.0.0.1\'s password:"'
    assert said[-2:] == [why, why]


def test_ctrl_c_at_a_question(asking: Callable[..., Sshd], home: Path) -> None:
    server = asking("PubkeyAuthentication no\nPasswordAuthentication yes\n")
    by_name(server, home, f"  Port {server.port}\n  User root\n")
    with closing(on_terminal(f"{HELD}{TRY}connect()")) as terminal:
        said = type_answers(terminal, ("root@127.0.0.1's password:", b"\x03"))
    assert "KeyboardInterrupt" in said[-1]
    assert not masters()


@rows("extra, words", "openssh.nobody_is_asked_without_a_terminal")
def test_nobody_is_asked_without_a_terminal(
    extra: str, words: str, asking: Callable[..., Sshd], home: Path
) -> None:
    server = asking(extra)
    by_name(server, home, f"  Port {server.port}\n  User root\n")
    first, second, code = alone("kept = connect()\ntry: kept.connect(10)\n" + CAUGHT)
    assert first in second
    assert "ssh asks" in first
    assert words in first
    assert "there is no terminal to answer on" in first
    assert code == "4"
    assert "Failed password" not in server.log
    assert not masters()


def test_an_expired_password_is_said(asking: Callable[..., Sshd], home: Path) -> None:
    server = asking("", day=0)
    key = f"  Port {server.port}\n  User root\n  IdentityFile {server.identity}\n"
    with closing(by_name(server, home, key)) as transport:
        result = transport.run("echo out", timeout=10)
    assert "no commands there: Password change required but no TTY available." in result.error


@pytest.fixture
def locked(sshd: Sshd, home: Path, need: Need) -> str:
    """The lines of an ssh_config whose key has a passphrase."""
    key = home / "locked"
    shutil.copy(sshd.identity, key)
    command = [need("ssh-keygen"), "-q", "-a", "1", "-p", "-P", "", "-N", "secret", "-f", str(key)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return f"  Port {sshd.port}\n  IdentityFile {key}\n"


def test_a_passphrase_is_asked_once_for_all_hosts(sshd: Sshd, home: Path, locked: str) -> None:
    by_name(sshd, home, locked)
    program = f"{HELD}{TRY}kept = connect()\nfrom msgspec.structs import replace\n"
    program += "node = replace(node, user='root')\nconnect()"
    with closing(on_terminal(program)) as terminal:
        said = type_answers(terminal, ("Enter passphrase for key", b"secret\n"))
    assert said[-2:] == ["/bin/sh hello"] * 2
    with closing(on_terminal(f"{HELD}{TRY}connect()")) as terminal:
        said = type_answers(terminal, *[("Enter passphrase for key", b"wrong\n")] * 3)
    assert 'with what was answered to "Enter passphrase for key' in said[-1]


def test_a_passphrase_without_a_terminal(sshd: Sshd, home: Path, locked: str) -> None:
    by_name(sshd, home, locked)
    (said,) = alone("connect()")
    assert 'ssh asks "Enter passphrase for key' in said
    assert "load the key into ssh-agent" in said


# -------------------------------------------------------------------------------------------------
# Refusals. The words of OpenSSH 9.2.


@rows("said, why", "openssh.refusals")
def test_what_ssh_says_is_explained(said: str, why: str) -> None:
    node = make_node(22, "worker-1", address="box", user="ana")
    error = diagnosis.explain_ssh(Target(node, None, Path("none")), said, 10, True)
    assert error
    assert error.what == why


def test_a_wrong_way_is_explained(start_sshd: Callable[..., Sshd], home: Path) -> None:
    """What ssh says is that of this machine's OpenSSH."""
    server, gate = start_sshd(), start_sshd("gate", "AllowTcpForwarding no\n")
    key = f"  Port {server.port}\n  IdentityFile {server.identity}\n"
    other = write_key(home / "other")
    stranger = write_proxy(server, home).replace(str(server.identity), str(home / "other"))
    jump = f"{key}  ProxyJump gate\nHost gate\n  HostName 127.0.0.1\n  Port {gate.port}\n"
    jump += f"  IdentityFile {gate.identity}\n"
    known = server.known_hosts.read_text() + gate.known_hosts.read_text()
    for lines, hosts, why in (
        (write_proxy(server, home), f"[127.0.0.1]:{server.port} {other}\n", "has changed: offered"),
        (write_proxy(server, home), "", "is not known; nothing was sent"),
        (jump, known, "the jump host does not forward connections"),
        (f"{key}  ProxyJump nosuch.invalid\n", known, "through jump host nosuch.invalid: the name"),
        (stranger, known, "who may log in by publickey"),
    ):
        transport = by_name(server, home, lines)
        (home / ".ssh/known_hosts").write_text(hosts)
        with closing(transport):
            assert why in transport.run("true", timeout=20).error


def test_too_many_keys_and_an_agent_that_refuses(
    sshd: Sshd, home: Path, need: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock = home / "agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
    keys = [home / f"key-{number}" for number in range(8)]
    with subprocess.Popen([need("ssh-agent"), "-D", "-a", str(sock)], stdout=-3) as agent:
        try:
            wait_for(sock.exists, 10, "the agent")
            for options, files, why in (
                (["-c"], [sshd.identity], "ssh-agent refuses to sign"),
                ([], keys, "closed the connection after too many keys of user"),
            ):
                for key in keys:
                    write_key(key)
                subprocess.run([need("ssh-add"), "-q", *options, *files], check=True)
                lines = f"  Port {sshd.port}\n  IdentityFile none\n"
                with closing(by_name(sshd, home, lines)) as transport:
                    assert why in transport.run("true", timeout=20).error
                subprocess.run([need("ssh-add"), "-q", "-D"], check=True)
        finally:
            agent.kill()
