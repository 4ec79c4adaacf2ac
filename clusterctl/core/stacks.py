"""Stacks of ranks: what py-spy prints, where a rank stands, and which ranks stand elsewhere."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.core.job import Hang, HungRanks
from clusterctl.core.text import fold_runs, read_table

# -------------------------------------------------------------------------------------------------
# What a thread waits for, by the functions that it is in, and what to do about it: stacks.toml.


class Wait(Struct, frozen=True):
    """`text` goes on after a comma: what it waits for. `advice`: what to do if that never ends."""

    text: str
    advice: str = ""


_TABLES = read_table("stacks")
_WAITS = {name: Wait(**row) for name, row in _TABLES["waits"].items()}
CHILD, FILE_LOCK, LOADER, LOCK, OWN_LOCK, SLEEP = (
    _WAITS[name] for name in ("child", "file_lock", "loader", "lock", "own_lock", "sleep")
)


def explain_wait(native: Iterable[str], libraries: Iterable[tuple[str, str]]) -> Wait | None:
    """`native`: functions in C, innermost first; `libraries`: names and files of Python functions
    around them that are not the program's own, innermost first."""
    for name, file in reversed(tuple(libraries)):
        for wait, rows in _TABLES["libraries"].items():
            for pattern, path in rows:
                if re.fullmatch(pattern, name.rpartition(".")[2]) and re.search(path, file):
                    return _WAITS[wait]
    names = tuple(native)
    return _find_first(names, "callers") or _find_first(names, "functions")


def guess(native: Iterable[str]) -> Wait | None:
    """The same by functions that wait for many things."""
    return _find_first(native, "unclear")


_ENTRY = re.compile(
    r"^_*((x64|ia32|arm64|s390x|se|do|compat|riscv)_)?(compat_)?(k?sys_|SyS_)?|\..*$"
)


def explain_kernel(function: str) -> Wait | None:
    """The same by the function of the kernel that a process waits in."""
    names = function.partition(".")[0], _ENTRY.sub("", function)
    return _find_first((name.lstrip("_") for name in names), "kernel")


def _find_first(names: Iterable[str], table: str) -> Wait | None:
    """By the first of the names that has a row."""
    for name in names:
        for wait, patterns in _TABLES[table].items():
            if any(re.fullmatch(pattern, name) for pattern in patterns):
                return _WAITS[wait]
    return None


# -------------------------------------------------------------------------------------------------

_COLLECTIVES = re.compile(
    r"all_gather\w*|all_reduce\w*|all_to_all\w*|barrier|broadcast\w*|gather\w*|reduce\w*"
    r"|scatter\w*|send\w*|recv\w*|irecv|isend|monitored_barrier|batch_isend_irecv"
    r"|init_process_group|new_group|destroy_process_group"
)
"""Functions of torch.distributed that wait for other ranks."""
_C10D = "torch/distributed/distributed_c10d.py"
_DDP = re.compile(r"/torch/(autograd/\w+|nn/parallel/distributed)\.py$")
"""Python that calls what averages gradients."""
_MPI = re.compile(r"(?:MPI_)?PyMPI_(\w+)|P?(MPI_[A-Z]\w+)")
_MPI4PY = re.compile(r"mpi4py/MPI.*\.pyx")
_RECEIVES = re.compile(r"MPI[_ ](M?recv|I?M?probe)|recv(_object_list)?", re.IGNORECASE)
_SENDS = re.compile(r"MPI[_ ][SBR]?send|send(_object_list)?", re.IGNORECASE)
_LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib/python3[\d.]*/|^<|\.so(\.|$)")
_COMPILED = re.compile(r"\.(c|cc|cpp|cxx|cu|h|hh|hpp|rs|pyx|S|so[\d.]*)$")
_RUNTIME = re.compile(r"/(lib(c|m|dl|pthread|ffi|stdc\+\+|python\w*)|ld-linux[\w-]*)\b[^/]*$")
"""Libraries, and sources of Python's own, that say nothing about the program."""
_PYTHONS_OWN = re.compile(r"/(Modules|Objects|Python|Include)/[^/]+(/[^/]+)?\.[ch]$")
_AT_EXIT = (
    ("_shutdown", "/threading.py"),
    ("_python_exit", "/concurrent/futures/thread.py"),
    ("_python_exit", "/concurrent/futures/process.py"),
    ("_exit_function", "/multiprocessing/util.py"),
)
"""What Python calls after the last line of a program, by function and file."""
_MEETS = (
    "_create_c10d_store",
    "/torch/distributed/rendezvous.py",
    ("hostname", "port", "rank", "world_size"),
)
"""The function that connects to PyTorch's store, its file, and its variables that say with what."""
GRADIENTS = "the all-reduce of gradients (DDP)"
TEARDOWN = "the destructor of a process group"
_LONGEST = 60
"""Characters of a C++ name that are shown."""


