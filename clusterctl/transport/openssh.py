"""A host over the user's own `ssh`: one master connection, and a process for each command.

For what `ssh HOST` can do and fabric cannot: to go through a master that is open (ControlPath), a
jump host or a ProxyCommand, and to log in with a password, a second factor, a passphrase, a
certificate, a hardware key or Kerberos. Questions are asked on the terminal, where there is one.
"""

from __future__ import annotations

import atexit
import os
import pwd
import select
import shutil
import socket
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from clusterctl import process
from clusterctl.core import keys as core_keys
from clusterctl.core.clock import Deadline, now, run_in_background
from clusterctl.core.model import Node
from clusterctl.core.progress import QUESTION
from clusterctl.errors import UsageError
from clusterctl.transport import diagnosis
from clusterctl.transport.diagnosis import ConnectError, Target
from clusterctl.transport.session import (
    CLOSING,
    COLLECT_LIMIT,
    KEEPALIVE,
    READ_AHEAD,
    SESSIONS,
    SILENCE,
    BufferedPipe,
    PipeTimeout,
    Stdout,
    make_or_pipe,
    make_pipe,
)

WAYS = ("proxyjump", "proxycommand")

SshSettings = Mapping[str, Sequence[str]]
"""What ssh_config says for a host: the values of each keyword, in lower case."""

# -------------------------------------------------------------------------------------------------
# The user's ssh_config, as OpenSSH itself reads it.

HOME = """\
Include "{0}/config"
Include /etc/ssh/ssh_config
Match all
  UserKnownHostsFile "{0}/known_hosts" "{0}/known_hosts2"
"""
KEYS = "".join(f'  IdentityFile "{{0}}/id_{kind}"\n' for kind in ("ed25519", "ecdsa", "rsa"))
"""For a HOME that is not that of the account: ssh looks at the latter alone."""


def _write_home(*, keys: bool = False) -> str:
    """`keys`: also for jump hosts, which no option of the command line reaches."""
    home = Path.home()
    if home == Path(pwd.getpwuid(os.getuid()).pw_dir):
        return ""
    return (HOME + KEYS * keys).format(home / ".ssh")


def _write_words(node: Node, identity: Path | None) -> list[str]:
    port = ["-p", str(node.ssh_port)] if node.ssh_port else []
    user = ["-l", node.user] if node.user else []
    key = ["-i", str(identity)] if identity else []
    return [*port, *user, *key]


def read_settings(target: Target, deadline: Deadline) -> SshSettings:
    """Raises UsageError for an ssh_config that OpenSSH does not understand."""
    words = [*_write_words(target.node, target.identity), "--", target.node.address]
    with tempfile.NamedTemporaryFile("w") as config:  # for a HOME of its own
        config.write(home := _write_home())
        config.flush()
        argv = ["ssh", "-G", *(["-F", config.name] if home else []), *words]
        result = process.run(argv, timeout=max(deadline.left, 1.0))
    if not result.ok:
        raise UsageError(
            f"{target.node.name}: your ssh_config cannot be read for {target.node.address}:"
            f" {next(iter(result.stderr.decode(errors='replace').splitlines()), result.error)}"
        )
    found: dict[str, list[str]] = {}
    for line in result.text.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword, []).append(value)
    return found


def get(settings: SshSettings, keyword: str) -> str:
    """Its value; "" for none."""
    value = settings.get(keyword, ["none"])[0]
    return "" if value == "none" else value


def is_open(settings: SshSettings) -> bool:
    """Whether the user has a master connection open."""
    return _answers(Path(get(settings, "controlpath")))


