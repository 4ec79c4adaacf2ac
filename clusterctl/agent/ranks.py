"""What rank.sh leaves to this program: what takes time, and does not happen to most ranks."""

import os
import signal
import time
from typing import Iterable

from . import processes
from .processes import Processes, read

START = 30.0
"""Seconds that a program has to start which is to end already: before, a signal would be lost."""
SPREADING = 0.1
"""Seconds in which a signal reaches all processes, where it was for all: rank.sh notes that."""
POLL = 1.0
"""Seconds between two looks for word on a shared disk."""


def read_time(job: str, rank: str, seconds: float) -> float:
    """Seconds that a rank's program has to save: who ends the job may have said it."""
    for name in (f"out/rank-{rank}.saving", "stopping"):
        said = read(os.path.join(job, name)).strip()
        if said:
            return float(said)
    return seconds


def halt(job: str, tag: str, rank: str, seconds: float, wrapper: int) -> None:
    """Ends a rank whose launcher program wants that: SIGTERM to its program, unless it has had it,
    and SIGKILL after its time. `wrapper`: the process that runs it, or 0 where that had not begun;
    when it has ended, the rank may be that of the next attempt."""
    found = Processes(job, tag)
    until = time.monotonic() + START
    while not found.has_begun(rank) and time.monotonic() < until:
        time.sleep(processes.LOOK / 5)
    time.sleep(SPREADING)
    if wrapper and not os.path.exists(f"/proc/{wrapper}"):
        return
    found.tell(rank)
    found.kill_later(rank, read_time(job, rank, seconds))


def heed(job: str, tag: str, first: str, count: int, seconds: float, wrapper: int) -> None:
    """Waits for the word of a batch job's script that all are to end, and passes on its signals:
    to the `count` ranks of this node, from `first` on. On a shared disk a file reaches every node;
    a signal would have to pass through the launcher program, which ends all ranks when it gets one.
    `wrapper`: the process that started this one; it may have ended before this line.
    """
    notice = 1
    ranks = range(int(first), int(first) + count)
    while not os.path.exists(os.path.join(job, "stopping")):
        if os.getppid() != wrapper:
            return
        notice = pass_notices(job, ranks, notice)
        time.sleep(POLL)
    Processes(job, tag).stop(read_time(job, first, seconds))


def pass_notices(job: str, ranks: Iterable[int], notice: int) -> int:
    """Sends what has come since that notice; the number of the next one."""
    while True:
        name = read(os.path.join(job, f"notice-{notice}")).decode().strip()
        if not name:
            return notice
        for rank in ranks:
            out = os.path.join(job, "out", f"rank-{rank}.")
            pid = read(out + "pid").strip()
            if pid.isdigit() and not os.path.exists(out + "exit"):
                processes.send(int(pid), signal.Signals["SIG" + name])
        notice += 1


def linger(job: str, rank: str, world: int, seconds: float) -> None:
    """Until all ranks have ended, within their time to save: the first one to end would take the
    others with it."""
    until = time.monotonic() + read_time(job, rank, seconds)
    out = os.path.join(job, "out")
    while time.monotonic() < until:
        if sum(name.endswith(".exit") for name in os.listdir(out)) >= world:
            return
        time.sleep(processes.LOOK)