class Frame(Struct, frozen=True):
    """`line` is 0 in code that is not Python."""

    name: str
    file: str
    line: int = 0

    @property
    def python(self) -> bool:
        """Whether it is a line of a Python program. Libraries built with debugging symbols have
        lines too."""
        return self.line > 0 and not _COMPILED.search(self.file)

    @property
    def place(self) -> str:
        short = "/".join(self.file.rsplit("/", 3)[-3:]) if "-packages/" in self.file else self.file
        short = short if self.python else self.file.rpartition("/")[2]
        return f"{short}:{self.line}" if self.line else short

    def __str__(self) -> str:
        name = self.name if len(self.name) <= _LONGEST else f"{self.name[:_LONGEST]}…"
        return f"{name} ({self.place})"


class Meeting(Struct, frozen=True):
    """What a rank passes to PyTorch's store when it joins a group, as its program has set it."""

    host: str
    port: int
    rank: int
    world_size: int

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Stack(Struct, frozen=True):
    """A thread, innermost frame first: the main one of a process, with its `others`. Paths of its
    own files are relative to its working directory."""

    frames: tuple[Frame, ...]
    thread: str = ""
    others: tuple[Stack, ...] = ()
    active: bool = True
    """It has or wants a processor; also where that is not known."""
    meeting: Meeting | None = None
    """In init_process_group, where py-spy was asked for the values of variables."""

    @property
    def own(self) -> Frame | None:
        """The innermost line of the program itself."""
        return next(iter(self.path), None)

    @property
    def path(self) -> tuple[Frame, ...]:
        """All its lines of the program itself, innermost first."""
        frames = (frame for frame in self.frames if frame.python)
        return tuple(frame for frame in frames if not _LIBRARIES.search(frame.file))

    @property
    def collective(self) -> str:
        """What it waits in for other ranks; "" where it does not."""
        for frame in reversed(self.frames):
            if frame.file.endswith(_C10D) and _COLLECTIVES.fullmatch(frame.name):
                return frame.name
            if found := _MPI.fullmatch(frame.name):
                return found[2] or f"MPI_{found[1]}"
            if _MPI4PY.search(frame.file):
                return f"MPI {frame.name.rpartition('.')[2]}"
        names = [frame.name for frame in self.frames]
        if self.tears_down:
            return TEARDOWN
        if any("c10d::Reducer" in name for name in names):
            return GRADIENTS
        if self.asleep_in_ddp and "/nn/parallel/" in self.frames[0].file:
            return GRADIENTS  # a busy machine had no time for C frames
        waits = any(name.startswith(("c10d::Work", "c10d::ProcessGroup")) for name in names)
        return "a collective" if waits else ""

    @property
    def asleep_in_ddp(self) -> bool:
        """Whether it sleeps in what calls DDP's all-reduce of gradients. Without C frames, this is
        all that shows of it."""
        return not self.active and bool(self.frames and _DDP.search(self.frames[0].file))

    @property
    def tears_down(self) -> bool:
        """Whether it is in the destructor of a process group, which holds Python's lock."""
        return any("::~ProcessGroup" in frame.name for frame in self.frames)

    @property
    def joins_threads(self) -> bool:
        """Whether its program has ended, and Python waits for threads or processes that run on."""
        return not self.own and any(
            frame.name.rpartition(".")[2] == name and f"/{frame.file}".endswith(file)
            for frame in self.frames
            for name, file in _AT_EXIT
        )

    @property
    def receives(self) -> bool:
        """Whether it waits for a message of one other rank."""
        return bool(_RECEIVES.fullmatch(self.collective))

    @property
    def sends(self) -> bool:
        """Whether it waits until one other rank takes a message."""
        return bool(_SENDS.fullmatch(self.collective))

    @property
    def native(self) -> Frame | None:
        """The function of a compiled library of the program's that it is in."""
        for frame in self.shown:
            if frame.python:
                break
            if not _RUNTIME.search(f"/{frame.file}") and not _PYTHONS_OWN.search(frame.file):
                return frame
        return None

    @property
    def wait(self) -> Wait | None:
        """What it waits for, by the functions that it is in; None where they do not tell."""
        return explain_wait(self._list_natives(), self._list_libraries())

    @property
    def unclear_wait(self) -> Wait | None:
        """The same where the kernel may know more."""
        return guess(self._list_natives())

    @property
    def waits(self) -> str:
        """`wait` in words, "" where it is None."""
        wait = self.wait or self.unclear_wait
        return wait.text if wait else ""

    def _list_natives(self) -> tuple[str, ...]:
        inner = takewhile(lambda frame: not frame.python, self.frames)
        return tuple(frame.name for frame in inner)

    def _list_libraries(self) -> tuple[tuple[str, str], ...]:
        """Python functions between those and the program's own, as name and file."""
        inner = takewhile(lambda frame: frame is not self.own, self.frames)
        return tuple((frame.name, f"/{frame.file}") for frame in inner if frame.python)

    @property
    def blocked(self) -> bool:
        """Whether the kernel wakes it only for what it waits for: it does not poll."""
        names = [frame.name for frame in self.frames[:2]]
        return any(re.fullmatch(r"(__)?pthread_cond_\w*wait\w*", name) for name in names)

    def find_left_by(self, other: Stack) -> Frame | None:
        """The innermost line of the program in another thread or process that this one, or what
        started it, is not in: an idle thread has none. A forked process has the frames of both."""
        mine = {(frame.name, frame.file) for frame in self.frames}
        own = other.own
        return own if own and (own.name, own.file) not in mine else None

    @property
    def point(self) -> tuple[str, str]:
        """Equal for ranks that stand at the same place."""
        own = self.own
        inner = self.frames[0].name if self.frames and not own else ""
        return self.collective, own.place if own else inner

    def describe(self) -> str:
        own = self.own
        where = f"{own.name}, {own.place}" if own else ""
        if own and (native := self.native):
            where += f", in {native}"
        if self.collective:
            return f"{self.collective}{f' at {own.place}' if own else ''}"
        return where or (str(self.frames[0]) if self.frames else "an unknown place")

    @property
    def shown(self) -> tuple[Frame, ...]:
        """Without what only binds C++ to Python."""
        return tuple(f for f in self.frames if not f.name.startswith(("pybind11::", "0x")))


