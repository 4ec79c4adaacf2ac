"""The queue of a batch system, asked on its login node: one question serves all jobs of ours, and
everybody who asks within AGE seconds. And how a job is handed in there.
"""

import fcntl
import os
import re
import subprocess
import time
from importlib import import_module
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

from . import processes

AGE = 5
"""Seconds for which an answer of the queue is good for everybody, or its silence."""
LIMIT = 12
"""Seconds that the queue has to answer a question: Slurm's own limit is 10."""
HAND_IN = 120
"""Seconds that it has to take a job."""
LATE = 30
"""Seconds after which whoever was to hand a job in does not any more."""
AGAIN = 2
"""Seconds between two attempts to hand a job in."""
SILENT = 124
"""The exit code of a command that did not end in its time."""


class Said(NamedTuple):
    """How a command has ended, and what it has written."""

    code: int
    out: str
    err: str


def load(system: str) -> Any:
    """The module of that batch system: `slurm`, `sge`."""
    return import_module("." + system, __package__)


def call(*words: str, limit: float = LIMIT) -> Said:
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, timeout=limit, check=False
        )
    except OSError as error:
        return Said(127, "", f"{words[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Said(SILENT, "", "")
    return Said(done.returncode, processes.decode(done.stdout), processes.decode(done.stderr))


def parse_rows(text: str) -> Dict[str, str]:
    """From `NUMBER|STATE|REASON` lines. The tasks of an array count as one job, which waits while
    all of them do."""
    rows: Dict[str, str] = {}
    for line in text.splitlines():
        number, _, said = line.partition("|")
        number = number.partition("_")[0]
        state = rows.get(number, "PENDING").partition("|")[0]
        if state.startswith("PENDING") or "q" in state:
            rows[number] = said
    return rows


# -------------------------------------------------------------------------------------------------
# What is known about jobs.


def survey(root: str, system: str, *numbers: str) -> Iterator[str]:
    """In that folder of the login node. For each job: `@@job N NATIVE`, its state file, and
    `queue STATE|REASON` where the queue was asked after the state was last written, or
    `gone STATE|CODE|REASON|WHEN`, or `unsubmitted WHEN` where nobody hands it in any more. Before
    them, `@@silent AGE|WHY` where the queue does not answer: the age is its last answer's. Nothing
    is started for a job that the queue has."""
    from . import tasks

    os.chdir(root)
    module = load(system)
    rows, asked = _ask(module)
    if os.path.exists("queue.silent"):
        age = _find_age("queue")
        said = "" if age is None else int(age)
        yield f"@@silent {said}|{processes.read_text('queue.silent')}"
    deaf = False
    for number in numbers:
        folder = os.path.join("jobs", number)
        native = processes.read_text(os.path.join(folder, "native")).partition(";")[0]
        lines = processes.read_text(os.path.join(folder, "state")).splitlines()
        last = lines[-1] if lines else ""
        yield f"@@job {number} {native}"
        yield from lines
        if last.startswith("ended"):
            continue
        # The tasks of an array note the whole in `state` themselves, if they all end well.
        if os.path.exists(os.path.join(folder, "todo")):
            yield from tasks.tell(folder)
        if not native:
            if not last or last.startswith("queued"):
                yield from _tell_unsubmitted(folder, last)
        elif asked is not None and _is_older(folder, asked):
            if native in rows:
                yield "queue " + rows[native]
            elif not deaf:
                end = module.find_end(native, folder)
                deaf = end is None
                if end:
                    yield f"gone {end}|{int(asked)}"
                    processes.remove(os.path.join(folder, "env"))  # nobody else is left to do so


def _ask(module: Any) -> Tuple[Dict[str, str], Optional[float]]:
    """By number of a job, what the queue has said; and when it was asked, by the clock of the disk
    that the notes of jobs are on. None: it never answered."""
    if not _is_known():
        with open("queue.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_known():
                _ask_now(module)
    if not os.path.exists("queue") or not os.path.exists("queue.asked"):
        return {}, None
    return parse_rows(processes.read_text("queue")), os.stat("queue.asked").st_mtime


def _is_known() -> bool:
    ages = (_find_age("queue"), _find_age("queue.silent"))
    return any(age is not None and age < AGE for age in ages)


def _ask_now(module: Any) -> None:
    # When it was asked counts: what came into the queue while it answered is not in it.
    processes.write("queue.asking", "")
    said = call(*module.list_question())
    rows = module.parse_queue(said.out) if said.code == 0 else None
    if rows is None:
        processes.write("queue.silent", said.err.partition("\n")[0])
        return
    processes.write("queue", rows)
    os.replace("queue.asking", "queue.asked")
    processes.remove("queue.silent")


def _is_older(folder: str, asked: float) -> bool:
    """Whether the job's last note was, and its being handed in."""
    paths = [os.path.join(folder, name) for name in ("state", "native")]
    return all(os.stat(path).st_mtime < asked for path in paths if os.path.exists(path))


def _tell_unsubmitted(folder: str, last: str) -> Iterator[str]:
    """Unless somebody may still be about to hand it in."""
    age, limit = _find_age(os.path.join(folder, "state")), HAND_IN + LATE
    if age is None:
        age, limit = _find_age(folder), LATE
    if age is not None and age < limit:
        return
    cause = processes.read_text(os.path.join(folder, "stop"))
    if cause:
        yield f"stop {int(time.time())} {cause}"
    yield f"unsubmitted {int(time.time())}"
    processes.remove(os.path.join(folder, "env"))


def _find_age(path: str) -> Optional[float]:
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return None


# -------------------------------------------------------------------------------------------------
# Handing in.


class Refused(Exception):
    """The queue has not taken the job; why."""


def hand_in(job: str, system: str, name: str, patience: float = HAND_IN) -> None:
    """Hands in the script of that job. The queue has so many seconds, if it is down as if it is
    slow. On record as queued before the queue has it, nothing comes too late. Raises Refused.
    `name`: the job's there."""
    from . import supervise

    os.chdir(job)  # the queue starts the job there
    module = load(system)
    supervise.State(job).note(("queued", None))
    until = time.monotonic() + patience
    while True:
        left = max(1.0, until - time.monotonic())
        said = call(*module.HAND_IN, "job.sh", limit=left)
        # Only what cannot have reached the queue may be handed in again.
        if said.code == 0 or left <= AGAIN + 1 or not re.search(module.DOWN, said.err):
            break
        time.sleep(AGAIN)
    if said.code == SILENT:
        raise Refused(
            f"no answer from the queue in {patience:g} s;"
            f" if it accepted the job, its name there is {name}"
        )
    if said.code:
        lines = said.err.splitlines()
        raise Refused(" ".join(line for line in lines if not line.startswith("Exiting")))
    # Of an array, Grid Engine prints its tasks, too: 4711.1-8:1
    native = said.out.partition("\n")[0].partition(".")[0]
    processes.write("native", native + "\n")
    if processes.read_text("stop"):  # cancelled meanwhile
        call(module.END, native.partition(";")[0])
