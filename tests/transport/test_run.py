"""Commands: bytes in, bytes out, an exit code, and an end in any case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from clusterctl.core.model import NodeResult
from clusterctl.errors import NodeUnreachable
from clusterctl.transport import session
from clusterctl.transport.protocol import Channel
from clusterctl.transport.ssh import SshTransport
from tests.transport.lab import Relay, Sshd, make_node

pytestmark = pytest.mark.sshd


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Less than what is waited for would take; more than a busy machine needs."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def test_exit_code_and_both_outputs(transport: SshTransport) -> None:
    result = transport.run("echo out; echo err >&2; exit 7", timeout=10)
    assert (result.node, result.exit_code, result.error) == ("worker-1", 7, "")
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert not result.ok
    assert 0 < result.seconds < 10


def test_the_shell_is_posix_whatever_the_login_shell(transport: SshTransport) -> None:
    assert transport.run('echo "$0"', timeout=10).text == "/bin/sh\n"
    assert transport.run("echo 'a\nb' \\\\ !", timeout=10).text == "a\nb \\ !\n"


@pytest.mark.parametrize("noise", ["echo Welcome to the lab", "printf 'no newline at its end: '"])
def test_what_a_login_shell_prints_first_is_no_output(
    noise: str, start_sshd: Callable[..., Sshd], home: Path
) -> None:
    """As a `.bashrc` does, which bash reads under sshd for commands too."""
    (home / "start").write_text(f"{noise}\necho a warning >&2\n")
    loud = f'ForceCommand . {home}/start; eval "$SSH_ORIGINAL_COMMAND"\n'
    with closing(start_sshd(extra=loud).transport()) as transport:
        result = transport.run("echo out; cat", stdin=b"in", timeout=10)
        assert (result.exit_code, result.stdout) == (0, b"out\nin")
        told: list[bytes] = []
        transport.run("echo progress", timeout=10, on_stdout=told.append)
        assert b"".join(told) == b"progress\n"
        with closing(transport.open("cat")) as channel:
            channel.send(b"echo", 10)
            assert channel.receive(10) == b"echo"


def test_a_login_shell_that_runs_no_command_says_why(start_sshd: Callable[..., Sshd]) -> None:
    refuses = "ForceCommand echo This account is currently not available.; exit 1\n"
    with closing(start_sshd(extra=refuses).transport()) as transport:
        result = transport.run("echo out", timeout=10)
    why = "the account runs no commands there: This account is currently not available."
    assert (result.exit_code, result.error) == (None, why)


def test_stdin_is_closed(transport: SshTransport) -> None:
    with within(15):
        assert transport.run("cat; echo end", timeout=10).text == "end\n"
        assert transport.run("cat", stdin=b"\0\xff\r\n\x04", timeout=10).stdout == b"\0\xff\r\n\x04"


def test_a_command_need_not_read_its_input(transport: SshTransport) -> None:
    with within(15):
        result = transport.run("exit 4", stdin=bytes(20_000_000), timeout=10)
    assert (result.exit_code, result.error) == (4, "")
    assert transport.run("head -c 3", stdin=b"abc" * 5_000_000, timeout=10).stdout == b"abc"


def test_output_before_input_is_read(transport: SshTransport) -> None:
    """More than any buffer holds goes out before the command looks at its stdin."""
    data = bytes(8_000_000)
    result = transport.run("head -c 8000000 /dev/zero; cat", stdin=data, timeout=20)
    assert len(result.stdout) == 16_000_000


def test_deadline(transport: SshTransport) -> None:
    with within(15):
        result = transport.run("echo before; exec sleep 20", timeout=0.5)
    assert result.exit_code is None
    assert result.error == "did not end within 0.5 s"
    assert result.stdout == b"before\n"
    assert transport.run("true", timeout=10).ok


@pytest.mark.parametrize(("stream", "given"), [(" >&2", 0), ("", 100_000_000)])
def test_too_much_output(stream: str, given: int, transport: SshTransport) -> None:
    """A host that writes without end takes neither all memory nor all time."""
    with within(60):
        result = transport.run(f"exec cat /dev/zero{stream}", stdin=bytes(given), timeout=300)
    assert result.error == "wrote more than 64 MiB"
    assert (result.node, result.exit_code) == (transport.node.name, None)
    assert len(result.stdout) + len(result.stderr) <= 64 << 20
    assert transport.run("true", timeout=10).ok


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
def test_ended_by_a_signal(transport: SshTransport, name: str) -> None:
    expected = 128 + signal.Signals["SIG" + name]
    own = transport.run(f"kill -{name} $$", timeout=10)
    child = transport.run(f"sh -c 'kill -{name} $$'; exit $?", timeout=10)
    assert (own.exit_code, own.error) == (expected, "")
    assert child.exit_code == expected


def test_eight_at_a_time_on_one_connection(transport: SshTransport) -> None:
    results: dict[int, bytes] = {}
    connections: set[str] = set()

    def run(number: int) -> None:
        command = f'echo "$SSH_CONNECTION" >&2; head -c {number}000000 /dev/zero; echo; cat'
        stdin = b"%d" % number * 100_000
        result = transport.run(command, stdin=stdin, timeout=60)
        results[number] = result.stdout
        connections.add(result.stderr.decode())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(1, 9):
        assert results[number] == bytes(number * 1_000_000) + b"\n" + b"%d" % number * 100_000
    assert len(connections) == 1


def test_more_than_sshd_allows_wait_for_their_turn(transport: SshTransport) -> None:
    done: list[NodeResult] = []
    threads = [
        threading.Thread(target=lambda: done.append(transport.run("sleep 0.2", timeout=10)))
        for _ in range(25)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(r.exit_code, r.error, r.stderr) for r in done] == [(0, "", b"")] * 25


def test_sshd_that_allows_no_session(
    start_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SESSION_PATIENCE", 0.05)
    with closing(start_sshd(extra="MaxSessions 0\n").transport()) as transport:
        assert "MaxSessions" in transport.run("true", timeout=10).error


def test_connection_lost(relayed: SshTransport, relay: Relay) -> None:
    with within(15):
        result = relayed.run("echo before; sleep 20", timeout=20, on_stdout=lambda _: relay.cut())
    assert result.exit_code is None
    assert result.error == "the connection was lost"
    assert result.stdout == b"before\n"
    assert relayed.run("echo again", timeout=10).text == "again\n"


@pytest.mark.parametrize("behind", [False, True], ids=["straight", "behind a gateway"])
def test_network_that_swallows_packets(
    relayed: SshTransport, relay: Relay, transport: SshTransport, behind: bool
) -> None:
    """The kernel takes no more of us, and all who want to send hang behind one lock."""
    if behind:
        relayed = relayed.renew(transport)
    relayed.connect(10)
    threading.Timer(0.2, relay.swallow).start()
    others: list[str] = []
    send = lambda seconds: relayed.run("cat >/dev/null", stdin=bytes(99 << 20), timeout=seconds)  # noqa: E731
    run = lambda: others.append(send(1).error)  # noqa: E731
    threads = [threading.Thread(target=run) for _ in range(8)]
    with within(15):
        for thread in threads:
            thread.start()
        result = send(1.5)
        for thread in threads:
            thread.join()
    assert result.exit_code is None
    assert result.error in ("did not end within 1.5 s", "the connection was lost")
    assert len(others) == 8
    assert all(others)
    relayed.close()
    assert not behind or transport.read_host_key()  # the gateway's own connection stays


def test_a_dead_peer_is_noticed(
    relayed: SshTransport, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "KEEPALIVE", 0.2)
    monkeypatch.setattr(session, "SILENCE", 0.6)
    relayed.connect(10)
    # An idle node that answers is not dead.
    assert relayed.run("sleep 1.2", timeout=20).ok
    relay.swallow()
    with within(15):
        assert relayed.run("sleep 20", timeout=20).error == "the connection was lost"


def test_closing_ends_a_command(transport: SshTransport) -> None:
    transport.connect(10)
    threading.Timer(0.3, transport.close).start()
    with within(15):
        assert transport.run("sleep 20", timeout=20).error == "the connection was lost"
    assert transport.run("true", timeout=10).ok


def test_closing_ends_an_attempt_to_connect(sshd: Sshd, peer: Callable[..., int]) -> None:
    transport = sshd.transport(node=make_node(peer()))
    threading.Timer(0.3, transport.close).start()
    with within(15), pytest.raises(NodeUnreachable):
        transport.connect(60)


def test_talking_with_a_command(transport: SshTransport) -> None:
    channel = transport.open("while read line; do echo got $line; done; echo bye; exit 3")
    for word in ("one", "two"):
        channel.send(f"{word}\n".encode(), 10)
        assert channel.receive(10) == f"got {word}\n".encode()
    with within(15), pytest.raises(TimeoutError):
        channel.receive(0.3)
    channel.close()
    channel.close()
    assert transport.run("true", timeout=10).ok


def read_all(channel: Channel) -> bytes:
    data = b""
    while more := channel.receive(10):
        data += more
    return data


def test_channel_to_its_end(transport: SshTransport) -> None:
    with closing(transport.open("head -c 40000000 /dev/zero")) as channel:
        assert len(read_all(channel)) == 40_000_000
        assert channel.receive(1) == b""
        with pytest.raises(BrokenPipeError):
            channel.send(bytes(20_000_000), 5)


def test_channel_with_a_flood_of_errors(transport: SshTransport) -> None:
    """stderr shares the window with stdout: someone has to read it."""
    command = "head -c 40000000 /dev/zero >&2; echo end"
    with closing(transport.open(command)) as channel, within(20):
        assert read_all(channel) == b"end\n"


def test_channel_of_a_lost_connection(relayed: SshTransport, relay: Relay) -> None:
    with closing(relayed.open("echo hello; sleep 20")) as channel:
        assert channel.receive(10) == b"hello\n"
        threading.Timer(0.2, relay.cut).start()
        with within(15), pytest.raises(ConnectionError):
            channel.receive(20)
        with pytest.raises(ConnectionError):
            channel.send(b"x", 5)


def test_channel_whose_input_is_not_taken(transport: SshTransport) -> None:
    with closing(transport.open("sleep 30")) as channel, within(15), pytest.raises(TimeoutError):
        channel.send(bytes(20_000_000), 0.5)


def test_open_raises_when_it_cannot_connect(sshd: Sshd, peer: Callable[..., int]) -> None:
    with (
        closing(sshd.transport(node=make_node(peer()))) as transport,
        pytest.raises(NodeUnreachable, match="sshd does not answer"),
    ):
        transport.open("true", timeout=0.4)


# -------------------------------------------------------------------------------------------------
# A process that stands still for seconds (Ctrl-Z and `fg`, a machine that is too busy) takes
# nobody for dead when it goes on: what was said meanwhile waits to be read.


STOPPED = 3.0
"""Seconds; long enough for any limit that the programs below set to pass."""


def stopped(program: str, *words: object) -> str:
    """What a Python program prints that is stopped half a second after it has said `ready`."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED)
        child.send_signal(signal.SIGCONT)
        return child.stdout.read().strip()


