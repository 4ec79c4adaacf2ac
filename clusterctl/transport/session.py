"""One command on a connection."""

from __future__ import annotations

import logging
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from clusterctl.core.clock import Deadline, now
from clusterctl.transport.diagnosis import Failure
from clusterctl.transport.protocol import OnStdout, wrap_command

__all__ = ["BufferedPipe", "PipeTimeout", "make_or_pipe", "make_pipe", "paramiko"]

# paramiko takes a third of its time to load for invoke, if it is there: for `Match exec` in an
# ssh_config, which OpenSSH reads for us. Other modules take it from here.
_MODULES: dict[str, Any] = sys.modules
_WITHOUT = "invoke" not in _MODULES
if _WITHOUT:
    _MODULES["invoke"] = None
try:
    import paramiko
    from paramiko.buffered_pipe import BufferedPipe, PipeTimeout
    from paramiko.common import MSG_CHANNEL_REQUEST, cMSG_CHANNEL_REQUEST, cMSG_GLOBAL_REQUEST
    from paramiko.packet import Packetizer
    from paramiko.pipe import make_or_pipe, make_pipe
finally:
    if _WITHOUT:
        del _MODULES["invoke"]

# -------------------------------------------------------------------------------------------------
# paramiko, fitted: a socket that answers at once and can be cut, a transport without surprises.
#
# Imported at the first connect: paramiko costs 70 to 150 ms.


KEEPALIVE = 15.0
"""Seconds without a word from us after which we ask the node whether it is there."""
SILENCE = 60.0
"""Seconds without a word from the node after which the connection counts as lost, from when we
asked for one."""
SESSIONS = 10
"""Commands at a time on one connection: sshd's own default for MaxSessions."""

READ_AHEAD = 256 * 1024

CLOSING = 2.0
"""Seconds for a channel's farewell: it may have to wait for a new exchange of keys."""
LOST = (paramiko.SSHException, EOFError, OSError)
"""What paramiko raises when the connection is gone."""

# Without a handler of ours, logging would print paramiko's errors to stderr, tracebacks included.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Socket:
    """What paramiko takes for its socket: that of a connection, or a channel through a jump host.

    - Reads ahead, since paramiko reads each packet in two small pieces.
    - Acknowledges at once: sshd leaves Nagle's algorithm on for commands, so that a delayed
      acknowledgement of ours would hold its next packet back for 40 ms.
    - `abort` ends it from any thread, even while another thread is stuck in it.
    """

    def __init__(
        self,
        sock: Any,
        on_close: Callable[[], None] = lambda: None,
        why: Callable[[], str] = lambda: "",
    ) -> None:
        """`why`: what whoever carries it says about its end."""
        self._sock = sock
        self._on_close = on_close
        self.why = why
        self.send, self.settimeout, self.getpeername = sock.send, sock.settimeout, sock.getpeername
        self._ahead = memoryview(b"")
        self._closed = False  # paramiko reads this one
        self.received = 0
        """How often something has come."""
        plain = isinstance(sock, socket.socket)
        tcp = plain and sock.family in (socket.AF_INET, socket.AF_INET6)
        self._quick = tcp and hasattr(socket, "TCP_QUICKACK")
        if tcp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                limit = int(SILENCE * 1000)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)

    def recv(self, size: int) -> bytes:
        if not self._ahead:
            chunk = self._sock.recv(READ_AHEAD)
            self.received += 1
            if self._quick:
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            self._ahead = memoryview(chunk)
        out = bytes(self._ahead[:size])
        self._ahead = self._ahead[size:]
        return out

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.abort()
        if isinstance(self._sock, socket.socket):
            self._sock.close()
            return
        # A channel says farewell over the jump host's connection, which may be gone or hang.
        hop = self._sock.transport.sock
        with suppress(*LOST), Deadline(CLOSING).enforce(hop.abort):
            self._sock.close()

    def abort(self) -> None:
        if isinstance(self._sock, socket.socket):
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        else:
            self._sock.in_buffer.close()  # its end, for whoever reads; paramiko then stops writers
        self._on_close()


class _Packets(Packetizer):  # type: ignore[misc]  # untyped
    def start_handshake(self, timeout: float) -> None:
        """Nothing: a deadline of ours spans the handshake.

        paramiko's is a thread that is not a daemon and outlives a handshake that failed: it would
        keep the interpreter from ending for up to 15 s.
        """


