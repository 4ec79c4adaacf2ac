"""Where the ranks of a job stand: the stacks of their programs, as py-spy reads them. A rank stands
still for a moment meanwhile.
"""

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import IO, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import processes

SETTINGS = "stacks.json"
"""In the job's folder: `python_folder`, where py-spy may be; `why` there is none; the `limit` in
seconds for a Python stack, twice as long for one with its C functions; the `largest` note."""
SENT = "py-spy.gz"
"""One that came with the job."""
GLANCE, PAUSE = 0.5, 0.7
"""Seconds between two looks at counters, and at the stacks of ranks that are watched."""


class FirstProcess(NamedTuple):
    """That which counts for a rank: its first Python, else its first process."""

    pid: int
    is_python: bool


def list_stacks(job: str, tag: str) -> Iterator[Tuple[str, int, str]]:
    """("stack", rank, note) for each. A note is compressed: clusterctl/core/stacks.py reads it."""
    with open(os.path.join(job, SETTINGS)) as file:
        settings = json.load(file)
    with tempfile.TemporaryDirectory(prefix=".stacks-", dir=job) as scratch:
        spy = _find_spy(os.path.join(job, SENT), scratch, settings["python_folder"])
        ranks = find_ranks(job, tag)

        def dump(rank: str) -> None:
            _dump_rank(spy, ranks[rank].pid, settings["limit"], os.path.join(scratch, rank))

        processes.do_each(dump, [rank for rank in ranks if spy and ranks[rank].is_python])
        for rank, process in ranks.items():
            text = b"".join(_describe(job, process, bool(spy), settings["why"]))
            text += _read_dump(os.path.join(scratch, rank))
            note = base64.b64encode(gzip.compress(text, 9)).decode()
            if len(note) <= settings["largest"]:
                yield "stack", int(rank), note


def find_ranks(job: str, tag: str) -> Dict[str, FirstProcess]:
    """By rank, of those that run here."""
    found: Dict[str, List[Tuple[bool, int, int]]] = {}
    for pid in processes.list_living(tag):
        rank = processes.read_rank(pid)
        if rank and os.path.exists(os.path.join(job, "out", f"rank-{rank}.pid")):
            other = "/python" not in processes.read_link(f"/proc/{pid}/exe")
            stat = processes.read_stat(pid)
            found.setdefault(rank, []).append((other, stat.started if stat else 0, pid))
    return {
        rank: FirstProcess(pid, not other)
        for rank, candidates in sorted(found.items())
        for other, _, pid in [min(candidates)]
    }


def locate_spy(folder: str) -> str:
    """py-spy beside the node's Python, or on PATH; "" where there is none."""
    return shutil.which("py-spy", path=folder) or shutil.which("py-spy") or ""


def _find_spy(packed: Union[str, IO[bytes]], scratch: str, folder: str) -> List[str]:
    """The command, of the node's own py-spy or that which was sent, compressed; [] where there is
    none that runs here."""
    path = locate_spy(folder)
    if not path:
        path = os.path.join(scratch, "py-spy")
        try:
            with gzip.open(packed) as source, open(path, "wb") as file:
                shutil.copyfileobj(source, file)
            os.chmod(path, 0o700)
            null = subprocess.DEVNULL
            subprocess.run([path, "--version"], stdout=null, stderr=null, check=True)
        except (OSError, EOFError, subprocess.CalledProcessError):
            return []
    scope = processes.read("/proc/sys/kernel/yama/ptrace_scope").strip() or b"0"
    sudo = ["sudo", "-n"] if os.getuid() and scope != b"0" else []
    return [*sudo, path]


def _dump(spy: List[str], pid: int, seconds: float, path: str, *words: str) -> None:
    """What py-spy prints of a process, and says, into that file and another one. It may take for
    ever where the process waits for a disk."""
    command = ["timeout", "-k", "1", str(seconds), *spy, "dump", "--json", *words, "--pid"]
    null = subprocess.DEVNULL
    with open(path, "wb") as out, open(path + ".err", "wb") as errors:
        subprocess.run([*command, str(pid)], stdin=null, stdout=out, stderr=errors, check=False)


def _dump_rank(spy: List[str], pid: int, limit: float, place: str) -> None:
    """Into `place`.python, and then .native."""
    stat = processes.read_stat(pid)
    if stat and stat.state in "TtD":  # it would not stop for a reader
        _dump(spy, pid, limit, place + ".python", "--nonblocking")
    else:  # the quick part first: the C stack needs the symbols of all libraries
        _dump(spy, pid, limit, place + ".python")
        _dump(spy, pid, 2 * limit, place + ".native", "--native")


def _describe(job: str, process: FirstProcess, has_spy: bool, why: str) -> Iterator[bytes]:
    proc = f"/proc/{process.pid}"
    yield b"folder " + os.fsencode(os.path.join(job, "work")) + b"\n"
    yield b"process " + processes.read(proc + "/stat").replace(b"\n", b" ") + b"\n"
    yield b"waits " + processes.read(proc + "/wchan") + b"\n"
    if process.is_python:
        yield b"python yes\n"
        if not has_spy:
            yield f"why {why}\n".encode()
    else:
        yield b"why " + processes.read(proc + "/comm").strip() + b" is not a Python program\n"


def _read_dump(place: str) -> bytes:
    for kind in ("native", "python"):
        found = processes.read(f"{place}.{kind}")
        if found:
            return found
    error = processes.read(place + ".python.err").partition(b"\n")[0]
    return b"why " + re.sub(b"^Error: ", b"", error) + b"\n" if error else b""