def parse_stacks(text: str, folder: str) -> Stack | None:
    """What `py-spy dump --json` printed of a process; `folder` is the rank's working directory.
    None where that is no answer."""
    try:
        threads = json.loads(text)
        main = next((t for t in threads if t["pid"] == t["os_thread_id"]), threads[0])
        others = tuple(_make_stack(t, folder) for t in threads if t is not main)
        stack = _make_stack(main, folder)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return replace(stack, others=others) if stack.frames else None


def _make_stack(dump: Mapping[str, Any], folder: str) -> Stack:
    frames = (
        Frame(f["name"], f["filename"].removeprefix(f"{folder}/"), f["line"] or 0)
        for f in dump["frames"]
    )
    name, active = dump.get("thread_name") or "", dump.get("active", True)
    return Stack(tuple(frames), name, active=bool(active), meeting=_find_meeting(dump))


def _find_meeting(dump: Mapping[str, Any]) -> Meeting | None:
    """No other variables of the program are kept."""
    for frame in dump["frames"]:
        if frame["name"] == _MEETS[0] and frame["filename"].endswith(_MEETS[1]):
            values = {item["name"]: item["repr"] for item in frame.get("locals") or ()}
            with suppress(ValueError, LookupError, TypeError):
                host, port, rank, size = (json.loads(values[name]) for name in _MEETS[2])
                return Meeting(str(host), int(port), int(rank), int(size))
    return None


class Folded(Struct, frozen=True):
    """Ranks that stand at the same place, with the stack of the first."""

    ranks: tuple[int, ...]
    stack: Stack


def fold(stacks: Mapping[int, Stack], *, callers: bool = False) -> tuple[Folded, ...]:
    """The most common place first. `callers`: those that have come there from different lines of
    the program stand apart."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(stacks):
        came = stacks[rank].path if callers else ()
        groups.setdefault((stacks[rank].point, came), []).append(rank)
    order = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    return tuple(Folded(tuple(ranks), stacks[ranks[0]]) for ranks in order)


def tell_callers(stacks: Mapping[int, Stack]) -> str:
    """The innermost lines at which ranks at one place differ, as through a function that calls a
    collective for several others: `rank 0 from step, a.py:3; rank 1 from step, a.py:6`. "" where
    they have come there from the same ones."""
    paths = [stack.path for stack in stacks.values()]
    depths = range(max(map(len, paths), default=0))
    depth = next((i for i in depths if len({path[i : i + 1] for path in paths}) > 1), None)
    if depth is None:
        return ""
    groups: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        frame = next(iter(stack.path[depth : depth + 1]), None)
        groups.setdefault(f"{frame.name}, {frame.place}" if frame else "no other", []).append(rank)
    return "; ".join(f"{name_ranks(ranks)} from {place}" for place, ranks in groups.items())


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0, 2-7`."""
    runs = fold_runs(ranks)
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'' if sum(map(len, runs)) == 1 else 's'} {', '.join(texts)}"


