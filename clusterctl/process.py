"""The only place that starts a process on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterctl.model import NodeResult


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> NodeResult:
    """Runs `argv` and waits at most `timeout` seconds; then its whole process group is killed.

    The result's `node` is empty: this machine. A program that is not there is an `error`, not an
    exception.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except OSError as error:
        return NodeResult(node="", error=f"{argv[0]}: {error.strerror}")
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_group(process.pid)
        out, err = process.communicate()
        return NodeResult(
            node="", stdout=out, stderr=err, error=f"{argv[0]} did not end within {timeout:g} s"
        )
    except BaseException:
        kill_group(process.pid)
        process.wait()
        raise
    return NodeResult(node="", exit_code=process.returncode, stdout=out, stderr=err)


def spawn(
    argv: Sequence[str],
    *,
    log: Path,
    stdin: int = subprocess.DEVNULL,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a process that outlives us, in a session of its own, with all its output in `log`."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=sink,
            stderr=sink,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )


def kill_group(pid: int) -> None:
    """SIGKILL to the process group that `pid` leads, if it is still there."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def foreground(argv: Sequence[str], *, cwd: Path) -> int:
    """Runs `argv` on our own terminal and waits for it; Ctrl-C there is the program's business."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.run(
            argv,
            check=False,
            cwd=cwd,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ).returncode
    except FileNotFoundError:
        return 127
    finally:
        signal.signal(signal.SIGINT, before)
