"""What a supervisor asks a node, answered there for as long as the connection lasts.

A question is a verb with its arguments (clusterctl/agent/messages.py).
"""

import contextlib
import json
import os
import re
import select
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import messages, processes
from .messages import Fact

SESSION = re.compile(r"^/.*/(jf|prted)\.\d+$")
"""The temporary folder of a daemon of Open MPI 4 or 5."""
SLOW = 10.0
"""Seconds without an answer after which a node counts as away for a while."""
RECENT = 60.0
"""Seconds for which it is remembered."""


class NodeAnswer(NamedTuple):
    """The facts of a node. `began`, `ended`: when by its clock, in seconds since the epoch; `asked`
    and `heard` the same by the clock of who has asked. `code`, `why`: what ssh ended with, and said
    at last; None where the node has answered."""

    facts: Sequence[Fact] = ()
    began: float = 0.0
    ended: float = 0.0
    asked: float = 0.0
    heard: float = 0.0
    code: Optional[int] = None
    why: str = ""

    def list_facts(self, word: str) -> List[Fact]:
        """What belongs to that word, each time."""
        return [fact[1:] for fact in self.facts if fact[0] == word]


class Attendant:
    """Answers about the job whose folder on this node is `job`."""

    def __init__(self, job: str, tag: str) -> None:
        self._job = job
        self._tag = tag
        self._processes = processes.Processes(job, tag)

    def answer(self, verb: str, *args: Any) -> List[Fact]:
        """Facts, as the supervisor takes them. Where the job's folder is gone, there is nothing to
        know but its processes."""
        if not os.path.isdir(os.path.join(self._job, "out")):
            if verb in ("end", "again"):
                self._processes.end(0)
            return [("survivors", len(self._processes.list_living()))]
        if verb in ("meet", "ask"):
            if verb == "ask":
                self._processes.ask(args[0])
            return []
        if verb == "stacks":
            from . import stacks

            return list(stacks.list_stacks(self._job, self._tag))
        if verb == "written":
            return self._sum_up_written()
        if verb == "port":
            return [("port", find_port())]
        if verb == "mirrored":
            return self._compare_copies(*args)
        if verb in ("cut", "own", "choice"):
            from . import resume

            looks = {"cut": resume.list_cut, "own": resume.list_own, "choice": resume.choose}
            look: Any = looks[verb]
            return [(verb, *fact) for fact in look(self._job, *args)]
        if verb == "tend":
            with contextlib.suppress(OSError):
                self._shorten(int(args[0]), int(args[1]))
        elif verb == "close":  # mpirun's connections to its daemons end a moment after it
            if self._processes.await_end(processes.NOTING):
                self._forget()
                self._remove_sessions()
        elif verb == "end":
            # Before the search: a rank that starts now finds no environment, and ends by itself.
            self._forget()
        if verb in ("end", "again"):
            self._processes.end(args[0])
            self._remove_sessions()
        return list(self._processes.look())

    def _remove_sessions(self) -> None:
        """Temporary folders of mpirun's daemons, which those that were killed have left. Once: the
        daemon of another job may get the same number later."""
        import shutil

        for path in self._list_output(".session"):
            folder = processes.read_text(path)
            processes.remove(path)
            if SESSION.search(folder):
                shutil.rmtree(folder, ignore_errors=True)

    def _forget(self) -> None:
        """The secrets, and what only a job that runs needs."""
        place = os.path.join(self._job, "env")
        for path in (os.path.realpath(place), place, os.path.join(self._job, "py-spy.gz")):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _compare_copies(self, wish: Any) -> List[Fact]:
        """Says where the launcher has all that it wants of the outputs here."""
        from . import mirror

        with contextlib.suppress(OSError):
            if not mirror.has_news(self._job, messages.read(messages.MirrorWish, wish)):
                return [("mirrored",)]
        return []

    def _list_output(self, *suffixes: str) -> List[str]:
        out = os.path.join(self._job, "out")
        return [os.path.join(out, n) for n in sorted(os.listdir(out)) if n.endswith(suffixes)]

    def _sum_up_written(self) -> List[Fact]:
        """Two words: another one when a rank writes, and when one starts. Sizes, and no times: a
        clock may be set."""
        sizes = [(path, os.path.getsize(path)) for path in self._list_output(".out", ".err")]
        starts = [processes.read(path) for path in self._list_output(".pid")]
        return [("written", hash_of(sizes), hash_of(starts))] if starts else []

    def _shorten(self, most: int, least: int) -> None:
        """Frees what the last look has announced of output files that have become too long: who
        follows the job has had time to go on behind it. Programs append, so they notice nothing.
        `FILE.cut` says from where to where nothing is kept."""
        mine = [os.path.join(self._job, name) for name in ("mpirun.out", "mpirun.err")]
        paths = [*self._list_output(".out", ".err"), *filter(os.path.exists, mine)]
        share = max(least, most // max(1, len(paths)))
        for path in paths:
            if os.stat(path).st_blocks * 512 <= share + share // 4:
                continue
            before = processes.read(path + ".cut").split()
            if before and not punch(path, int(before[0]), int(before[1])):
                continue
            start = share // 10 // 4096 * 4096
            end = (os.path.getsize(path) - share + start) // 4096 * 4096
            processes.write(path + ".cut", f"{start} {end}\n")


def hash_of(value: object) -> int:
    import zlib

    return zlib.crc32(repr(value).encode())


def punch(path: str, start: int, end: int) -> bool:
    """Frees that part of a file; whether the file system can."""
    hole = ("-o", str(start), "-l", str(end - start))
    return processes.call("fallocate", "--punch-hole", *hole, path).code == 0


def find_port() -> int:
    """One that nobody uses here, below the range that the kernel hands out by itself."""
    used: Set[int] = set()
    for name in ("tcp", "tcp6"):
        rows = processes.read_text("/proc/net/" + name).splitlines()[1:]
        used.update(int(row.split()[1].rpartition(":")[2], 16) for row in rows)
    free = [port for port in range(20000, 30000) if port not in used]
    return free[int.from_bytes(os.urandom(4), "big") % len(free)]


def serve(job: str, tag: str) -> None:
    """Answers what comes on stdin, one question at a time, until it ends."""
    attendant = Attendant(job, tag)
    for line in iter(lambda: messages.hear(sys.stdin.buffer.readline), b""):
        verb, *args = json.loads(line.decode())
        began = time.time()
        facts = attendant.answer(verb, *args)
        sys.stdout.buffer.write(messages.MARK + messages.pack(began, time.time(), facts))
        sys.stdout.flush()


# -------------------------------------------------------------------------------------------------
# The other end, on the launcher.


class Here:
    """A node that shares this machine: asked without a connection."""

    def __init__(self, job: str, tag: str) -> None:
        self._attendant = Attendant(job, tag)

    def ask(self, limit: float, verb: str, *args: Any) -> NodeAnswer:
        asked = time.time()
        try:
            facts = tuple(self._attendant.answer(verb, *args))
        except OSError as error:  # as one whose agent has ended
            return NodeAnswer(asked=asked, heard=time.time(), code=1, why=str(error))
        return NodeAnswer(facts, asked, time.time(), asked, time.time())

    def was_away(self) -> bool:
        return False

    def close(self) -> None:
        pass


class There:
    """A node behind `command`, which starts `serve` there. What ssh says goes to `log`, too."""

    def __init__(self, command: Sequence[str], environ: Dict[str, str], log: str) -> None:
        self._command, self._environ, self._log = command, environ, log
        self._process: Any = None
        self._errors = b""
        self._rest = b""
        self._waits = self._lost = float("inf")
        """Since when a question waits, and when a connection was lost."""

    def was_away(self) -> bool:
        """Whether a question waits for long, or a connection was lost a short while ago. Another
        program's connection to that node may have ended so, though it answers again."""
        now = time.monotonic()
        return now - self._waits > SLOW or 0 <= now - self._lost < RECENT

    def ask(self, limit: float, verb: str, *args: Any) -> NodeAnswer:
        """Its answer within so many seconds: a node whose disk hangs takes a question and never
        answers it. One whose connection was lost is asked once more over a new one."""
        asked = time.time()
        self._waits = time.monotonic()
        until = self._waits + limit
        is_new = self._process is None
        while True:
            try:
                began, ended, facts = messages.unpack(
                    self._exchange(messages.pack(verb, *args), until)
                )
                self._waits = float("inf")
                return NodeAnswer([tuple(f) for f in facts], began, ended, asked, time.time())
            except TimeoutError:
                self.close()
                code, why = 124, "no answer"
            except OSError as error:
                # Without a process, ssh could not be started here: no memory, no descriptor left.
                code, why = self._end() if self._process else (127, str(error))
                self._lost = time.monotonic()
                if not is_new:
                    is_new = True
                    continue
            self._waits = float("inf")
            return NodeAnswer(asked=asked, heard=time.time(), code=code, why=why)

    def _exchange(self, question: bytes, until: float) -> bytes:
        import subprocess

        if self._process is None:
            self._errors = self._rest = b""
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environ,
                start_new_session=True,
                bufsize=0,
            )
        process = self._process
        process.stdin.write(question)
        streams = [process.stdout, process.stderr]
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                if line.startswith(messages.MARK):
                    return line
                continue
            ready = select.select(streams, [], [], max(0.0, until - time.monotonic()))[0]
            if not ready:
                raise TimeoutError
            for stream in ready:
                data = os.read(stream.fileno(), 65536)
                if stream is process.stdout:
                    if not data:
                        raise ConnectionResetError
                    self._rest += data
                elif data:
                    self._errors = (self._errors + data)[-4096:]
                else:
                    streams.remove(stream)

    def _end(self) -> Tuple[int, str]:
        """What ssh has ended with, and its last line."""
        import subprocess

        process, self._process, more = self._process, None, b""
        try:
            _, more = process.communicate(timeout=2)
        except (subprocess.TimeoutExpired, ValueError, OSError):
            process.kill()
        said = processes.decode(self._errors + more).replace("\r", "").strip()
        if said:
            with open(self._log, "a") as file:
                file.write(said + "\n")
        return process.wait(), said.rpartition("\n")[2]

    def close(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            with process:  # closes its pipes
                pass