class Connection(paramiko.Transport):  # type: ignore[misc]  # untyped
    """One SSH connection.

    AES-GCM first: it moves 100 MB in two thirds of the time of AES-CTR with HMAC. No CBC, no 3DES,
    no MD5, no SHA-1. Key exchange in paramiko's own order: post-quantum where the server has it
    (0.2 ms), else curve25519.
    """

    _preferred_ciphers = (
        *(f"aes{bits}-gcm@openssh.com" for bits in (128, 256)),
        *(f"aes{bits}-ctr" for bits in (128, 192, 256)),
    )
    _preferred_macs = tuple(
        f"hmac-sha2-{bits}{kind}" for kind in ("-etm@openssh.com", "") for bits in (256, 512)
    )

    def __init__(self, sock: Socket, host_key_kinds: Sequence[str] = ()) -> None:
        """Host keys of `host_key_kinds` are asked for first: a server shows one key only, and has
        to show one of the kind that we know, if it has it."""
        super().__init__(sock, packetizer_class=_Packets)
        self.sessions = threading.BoundedSemaphore(SESSIONS)
        every = paramiko.Transport._preferred_keys
        known = [kind for kind in every if kind in _list_algorithms(host_key_kinds)]
        self._preferred_keys = (*known, *(kind for kind in every if kind not in known))
        self._channel_handler_table = {
            **paramiko.Transport._channel_handler_table,
            MSG_CHANNEL_REQUEST: _on_channel_request,
        }
        self._asked = (-1, 0.0)
        """How often something had come when we first asked, without an answer since, and when."""
        self.packetizer.set_keepalive(KEEPALIVE, self._keep_alive)

    @property
    def stage(self) -> str:
        """How far it has come: `banner`, `kex`, `auth` or `open`."""
        if not self.remote_version:
            return "banner"
        if not self.initial_kex_done:
            return "kex"
        return "open" if self.is_authenticated() else "auth"

    def abort(self) -> None:
        self.sock.abort()

    def read_host_key(self) -> str:
        key: Any = self.get_remote_server_key()
        return f"{key.get_name()} {key.get_base64()}"

    def execute(self, line: str, stdout: Stdout, window: int, deadline: Deadline) -> Any:
        """A channel on which the login shell gets `line`. Raises LOST."""
        channel: Any = self.open_session(window, timeout=deadline.left)
        channel.in_buffer = stdout  # nothing arrives before the command starts
        # channel.exec_command would wait for the confirmation: a round trip, and without a limit.
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(line)
        self._send_user_message(message)
        return channel

    def _keep_alive(self) -> None:
        # Asks for an answer, unlike paramiko's own, so that silence means something. It goes
        # through jump hosts, where TCP's timers see the first hop only.
        heard, asked = self._asked
        if heard != self.sock.received:
            self._asked = self.sock.received, now()
        elif now() - asked > SILENCE:
            self.abort()
            return
        if not self.in_kex:
            message = paramiko.Message()
            message.add_byte(cMSG_GLOBAL_REQUEST)
            message.add_string("keepalive@openssh.com")
            message.add_boolean(True)
            self._send_message(message)


def _list_algorithms(kinds: Sequence[str]) -> set[str]:
    """The signature algorithms for key kinds: an RSA key, of kind ssh-rsa, signs with SHA-2."""
    rsa = ("rsa-sha2-512", "rsa-sha2-256")
    return {name for kind in kinds for name in (rsa if kind == "ssh-rsa" else (kind,))}


def _on_channel_request(channel: Any, message: Any) -> None:
    """As paramiko does it, but for `exit-signal`, which it ignores (RFC 4254, 6.10)."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        name = "SIG" + message.get_text()
        known = signal.Signals.__members__
        channel.exit_status = 128 + known[name] if name in known else 255
        channel.status_event.set()
    else:
        message.packet.seek(start)
        paramiko.Channel._handle_request(channel, message)


# -------------------------------------------------------------------------------------------------

COLLECT_LIMIT = 64 << 20
"""Bytes of stdout and stderr together that `collect` takes, with what a login shell's start files
print: a host may write without end."""
STREAM_WINDOW = 16 << 20
"""Bytes on the way before we read them: 160 MB/s at a round trip of 100 ms."""
STDERR_LIMIT = 64 << 10
PRELUDE_LIMIT = 64 << 10

START = b"@@clusterctl-start\n"
"""The line after which a command's output begins."""

