"""The processes of a job on this node: what lives, and how it is ended.

Each carries the job's tag in its environment; this program does not. One that has cleared its
environment is known by its output, if that still goes to a rank's file: only ranks hand that on.

One SIGTERM means that a program is to save, and many take a second one to mean that it is to quit
at once: whoever tells a rank to end leaves the file `rank-N.term`, and nobody tells it again.
"""

import contextlib
import fcntl
import os
import re
import signal
import threading
import time
from typing import IO, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

from . import messages

LOOK = 0.1
"""Seconds between two looks whether processes have ended: less at first."""
NOTING = 0.3
"""Seconds for wrappers to note how their programs have ended."""
SHELL = re.compile(r"(^|[/-])(ba|da|a|z|k|mk|c|tc|fi)?sh$")
TRAP = 5.0
"""Seconds for a wrapper to come to its trap."""
LIMIT = 12
"""Seconds that a program has to answer a question: Slurm's own limit is 10."""
SILENT = 124
"""The exit code of a command that did not end in its time."""
OF_RANK = ("oom", "told", "alone", "started", "exit")
"""What a node says of each of its ranks."""
CATCHES_TERM = 1 << (signal.SIGTERM - 1)


class RankProgram(NamedTuple):
    """What a rank's wrapper has started, or what that has started. `due`: SIGTERM is for it. Below
    a program that catches it it is not: torchrun passes it on, and a program that is to save must
    not lose its DataLoader workers."""

    pid: int
    rank: str
    due: bool


def read(path: str) -> bytes:
    """b"" where there is nothing to read any more."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def decode(text: bytes) -> str:
    return text.decode(errors="replace")


def read_text(path: str) -> str:
    """Without blanks at its ends."""
    return decode(read(path)).strip()


def write(path: str, text: Any) -> None:
    """A text or bytes, in one step: nobody reads a part of it."""
    with open(path + ".new", "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode(errors="surrogateescape"))
    os.replace(path + ".new", path)


def remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def lock(file: IO[Any], kind: int = fcntl.LOCK_EX) -> bool:
    """Whether nobody else has it locked."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: str) -> bool:
    """The kernel drops the lock of a process that has ended."""
    try:
        with open(path, "rb") as file:
            return not lock(file, fcntl.LOCK_SH)
    except OSError:
        return False


class Said(NamedTuple):
    """How a command has ended, and what it has written."""

    code: int
    out: str
    err: str