# ------------------------------------------------------------------------------------ for doctor
# What it asks: facts, as views.py has them. py-spy comes on stdin where the node has none.


def show_stacks(
    job: str,
    pids: Sequence[int],
    helpers: Sequence[int],
    stopped: Sequence[int],
    limit: float,
    python_folder: str,
) -> Iterator[Tuple[object, ...]]:
    """The stacks of some processes, and the use of the processor of the first ones."""
    with _make_scratch(job) as scratch:
        spy = _find_spy(sys.stdin.buffer, scratch, python_folder)
        # The quick part comes first, for there may be no time for more.
        quick = {pid: ["--nonblocking"] * (pid in stopped) for pid in (*pids, *helpers)}
        slow = {pid: ["--native"] for pid in pids if pid not in stopped}
        yield from _show_dumps(spy, scratch, "stack", quick, limit, "--locals")
        yield from _show_use(pids)  # not meanwhile: a process stands still for py-spy
        yield from _show_dumps(spy, scratch, "stack", slow, limit, "--locals")
        yield ("done",)


def show_moves(
    job: str,
    ranks: Sequence[Tuple[int, str]],
    native: bool,
    seconds: int,
    limit: float,
    python_folder: str,
) -> Iterator[Tuple[object, ...]]:
    """Whether some processes go on: how often the main threads of those that sleep have slept,
    before and after a while (less if one has moved), what those that poll or read have read and
    written, and their stacks, read two times more: of ranks that share memory, only these tell."""
    with _make_scratch(job) as scratch:
        spy = _find_spy(sys.stdin.buffer, scratch, python_folder)
        before = {pid: _count_moves(pid, kind) for pid, kind in ranks}
        waiting = [(pid, kind) for pid, kind in ranks if kind != "late"]
        # Where none waits for others, none tells when the job goes on, and none minds a look.
        has_moved = not waiting
        for _ in range(seconds if has_moved else 2 * seconds):
            time.sleep(GLANCE)
            if any(_count_moves(pid, kind) != before[pid] for pid, kind in waiting):
                has_moved = True
                break
        for pid, kind in ranks:
            after = _count_moves(pid, kind)
            if before[pid] and after:
                yield "moved", pid, int(before[pid] != after)
        if not (has_moved or native):
            return  # reading the stack of a process wakes it
        words = {pid: ["--native"] * native for pid, _ in ranks}
        yield from _show_dumps(spy, scratch, "again", words, limit)
        time.sleep(PAUSE)
        yield from _show_dumps(spy, scratch, "again", words, limit)


def _make_scratch(job: str) -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix=".doctor-", dir=os.path.dirname(os.path.dirname(job)))


def _show_dumps(
    spy: List[str], scratch: str, fact: str, words: Dict[int, List[str]], limit: float, *more: str
) -> Iterator[Tuple[object, ...]]:
    """The stacks of all these processes, read at the same time with the words of each."""
    paths = {pid: os.path.join(scratch, str(pid)) for pid in words}
    if spy:
        processes.do_each(lambda p: _dump(spy, p, limit, paths[p], *more, *words[p]), [*words])
    for pid, path in paths.items():
        found, errors = processes.read(path), processes.read(path + ".err")
        if found:
            yield fact, pid, base64.b64encode(found).decode()
        for line in [line for line in errors.decode(errors="replace").splitlines() if line][:1]:
            yield "failed", pid, line


def _show_use(pids: Sequence[int]) -> Iterator[Tuple[object, ...]]:
    """Of each: the processors in use, whether it had or wanted one both times, and the share of its
    time slices in which a limit stopped it."""
    before = {pid: _measure_use(pid) for pid in pids}
    time.sleep(GLANCE)
    for pid, (began, first, passed, stopped) in before.items():
        ended, last, passed_then, stopped_then = _measure_use(pid)
        if first and last:
            used = (last.used - first.used) / (ended - began)
            throttled = (stopped_then - stopped) / max(1, passed_then - passed)
            yield "use", pid, used, int(first.state == last.state == "R"), throttled


def _measure_use(pid: int) -> Tuple[float, Optional[processes.ProcessStat], int, int]:
    return (time.monotonic(), processes.read_stat(pid), *_count_periods(pid))


def _count_periods(pid: int) -> Tuple[int, int]:
    """Of the limits of its cgroups, those that have passed, and those in which one stopped it."""
    passed = stopped = 0
    for line in processes.read(f"/proc/{pid}/cgroup").decode().splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and "cpu" not in kinds.split(","):
            continue
        while True:
            place = "/sys/fs/cgroup" + "/cpu" * bool(kinds) + path + "/cpu.stat"
            counts = dict(row.split() for row in processes.read_text(place).splitlines())
            passed += int(counts.get("nr_periods", 0))
            stopped += int(counts.get("nr_throttled", 0))
            if not path.strip("/"):
                break
            path = path.rpartition("/")[0]
    return passed, stopped


def _count_moves(pid: int, kind: str) -> str:
    """A number that grows; "" where there is none."""
    if kind in ("polls", "reads"):
        io = processes.read_text(f"/proc/{pid}/task/{pid}/io")
        counts = re.findall(r"(?m)^[rw]char: (\d+)", io)
        return str(sum(map(int, counts))) if counts else ""
    return processes.read_status(pid, "voluntary_ctxt_switches")
