"""What a command that does not end is doing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

PY_SPY = Path(sys.executable).with_name("py-spy")


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
    """The process in a line; with the stacks of its threads where it is a Python."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError as gone:
        return f"{pid}: {gone}"
    return f"{pid}: {command[:300]}\n{stacks(pid)}"


def stacks(pid: int) -> str:
    """Nothing of what is no Python."""
    argv = [str(PY_SPY), "dump", "--pid", str(pid)]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        )
        return "\n".join(done.stdout.splitlines()[3:])  # three lines about the program come first
    return ""
