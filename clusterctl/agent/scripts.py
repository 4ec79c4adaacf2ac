"""Batch scripts of the user's own. They go to the queue as they are and note nothing here: what the
queue says of their parts, the tasks of an array or the whole job, is noted for them, and what they
write is found where the queue puts it.
"""

import contextlib
import fcntl
import glob
import itertools
import json
import os
import pwd
import re
import shlex
import subprocess
import time
import zlib
from typing import IO, Any, Callable, Dict, List, NamedTuple, Sequence, Set, Tuple

from . import messages, processes

PARTS = "parts.json"
ROW = "parts.row"
_OUTPUT = re.compile("\0(?:-[oe]|--output|--error)[\0=]*([^\0]+)")
WAITING, RUNNING, ENDED = "waiting", "running", "ended"
ALL_WELL = "COMPLETED"
ACCOUNTING = 60.0
"""Seconds that a queue may take to account for a job that has left it."""


TAIL = 4096
"""Bytes by which a file is known that only grows."""
LOGIN = 15.0
"""Seconds that a login shell may take to read its files."""
NOT_OF_LOGIN = ("", "_", "OLDPWD", "PWD", "SBATCH_WAIT", "SHLVL")
"""What a login sets that is not for the queue's command."""


class Part(NamedTuple):
    """What the queue says of a task, or of a whole job. Times are in seconds since the epoch; 0:
    unknown. `word`: the queue's own for how it ended."""

    id: str
    state: str
    node: str = ""
    out: str = ""
    err: str = ""
    began: float = 0.0
    ended: float = 0.0
    word: str = ""
    code: int = 0


def is_own(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, messages.OWN))


def read_directives(folder: str, words: Sequence[str]) -> List[str]:
    """What the lines of a script for the queue say. `words`: the script is one of them."""
    found: List[str] = []
    for word in words:
        text = processes.decode(processes.read(os.path.join(folder, word))[: 64 << 10])
        found += re.findall(r"(?m)^#(?:SBATCH|\$)(\s.*)", text)
    return found


def join_options(lines: Sequence[str], words: Sequence[str]) -> str:
    """Those of a script's lines for the queue, and those before it, each behind a NUL."""
    return "\0".join(["", *(word for line in lines for word in split(line)), *words])


def _join_ahead(folder: str, words: Sequence[str], lines: Sequence[str]) -> str:
    """The same without the script and its arguments."""
    ahead = itertools.takewhile(lambda w: not os.path.isfile(os.path.join(folder, w)), words)
    return join_options(lines, [*ahead])


def make_output_folders(folder: str, words: Sequence[str], lines: Sequence[str]) -> None:
    """In a copy of the tree, which has no empty folders, and none that git ignores. What the queue
    fills in is not known yet."""
    folder = os.path.normpath(folder)
    for path in _OUTPUT.findall(_join_ahead(folder, words, lines)):
        place = os.path.normpath(os.path.join(folder, os.path.dirname(path)))
        inside = place[len(folder) :] if f"{place}/".startswith(folder + "/") else "%"
        if not re.search(r"[%$\\]", inside):
            os.makedirs(place, exist_ok=True)


def list_shared_outputs(where: str, words: Sequence[str], lines: Sequence[str]) -> List[str]:
    """Names of output files that other jobs may have, too: without the job's number in them."""
    found = _OUTPUT.findall(_join_ahead(where, words, lines))
    return [path for path in found if not re.search(r"%[0-9]*[jJA]|\$JOB_ID", path)]


def note_earlier(folder: str, where: str, words: Sequence[str], lines: Sequence[str],
                 appends: Callable[[str], bool]) -> None:  # fmt: skip
    """Before a script is handed in: which files lie where its output will go. `appends`: whether
    output is added to them, by the options."""
    shared, more = (
        list_shared_outputs(where, words, lines),
        appends(_join_ahead(where, words, lines)),
    )
    if more and not shared:
        return
    rows: Dict[str, List[Any]] = {messages.OTHERS: [more]}
    for path in shared:
        path = path.rpartition(":")[2].replace("$HOME", os.path.expanduser("~"))
        pattern = re.sub(r"%[0-9]*[A-Za-z]|\$\w+", "*", glob.escape(os.path.join(where, path)))
        for place in filter(os.path.isfile, glob.glob(pattern)):
            rows[os.path.realpath(place)] = [*_identify(place), more]
    processes.write(os.path.join(folder, messages.EARLIER), json.dumps(rows))


