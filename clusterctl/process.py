"""The only place that starts a process on this machine."""

from __future__ import annotations

import os
import signal
import site
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from msgspec import Struct

from clusterctl.core import variables
from clusterctl.core.clock import Deadline, now
from clusterctl.core.model import NodeResult

Spawned = subprocess.Popen[bytes]
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP where nothing runs yet: cleaned up as after Ctrl-C, with its own code."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number
        self.name = signal.Signals(number).name


def raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


@contextmanager
def handle_signals() -> Iterator[Callable[[], None]]:
    """SIGTERM and a closed terminal stop a command as Ctrl-C does, so that what it has created is
    named, or removed. After a call of what is yielded they do nothing: that is being removed."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING if main}
    # Under nohup, a closed terminal is none of our business.
    ours = [number for number, what in before.items() if what not in (None, signal.SIG_IGN)]

    def ignore() -> None:
        for number in ours:
            signal.signal(number, lambda number, frame: None)

    for number in ours:
        signal.signal(number, raise_terminated)
    try:
        yield ignore
    finally:
        for number in ours:
            signal.signal(number, before[number])


def build_own_command(*words: str) -> list[str]:
    """The command line that runs `clusterctl WORDS` in a process of its own.

    Its Python is isolated: neither the current folder nor PYTHONPATH can put other modules in the
    place of ours, of our libraries' or of the standard library's. What Python then no longer looks
    for (a checkout, the user's own site-packages) comes last in its path.
    """
    folders = [str(Path(__file__).resolve().parents[1])]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    code = f"import sys; sys.path += {folders!a}; from clusterctl.__main__ import main; main()"
    return [sys.executable, "-I", "-c", code, *words]


def make_environment(program: str, **more: str) -> dict[str, str]:
    """What a program gets of our environment, and `more`. All that starts here has it unless told
    otherwise."""
    return {**variables.select(Path(program).name, os.environ), **more}


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> NodeResult:
    """Runs `argv` and waits at most `timeout` seconds; then its whole process group is killed.

    The result's `node` is empty: this machine. A program that is not there is an `error`, not an
    exception.
    """
    out, err, why = b"", b"", ""

    def communicate(left: float) -> bool:
        nonlocal stdin, out, err
        given, stdin = stdin, b""  # another call goes on with what the first was given
        with suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(given, timeout=left)
            return True
        return False

    with _raise_what_ends_us() as watch:
        try:
            process = _start(argv, subprocess.PIPE, subprocess.PIPE, cwd, env)
        except OSError as error:
            return NodeResult(node="", error=f"{argv[0]}: {error.strerror}")
        try:
            watch(process)
            if not Deadline(timeout).wait(communicate):
                kill_group(process.pid)
                out, err = process.communicate()
                why = f"{argv[0]} did not end within {timeout:g} s"
        except BaseException:
            kill_group(process.pid)
            process.wait()
            raise
    code = None if why else process.returncode
    return NodeResult(node="", exit_code=code, stdout=out, stderr=err, error=why)


@contextmanager
def _raise_what_ends_us() -> Iterator[Callable[[Spawned], None]]:
    """A signal that would end us at once is raised as Terminated: what was started is in a session
    of its own, and would stay. It gives what is to be called with that process: a signal that
    comes while it starts is raised then, and ends it."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING if main}
    ours = [n for n, what in before.items() if what in (signal.SIG_DFL, raise_terminated)]
    came: list[int] = []
    started: list[Spawned] = []

    def heed(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if started:
            # Python may drop what is raised here (as where it collects garbage); not this end.
            if started[0].returncode is None:
                kill_group(started[0].pid)
            raise Terminated(number)

    def watch(process: Spawned) -> None:
        started.append(process)
        if came:
            raise Terminated(came[0])

    for number in ours:
        signal.signal(number, heed)
    try:
        yield watch
    finally:
        for number in ours:
            signal.signal(number, before[number])
    if came:
        raise Terminated(came[0])


def spawn(
    argv: Sequence[str],
    *,
    log: Path,
    stdin: int = subprocess.DEVNULL,
    cwd: Path,
    env: Mapping[str, str],
) -> Spawned:
    """Starts a process that outlives us, in a session of its own, with all its output in `log`."""
    with log.open("ab") as sink:
        return _start(argv, stdin, sink, cwd, env)


def _start(
    argv: Sequence[str],
    stdin: int,
    output: int | IO[bytes],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    pass_fds: Sequence[int] = (),
    errors: int | None = None,
) -> Spawned:
    """In a session of its own: neither our terminal's Ctrl-C nor its end reaches the process."""
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=output,
        stderr=output if errors is None else errors,
        cwd=cwd,
        env=make_environment(argv[0]) if env is None else env,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def converse(
    argv: Sequence[str], *, cwd: Path | None = None, errors: int = subprocess.DEVNULL
) -> tuple[socket.socket, Spawned]:
    """Starts a process, in a session of its own, that reads from and writes to the socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        end = theirs.fileno()
        return ours, _start(argv, end, end, cwd, None, errors=errors)


def finish(started: Spawned, limit: float) -> None:
    """Waits `limit` seconds for what `spawn` has started, then kills its process group."""

    def has_ended(left: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            started.wait(left)
        return started.returncode is not None

    if not Deadline(limit).wait(has_ended):
        kill_group(started.pid)
        started.wait()


def kill_group(pid: int) -> None:
    """SIGKILL to the process group that `pid` leads, if it is still there."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_in_foreground(argv: Sequence[str], *, cwd: Path) -> int:
    """Runs `argv` on our own terminal and waits for it; Ctrl-C there is the program's business, and
    a signal that ends us ends it too."""
    alone = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN and not has_terminal()
    handed_on = (signal.SIGTERM, signal.SIGHUP, *([signal.SIGINT] if alone else []))
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    try:
        with subprocess.Popen(
            argv,
            cwd=cwd,
            env=make_environment(argv[0]),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as program:
            for number in handed_on:
                old = signal.signal(number, lambda got, _: program.send_signal(got))
                before.setdefault(number, old)
            return program.wait()
    except FileNotFoundError:
        return 127
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def has_terminal() -> bool:
    """Whether somebody at a terminal can answer us. Ctrl-C there signals us and also what we have
    started, which then needs no telling."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


class Watched(Struct):
    """How a watched process ended. `error`: it did not within its time, or could not be started."""

    exit_code: int | None
    error: str = ""
    interrupted: KeyboardInterrupt | None = None
    """What has ended it early: Ctrl-C, or a signal."""


def watch(
    argv: Sequence[str],
    *,
    log: Path,
    on_line: Callable[[bytes], None],
    on_start: Callable[[int], None],
    on_interrupt: Callable[[], None],
    timeout: float,
    grace: float,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Watched:
    """Runs a process that must not be cut off, and hands on each line that it prints.

    It has a session of its own and prints into `log`: when we die it neither hears the terminal's
    Ctrl-C nor meets a broken pipe. The first Ctrl-C here, and `timeout` seconds, send it one SIGINT
    and wait for its end; the second Ctrl-C raises KeyboardInterrupt and leaves it alone. Only when
    its time is up, and `grace` seconds after it, it is killed.
    """
    result = Watched(None)
    with log.open("wb") as sink:
        try:
            process = _start(argv, subprocess.DEVNULL, sink, cwd, env, pass_fds)
        except OSError as error:
            result.error = f"{argv[0]}: {error.strerror}"
            return result
    on_start(process.pid)
    end = now() + timeout
    told = False
    with log.open("rb") as source:
        rest = b""
        while True:
            try:
                ended = process.poll() is not None
                *lines, rest = (rest + source.read()).split(b"\n")
                for line in lines:
                    on_line(line)
                if ended:
                    break
                late = now() - end
                if late > grace:
                    kill_group(process.pid)
                elif late > 0 and not told:
                    told = True
                    result.error = f"{argv[0]} did not end within {timeout:g} s"
                    process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            except KeyboardInterrupt as interrupt:
                if result.interrupted:
                    raise
                result.interrupted = interrupt
                if not told:
                    told = True
                    process.send_signal(signal.SIGINT)
                on_interrupt()
    result.exit_code = process.returncode
    return result
