"""Slurm, as the agent asks it: about the queue, how jobs ended, and the nodes of a job."""

import os
import pwd
import re
import shutil
from typing import Dict, List, Optional, Sequence, Tuple

from .queues import call

HAND_IN = ("sbatch", "--parsable")
END = "scancel"
NUMBER = "SLURM_JOB_ID"
DOWN = "connect failure"
"""What it says, as a pattern, when it could not even be asked."""
LIVES = re.compile("PENDING|CONFIGURING|RUNNING|COMPLETING|SUSPENDED|REQUEUE")


def list_question() -> List[str]:
    user = pwd.getpwuid(os.getuid()).pw_name
    return ["squeue", "-h", "-u", user, "-o", "%i|%T|%r"]


def parse_queue(text: str) -> Optional[str]:
    return text


def find_end(native: str, folder: str) -> Optional[str]:
    """`STATE|CODE:SIGNAL|REASON` of a job that has left the queue. "": it has not; None: no
    answer."""
    said = call("scontrol", "show", "job", "-o", native)
    if said.out.startswith("JobId="):
        found = read_end(said.out)
        if LIVES.match(found):
            return ""
    elif "Invalid job id" in said.out + said.err:
        found = ""
    else:
        return None
    if not found and shutil.which("sacct"):
        words = ("sacct", "-X", "-n", "-P", "-o", "State,ExitCode,Reason", "-j", native)
        found = choose_end(call(*words).out.splitlines())
    return found or "UNKNOWN||"


def read_end(text: str) -> str:
    """From what scontrol prints: of several tasks, one that is still there, or what went wrong."""
    ends = []
    for line in text.splitlines():
        parts = (item.partition("=") for item in line.split())
        values = {name: value for name, _, value in parts}
        said = (values.get(name, "") for name in ("JobState", "ExitCode", "Reason"))
        ends.append("|".join(said))
    return next(filter(LIVES.match, reversed(ends)), choose_end(ends))


def choose_end(ends: List[str]) -> str:
    """The first that has not gone well, or the last."""
    return next((end for end in ends if not end.startswith("COMPLETED")), "".join(ends[-1:]))


def find_point(todo: Sequence[str]) -> Tuple[str, Dict[str, str]]:
    """The number of the point that this task of an array runs, and what else that is told."""
    return os.environ["SLURM_ARRAY_TASK_ID"], {}


def requeue() -> Optional[int]:
    """The exit code with which the script of this job has it put back; None: that failed."""
    return 0 if call("scontrol", "requeue", os.environ[NUMBER]).code == 0 else None


def find_time_to_end(notice: int) -> Optional[int]:
    """Seconds from the signal for the end to it. SIGTERM does not say."""
    return None