def _answers(path: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except BlockingIOError:  # so many wait for it already that connecting would hang
            return True
        except OSError:
            return False
    return True


# -------------------------------------------------------------------------------------------------
# Opening a master.


class TrustedKeys(Protocol):
    """The keys that a host may show. `ours`: those of the cluster's own file, not the user's."""

    keys: Sequence[core_keys.HostKey]
    ours: bool


OPTIONS = {
    "StrictHostKeyChecking": "ask",  # and we say no: the question has the fingerprint
    "UpdateHostKeys": "no",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RequestTTY": "no",
    "LogLevel": "INFO",
    "ServerAliveInterval": f"{KEEPALIVE:g}",
    "ServerAliveCountMax": f"{SILENCE / KEEPALIVE:.0f}",
}

ASK = """\
#!/bin/sh
# Hands a question of ssh's to clusterctl, and the answer to ssh.
cd "${0%/*}" && printf %s "$1" >new || exit 1
[ "$SSH_ASKPASS_PROMPT" != none ] || { mv new question-none; exec sleep 600; }  # touch your key
mv new question-text && exec cat answer
"""
RUN = """\
export SSH_ASKPASS="$1/ask" SSH_ASKPASS_REQUIRE=force DISPLAY="${DISPLAY:-:0}"
"""
KEEP = """\
exec 3<&0
{ cat <&3; rm -rf "$1"; kill 0; } >/dev/null 2>&1 &
"""
"""Ends the master when we end, however that is."""
EXEC = """\
shift
exec ssh "$@" 3<&- </dev/null >/dev/null
"""

LOOK = 0.02
"""Seconds from one look at the attempt to the next."""
ATTENTION = 90.0
"""Seconds for a log-in that somebody may have to confirm on a telephone."""
LONGEST_PATH = 80
"""Bytes of a socket's path: 104 on macOS, less what ssh appends while it makes the socket."""

_passphrases: dict[str, bytes] = {}
"""The answers to questions for passphrases, so that many hosts ask once."""
_kept: dict[tuple[object, ...], tuple[Path, Callable[[], None]]] = {}
"""Masters for which somebody was asked, and what ends them: they end with this process, so that a
command asks once for each host, however often it connects."""


class LogIn:
    """A log-in that is going on."""

    def __init__(
        self,
        asked: Node,
        target: Target,
        known: TrustedKeys,
        settings: SshSettings,
        otherwise: ConnectError | None,
    ) -> None:
        """`asked`: by the name that ssh knows; `target` as the settings have resolved it. `known`:
        the keys that it may show. `otherwise` is raised where ssh knows nothing better."""
        self._node, self._target, self._known = asked, target, known
        self._otherwise = otherwise
        self._jumps = any(get(settings, way) for way in WAYS)
        self._keys = settings.get("identityfile", ())
        # OpenSSH knows that word from 7.6 on, and the user may have an IgnoreUnknown for others.
        self._options = {"RemoteCommand": "none"} if get(settings, "remotecommand") else {}
        self.questions: list[str] = []
        self._shown = 0
        """How much of what ssh says stands on the terminal."""
        self.asks = False
        """Whether somebody is thinking about a question."""
        self._open = is_open(settings)
        stays = get(settings, "controlmaster") in ("auto", "true")
        stays = stays and get(settings, "controlpersist") not in ("", "no")
        theirs = get(settings, "controlpath")
        self._key = (asked.address, asked.ssh_port, asked.user, target.identity)
        kept = None if self._open else _kept.get(self._key)
        if kept and _answers(kept[0]):
            self._open, theirs = True, str(kept[0])
        # Where the user's own ssh would leave a master behind, ours is that one.
        self._theirs = bool(theirs) and (self._open or stays)
        self._folder = Path() if self._open else _make_folder()
        self._path = Path(theirs) if self._theirs else self._folder / "master"
        self._program: process.Spawned | None = None
        self._end: Callable[[], None] = lambda: None

    def log_in(self, deadline: Deadline) -> Master:
        """Raises ConnectError."""
        if self._open:
            master = Master(self._path, self._known.keys)
            self._end = master.close
            if not master.hears(deadline):
                master.close()
                raise self._make("slow-master", path=self._path, seconds=deadline.seconds)
            master.watch()
            return master
        try:
            self._program = self._start(deadline)
            while not _answers(self._path):
                self._look(deadline)
                time.sleep(LOOK)
        except BaseException:
            self.abort()
            raise
        if self._theirs:  # its `true` ends by itself
            run_in_background(self._program.wait)
            self._clear()
        elif self.questions:
            _kept[self._key] = self._path, self._end
            self._program, self._end, self._folder = None, lambda: None, Path()
            return Master(self._path, self._known.keys)
        return Master(self._path, self._known.keys, self.abort)

    def _start(self, deadline: Deadline) -> process.Spawned:
        os.mkfifo(self._folder / "answer", 0o600)
        (self._folder / "ask").write_text(ASK)
        (self._folder / "ask").chmod(0o700)
        options = {**OPTIONS, **self._options, "ConnectTimeout": f"{max(deadline.left, 1):.0f}"}
        if process.has_terminal():
            deadline.at = max(deadline.at, now() + ATTENTION)
        if self._known.ours:  # what was verified overrules the user's files
            listed = core_keys.name_host(self._node.address, self._target.node.ssh_port)
            lines = (core_keys.write_entry(listed, key) + "\n" for key in self._known.keys)
            (self._folder / "known").write_text("".join(lines))
            options |= {
                "UserKnownHostsFile": f'"{self._folder}/known"',
                "GlobalKnownHostsFile": os.devnull,
                "HostKeyAlias": listed,
            }
        if not self._theirs:
            options |= {"ControlMaster": "yes", "ControlPath": str(self._path)}
            options |= {"ControlPersist": "no"}
        home = _write_home(keys=not self._target.identity)
        (self._folder / "config").write_text(home)
        at_home = [Path(key).expanduser() for key in self._keys if home and key.startswith("~/")]
        script = RUN + KEEP * (not self._theirs) + EXEC
        with (self._folder / "said").open("wb") as said:
            ours, program = process.converse(
                [
                    *("/bin/sh", "-c", script, "sh", str(self._folder)),
                    *(["-F", str(self._folder / "config")] if home else []),
                    *(word for pair in options.items() for word in ("-o", "=".join(pair))),
                    *_write_words(self._node, self._target.identity),
                    *(word for key in at_home if key.is_file() for word in ("-i", str(key))),
                    *([] if self._theirs else ["-N"]),
                    *("--", self._node.address, *["true"] * self._theirs),
                ],
                errors=said.fileno(),
            )
        self._end = ours.close
        return program

    def _look(self, deadline: Deadline) -> None:
        assert self._program is not None
        for kind in ("none", "text"):
            question = self._folder / f"question-{kind}"
            if question.exists():
                text = question.read_text(errors="replace")
                question.unlink()
                with deadline.pause():
                    self._answer(text, kind)
                if process.has_terminal():
                    deadline.at = max(deadline.at, now() + ATTENTION)
        if self._program.poll() is not None and not _answers(self._path):
            raise self._explain(deadline.seconds)
        if deadline.passed:
            slow = "slow-way" if self._jumps else "slow-auth"
            raise self._make(slow, seconds=deadline.seconds)

    def _answer(self, text: str, kind: str) -> None:
        if error := diagnosis.explain_ssh(self._target, text, 0, False):
            raise error
        repeated = text in self.questions
        self.questions.append(text)
        if not process.has_terminal():
            raise self._make("nobody-to-ask", question=" ".join(text.split()))
        known = b"" if repeated else _passphrases.get(text, b"")
        said, self._shown = self._read_said()[self._shown :], len(self._read_said())
        self.asks = True
        try:
            answer = known or _ask(self._target.node.name, said, text, kind)
        finally:
            self.asks = False
        if text.startswith("Enter passphrase"):
            _passphrases[text] = answer
        limit = Deadline(CLOSING)
        while kind == "text" and not limit.passed:  # `cat` begins to read, unless ssh has given up
            with suppress(OSError):
                pipe = os.open(self._folder / "answer", os.O_WRONLY | os.O_NONBLOCK)
                with os.fdopen(pipe, "wb") as file:
                    file.write(answer + b"\n")
                    return
            time.sleep(LOOK)

    def _read_said(self) -> str:
        with suppress(OSError):
            return (self._folder / "said").read_text(errors="replace")
        return ""

    def _explain(self, seconds: float) -> ConnectError:
        said = self._read_said()
        if self.questions and "Permission denied" in said:
            return self._make("wrong-answer", question=" ".join(self.questions[-1].split()))
        error = diagnosis.explain_ssh(self._target, said, seconds, self._jumps)
        if error is None or error.by_ssh:
            error = self._otherwise or error
        return error or self._make("ssh-failed", said=_find_last(said))

    def _make(self, row: str, **words: object) -> ConnectError:
        return diagnosis.explain(self._target, row, **words)

    def abort(self) -> None:
        """Ends the attempt, and a master of our own; safe to repeat, from any thread."""
        self._end()
        if self._program is not None and not (self._theirs and _answers(self._path)):
            process.finish(self._program, CLOSING if _answers(self._path) else 0)
            process.kill_group(self._program.pid)
        self._clear()

    def _clear(self) -> None:
        if self._folder.is_absolute():
            shutil.rmtree(self._folder, ignore_errors=True)


def _make_folder() -> Path:
    """Only we can enter it."""
    folder = Path(tempfile.mkdtemp(prefix="clusterctl-"))
    if len(os.fsencode(folder)) > LONGEST_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="clusterctl-", dir="/tmp"))
    return folder