def call(
    *words: str,
    limit: Optional[float] = LIMIT,
    folder: Optional[str] = None,
    variables: Optional[Dict[str, str]] = None,
    stdin: str = "",
) -> Said:
    """It has so many seconds; SILENT: it did not end in them."""
    import subprocess  # what lists outputs needs none

    pipe = subprocess.PIPE
    try:
        done = subprocess.run(
            words,
            input=stdin.encode(),
            stdout=pipe,
            stderr=pipe,
            timeout=limit,
            check=False,
            cwd=folder,
            env={**os.environ, **(variables or {})},
        )
    except OSError as error:
        return Said(127, "", f"{words[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Said(SILENT, "", "")
    return Said(done.returncode, decode(done.stdout), decode(done.stderr))


def do_each(work: Callable[[Any], Any], items: Sequence[Any]) -> None:
    """All at once."""
    threads = [threading.Thread(target=work, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def list_living(tag: str, out: str = "") -> List[int]:
    """The processes with that tag, but for this one; and those without any tag that write to a
    rank's file in the folder `out`."""
    wanted, own = os.fsencode(tag), str(os.getpid())
    try:
        ranks = out and os.path.join(os.path.realpath(out), "rank-")
    except OSError:
        ranks = ""  # the folder that this program is in was removed
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != own:
            variables = read("/proc/" + name + "/environ")
            untagged = ranks and b"CLUSTERCTL_JOB=" not in variables
            if wanted in variables or (untagged and _writes_to(name, ranks)):
                found.append(int(name))
    return found


def _writes_to(pid: str, start: str) -> bool:
    """Whether its stdout or stderr is a file whose path starts so."""
    return any(read_link(f"/proc/{pid}/fd/{n}").startswith(start) for n in (1, 2))


class ProcessStat(NamedTuple):
    """`used`: seconds of processor time; `started`: ticks after the start of the node."""

    command: str
    state: str
    parent: int
    used: float
    started: int


def read_stat(pid: int) -> Optional[ProcessStat]:
    """None where the process has ended. A command may hold blanks and parentheses."""
    head, _, rest = read_text(f"/proc/{pid}/stat").rpartition(")")
    words = rest.split()
    if len(words) < 20:
        return None
    used = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return ProcessStat(head.partition("(")[2], words[0], int(words[1]), used, int(words[19]))


def read_status(pid: int, name: str) -> str:
    """The first word of that line of /proc/PID/status; "" where the process has ended."""
    found = re.search(rf"(?m)^{name}:\s*(\S+)", read_text(f"/proc/{pid}/status"))
    return found.group(1) if found else ""


def read_link(path: str) -> str:
    """ "" where there is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_rank(pid: int) -> str:
    """ "" for what is no rank's."""
    for item in read(f"/proc/{pid}/environ").split(b"\0"):
        if item.startswith(b"CLUSTERCTL_RANK="):
            return os.fsdecode(item.partition(b"=")[2])
    return ""


def list_programs(tag: str) -> List[RankProgram]:
    """Those that rank wrappers have started, not these or launchers' daemons. A shell waits: it
    comes before what it has started, whose end would let it go on, and end, before it has had its
    SIGTERM."""
    ranks = {pid: rank for pid in list_living(tag) for rank in [read_rank(pid)] if rank}
    above = {pid: int(read_status(pid, "PPid") or 0) for pid in ranks}
    catches = {pid: _has_trap(pid) and not _is_shell(pid) for pid in ranks}

    def is_due(pid: int) -> bool:
        parent = above[pid]
        return parent not in ranks or (is_due(parent) and not catches[parent])

    def count_above(pid: int) -> int:
        return 1 + count_above(above[pid]) if above[pid] in ranks else 0

    ordered = sorted(ranks, key=count_above)
    return [RankProgram(pid, ranks[pid], is_due(pid)) for pid in ordered]


def _is_shell(pid: int) -> bool:
    return bool(SHELL.search(os.fsdecode(read(f"/proc/{pid}/cmdline").partition(b"\0")[0])))


def _has_trap(pid: int) -> bool:
    """Whether SIGTERM would not simply end that process."""
    return bool(int(read_status(pid, "SigCgt") or "0", 16) & CATCHES_TERM)


def send(pid: int, number: int) -> None:
    """To one process: 0 and numbers below it are groups."""
    if pid > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def read_boot() -> str:
    """Another one after each start of this node. A container has its host's boot id, and a first
    process of its own."""
    return parse_boot(read("/proc/sys/kernel/random/boot_id") + read("/proc/1/stat"))


def parse_boot(noted: bytes) -> str:
    """The same of what rank.sh has noted: the boot id, and a line of /proc/1/stat, of which the
    time when that process began stays as it is."""
    boot, _, process = decode(noted).partition("\n")
    return " ".join([boot, *process.rpartition(")")[2].split()[19:20]])


def catch(names: Sequence[str], tell: Callable[[str], None]) -> None:
    """Calls `tell` with the name of each such signal that comes, or has been held back so far."""
    numbers = {getattr(signal, "SIG" + name): name for name in names}
    for number in numbers:
        signal.signal(number, lambda number, _: tell(numbers[number]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, list(numbers))


def tell_wrapper(pid: int) -> None:
    """SIGTERM to a wrapper: it would end one that has not yet come to its trap."""
    until = time.monotonic() + TRAP
    while os.path.exists(f"/proc/{pid}/exe") and not _has_trap(pid) and time.monotonic() < until:
        time.sleep(0.02)
    send(pid, signal.SIGTERM)


class Processes:
    """Those of the job whose folder on this node is `job`."""

    def __init__(self, job: str, tag: str) -> None:
        if not tag.startswith("CLUSTERCTL_JOB=") or not tag.endswith(";"):
            raise ValueError(f"{tag!r} is no tag")  # it could be part of any environment
        self._job, self._tag = job, tag
        self._out = os.path.join(job, "out")

    def list_living(self) -> List[int]:
        return list_living(self._tag, self._out)

    # --------------------------------------------------------------------------------- ending them

    def tell(self, rank: Optional[str] = None) -> None:
        """SIGTERM to each program that has not had it, of one rank or of all. `rank-N.term` names
        those that others are to tell."""
        told: Set[str] = set()
        for program in list_programs(self._tag):
            # Nodes on one host see the ranks of each other.
            ours = os.path.exists(self._locate(program.rank, "pid"))
            if not ours or rank not in (None, program.rank):
                continue
            if program.rank not in told:
                if not _create(self._locate(program.rank, "term")):
                    continue
                told.add(program.rank)
            if program.due:
                send(program.pid, signal.SIGTERM)
            else:
                path = self._locate(program.rank, "term")
                with contextlib.suppress(OSError), open(path, "a") as file:
                    file.write(f"{program.pid}\n")
            send(program.pid, signal.SIGCONT)

    def _list_remaining(self) -> List[int]:
        """Programs; and SIGTERM to those that nobody has told, as who started them has ended."""
        programs = list_programs(self._tag)
        for program in programs:
            names = read(self._locate(program.rank, "term")).split()
            due = program.due and str(program.pid).encode() in names
            if due and _create(self._locate(program.rank, f"term-{program.pid}")):
                send(program.pid, signal.SIGTERM)
        return [program.pid for program in programs]

    def ask(self, seconds: float) -> bool:
        """SIGTERM to all programs that have not had it; whether all have ended within the time."""
        _create(os.path.join(self._job, "stopping"))
        self.tell()
        return _wait_for_end(self._list_remaining, seconds)

    def stop(self, seconds: float) -> None:
        """The same, and SIGKILL to those programs that have not ended by then."""
        if not self.ask(seconds):
            self.kill()

    def has_begun(self, rank: str) -> bool:
        """Whether its program runs, or has ended."""
        begun = os.path.exists(self._locate(rank, "pid"))
        ended = os.path.exists(self._locate(rank, "exit"))
        return ended or (begun and any(one.rank == rank for one in list_programs(self._tag)))

    def kill_later(self, rank: str, seconds: float) -> None:
        """SIGKILL to what a rank was told to end, if it has not ended after its time. Its wrapper
        may have been killed meanwhile, and the rank of the next attempt has its own time."""
        attempt, until = read(self._locate(rank, "pid")), time.monotonic() + seconds
        while time.monotonic() < until:
            if os.path.exists(self._locate(rank, "exit")):
                return
            time.sleep(LOOK)
        is_told = os.path.exists(self._locate(rank, "term"))
        if is_told and read(self._locate(rank, "pid")) == attempt:
            self.kill(rank)

    def kill(self, rank: Optional[str] = None) -> None:
        for program in list_programs(self._tag):
            if rank in (None, program.rank):
                send(program.pid, signal.SIGKILL)

    def end(self, seconds: float) -> None:
        """Ends all processes of the job: programs have the time to save, then wrappers a moment to
        note how their programs ended."""

        living = self.list_living
        if not living():
            return
        until = time.monotonic() + seconds
        self.tell()
        if not _wait_for_end(self._list_remaining, seconds):
            self.kill()
        until = max(until, time.monotonic() + NOTING)
        for pid in living():
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)
        if _wait_for_end(living, until - time.monotonic()):
            return
        for _ in range(4):  # what was started while we looked is found by the next look
            for pid in living():
                send(pid, signal.SIGKILL)
            if _wait_for_end(living, 0.5):
                return

    def await_end(self, seconds: float) -> bool:
        """Whether nothing of the job is left within the time."""
        return _wait_for_end(self.list_living, seconds)

    # ------------------------------------------------------------------------ what there is to say

    def look(self) -> Iterator[messages.Fact]:
        """Facts about this node, as `supervise` takes them: a word, and what belongs to it."""
        yield "survivors", len(self.list_living())
        disk = os.statvfs(self._job)
        if disk.f_bavail * disk.f_frsize < 65536:
            yield ("full",)
        boot = parse_boot(read(os.path.join(self._out, "boot")))
        if boot and boot != read_boot():
            yield "node", "restarted"
        ending = os.path.join(self._job, "..", "..", "ending")  # of the machine: deadline, spot
        staged = os.path.join(self._job, ".staged")
        if read(ending) and os.stat(ending).st_mtime > os.stat(staged).st_mtime:
            yield "node", read_text(ending).split()[0]
        for name in sorted(os.listdir(self._out)):
            rank, _, suffix = name[len("rank-") :].partition(".")
            word = "started" if suffix == "pid" else suffix
            if not name.startswith("rank-") or word not in OF_RANK:
                continue
            if word != "alone" or not os.path.exists(self._locate(rank, "met")):
                said = read_text(self._locate(rank, word)).split()  # `started` has no file
                with contextlib.suppress(ValueError):
                    yield messages.read_fact([word, rank, *said])

    def _locate(self, rank: str, suffix: str) -> str:
        return os.path.join(self._out, f"rank-{rank}.{suffix}")


def _create(path: str) -> bool:
    """Whether this is who made the file."""
    with contextlib.suppress(OSError), open(path, "x"):
        return True
    return False


def _wait_for_end(living: Callable[[], List[int]], seconds: float) -> bool:
    """Whether nothing is left within the time. A process that is about to run another program has
    no environment: a second look sees it."""
    until, pause = time.monotonic() + seconds, LOOK / 10
    while True:
        if not living():
            time.sleep(LOOK / 5)
            if not living():
                return True
        if time.monotonic() >= until:
            return False
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(LOOK, pause * 2)
