"""Where the ranks of a job stand: the stacks of their programs, as py-spy reads them. A rank stands
still for a moment meanwhile.
"""

import base64
import gzip
import json
import os
import shutil
import subprocess
import tempfile
import threading
from typing import Dict, Iterator, List, NamedTuple, Tuple

from . import processes

SETTINGS = "stacks.json"
"""In the job's folder: `python_folder`, where py-spy may be; `why` there is none; the `limit` in
seconds for a Python stack, twice as long for one with its C functions; the `largest` note."""
SENT = "py-spy.gz"
"""One that came with the job."""


class FirstProcess(NamedTuple):
    """That which counts for a rank: its first Python, else its first process."""

    pid: int
    is_python: bool


def list_stacks(job: str, tag: str) -> Iterator[Tuple[str, int, str]]:
    """("stack", rank, note) for each. A note is compressed: clusterctl/core/stacks.py reads it."""
    with open(os.path.join(job, SETTINGS)) as file:
        settings = json.load(file)
    with tempfile.TemporaryDirectory(prefix=".stacks-", dir=job) as scratch:
        spy = _find_spy(job, scratch, settings["python_folder"])
        ranks = find_ranks(job, tag)
        dumps = [
            _Dump(os.path.join(scratch, rank), spy, process.pid, settings["limit"])
            for rank, process in ranks.items()
            if spy and process.is_python
        ]
        for dump in dumps:
            dump.start()
        for dump in dumps:
            dump.join()
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
            other = "/python" not in _read_link(f"/proc/{pid}/exe")
            found.setdefault(rank, []).append((other, _read_start(pid), pid))
    return {
        rank: FirstProcess(pid, not other)
        for rank, candidates in sorted(found.items())
        for other, _, pid in [min(candidates)]
    }


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read_fields(pid: int) -> List[bytes]:
    """Of /proc/PID/stat, from the state on."""
    return processes.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _read_start(pid: int) -> int:
    fields = _read_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _find_spy(job: str, scratch: str, folder: str) -> List[str]:
    """The command; [] where there is none that runs here."""
    path = shutil.which("py-spy", path=folder) or shutil.which("py-spy") or ""
    if not path:
        path = os.path.join(scratch, "py-spy")
        try:
            with gzip.open(os.path.join(job, SENT)) as packed, open(path, "wb") as file:
                shutil.copyfileobj(packed, file)
            os.chmod(path, 0o700)
            null = subprocess.DEVNULL
            subprocess.run([path, "--version"], stdout=null, stderr=null, check=True)
        except (OSError, subprocess.CalledProcessError):
            return []
    scope = processes.read("/proc/sys/kernel/yama/ptrace_scope").strip() or b"0"
    sudo = ["sudo", "-n"] if os.getuid() and scope != b"0" else []
    return [*sudo, path]


class _Dump(threading.Thread):
    """Reads the stacks of a process into `place`.python, and then .native."""

    def __init__(self, place: str, spy: List[str], pid: int, limit: int) -> None:
        super().__init__(daemon=True)
        self._place, self._spy, self._pid, self._limit = place, spy, pid, limit

    def run(self) -> None:
        state = _read_fields(self._pid)[:1]
        if state and state[0] in (b"T", b"t", b"D"):  # it would not stop for a reader
            self._dump("python", self._limit, "--nonblocking")
        else:  # the quick part first: the C stack needs the symbols of all libraries
            self._dump("python", self._limit)
            self._dump("native", 2 * self._limit, "--native")

    def _dump(self, kind: str, seconds: int, *words: str) -> None:
        """It may take for ever where the process waits for a disk."""
        command = ["timeout", "-k", "1", str(seconds), *self._spy, "dump", "--json", "--pid"]
        path = f"{self._place}.{kind}"
        with open(path, "wb") as out, open(path + ".err", "wb") as errors:
            subprocess.run(
                [*command, str(self._pid), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                check=False,
            )


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
    if not error:
        return b""
    prefix = b"Error: "
    return b"why " + (error[len(prefix) :] if error.startswith(prefix) else error) + b"\n"
