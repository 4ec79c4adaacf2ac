"""What a rank does at a signal, whatever it is doing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.workloads.running import WORKLOADS, Programs

LATE = """
import os
import signal
from trainlib.errors import Stopped
from trainlib.program import run_program
from trainlib.signals import StopRequest

def main():
    try:
        with StopRequest():
            raise Stopped(signal.SIGTERM)  # as the ranks agreed, by the signal of another one
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        print("left with the others", flush=True)

run_program(main)
"""


BLOCKED = """
import ctypes
from trainlib import signals
lock, threads = ctypes.create_string_buffer(64), ctypes.CDLL(None)
with signals.StopRequest():
    threads.pthread_mutex_lock(lock)
    print("locked", flush=True)
    threads.pthread_mutex_lock(lock)
"""


@pytest.mark.parametrize(("grace", "signals"), [(0.2, 1), (6, 1), (600, 2)])
def test_a_rank_that_waits_for_ever_in_a_library_ends_all_the_same(
    programs: Programs, grace: float, signals: int
) -> None:
    """Python runs no signal handler then: the main thread stays in the library. It has as long as
    the job gives it."""
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED],
        env={
            **programs.environment(),
            "PYTHONPATH": str(WORKLOADS),
            "CLUSTERCTL_GRACE": f"{grace:g}",
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        begun = time.monotonic()
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)  # sooner it is an echo of the same
        assert process.wait(30) == 143
        assert signals > 1 or time.monotonic() - begun >= grace
    finally:
        process.kill()
        process.communicate()


def test_a_rank_that_leaves_with_the_others_survives_its_own_late_signal(
    programs: Programs,
) -> None:
    """Its death before MPI_Finalize would keep the others there, until their clock runs out."""
    script = programs.script("late.py", LATE)
    ended = programs.alone(script)
    assert (ended.code, ended.out) == (128 + signal.SIGTERM, "left with the others\n")
