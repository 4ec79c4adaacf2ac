"""Stacks of ranks: what py-spy prints, where a rank stands, and which ranks stand elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_COLLECTIVES = re.compile(
    r"all_gather\w*|all_reduce\w*|all_to_all\w*|barrier|broadcast\w*|gather\w*|reduce\w*"
    r"|scatter\w*|send\w*|recv\w*|irecv|isend|monitored_barrier|batch_isend_irecv"
    r"|init_process_group|new_group|destroy_process_group"
)
"""Functions of torch.distributed that wait for other ranks."""
_C10D = "torch/distributed/distributed_c10d.py"
_MPI = re.compile(r"P?(MPI_[A-Z]\w+)|PyMPI_(\w+)")
_MPI4PY = re.compile(r"mpi4py/MPI.*\.pyx")
_LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib/python3[\d.]*/|^<|\.(so|pyx)(\.|$)")
_LONGEST = 60
"""Characters of a C++ name that are shown."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`line` is 0 in code that is not Python."""

    name: str
    file: str
    line: int = 0

    @property
    def place(self) -> str:
        short = "/".join(self.file.rsplit("/", 3)[-3:]) if "-packages/" in self.file else self.file
        short = short if self.line else self.file.rpartition("/")[2]
        return f"{short}:{self.line}" if self.line else short

    def __str__(self) -> str:
        name = self.name if len(self.name) <= _LONGEST else f"{self.name[:_LONGEST]}…"
        return f"{name} ({self.place})"


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of a rank, innermost frame first. Paths of its own files are relative to its
    working directory."""

    frames: tuple[Frame, ...]

    @property
    def own(self) -> Frame | None:
        """The innermost line of the program itself."""
        inner = (frame for frame in self.frames if frame.line)
        return next((frame for frame in inner if not _LIBRARIES.search(frame.file)), None)

    @property
    def collective(self) -> str:
        """What it waits in for other ranks; "" where it does not."""
        for frame in reversed(self.frames):
            if frame.file.endswith(_C10D) and _COLLECTIVES.fullmatch(frame.name):
                return frame.name
            if found := _MPI.fullmatch(frame.name):
                return found[1] or f"MPI_{found[2]}"
            if _MPI4PY.search(frame.file):
                return f"MPI {frame.name.rpartition('.')[2]}"
        names = [frame.name for frame in self.frames]
        if any("c10d::Reducer" in name for name in names):
            return "the all-reduce of gradients (DDP)"
        waits = any(name.startswith(("c10d::Work", "c10d::ProcessGroup")) for name in names)
        return "a collective" if waits else ""

    @property
    def point(self) -> tuple[str, str]:
        """Equal for ranks that stand at the same place."""
        own = self.own
        inner = self.frames[0].name if self.frames and not own else ""
        return self.collective, own.place if own else inner

    def describe(self) -> str:
        own = self.own
        where = f"{own.name}, {own.place}" if own else ""
        if self.collective:
            return f"{self.collective}{f' at {own.place}' if own else ''}"
        return where or (str(self.frames[0]) if self.frames else "an unknown place")

    @property
    def shown(self) -> tuple[Frame, ...]:
        """Without what only binds C++ to Python."""
        return tuple(f for f in self.frames if not f.name.startswith(("pybind11::", "0x")))


def parse(text: str, folder: str) -> Stack | None:
    """What `py-spy dump --json` printed of a process; `folder` is the rank's working directory.
    None where that is no answer."""
    try:
        threads = json.loads(text)
        main = next((t for t in threads if t["pid"] == t["os_thread_id"]), threads[0])
        frames = tuple(
            Frame(f["name"], f["filename"].removeprefix(f"{folder}/"), f["line"] or 0)
            for f in main["frames"]
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return Stack(frames) if frames else None


@dataclass(frozen=True, slots=True)
class Folded:
    """Ranks that stand at the same place, with the stack of the first."""

    ranks: tuple[int, ...]
    stack: Stack


def fold(stacks: Mapping[int, Stack]) -> tuple[Folded, ...]:
    """The most common place first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(stacks[rank].point, []).append(rank)
    order = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    return tuple(Folded(tuple(ranks), stacks[ranks[0]]) for ranks in order)


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0, 2-7`."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [_run(run) for run in runs]
    return f"rank{'' if len(numbers) == 1 else 's'} {', '.join(texts)}"


def _run(run: Sequence[int]) -> str:
    if len(run) < 3:
        return ", ".join(map(str, run))
    return f"{run[0]}-{run[-1]}"