SLICE = 0.25
"""Seconds of waiting after which we look at what else has happened."""

SESSION_PATIENCE = 3.0
"""Seconds for which we ask again when sshd refuses a session."""


class ConnectionLost(ConnectionResetError):
    def __init__(self) -> None:
        super().__init__("the connection was lost")


class Stdout(BufferedPipe):  # type: ignore[misc]  # untyped
    """A command's stdout as it comes, in paramiko's thread, without what stands before it.

    A login shell's start files are the user's own and may print anything: the command's output
    begins after the line START.
    """

    def __init__(self, on_stdout: OnStdout | None, limit: float) -> None:
        """`limit`: bytes after which nobody waits for the command's end."""
        super().__init__()
        self._on_stdout = on_stdout
        self._limit = limit
        self.started = False
        """Whether the login shell has come to the command."""
        self.before_start = b""
        self.received = 0
        """Bytes, which use up the channel's window until they are read."""
        self.ended = threading.Event()

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        if not self.started:
            before, found, data = (self.before_start + data).partition(START)
            self.started = bool(found)
            self.before_start = b"" if found else before[-PRELUDE_LIMIT:]
        if data:
            if self._on_stdout:
                self._on_stdout(data)
            super().feed(data)
        if self.is_full():
            self.ended.set()

    def is_full(self, more: int = 0) -> bool:
        """Whether the host may send nothing else; `more`: bytes of stderr, which count, too."""
        return self.received + more >= self._limit

    def close(self) -> None:
        super().close()
        self.ended.set()


class Carrier(Protocol):
    """A connection on which commands run."""

    sessions: threading.BoundedSemaphore

    def is_active(self) -> bool: ...

    def execute(self, line: str, stdout: Stdout, window: int, deadline: Deadline) -> Any:
        """A paramiko.Channel, or what has its methods. LOST; TimeoutError."""

    def abort(self) -> None:
        """Cuts what runs on it."""