# -------------------------------------------------------------------------------------------------
# Where the ranks of an attempt stood that had printed nothing for too long: what their nodes noted
# before it was ended (clusterctl/agent/stacks.py), and how that is told. Pure.


LARGEST = 4_000_000
"""Bytes of a note, unpacked, that are read."""
SILENT = "py-spy did not answer in time"
NAMED = 3
"""Ranks that are named one by one."""


class Note(Struct, frozen=True):
    """What a node showed of a rank. `state` is the letter of ps(1), `waits` the function of the
    kernel that it waited in, and `why` says why there is no stack."""

    pid: int = 0
    command: str = ""
    state: str = ""
    waits: str = ""
    why: str = ""
    stack: Stack | None = None

    @property
    def stopped(self) -> bool:
        return self.state in ("T", "t")

    @property
    def place(self) -> tuple[object, ...]:
        """Equal for ranks that are told together."""
        return self.stopped, self.state == "D", self.why, self.stack and self.stack.point


def read_hang_notes(data: str) -> Note:
    """A note as it is in the state file and the record; one that knows nothing if it is damaged."""
    try:
        text = zlib.decompressobj(wbits=31).decompress(b64decode(data), LARGEST)
    except (ValueError, zlib.error):
        return Note(why=SILENT)
    head, bracket, dump = text.decode(errors="replace").partition("\n[")
    facts = dict(line.partition(" ")[::2] for line in head.splitlines())
    pid, _, rest = facts.get("process", "").partition(" (")
    command, _, numbers = rest.rpartition(") ")
    stack = parse_stacks(bracket + dump, facts.get("folder", "")) if bracket else None
    waits = facts.get("waits", "")
    return Note(
        pid=int(pid) if pid.isdecimal() and len(pid) < 20 else 0,
        command="python" if facts.get("python") else command,
        state=numbers[:1],
        waits="" if waits == "0" else waits,
        why="" if stack else facts.get("why", "") or SILENT,
        stack=stack,
    )


def fold_hang_notes(attempt: int, seconds: float, notes: Mapping[int, str]) -> Hang:
    """The notes of an attempt's ranks, as they are kept: of ranks at the same place that of the
    first. The most common place comes first."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(notes):
        groups.setdefault(read_hang_notes(notes[rank]).place, []).append(rank)
    order = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    places = tuple(HungRanks(ranks=tuple(ranks), note=notes[ranks[0]]) for ranks in order)
    return Hang(attempt=attempt, seconds=seconds, places=places)


def describe_hang(hang: Hang, name: Callable[[int], str]) -> str:
    """Which ranks stood elsewhere than the others, and where; "" where nothing is known. `name`:
    of a rank, with its node."""
    found = [(place.ranks, read_hang_notes(place.note)) for place in hang.places]
    if not found:
        return ""
    if all(note.stack is None and not note.stopped for _, note in found):
        ranks, note = found[0]
        return f"no stack of {name_ranks(ranks)}: {note.why}"
    waiting = [item for item in found if item[1].stack and item[1].stack.collective]
    odd = [item for item in found if item not in waiting] if waiting else found[1:]
    common = (waiting or found)[0]
    if not odd:
        where = (f"{name_ranks(ranks)} {_describe_place(note)}" for ranks, note in waiting or found)
        return "; ".join(where)
    told = "; ".join(f"{_name(ranks, name)} {_describe_place(note)}" for ranks, note in odd[:NAMED])
    return f"{told}, while {name_ranks(common[0])} {_describe_place(common[1])}"


def _name(ranks: Sequence[int], name: Callable[[int], str]) -> str:
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return ", ".join(map(name, ranks[:NAMED])) + more


def _describe_place(note: Note) -> str:
    stack = note.stack
    at = stack.describe() if stack else ""
    if note.stopped:
        return f"stopped by SIGSTOP or a debugger{f' ({at})' if at else ''}"
    if note.state == "D":
        return f"waiting for a disk or a network file system{f' at {at}' if at else ''}"
    if stack is None:
        return f"at an unknown place ({note.why})"
    if stack.collective:
        return f"waiting in {at}"
    return f"at {at}{f', {stack.waits}' if stack.waits else ''}"
