"""The points of a sweep as tasks of a batch system's array: each runs one, and leaves two notes of
its own, where it began and how it ended. A shared disk takes no lines from several nodes.
"""

import fcntl
import glob
import os
import socket
import subprocess
import time
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from . import attend, messages, outputs, processes
from .messages import BatchPlan

SIGNALS = ("TERM", "INT", "HUP", "USR1", "USR2")
FAILED = "failed"
UNREADY = 6
"""The exit code of what could not begin."""


def read_notes(job: str, kind: str, length: int) -> Dict[str, List[str]]:
    """What tasks have left, by point: of the kind `node` when and where it began, of `exit` its
    code, time and attempt. `length`: words of a whole note."""
    out = os.path.join(job, "out")
    # On a shared disk, the login node sees at once what is new in a folder that it has changed.
    with open(os.path.join(out, "seen"), "w"):
        pass
    found = {}
    for path in sorted(glob.glob(f"{glob.escape(out)}/rank-*.{kind}")):
        words = processes.read_text(path).split()
        if len(words) == length:
            found[os.path.basename(path)[len("rank-") : -len("." + kind)]] = words
    return found


def list_facts(job: str, ended: str = "") -> List[str]:
    """Its notes as the state file of other jobs has them. `ended`: when, if all have."""
    began, ends, say = read_notes(job, "node", 2), read_notes(job, "exit", 3), messages.write_line
    if not began:
        return []
    lines = [say("running", min((when for when, _ in began.values()), key=float), 1)]
    lines += [say("point", when, point, node) for point, (when, node) in began.items()]
    lines += [
        say("exit", when, point, code, attempt) for point, (code, when, attempt) in ends.items()
    ]
    if ended:
        count = len(began)
        lines += [say("launcher", ended, 0), say("started", ended, count), say("ended", ended)]
    return lines


def tell(job: str) -> Iterator[str]:
    """What is known of a job whose tasks have not all ended well."""
    yield from list_facts(job)
    yield from tell_stop(job)


def tell_stop(job: str) -> List[str]:
    """That somebody has told the job to end, where that is so."""
    cause = processes.read_text(os.path.join(job, "stop"))
    return [messages.write_line("stop", None, cause)] if cause else []


def run(
    job: str,
    plan: BatchPlan,
    find_point: Callable[[Sequence[str]], Tuple[str, Dict[str, str]]],
    early: List[str],
) -> int:
    """Runs the point of this task; its exit code. `find_point`: see `queues`; `early`: signals that
    came before, and FAILED where the task could not be made ready."""
    if processes.read(os.path.join(job, "stop")):
        return 1  # cancelled while it waited
    warnings = [name for name, *_ in plan.signals if name != "TERM"]
    child: Optional[subprocess.Popen[bytes]] = None

    def tell(name: str) -> None:
        if child is None:
            early.append(name)
            return
        if name in warnings:  # the program has that long to save
            processes.write(note + ".saving", f"{plan.notice}\n")
        processes.tell_wrapper(child.pid)

    todo = processes.read_text(os.path.join(job, "todo")).split()
    point, variables = find_point(todo)
    note = os.path.join(job, "out", "rank-" + point)
    processes.catch(SIGNALS, tell)
    for suffix in (".exit", ".saving"):  # the system may run a task again
        processes.remove(note + suffix)
    processes.write(note + ".node", f"{time.time():.9f} {socket.gethostname()}\n")
    if FAILED in early or not _compile_once(job, plan):
        processes.write(note + ".exit", f"{UNREADY} {time.time():.9f} 1\n")
        return UNREADY
    tag, _, value = processes.read_text(os.path.join(job, "tag")).partition("=")
    port = str(attend.find_port())
    child = subprocess.Popen(
        ["/bin/sh", os.path.join(job, "rank.sh"), point, "0"],
        cwd=job,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **variables, tag: value, "CLUSTERCTL_ATTEMPT": "1", "MASTER_PORT": port},
    )
    while early:
        tell(early.pop())
    code = child.wait()
    _close(job, len(todo))
    return choose_code(code if code >= 0 else 128 - code)


def choose_code(code: int) -> int:
    """Grid Engine has uses of its own for these two."""
    return 1 if code in (99, 100) else code


def _compile_once(job: str, plan: BatchPlan) -> bool:
    """Tasks share a folder: the first one makes the program."""
    made = os.path.join(job, "compiled")
    with open(os.path.join(job, "compile.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(made):
            if not compile_program(job, plan):
                return False
            processes.write(made, "")
    return True


def compile_program(job: str, plan: BatchPlan) -> bool:
    """Whether the program is ready to run, if it has to be made here."""
    if plan.compile:
        tree = os.path.join(job, outputs.WORK, plan.folder)
        if subprocess.call(["/bin/sh", "-c", plan.compile], cwd=tree):
            return False
        outputs.note_built(job, plan.built)
    return True


def _close(job: str, count: int) -> None:
    """By the last of so many points to end well: nobody else has to ask the queue."""
    ends = read_notes(job, "exit", 3)
    if [code for code, *_ in ends.values()] != ["0"] * count:
        return
    processes.remove(os.path.join(job, "env"))
    lines = list_facts(job, f"{time.time():.9f}")
    state = os.path.join(job, "state")
    with open(os.path.join(job, "state.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if b"\nended " not in processes.read(state):
            with open(state, "ab", buffering=0) as file:  # in one piece: it is read meanwhile
                file.write("".join(line + "\n" for line in lines).encode())