def _identify(path: str) -> List[int]:
    """Changes with all that is written to it. Opened, since NFS then asks its server."""
    with contextlib.suppress(OSError), os.fdopen(
        os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    ) as file:
        status = os.fstat(file.fileno())
        return [status.st_size, status.st_mtime_ns, status.st_ino]
    return []


def split(line: str) -> List[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that is left open
        return line.split()


def _fill(path: str, words: Dict[str, str]) -> str:
    """With those of Slurm's words that are known."""
    return re.sub(
        "%([0-9]*)([{}])".format("".join(words)),
        lambda found: words[found[2]].zfill(int(found[1] or 0)),
        path,
    )


def read_login(folder: str, shell: str) -> Dict[str, str]:
    """The variables, and functions of bash such as `module`, that a login with that shell sets. {}:
    it did not end in LOGIN seconds, or became another program."""
    path = os.path.join(folder, "login")
    words = ["-" + os.path.basename(shell), "-c", "umask 077; exec env -0 >" + shlex.quote(path)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired), open(os.devnull, "r+") as null:
        subprocess.call(
            words, executable=shell, stdin=null, stdout=null, stderr=null, timeout=LOGIN
        )
    rows = (os.fsdecode(row).partition("=") for row in processes.read(path).split(b"\0"))
    processes.remove(path)
    return {name: value for name, _, value in rows if name not in NOT_OF_LOGIN}


def choose_environment(folder: str, own: messages.OwnScript, in_place: bool) -> Dict[str, str]:
    """Variables for the queue's command, which hands them on: what it would find if it were typed
    here. In place it has them, but sh loses functions of bash."""
    found: Dict[str, str] = {}
    lost = "MODULEPATH" in os.environ and "BASH_FUNC_module%%" not in os.environ
    if lost or not in_place:
        found = read_login(folder, pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh")
    if in_place:
        found = {name: text for name, text in found.items() if name.startswith("BASH_FUNC_")}
    return {**found, **own.variables}


def has_news(folder: str, row: str) -> bool:
    """Whether the queue is to be asked for the parts of a job: `row`, what it lists of it, is not
    as it was then. It knows nothing else of one that waits. "": it lists it no more."""
    place = os.path.join(folder, ROW)
    if row and row == processes.read_text(place):
        return False
    waits = re.match(r"[\d_]+\|(PENDING|h?qw)\|\S*$", row)
    if waits and os.path.exists(os.path.join(folder, PARTS)):
        processes.write(place, row)
        return False
    return True


def learn(folder: str, parts: Sequence[Part], row: str = "") -> None:
    """Keeps what the queue says, and notes what is new. It forgets tasks that have ended, and says
    little of those that wait. `row`: as `has_news` got it."""
    if parts and row:
        processes.write(os.path.join(folder, ROW), row)
    before = _load(folder)
    known = dict(before)
    for part in parts:
        earlier = known.get(part.id)
        if earlier is None or earlier.state != ENDED:
            kept = earlier or part
            known[part.id] = part._replace(
                out=part.out or kept.out, err=part.err or kept.err, began=part.began or kept.began
            )
    if known == before:
        return
    rows = {key: list(part) for key, part in known.items()}
    processes.write(os.path.join(folder, PARTS), json.dumps(rows))
    ordered = _sort(known)
    _show_outputs(folder, ordered)
    if any(part.state == RUNNING or part.node for part in ordered):
        _note_start(folder, ordered)
    elif len(ordered) > 1 and not before:
        _note(folder, ("placed", None, f"(queue):{len(ordered)},"))


def show_late_outputs(folder: str) -> List[List[int]]:
    """Of files that other jobs may have written to: those that have become this one's. Returns how
    those are that have changed before the start of the job is known."""
    if not os.path.exists(os.path.join(folder, messages.EARLIER)):
        return []
    return _show_outputs(folder, _sort(_load(folder)))


def _show_outputs(folder: str, ordered: Sequence[Part]) -> List[List[int]]:
    earlier = json.loads(processes.read_text(os.path.join(folder, messages.EARLIER)) or "{}")
    others = earlier.get(messages.OTHERS, [])
    shown: Set[str] = set()  # tasks may share a file
    changed = []
    for number, part in enumerate(ordered):
        for kind, path in (("out", part.out), ("err", part.err)):
            if "$HOSTNAME" in path:  # of a task of Grid Engine: only its file knows it
                paths = glob.glob(glob.escape(path).replace("$HOSTNAME", "*"))
                path = max(paths, key=os.path.getmtime, default="")
            if path and path != "/dev/null" and path not in shown:
                place = os.path.join(folder, "out", f"rank-{number}.{kind}")
                row = earlier.get(os.path.realpath(path), others)
                if row and part.state == WAITING and not os.path.lexists(place):
                    found = _identify(path)
                    changed += [found] if found and found != row[:-1] else []
                    continue
                with contextlib.suppress(OSError):  # no such file yet, or the disk is full
                    _link(place, path, row)
                    if row and not row[-1]:
                        _note_emptied(place, part.began)
            shown.add(path)
    return changed


def note_end(folder: str) -> bool:
    """Of a job that has left the queue: notes how its parts ended; False where the queue has to say
    more than their exit codes."""
    parts = _sort(_load(folder))
    if not parts or any(part.state != ENDED for part in parts):
        return False
    if any(part.word not in (ALL_WELL, "FAILED") or part.code < 0 for part in parts):
        return False
    cause = processes.read_text(os.path.join(folder, "stop"))
    lines: List[Tuple[Any, ...]] = [("stop", None, cause)] * bool(cause)
    lines += [("exit", part.ended or None, at, part.code, 1) for at, part in enumerate(parts)]
    end = max(part.ended for part in parts) or None
    worst = next((part.code for part in parts if part.code), 0)
    _note(folder, *lines, ("launcher", end, worst), ("ended", end))
    return True


def _note(folder: str, *lines: Tuple[Any, ...]) -> None:
    from .supervise import State

    State(folder).note(*lines)


def _load(folder: str) -> Dict[str, Part]:
    found: Dict[str, List[Any]] = json.loads(
        processes.read_text(os.path.join(folder, PARTS)) or "{}"
    )
    return {key: Part(*row) for key, row in found.items()}


def _sort(parts: Dict[str, Part]) -> List[Part]:
    return sorted(parts.values(), key=lambda part: (len(part.id), part.id))


def _link(place: str, path: str, earlier: Sequence[Any]) -> None:
    """Its output, where that of a rank would be. A file that lay there before (`earlier`: its row
    of messages.EARLIER) is this job's once it has changed, less what it had where it appends."""
    if os.path.lexists(place):
        if os.readlink(place) == path:
            return
        with contextlib.suppress(OSError):
            _note_emptied(place, 0.0, moved=True)  # it was put back, and runs on another node
        os.unlink(place)
    elif earlier:
        *known, appends = earlier
        found = _identify(path)
        if not found or found == known:
            return
        if appends and known and found[2] == known[2] and found[0] >= known[0]:
            processes.write(place + ".cut", f"0 {known[0]}\n")
    with contextlib.suppress(FileExistsError):
        os.symlink(path, place)


_looked_at: Dict[str, Tuple[int, int, float]] = {}
"""How files were when this process last looked at them: a job may have thousands."""


def _note_emptied(place: str, began: float, moved: bool = False) -> None:
    """Slurm empties the file when it starts the job again, at `began`: what followers have seen of
    it lies before what is there now, as the third number of FILE.cut says. `moved`: the next
    attempt has another file."""
    status = os.stat(place)
    mark = (status.st_size, status.st_mtime_ns, began)
    if _looked_at.get(place) == mark and not moved:
        return
    _looked_at[place] = mark
    with open(place, "rb") as file, open(place + ".seen", "a+") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        note.seek(0)
        seen = json.loads(note.read() or "[0, 0, 0, 0]")
        size, tail, since, written = seen
        status = os.fstat(file.fileno())
        again = since < began and written < began - 1  # nothing was seen of this attempt yet
        gone = status.st_size < size or (size and (again or _sum_up(file, size) != tail))
        if moved or gone:
            before = int((processes.read_text(place + ".cut").split()[2:] or ["0"])[0])
            before += status.st_size if moved else size
            processes.write(place + ".cut", f"0 {before} {before}\n")
        end = 0 if moved else status.st_size
        new = [end, _sum_up(file, end), began, status.st_mtime]
        if new != seen:
            note.truncate(0)
            note.write(json.dumps(new))


def _sum_up(file: IO[bytes], size: int) -> int:
    """The last bytes of so many."""
    start = max(0, size - TAIL)
    file.seek(start)
    return zlib.crc32(file.read(size - start))


def _note_start(folder: str, parts: Sequence[Part]) -> None:
    began = min([part.began for part in parts if part.began], default=None)
    nodes = itertools.groupby(part.node or "(queue)" for part in parts)
    placed = "".join(f"{node}:{len(list(ranks))}," for node, ranks in nodes)
    said = (("running", began, 1), ("placed", began, placed), ("started", began, len(parts)))
    _note(folder, *said)


def find_task(text: str) -> List[str]:
    """The numbers in `3`, `1-4,7` or `0-9:2%3`, as both systems write the tasks of an array."""
    numbers: List[str] = []
    for item in text.partition("%")[0].strip("[]").split(","):
        span, _, step = item.partition(":")
        first, _, last = span.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found = range(int(first), int(last or first) + 1, int(step or 1))
            numbers.extend(map(str, found))
    return numbers


def read_time(text: str, form: str) -> float:
    """By the clock of this machine; 0 for none."""
    try:
        return time.mktime(time.strptime(text, form))
    except ValueError:
        return 0.0


def may_be_late(folder: str) -> bool:
    """Whether a job has just left the queue, whose accounting may know it later."""
    place = os.path.join(folder, "left")
    if not os.path.exists(place):
        processes.write(place, "")
    return time.time() - os.stat(place).st_mtime < ACCOUNTING


# -------------------------------------------------------------------------------------------------
# What the commands of the queues print.


SLURM_TIME = "%Y-%m-%dT%H:%M:%S"
GRID_TIMES = ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S")
NO_OUTPUT = "0:53"
"""The exit code that Slurm gives a job whose output file it could not create."""
SLURM_LIVES = re.compile("PENDING|CONFIGURING|RUNNING|COMPLETING|SUSPENDED|REQUEUE")


def read_slurm_tasks(text: str) -> List[Part]:
    """From `scontrol show job -o`."""
    return [part for line in text.splitlines() for part in _read_slurm_line(line)]


def read_fields(line: str) -> Dict[str, str]:
    """Of what `scontrol show -o` prints."""
    return dict(re.findall(r"(\w+)=(.*?)(?= [\w/:-]+=|$)", line))


def read_columns(text: str) -> Dict[str, str]:
    """Of what qacct prints."""
    return dict(re.findall(r"(?m)^(\w+) +(.*\S)", text))


def _read_slurm_line(line: str) -> List[Part]:
    values = read_fields(line)
    if values.get("HetJobOffset", "0") != "0":
        return []  # the script of a heterogeneous job runs in its first component
    word, node = values["JobState"], values.get("BatchHost", "")
    state = ENDED
    if SLURM_LIVES.match(word):
        waits = word in ("PENDING", "CONFIGURING") or "REQUEUE" in word
        state = WAITING if waits else RUNNING
    said = values.get("ExitCode", "0:0")
    code, _, number = said.partition(":")
    if said == NO_OUTPUT:
        code, number = "-1", ""
    part = Part(
        "0",
        state,
        node,
        _fill_in(values.get("StdOut", ""), values, node),
        _fill_in(values.get("StdErr", ""), values, node),
        0.0 if state == WAITING or not node else read_time(values["StartTime"], SLURM_TIME),
        read_time(values.get("EndTime", ""), SLURM_TIME) if state == ENDED else 0.0,
        word,
        128 + int(number) if number not in ("", "0") else int(code),
    )
    tasks = find_task(values.get("ArrayTaskId", ""))
    if len(tasks) > 1:  # those that wait are one line, and their output has no name yet
        return [part._replace(id=task, out="", err="") for task in tasks]
    return [part._replace(id=task) for task in tasks or ["0"]]


def _fill_in(path: str, values: Dict[str, str], node: str) -> str:
    """The words that Slurm fills in when the script runs, which is task 0 on node 0. "": they are
    not known yet."""
    if not node:
        return "" if "%" in path else path
    job = values.get("JobId", "")
    words = {
        **{"%": "%", "N": node, "n": "0", "t": "0", "s": "batch", "j": job, "J": job},
        "A": values.get("ArrayJobId", job),
        "a": values.get("ArrayTaskId", "4294967294"),
        "u": values.get("UserId", "").partition("(")[0],
        "x": values.get("JobName", ""),
    }
    return _fill(path, words)


def explain_slurm(values: Dict[str, str]) -> str:
    """Why a job has ended so, from the fields of `scontrol show job -o`."""
    if values.get("ExitCode") != NO_OUTPUT:
        return values.get("Reason", "")
    node = values.get("BatchHost", "")
    paths = [_fill_in(values.get(key, ""), values, node) for key in ("StdOut", "StdErr")]
    for path in paths:
        folder = os.path.dirname(path)
        if folder and not os.path.isdir(folder):
            return f"its output file {path} could not be created: there is no folder {folder}"
    return f"its output file {paths[0]} could not be created"


def explain_grid(text: str) -> str:
    """Why a job is in error, from `qstat -j`."""
    found = re.search(r"(?m)^error reason\s+\d+:\s+(?:.*?\]: )?(?:error: )?(.*)", text)
    return found[1].strip() if found else ""


def read_grid_tasks(native: str, text: str, row: str) -> List[Part]:
    values = {
        key.strip(): value.strip()
        for key, colon, value in (line.partition(":") for line in text.splitlines())
        if colon
    }
    name, home = values.get("job_name", ""), values.get("sge_o_home", "")
    tasks = find_task(values.get("job-array tasks", ""))
    running = re.findall(r"(?m)^usage +(\d+):", text)
    if row and "q" not in row.partition("|")[0] and not running:
        running = (tasks or ["1"])[:1]
    parts = []
    for task in tasks or ["1"]:
        paths = []
        for letter, key in (("o", "stdout_path_list"), ("e", "stderr_path_list")):
            given = values.get(key, "").rpartition(":")[2]
            path = given or values.get("cwd", home)
            for word, what in (("JOB_ID", native), ("TASK_ID", task), ("JOB_NAME", name),
                               ("HOME", home), ("USER", values.get("owner", ""))):  # fmt: skip
                path = path.replace("$" + word, what)
            path = os.path.join(values.get("cwd", home), path)
            if not given or os.path.isdir(path):
                ending = f".{task}" if tasks else ""
                path = os.path.join(path, f"{name}.{letter}{native}{ending}")
            paths.append(path)
        if values.get("merge", "n").startswith("y"):
            paths[1] = ""
        state = RUNNING if task in running else WAITING
        parts.append(Part(task, state, "", paths[0], paths[1]))
    return parts


def read_grid_record(values: Dict[str, str], end: str) -> Part:
    """What qacct prints of a task, and how that ended."""
    word, code, _ = end.split("|")
    began, ended = (
        max(read_time(values.get(key, "")[:24], form) for form in GRID_TIMES)
        for key in ("start_time", "end_time")
    )
    node, task = values.get("hostname", "").partition(".")[0], values.get("taskid", "")
    failed = int(code) if values.get("failed", "0").split()[0] in ("0", "100") else -1
    place = task if task.isdigit() else "1"
    return Part(place, ENDED, node, "", "", began, ended, word, failed)
