"""What a command that does not end is doing, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

PY_SPY = Path(sys.executable).with_name("py-spy")


def tree(pid: int) -> Iterator[int]:
    """The process and all below it."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                yield from tree(child)


def holders(pipes: Collection[int]) -> set[int]:
    """Processes that hold an end of one of these pipes, this one apart: who reads from them waits
    for all of these."""
    names = {f"pipe:[{os.fstat(number).st_ino}]" for number in pipes}
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link) in names:
                found.add(int(link.parts[2]))
    return found - {os.getpid()}


def picture(pid: int) -> str:
    """The process in a few lines; with the stacks of its threads where it is a Python."""
    place = Path("/proc", str(pid))
    try:
        command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
        waits = (place / "wchan").read_text()
        python = "python" in os.path.basename(os.readlink(place / "exe"))
        streams = [_target(place / "fd" / str(number)) for number in range(3)]
    except OSError as gone:
        return f"{pid}: {gone}"
    said = f"{pid} (of {parent}) {state} {waits} {' '.join(streams)}: {command[:300]}"
    return f"{said}\n{stacks(pid)}" if python else said


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return "-"


def stacks(pid: int) -> str:
    try:
        done = subprocess.run(
            [str(PY_SPY), "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        return f"    no stacks: {failed}"
    # Three lines about the program come first.
    return "\n".join(done.stdout.splitlines()[3:]) or f"    no stacks: {done.stderr.strip()}"


def explain(pids: Collection[int]) -> str:
    return "\n".join(picture(pid) for pid in sorted(pids))


def end(pids: Collection[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