def test_a_deadline_does_not_count_it() -> None:
    program = """
import threading, time
from clusterctl.core.clock import Deadline
deadline, event = Deadline(2.5), threading.Event()
print("ready", flush=True)
time.sleep(1)
print(deadline.passed, deadline.wait(event.wait), deadline.passed)
"""
    assert stopped(program) == "False False True"


SSH = """
import sys
from pathlib import Path
from clusterctl.core.model import Node, Role
from clusterctl.transport.diagnosis import Target
from clusterctl.transport.ssh import SshTransport
port, folder, user = sys.argv[1:]
node = Node(name="worker-1", role=Role.WORKER, address="127.0.0.1", private_address="127.0.0.1",
            ssh_port=int(port), job_port=int(port), user=user, root="/tmp")
identity, known_hosts = (Path(folder, name) for name in ("user", "known_hosts"))
transport = SshTransport(Target(node, identity, known_hosts))
"""


@pytest.mark.sshd
def test_a_quiet_connection_is_not_taken_for_dead(sshd: Sshd) -> None:
    program = f"""{SSH}
from clusterctl.transport import session
session.KEEPALIVE, session.SILENCE = 0.2, 2
transport.connect(20)
print("ready", flush=True)
result = transport.run("sleep 6; echo done", timeout=60)
print(result.text, result.error)
"""
    assert stopped(program, sshd.port, sshd.folder, sshd.node.user) == "done"


@pytest.mark.sshd
def test_a_log_in_does_not_end_because_the_clock_is_set(sshd: Sshd, tmp_path: Path) -> None:
    """A laptop that wakes up: the clock leaps by minutes between any two looks at it."""
    racing = """
import itertools, time
real, looks = time.time, itertools.count()
time.time = lambda: real() + 600 * next(looks)
"""
    (tmp_path / "sitecustomize.py").write_text(racing)
    argv = [sys.executable, "-c", f"{SSH}\ntransport.connect(20)\nprint('in')"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    words = map(str, (sshd.port, sshd.folder, sshd.node.user))
    done = subprocess.run(
        [*argv, *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "in\n", done.stderr
