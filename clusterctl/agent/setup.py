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
import threading
import time
from typing import IO, Any, Dict, List, NamedTuple, Optional, Sequence, Set

from . import messages, outputs, processes

DONE = "done"
"""Says what the lines have changed: a TreeChange."""
REUSED = "reused"
"""What is written to stderr where a job before has run them."""
SAVING = 5.0
"""Seconds that they have to end when nobody waits for them any more."""
REST = 1.0
"""Seconds to read what is still to come when they have ended."""
GIVEN_UP = 75
LOOK = 20
"""Milliseconds between two looks whether they have ended."""
MOST = 16 << 20
END = 1 << 20
"""Bytes of what they print that are passed on from its start, and from its end."""


class TreeChange(NamedTuple):
    """Paths in the tree."""

    made: List[str]
    """Files and links that are new, or changed."""
    gone: List[str]
    folders: List[str]


def set_up(job: str, environment: str, lines: str, folder: str, variables: Dict[str, str]) -> int:
    """Runs the lines in `folder` of the tree, unless a job has done so; returns their exit code."""
    place = os.path.join(environment, "setup")
    tree, done = os.path.join(place, "tree"), os.path.join(place, DONE)
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(place):
            sys.exit("the setup of another job has just failed here; run this one again")
        if os.path.exists(done):
            sys.stderr.write(REUSED + "\n")
        else:
            shutil.rmtree(tree, ignore_errors=True)
            shutil.copytree(os.path.join(job, outputs.WORK), tree, symlinks=True)
            before, folders = set(outputs.walk(tree)), _list_folders(tree)
            code = _run(job, ["/bin/sh", "-ec", lines], os.path.join(tree, folder), variables)
            if code:
                shutil.rmtree(environment, ignore_errors=True)  # it may be half changed
                return code
            after = set(outputs.walk(tree))
            gone = {entry.path for entry in before} - {entry.path for entry in after}
            made = sorted(entry.path for entry in after - before)
            change = TreeChange(made, sorted(gone), sorted(_list_folders(tree) - folders))
            processes.write(done, messages.dump(change))
        _bring(job, tree, messages.load(TreeChange, done))
    return 0


def build(place: str, argv: List[str], folder: str, variables: Dict[str, str]) -> int:
    """Runs what makes a wheel of the sources in `place`, of which nothing is left there where
    nobody waits for it any more."""
    code = _run(place, argv, folder, variables)
    if code == GIVEN_UP:
        shutil.rmtree(place, ignore_errors=True)
    return code


def _list_folders(tree: str) -> Set[str]:
    found = (os.path.join(place, name) for place, names, _ in os.walk(tree) for name in names)
    return {os.path.relpath(path, tree) for path in found}


def _run(job: str, argv: Sequence[str], folder: str, variables: Dict[str, str]) -> int:
    """With our stdout for all that it says. All that it has started ends with it, and when nobody
    reads that any more."""
    given = {name: os.path.expandvars(value) for name, value in variables.items()}
    tag = processes.read_text(os.path.join(job, "tag"))
    name, _, mark = tag.partition("=")
    child: Any = subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, **given, **({name: mark} if mark else {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    reading = threading.Thread(target=_pass_on, args=[child.stdout], daemon=True)
    reading.start()
    reader = select.poll()
    reader.register(1, 0)  # says only that the other end of our stdout is closed
    code: Optional[int] = None
    while code is None:
        code = GIVEN_UP if reader.poll(LOOK) else child.poll()
    if mark:
        _end(tag)
    child.poll()
    reading.join(REST)  # what has taken the mark off may hold the pipe
    if not reading.is_alive():
        child.stdout.close()
    return code if code >= 0 else 128 - code


def _end(tag: str) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in processes.list_living(tag):
            processes.send(pid, number)
        until = time.monotonic() + SAVING
        while processes.list_living(tag) and time.monotonic() < until:
            time.sleep(processes.LOOK)


def _pass_on(said: IO[bytes]) -> None:
    """Who reads it takes no more than 64 MiB: of more than MOST, the end is passed on at last."""
    passed = left_out = 0
    end = b""
    with contextlib.suppress(OSError):
        for data in iter(lambda: os.read(said.fileno(), 1 << 16), b""):
            if passed < MOST:
                passed += os.write(1, data)
                continue
            left_out += len(data)
            end += data
            if len(end) > 2 * END:
                end = end[-END:]
        if left_out > len(end):
            os.write(1, b"\n[%d bytes are left out here]\n" % (left_out - len(end)))
        while end:
            end = end[os.write(1, end) :]


def _bring(job: str, tree: str, change: TreeChange) -> None:
    """What an earlier job has left for this one stays as it is."""
    work = os.path.join(job, outputs.WORK)
    carried = {entry.path for entry in outputs.list_outputs(job)}
    brought = set()
    for path in change.folders:
        os.makedirs(os.path.join(work, path), exist_ok=True)
    for path in (*change.gone, *change.made):
        target = os.path.join(work, path)
        if path in carried:
            continue
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        if path in change.made:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(os.path.join(tree, path), target, follow_symlinks=False)
            brought.add(path)
    outputs.note_staged(job, brought)
