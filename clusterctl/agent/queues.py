"""The queue of a batch system, asked on its login node: one question serves all jobs of ours, and
everybody who asks within AGE seconds. And how a job is handed in there.
"""

import fcntl
import json
import os
import pwd
import re
import shutil
import socket
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from . import messages, processes, scripts
from .processes import SILENT, call

AGE = 5
"""Seconds for which an answer of the queue is good for everybody, or its silence."""
QUEUE_AGE = "CLUSTERCTL_QUEUE_AGE"
"""The variable with the seconds for which an answer is good for whoever asks now, if more."""
HAND_IN = 120
"""Seconds that it has to take a job."""
LATE = 30
"""Seconds after which whoever was to hand a job in does not any more."""
AGAIN = 2
"""Seconds between two attempts to hand a job in."""


def parse_rows(text: str) -> Dict[str, str]:
    """From `NUMBER|STATE|REASON` lines. The tasks of an array count as one job, which waits while
    all of them do, and so do the components of a heterogeneous one."""
    rows: Dict[str, str] = {}
    for line in text.splitlines():
        number, _, said = line.partition("|")
        number = re.split("[_+]", number)[0]
        state = rows.get(number, "PENDING").partition("|")[0]
        if state.startswith("PENDING") or "q" in state:
            rows[number] = said
    return rows


def choose_end(ends: List[str]) -> str:
    """Of several tasks, the first that has not gone well, or the last."""
    return next((end for end in ends if not end.startswith("COMPLETED")), "".join(ends[-1:]))


# -------------------------------------------------------------------------------------------------


