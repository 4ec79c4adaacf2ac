"""`run --setup`: lines of shell that complete a job's environment, once per node. They run in a
copy of the tree that lies beside the environment and stays: what they have made there comes into
the working directory of each job with that tree, as if it had been staged.
"""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Dict, List, Sequence

from . import outputs, processes

DONE = "done"
"""Names what the lines have made or changed, with a NUL behind each path."""
SAVING = 5.0
"""Seconds that they have to end when nobody waits for them any more."""
GIVEN_UP = 75
LOOK = 0.2


def set_up(job: str, environment: str, lines: str, folder: str, variables: Dict[str, str]) -> int:
    """Runs the lines in `folder` of the tree, unless a job has done so; returns their exit code."""
    place = os.path.join(environment, "setup")
    tree, done = os.path.join(place, "tree"), os.path.join(place, DONE)
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(place):
            sys.exit("the setup of another job has just failed here; run this one again")
        if not os.path.exists(done):
            shutil.rmtree(tree, ignore_errors=True)
            shutil.copytree(os.path.join(job, outputs.WORK), tree, symlinks=True)
            before = set(outputs.walk(tree))
            code = _run(["/bin/sh", "-ec", lines], os.path.join(tree, folder), variables)
            if code:
                shutil.rmtree(environment, ignore_errors=True)  # it may be half changed
                return code
            made = sorted(entry.path for entry in set(outputs.walk(tree)) - before)
            processes.write(done, "".join(path + "\0" for path in made))
        _bring(job, tree, processes.read(done).split(b"\0")[:-1])
    return 0


def _run(argv: Sequence[str], folder: str, variables: Dict[str, str]) -> int:
    """With our stdout for all that it says; ended when nobody reads that any more."""
    given = {name: os.path.expandvars(value) for name, value in variables.items()}
    child = subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, **given},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    reader = select.poll()
    reader.register(1, 0)  # says only that the other end of our stdout is closed
    while True:
        try:
            code = child.wait(LOOK)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            if not reader.poll(0):
                continue
        for number, seconds in ((signal.SIGTERM, SAVING), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
        return GIVEN_UP


def _bring(job: str, tree: str, paths: List[bytes]) -> None:
    """What an earlier job has left for this one stays as it is."""
    work = os.path.join(job, outputs.WORK)
    carried = {entry.path for entry in outputs.list_outputs(job)}
    brought = set()
    for path in map(os.fsdecode, paths):
        target = os.path.join(work, path)
        if path not in carried:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
            shutil.copy2(os.path.join(tree, path), target, follow_symlinks=False)
            brought.add(path)
    outputs.note_staged(job, brought)
