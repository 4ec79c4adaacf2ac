"""Runs the points of a sweep: on each slot one after the other, whatever becomes of the others.
`todo`, in the job's folder, has their numbers; `taken` how many of these have begun. `state` gets
`point TIME POINT NODE` and `exit TIME POINT CODE ATTEMPT` for each.
"""

import contextlib
import os
import subprocess
import threading
from typing import Any, List, Optional, Sequence, Tuple

from . import processes

MARK = b"@@point"
"""What a slot answers, with the number of a point and its exit code: a login shell may say
something first."""


class PointQueue:
    """The points that no slot has taken yet."""

    def __init__(self, job: str) -> None:
        self._job, self._lock = job, threading.Lock()
        self._todo = processes.read_text(os.path.join(job, "todo")).split()
        self._taken = int(processes.read_text(os.path.join(job, "taken")) or 0)
        self._returned: List[str] = []

    def take(self) -> Optional[str]:
        """None: there is none now, the job is to stop, or it cannot be noted that it was taken."""
        with self._lock, contextlib.suppress(OSError):
            if os.path.exists(os.path.join(self._job, "stopping")) or self.is_empty():
                return None
            processes.write(os.path.join(self._job, "taken"), f"{self._taken + 1}\n")
            self._taken += 1
            return self._todo[self._taken - 1]
        return None

    def give_back(self, point: str) -> None:
        """Its node was lost: another slot runs it, once."""
        with self._lock:
            if point not in self._returned:
                self._returned.append(point)
                self._todo.append(point)

    def is_empty(self) -> bool:
        return self._taken >= len(self._todo)


class Sweep:
    """`start`: starts a command line on the node of a slot; `note`: notes a fact in `state`."""

    def __init__(self, job: str, start: Any, note: Any) -> None:
        self._job, self._start, self._note = job, start, note
        self._queue = PointQueue(job)
        self._failed = False
        self._ended: List[int] = []

    def run(self, slots: Sequence[Tuple[str, str, int]]) -> bool:
        """`slots`: node, the job's folder there, number. Whether all points have ended well."""
        processes.do_each(self._run_slot, slots)
        ended_all = len(self._ended) == len(slots) and self._queue.is_empty()
        return ended_all and not self._failed

    def _run_slot(self, slot: Tuple[str, str, int]) -> None:
        node, folder, number = slot
        command = f"exec /bin/sh {folder}/slot.sh {number}"
        with open(os.path.join(self._job, "mpirun.err"), "ab") as log:
            pipe = subprocess.PIPE
            shell = self._start(node, command, stdin=pipe, stdout=pipe, stderr=log)
        with shell, contextlib.suppress(BrokenPipeError):
            for point in iter(self._queue.take, None):
                self._note(("point", None, point, node))
                code = _ask(shell, point)
                if code is None:
                    self._queue.give_back(point)
                    break
                self._note(("exit", None, point, code, 1))
                if code != "0":
                    self._failed = True
        self._ended.append(number)


def _ask(shell: Any, point: str) -> Optional[str]:
    """Has a slot run a point; its exit code. None: the node is gone."""
    with contextlib.suppress(OSError):
        shell.stdin.write(point.encode() + b"\n")
        shell.stdin.flush()
        for line in iter(shell.stdout.readline, b""):
            words = line.split()
            if words[:2] == [MARK, point.encode()] and len(words) == 3:
                return str(words[2].decode())
    return None