def _find_last(said: str) -> str:
    return ([line.strip() for line in said.splitlines() if line.strip()] or ["it says nothing"])[-1]


def _ask(name: str, before: str, question: str, kind: str) -> bytes:
    """What somebody types, unseen. `before` was said meanwhile, such as what may be chosen."""
    with QUESTION, open("/dev/tty", "w+b", buffering=0) as terminal:
        state = termios.tcgetattr(terminal)
        restore = partial(termios.tcsetattr, terminal, termios.TCSADRAIN, state)
        # Ctrl-C is raised in another thread, which does not wait for this one.
        atexit.register(restore)
        try:
            hidden = [*state]
            hidden[3] &= ~termios.ECHO
            termios.tcsetattr(terminal, termios.TCSAFLUSH, hidden)
            clear = "" if os.environ.get("TERM", "dumb") == "dumb" else "\r\x1b[2K"
            text = f"{before}{name}: {question}"
            plain = "".join(char for char in text if char.isprintable() or char == "\n")
            terminal.write(f"{clear}{plain}".encode())
            line = b"" if kind == "text" else b"\n"
            while not line.endswith(b"\n"):
                if select.select([terminal], [], [], LOOK)[0]:
                    line += os.read(terminal.fileno(), 4096) or b"\n"
            return line[:-1]
        finally:
            terminal.write(b"\n")
            restore()
            atexit.unregister(restore)