class SlurmQueue:
    """How Slurm is asked about the queue, how jobs ended, and the nodes of a job."""

    HAND_IN = ("sbatch", "--parsable")
    END = "scancel"
    NUMBER = "SLURM_JOB_ID"
    HAS_PARTITIONS = True
    DOWN = "connect failure"
    """What it says, as a pattern, when it could not even be asked."""
    LIVES = scripts.SLURM_LIVES

    def list_nodes(self) -> List[Tuple[str, int, int]]:
        """Of this job: host, slots and processors of each. Slurm writes 2(x3),1 for 2,2,2,1."""
        nodes = os.environ.get("SLURM_JOB_NODELIST", "")
        said = call("scontrol", "show", "hostnames", nodes, limit=None)

        def read_counts(name: str) -> List[int]:
            found = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get(name, ""))
            return [int(count) for count, times in found for _ in range(int(times or 1))]

        tasks, processors = map(read_counts, ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"))
        hosts = said.out.split()
        none = [0] * len(hosts)
        return list(zip(hosts, [*tasks, *none], [*processors, *none]))

    def enter(self, host: str) -> List[str]:
        """From where salloc was called; other steps get what this one has."""
        step = ["srun", "--pty", "--overlap", "--mpi=none", "--nodes=1", "--ntasks=1"]
        return [*step, f"--nodelist={host}", "--cpu-bind=none"]

    def list_question(self) -> List[str]:
        user = pwd.getpwuid(os.getuid()).pw_name
        return ["squeue", "-h", "-u", user, "-o", "%i|%T|%r|%S"]

    def parse_queue(self, text: str) -> Optional[str]:
        """With the time of the start, which is another one in each attempt: of a job that waits it
        is guessed."""
        return re.sub(r"(?m)^([^|]*\|PENDING\|[^|\n]*)\|.*", r"\1", text)

    def find_end(self, native: str, folder: str) -> Optional[str]:
        """`STATE|CODE:SIGNAL|REASON` of a job that has left the queue. "": it has not; None: no
        answer."""
        said = call("scontrol", "show", "job", "-o", native)
        known = said.out.startswith("JobId=")
        if not known and "Invalid job id" not in said.out + said.err:
            return None
        found = self.read_end(said.out) if known else ""
        if known and self.LIVES.match(found):
            return ""
        if not found and shutil.which("sacct"):
            words = ("sacct", "-X", "-n", "-P", "-o", "State,ExitCode,Reason", "-j", native)
            found = choose_end(call(*words).out.splitlines())
        return found or "UNKNOWN||"

    def read_end(self, text: str) -> str:
        """From what scontrol prints: of several tasks, one that is there, or what went wrong."""
        ends = []
        for line in text.splitlines():
            values = scripts.read_fields(line)
            said = [values.get(name, "") for name in ("JobState", "ExitCode")]
            ends.append("|".join([*said, scripts.explain_slurm(values)]))
        return next(filter(self.LIVES.match, reversed(ends)), choose_end(ends))

    def describe(self, native: str, row: str) -> List[scripts.Part]:
        """The tasks of a job that was handed in as it is, or itself, as far as the queue says;
        `row`: what it has listed of it."""
        said = call("scontrol", "show", "job", "-o", native).out
        return scripts.read_slurm_tasks(said) if said.startswith("JobId=") else []

    def appends(self, options: str) -> bool:
        """Whether output is added to a file that is there; `options`: each behind a NUL."""
        given = re.findall("\0--open-mode[\0=]*([at])", options)
        mode = given[-1] if given else os.environ.get("SBATCH_OPEN_MODE", "")[:1]
        said = "" if mode else call("scontrol", "show", "config", limit=5).out
        return mode == "a" or bool(re.search(r"(?m)^JobFileAppend\s*=\s*1", said))

    def choose_options(self, options: str, copied: bool, fresh: bool) -> List[str]:
        """Further ones for a script of the user's own; `copied`: it starts in a copy of its tree;
        `fresh`: no other job writes to its output files. Those Slurm would empty when it starts
        the job a second time, and what nobody has read by then would be lost."""
        chosen = "--open-mode" in options or "SBATCH_OPEN_MODE" in os.environ
        return ["--open-mode=append"] if fresh and not chosen else []

    def explain(self, native: str, row: str, folder: str) -> str:
        """What the queue has said of a job, with what else is to be known of it."""
        return "|".join(row.split("|")[:2])

    def find_point(self, todo: Sequence[str]) -> Tuple[str, Dict[str, str]]:
        """The number of the point that this task of an array runs, and what else that is told."""
        return os.environ["SLURM_ARRAY_TASK_ID"], {}

    def requeue(self) -> Optional[int]:
        """The exit code with which the script of this job has it put back; None: that failed."""
        return 0 if call("scontrol", "requeue", os.environ[self.NUMBER]).code == 0 else None

    def find_time_to_end(self, notice: int) -> Optional[int]:
        """Seconds from the signal for the end to it. SIGTERM does not say."""
        return None


_OF_ROW = ("JB_job_number", "tasks", "state")
OF_QDEL = ("137", "140")
"""Exit codes of scripts that qdel ends, or first warns by SIGUSR2."""
AS_QDEL = "its script was killed from outside, as qdel does"
"""Older versions do not account for who did it."""


class GridQueue:
    """The same of Grid Engine."""

    HAND_IN = ("qsub", "-terse")
    END = "qdel"
    NUMBER = "JOB_ID"
    HAS_PARTITIONS = False
    DOWN = "Connection refused|got (select|send) error"
    """What it says, as a pattern, when it could not even be asked."""

    def list_nodes(self) -> List[Tuple[str, int, int]]:
        """A host that serves several queues has a line for each."""
        path = os.environ.get("PE_HOSTFILE")
        if not path:
            return [(socket.gethostname(), 1, 1)]
        slots: Dict[str, int] = {}
        for host, count, *_ in map(str.split, processes.read_text(path).splitlines()):
            slots[host] = slots.get(host, 0) + int(count)
        return [(host, count, count) for host, count in slots.items()]

    def enter(self, host: str) -> List[str]:
        """This is the first node already."""
        return []

    def list_question(self) -> List[str]:
        return ["qstat", "-u", pwd.getpwuid(os.getuid()).pw_name, "-xml"]

    def parse_queue(self, text: str) -> Optional[str]:
        """None: the answer is not whole."""
        if "</job_info>" not in text:
            return None
        rows = []
        for block in text.split("<job_list")[1:]:
            words = [re.search(f"<{name}>([^<]*)<", block) for name in _OF_ROW]
            rows.append("{}_{}|{}|\n".format(*(word[1] if word else "" for word in words)))
        return "".join(rows)

    def find_end(self, native: str, folder: str) -> Optional[str]:
        """`STATE|CODE|REASON` of a job that is in the queue no more."""
        if os.path.exists(os.path.join(folder, "stop")):
            return "CANCELLED||"
        # Not every site has the file that qacct reads.
        end = choose_end([end for _, end in self._account(native)]) or "UNKNOWN||"
        seen = re.search(r"\|\w*d", processes.read_text(os.path.join(folder, scripts.ROW)))
        return end.replace(AS_QDEL, "") if seen else end

    def _account(self, native: str) -> List[Tuple[Dict[str, str], str]]:
        """What qacct prints of each task, and how that ended: of one that ran again, the last
        time."""
        found = {}
        for record in re.split("={20,}", call("qacct", "-j", native).out):
            values = scripts.read_columns(record)
            end = self.read_end(values)
            if end:
                found[values.get("taskid")] = values, end
        return [*found.values()]

    def read_end(self, values: Dict[str, str]) -> str:
        """From what qacct prints of a task; "": nothing, or that it runs again."""
        code = values.get("exit_status", "").partition(" ")[0]
        why = " ".join(values.get("failed", "0").split())
        if not code or re.match("(24|25) ", why):
            return ""
        killed = why.startswith("100 ") and code in OF_QDEL
        killed = killed and "h_" not in values.get("category", "")  # a limit does so, too
        who = values.get("deleted_by", "" if killed else "NONE")
        if who != "NONE":
            return "CANCELLED|{}|{}".format(code, f"qdel by {who}" if who else AS_QDEL)
        said = "COMPLETED" if code == why == "0" else "FAILED"
        return "{}|{}|{}".format(said, code, "" if why == "0" else why)

    def describe(self, native: str, row: str) -> List[scripts.Part]:
        """What runs is known from qstat, what has ended from qacct, where there is one."""
        said = call("qstat", "-j", native)
        if said.code == 0 and "job_number" in said.out:
            return scripts.read_grid_tasks(native, said.out, row)
        if "do not exist" not in said.err + said.out:
            return []
        return [scripts.read_grid_record(*account) for account in self._account(native)]

    def appends(self, options: str) -> bool:
        return True

    def choose_options(self, options: str, copied: bool, fresh: bool) -> List[str]:
        """Unless it says where, it would start in the home folder, where its files are not."""
        return ["-cwd"] if copied and not re.search(r"(^|\s)-c?wd\b", options) else []

    def explain(self, native: str, row: str, folder: str) -> str:
        """What the queue has said of a job, with the reason for an error, or for never starting."""
        state = row.partition("|")[0]
        if "E" in state:
            return f"{state}|{scripts.explain_grid(call('qstat', '-j', native).out)}"
        return f"{state}|"

    def find_point(self, todo: Sequence[str]) -> Tuple[str, Dict[str, str]]:
        """Tasks count from 1 and leave none out, and points as people want them, who read what
        their scripts for qsub read."""
        point = todo[int(os.environ["SGE_TASK_ID"]) - 1]
        ids = (point, todo[0], todo[-1])
        return point, dict(zip(("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_LAST"), ids))

    def requeue(self) -> Optional[int]:
        """See `man sge_conf`, FORBID_RESCHEDULE."""
        return 99

    def find_time_to_end(self, notice: int) -> Optional[int]:
        """As the queue has it."""
        said = call("qconf", "-sq", os.environ.get("QUEUE", "")).out
        found = re.search(r"^notify\s+(\d+):(\d+):(\d+)", said, re.MULTILINE)
        if not found:
            return notice
        hours, minutes, seconds = map(int, found.groups())
        return hours * 3600 + minutes * 60 + seconds


SYSTEMS: Dict[str, Any] = {"slurm": SlurmQueue(), "sge": GridQueue()}

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
    batch = SYSTEMS[system]
    notes = [_find_age(os.path.join("jobs", number, "state")) for number in numbers]
    text, asked = _ask(batch, min((age for age in notes if age is not None), default=0.0))
    rows, said = parse_rows(text), _group_rows(text)
    if os.path.exists("queue.silent"):
        age = _find_age("queue")
        yield f"@@silent {'' if age is None else int(age)}|{processes.read_text('queue.silent')}"
    deaf = False
    for number in numbers:
        folder = os.path.join("jobs", number)
        native = processes.read_text(os.path.join(folder, "native")).partition(";")[0]
        lines = _read_lines(folder)
        last = lines[-1] if lines else ""
        own = scripts.is_own(folder)
        yield f"@@job {number} {native}"
        yield from lines
        if last.startswith("ended"):
            continue
        # The tasks of an array note the whole in `state` themselves, if they all end well.
        if os.path.exists(os.path.join(folder, "todo")):
            yield from tasks.tell(folder)
        if not native:
            if (not last or last.startswith("queued")) and _is_unsubmitted(folder):
                yield from tasks.tell_stop(folder)
                yield f"unsubmitted {int(time.time())}"
                processes.remove(os.path.join(folder, "env"))
        elif asked is not None and _is_older(folder, asked):
            if own and not deaf:
                if scripts.has_news(folder, said.get(native, "")):
                    parts = batch.describe(native, rows.get(native, ""))
                    scripts.learn(folder, parts, said.get(native, ""))
                ended = native not in rows and scripts.note_end(folder)
                yield from _read_lines(folder)[len(lines) :]
                if ended:
                    continue
            if native in rows:
                yield "queue " + batch.explain(native, rows[native], folder)
            elif not deaf:
                end = batch.find_end(native, folder)
                deaf = end is None
                if own and end and end.startswith("UNKNOWN") and scripts.may_be_late(folder):
                    continue
                if end:
                    yield from tasks.tell_stop(folder)
                    yield f"gone {end}|{int(asked)}"
                    processes.remove(os.path.join(folder, "env"))  # nobody else is left to do so


def show_late_outputs(folder: str) -> None:
    """Of a script of the user's own. Where a file has changed that other jobs may write to, while
    the job waits as far as is known, the queue is asked."""
    changed = json.dumps(scripts.show_late_outputs(folder))
    place = os.path.join(folder, "changed")
    if changed != "[]" and changed != processes.read_text(place):
        age = _find_age(place)
        own = messages.load(messages.OwnScript, os.path.join(folder, messages.OWN))
        if own.system and (age is None or age >= AGE):
            processes.write(place, changed)
            native = processes.read_text(os.path.join(folder, "native")).partition(";")[0]
            scripts.learn(folder, SYSTEMS[own.system].describe(native, ""))


def _read_lines(folder: str) -> List[str]:
    return processes.read_text(os.path.join(folder, "state")).splitlines()


def _group_rows(text: str) -> Dict[str, str]:
    """By number of a job, all that the queue has said of it and its tasks."""
    found: Dict[str, List[str]] = {}
    for line in text.splitlines():
        found.setdefault(re.split("[_+|]", line)[0], []).append(line)
    return {number: " ".join(lines) for number, lines in found.items()}


def _ask(system: Any, news: float) -> Tuple[str, Optional[float]]:
    """What the queue has said; and when it was asked, by the clock of the disk that the notes of
    jobs are on. None: it never answered. `news`: the seconds since the last of these notes, of
    which an answer that is older says nothing."""
    if not _is_known(news):
        with open("queue.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_known(news):
                _ask_now(system)
    if not os.path.exists("queue") or not os.path.exists("queue.asked"):
        return "", None
    return processes.read_text("queue"), os.stat("queue.asked").st_mtime


def _is_known(news: float) -> bool:
    limits = {"queue": max(AGE, min(news, int(os.environ.get(QUEUE_AGE, 0)))), "queue.silent": AGE}
    ages = ((_find_age(name), limit) for name, limit in limits.items())
    return any(age is not None and age < limit for age, limit in ages)


def _ask_now(system: Any) -> None:
    # When it was asked counts: what came into the queue while it answered is not in it.
    processes.write("queue.asking", "")
    said = call(*system.list_question())
    rows = system.parse_queue(said.out) if said.code == 0 else None
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


def _is_unsubmitted(folder: str) -> bool:
    """Unless somebody may still be about to hand it in."""
    age, limit = _find_age(os.path.join(folder, "state")), HAND_IN + LATE
    if age is None:
        age, limit = _find_age(folder), LATE
    return age is None or age >= limit


def _find_age(path: str) -> Optional[float]:
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return None


# -------------------------------------------------------------------------------------------------
# Handing in.


def hand_in(job: str, system: str, name: str, patience: float = HAND_IN) -> Iterator[str]:
    """Hands in the script of that job; what is known of it then, as `survey` says it, of which the
    queue is not asked: that waits for a follower. The queue has so many seconds, if it is down as
    if it is slow. On record as queued before the queue has it, nothing comes too late. Ends this
    program with the reason where the queue does not take it. `name`: the job's there."""
    from . import supervise

    os.chdir(job)  # the queue starts the job there
    batch = SYSTEMS[system]
    supervise.State(job).note(("queued", None))
    own = messages.OwnScript(["job.sh"], "", {})
    if scripts.is_own("."):
        own = messages.load(messages.OwnScript, messages.OWN)
    words, where, variables, _ = own
    if where:
        in_place = not where.startswith(job)
        variables = scripts.choose_environment(job, own, in_place)
        lines = scripts.read_directives(where, words)
        if not in_place:
            scripts.make_output_folders(where, words, lines)
        fresh = not scripts.list_shared_outputs(where, words, lines)
        options = " ".join([*words, *lines])
        words = [*batch.choose_options(options, not in_place, fresh), *words]
        scripts.note_earlier(job, where, words, lines, batch.appends)
    until = time.monotonic() + patience
    while True:
        left = max(1.0, until - time.monotonic())
        said = call(*batch.HAND_IN, *words, limit=left, folder=where or None, variables=variables)
        # Only what cannot have reached the queue may be handed in again.
        if said.code == 0 or left <= AGAIN + 1 or not re.search(batch.DOWN, said.err):
            break
        time.sleep(AGAIN)
    if said.code == SILENT:
        why = f"no answer from the queue in {patience:g} s"
        sys.exit(f"{why}; if it accepted the job, its name there is {name}")
    if said.code:
        complaints = said.err.splitlines()
        sys.exit(" ".join(line for line in complaints if not line.startswith("Exiting")))
    # Of an array, Grid Engine prints its tasks, too: 4711.1-8:1
    native = said.out.partition("\n")[0].partition(".")[0]
    if not re.match(r"\d+(;|$)", native):
        answer = " ".join((said.out + said.err).split())
        sys.exit(f"the queue gave no number for the job: {answer}")
    processes.write("native", native + "\n")
    number = native.partition(";")[0]
    if where:
        scripts.learn(".", batch.describe(number, ""))
    if processes.read_text("stop"):  # cancelled meanwhile
        call(batch.END, number)
    return iter([f"@@job {os.path.basename(job)} {number}", *_read_lines(".")])