class Session(AbstractContextManager["Session"]):
    """A command that runs: a Channel. As a context manager it closes itself and waits for nothing.

    With `collect`, nobody has to read what it writes, up to COLLECT_LIMIT bytes, so that the caller
    can send all its stdin first. Else `receive` has to read all of its stdout, and the end of
    stderr is kept. Every call ends by `deadline`, or within a timeout of its own. Raises Failure,
    TimeoutError, ConnectionError.
    """

    def __init__(
        self,
        connection: Carrier,
        command: str,
        deadline: Deadline,
        *,
        collect: bool,
        on_stdout: OnStdout | None = None,
    ) -> None:
        self._connection = connection
        self._deadline = deadline
        self._stdout = Stdout(on_stdout, COLLECT_LIMIT if collect else math.inf)
        line = wrap_command(f"echo {START.decode().strip()}; {command}")
        self._stderr = b""
        self._closed = False
        if not deadline.wait(lambda left: connection.sessions.acquire(timeout=left)):
            raise Failure("too many commands are running on this connection")
        try:
            with deadline.enforce(connection.abort):
                self._channel = self._open(line, COLLECT_LIMIT if collect else STREAM_WINDOW)
        except BaseException:
            connection.sessions.release()
            raise

    def _open(self, line: str, window: int) -> Any:
        # sshd counts a session for a moment longer than it lasts, so that a refusal may be early.
        # Which exception it is says little: threads that open at the same time share one slot
        # for it in paramiko, and mix theirs up.
        pause, patience = 0.005, self._deadline.limit(SESSION_PATIENCE)
        while True:
            try:
                return self._connection.execute(line, self._stdout, window, self._deadline)
            except LOST as error:
                self._fail_if_lost(error)
                if self._deadline.passed:
                    raise TimeoutError from error
                if patience.passed:
                    raise Failure(
                        "sshd refused another session on this connection (MaxSessions)"
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def send(self, data: bytes, timeout: float | None = None) -> None:
        rest = memoryview(data)
        with self._limit(timeout) as deadline:
            while rest:
                # Once the command has ended, its input is of no more use to anyone.
                ended = self._channel.closed or self._channel.status_event.is_set()
                try:
                    sent = 0 if ended else self._channel.send(rest)
                except TimeoutError:
                    self._refuse_flood()
                    if deadline.passed:
                        raise TimeoutError(
                            f"the command read no input for {deadline.seconds:g} s"
                        ) from None
                    continue  # look whether the command has ended meanwhile
                except LOST:
                    sent = 0
                if sent == 0:
                    self._fail_if_lost(None)
                    raise BrokenPipeError("the command ended before it read all of its input")
                rest = rest[sent:]

    def send_eof(self) -> None:
        with self._limit():
            try:
                self._channel.shutdown_write()
            except LOST as error:
                self._fail_if_lost(error)

    def receive(self, timeout: float | None = None, *, most: int = STREAM_WINDOW) -> bytes:
        with self._limit(timeout) as deadline:
            while True:
                try:
                    while self._channel.recv_stderr_ready():
                        more = self._channel.recv_stderr(1 << 20)
                        self._stderr = (self._stderr + more)[-STDERR_LIMIT:]
                    data: bytes = self._channel.recv(most)
                except TimeoutError:
                    if deadline.passed:
                        raise TimeoutError(
                            f"the command wrote no output for {deadline.seconds:g} s"
                        ) from None
                    continue  # a flood of stderr would fill the window that both share
                except LOST as error:
                    raise ConnectionLost from error
                if not data and not self._channel.eof_received:
                    self._fail_if_lost(None)
                return data

    def fileno(self) -> int:
        return int(self._channel.fileno())

    def wait(self) -> int:
        """Waits for the command's end. All of a streamed stdout has to be received before."""
        channel = self._channel
        while not self._stdout.ended.wait(min(self._deadline.left, SLICE)):
            self._refuse_flood()
            if self._deadline.passed:
                raise TimeoutError
        self._refuse_flood()
        if not self._deadline.wait(channel.status_event.wait):
            raise TimeoutError
        if channel.exit_status == -1:
            self._fail_if_lost(None)
            if not channel.event_ready:
                raise Failure("sshd refused to start the command")
            raise Failure("sshd ended the session and gave no exit code")
        if not self._stdout.started:
            said = b"\n".join(self.take_output()).decode(errors="replace").split("\n")
            lines = [line.strip() for line in said if line.strip()]
            if channel.exit_status and lines:  # such as a password that has expired
                raise Failure(f"the account runs no commands there: {lines[-1]}")
            raise Failure(
                "the login shell ended without running the command; one of its start files"
                " (~/.bashrc, ~/.cshrc, …) may call `exit`, or start another program with `exec`"
            )
        return int(channel.exit_status)

    def _refuse_flood(self) -> None:
        if self._stdout.is_full(len(self._channel.in_stderr_buffer)):
            raise Failure(f"wrote more than {COLLECT_LIMIT >> 20} MiB")

    def take_output(self) -> tuple[bytes, bytes]:
        """What has come so far on stdout and stderr and was not read; once only. A login shell that
        did not come to the command has said why."""
        out: bytes = self._stdout.empty() or self._stdout.before_start
        err: bytes = self._stderr + self._channel.in_stderr_buffer.empty()
        return out, err

    def _limit(self, timeout: float | None = None) -> AbstractContextManager[Deadline]:
        """Cuts the connection if the block hangs past its timeout, or the command's deadline.

        paramiko's timeouts are about windows. When the peer's TCP takes nothing any more, all
        threads that have something to send hang behind one lock. A packet may be half on the wire
        then: the connection is of no use to anyone.
        """
        self._channel.settimeout(SLICE if timeout is None else min(timeout, SLICE))
        deadline = self._deadline if timeout is None else Deadline(timeout)
        return deadline.enforce(self._connection.abort)

    def _fail_if_lost(self, cause: BaseException | None) -> None:
        if not self._connection.is_active():
            raise ConnectionLost from cause

    def close(self) -> None:
        """Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        for buffer in (self._channel.in_buffer, self._channel.in_stderr_buffer):
            # paramiko's thread writes to the pipe behind `fileno`, which is closed here, not there.
            buffer.set_event(threading.Event())
        try:
            # Where the connection is gone, so is the channel.
            with suppress(*LOST), self._limit(CLOSING):
                self._channel.close()
        finally:
            self._connection.sessions.release()

    def __exit__(self, *_: object) -> None:
        self.close()