# -------------------------------------------------------------------------------------------------
# Commands through it.


class Master:
    """What Session uses of a Connection: `ssh` processes through the master behind a socket."""

    def __init__(
        self,
        path: Path,
        known: Sequence[core_keys.HostKey],
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """`on_close` ends it, if it is ours."""
        self._path, self._known, self._on_close = path, known, on_close
        self.sessions = threading.BoundedSemaphore(SESSIONS)
        self._running: set[SshProcess] = set()
        self._ended = threading.Event()

    def is_active(self) -> bool:
        return not self._ended.is_set() and _answers(self._path)

    def hears(self, deadline: Deadline) -> bool:
        """Whether master and host react: they open or refuse a session, or the master is gone."""
        probe = self._start("true", Stdout(None, COLLECT_LIMIT), COLLECT_LIMIT, "DEBUG1")
        with closing(probe):
            return deadline.wait(probe.begun.wait)

    def watch(self, keepalive: float = KEEPALIVE, silence: float = SILENCE) -> None:
        """Cuts what runs when they no longer do: whether a master of the user's finds out, and how
        late, is up to its own settings."""

        def work() -> None:
            while not self._ended.wait(keepalive):
                if self._running and not self.hears(Deadline(silence)):
                    self.close()

        run_in_background(work)

    def read_host_key(self) -> str:
        """One that is known for the host, which OpenSSH asks it for first, too; "" if none is."""
        keys = {key.kind: key for key in self._known if not key.revoked}
        best = keys.get("ssh-ed25519") or next(iter(keys.values()), None)
        return core_keys.write_entry("", best).strip() if best else ""

    def execute(self, line: str, stdout: Stdout, window: int, deadline: Deadline) -> SshProcess:
        """Raises LOST where it gets no session."""
        channel = self._start(line, stdout, window, "ERROR")
        if not deadline.wait(channel.begun.wait):
            channel.close()
            raise TimeoutError
        if channel.refused or channel.closed:
            channel.close()
            raise ConnectionRefusedError
        return channel

    def _start(self, line: str, stdout: Stdout, window: int, log_level: str) -> SshProcess:
        channel = SshProcess(self, self._path, line, stdout, window, log_level)
        self._running.add(channel)
        if self._ended.is_set():
            channel.close()
        return channel

    def forget(self, channel: SshProcess) -> None:
        self._running.discard(channel)

    def abort(self) -> None:
        for channel in list(self._running):
            channel.close()

    def close(self) -> None:
        self._ended.set()
        if self._on_close:
            self._on_close()
        self.abort()


def _wait_for(sock: socket.socket, event: int, timeout: float | None) -> bool:
    """Of any number, unlike `select`."""
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


REFUSED = b"Session open refused by peer"
OPENED = b"master session id"
"""What ssh says with LogLevel DEBUG1 when the host has opened a session, before its login shell
runs, which may take long."""


class SshProcess:
    """What Session uses of a paramiko.Channel."""

    def __init__(
        self,
        master: Master,
        path: Path,
        line: str,
        stdout: Stdout,
        window: int,
        log_level: str,
    ) -> None:
        self._master, self._window = master, window
        self.in_buffer, self.in_stderr_buffer = stdout, BufferedPipe()
        self.status_event, self.begun = threading.Event(), threading.Event()
        self.exit_status = -1
        self.eof_received = self.closed = self.refused = False
        self.event_ready = True
        self._timeout: float | None = None
        self._pipe: Any = None
        said, errors = os.pipe()
        # Without the master it would log in anew.
        only = ("-F", "none", "-S", str(path), "-o", "ProxyCommand=false", "-o", "BatchMode=yes")
        argv = ["ssh", *only, "-o", f"LogLevel={log_level}", "-T", "--", "master", line]
        try:
            self._sock, self._program = process.converse(argv, errors=errors)
        except BaseException:
            os.close(said)
            raise
        finally:
            os.close(errors)
        self._said = run_in_background(partial(self._read_errors, said))
        run_in_background(self._read)

    def _read_errors(self, said: int) -> bytes:
        head = b""
        with os.fdopen(said, "rb", buffering=0) as file:
            while data := file.read(READ_AHEAD):
                head = head or data
                if OPENED in data:
                    self.begun.set()
                self._feed(self.in_stderr_buffer, data)
        return head

    def _feed(self, buffer: Any, data: bytes) -> None:
        buffer.feed(data)
        while len(buffer) >= self._window and not self.closed:
            time.sleep(LOOK)

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while _wait_for(self._sock, select.POLLIN, None) and (data := self._receive()):
                self._feed(self.in_buffer, data)
                self.begun.set()
        # A command may close its output long before it ends.
        ended = Deadline(CLOSING).wait(self._wait)
        lost = ended and self._is_lost()
        self.eof_received = not lost
        if ended and self._program.returncode == 255:
            with suppress(TimeoutError):
                self.refused = REFUSED in Deadline(CLOSING).await_result(self._said)
        self.in_buffer.close()
        self._program.wait()
        with suppress(TimeoutError):
            Deadline(CLOSING).await_result(self._said)
        self.exit_status = -1 if self._is_lost() else self._program.returncode
        self.status_event.set()
        self.begun.set()

    def _receive(self) -> bytes:
        return self._sock.recv(READ_AHEAD, socket.MSG_DONTWAIT)

    def _wait(self, left: float) -> bool:
        with suppress(Exception):
            self._program.wait(left)
        return self._program.poll() is not None

    def _is_lost(self) -> bool:
        code = self._program.returncode
        return code < 0 or (code == 255 and not self._master.is_active())

    def settimeout(self, timeout: float) -> None:
        self._timeout = timeout

    def send(self, data: Any) -> int:
        if not _wait_for(self._sock, select.POLLOUT, self._timeout):
            raise TimeoutError
        try:
            return self._sock.send(data[:READ_AHEAD], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self.send(data)

    def shutdown_write(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self.in_buffer.read(size, self._timeout)
        except PipeTimeout as error:
            raise TimeoutError from error
        return data

    def recv_stderr_ready(self) -> bool:
        return bool(self.in_stderr_buffer.read_ready())

    def recv_stderr(self, size: int) -> bytes:
        data: bytes = self.in_stderr_buffer.read(size, self._timeout)
        return data

    def fileno(self) -> int:
        if self._pipe is None:
            self._pipe = make_pipe()
            for buffer, end in zip(
                (self.in_buffer, self.in_stderr_buffer), make_or_pipe(self._pipe), strict=True
            ):
                buffer.set_event(end)
        return int(self._pipe.fileno())

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._master.forget(self)
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        process.finish(self._program, 0)
        self._sock.close()
        if self._pipe is not None:
            self._pipe.close()
