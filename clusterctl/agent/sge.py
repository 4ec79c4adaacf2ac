"""Grid Engine, as the agent asks it: about the queue, how jobs ended, and the nodes of a job."""

import os
import pwd
import re
from typing import Dict, List, Optional, Sequence, Tuple

from .queues import call

HAND_IN = ("qsub", "-terse")
END = "qdel"
NUMBER = "JOB_ID"
DOWN = "Connection refused|got (select|send) error"
"""What it says, as a pattern, when it could not even be asked."""


def list_question() -> List[str]:
    return ["qstat", "-u", pwd.getpwuid(os.getuid()).pw_name, "-xml"]


def parse_queue(text: str) -> Optional[str]:
    """None: the answer is not whole."""
    if "</job_info>" not in text:
        return None
    rows = re.findall(r"<JB_job_number>(\d+)<.*?<state>([^<]*)<", text, re.DOTALL)
    return "".join(f"{number}|{state}|\n" for number, state in rows)


def find_end(native: str, folder: str) -> Optional[str]:
    """`STATE|CODE|REASON` of a job that is in the queue no more."""
    if os.path.exists(os.path.join(folder, "stop")):
        return "CANCELLED||"
    # Not every site has its file.
    return read_end(call("qacct", "-j", native).out) or "UNKNOWN||"


def read_end(text: str) -> str:
    """From what qacct prints; "": nothing."""
    values = {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words[1:]}
    if "exit_status" not in values:
        return ""
    code, why = values["exit_status"][0], values.get("failed", ["0"])
    said = "COMPLETED" if code == why[0] == "0" else "FAILED"
    return "{}|{}|{}".format(said, code, "" if why[0] == "0" else " ".join(why))


def find_point(todo: Sequence[str]) -> Tuple[str, Dict[str, str]]:
    """The number of the point that this task of an array runs, and what else that is told. Tasks
    count from 1 and leave none out, and points as people want them, who read what their scripts for
    qsub read."""
    point = todo[int(os.environ["SGE_TASK_ID"]) - 1]
    ids = (point, todo[0], todo[-1])
    return point, dict(zip(("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_LAST"), ids))


def requeue() -> Optional[int]:
    """See `slurm`; `man sge_conf`, FORBID_RESCHEDULE."""
    return 99


def find_time_to_end(notice: int) -> Optional[int]:
    """As the queue has it."""
    said = call("qconf", "-sq", os.environ.get("QUEUE", "")).out
    found = re.search(r"^notify\s+(\d+):(\d+):(\d+)", said, re.MULTILINE)
    if not found:
        return notice
    hours, minutes, seconds = map(int, found.groups())
    return hours * 3600 + minutes * 60 + seconds
