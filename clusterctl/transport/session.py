"""One command on a connection."""

from __future__ import annotations

import math
import threading
import time
from contextlib import AbstractContextManager, suppress
from typing import Any

import paramiko
from paramiko.buffered_pipe import BufferedPipe
from paramiko.common import cMSG_CHANNEL_REQUEST

from clusterctl.timeouts import WATCHDOG, Deadline
from clusterctl.transport import OnStdout
from clusterctl.transport.connection import CLOSING, LOST, Connection
from clusterctl.transport.diagnosis import Failure
from clusterctl.transport.shell import wrap_command

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
PATIENCE = 3.0
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


class Session(AbstractContextManager["Session"]):
    """A command that runs: a Channel. As a context manager it closes itself and waits for nothing.

    With `collect`, nobody has to read what it writes, up to COLLECT_LIMIT bytes, so that the caller
    can send all its stdin first. Else `receive` has to read all of its stdout, and the end of
    stderr is kept. Every call ends by `deadline`, or within a timeout of its own. Raises Failure,
    TimeoutError, ConnectionError.
    """

    def __init__(
        self,
        connection: Connection,
        command: str,
        deadline: Deadline,
        *,
        collect: bool,
        on_stdout: OnStdout | None = None,
    ) -> None:
        self._connection = connection
        self._deadline = deadline
        self._stdout = Stdout(on_stdout, COLLECT_LIMIT if collect else math.inf)
        self._stderr = b""
        self._closed = False
        if not deadline.wait(lambda left: connection.sessions.acquire(timeout=left)):
            raise Failure("too many commands are running on this connection")
        try:
            with abort_at(connection, deadline):
                self._channel = self._open(COLLECT_LIMIT if collect else STREAM_WINDOW)
                self._channel.in_buffer = self._stdout  # nothing arrives before _start
                self._start(command)
        except BaseException:
            connection.sessions.release()
            raise

    def _open(self, window: int) -> Any:
        # sshd counts a session for a moment longer than it lasts, so that a refusal may be early.
        # Which exception it is says little: threads that open at the same time share one slot
        # for it in paramiko, and mix theirs up.
        pause, patience = 0.005, self._deadline.limit(PATIENCE)
        while True:
            try:
                return self._connection.open_session(window, timeout=self._deadline.left)
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

    def _start(self, command: str) -> None:
        # channel.exec_command would wait for the confirmation: a round trip, and without a limit.
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(self._channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(wrap_command(f"echo {START.decode().strip()}; {command}"))
        try:
            self._connection._send_user_message(message)
        except LOST as error:
            raise ConnectionLost from error

    def send(self, data: bytes, timeout: float | None = None) -> None:
        deadline = self._deadline if timeout is None else Deadline(timeout)
        rest = memoryview(data)
        with abort_at(self._connection, deadline):
            while rest:
                self._channel.settimeout(min(deadline.left, SLICE))
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
        with abort_at(self._connection, self._deadline):
            try:
                self._channel.shutdown_write()
            except LOST as error:
                self._fail_if_lost(error)

    def receive(self, timeout: float | None = None, *, most: int = STREAM_WINDOW) -> bytes:
        deadline = self._deadline if timeout is None else Deadline(timeout)
        with abort_at(self._connection, deadline):
            while True:
                self._channel.settimeout(min(deadline.left, SLICE))
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
        said = self._stdout.before_start or self._stderr or len(channel.in_stderr_buffer)
        if not self._stdout.started and (channel.exit_status == 0 or not said):
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

    def _fail_if_lost(self, cause: BaseException | None) -> None:
        if not self._connection.is_active():
            raise ConnectionLost from cause

    def close(self) -> None:
        """Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        try:
            # Where the connection is gone, so is the channel.
            with suppress(*LOST), abort_at(self._connection, Deadline(CLOSING)):
                self._channel.close()
        finally:
            self._connection.sessions.release()

    def __exit__(self, *_: object) -> None:
        self.close()


def abort_at(connection: Connection, deadline: Deadline) -> AbstractContextManager[None]:
    """Cuts the connection if the block hangs past the deadline.

    paramiko's timeouts are about windows. When the peer's TCP takes nothing any more, all threads
    that have something to send hang behind one lock. A packet may be half on the wire then: the
    connection is of no use to anyone.
    """
    return WATCHDOG.guard(deadline.at, connection.sock.abort)
