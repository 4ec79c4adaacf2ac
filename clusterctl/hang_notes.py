"""Where the ranks of an attempt stood that had printed nothing for too long: what their nodes noted
before it was ended (templates/job/stacks.sh.j2), and how that is told. Pure."""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clusterctl import stacks
from clusterctl.job_model import Hang, HungRanks
from clusterctl.stacks import Stack, name_ranks

LARGEST = 4_000_000
"""Bytes of a note, unpacked, that are read."""
SILENT = "py-spy did not answer in time"
NAMED = 3
"""Ranks that are named one by one."""


@dataclass(frozen=True, slots=True)
class Note:
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


def read(data: str) -> Note:
    """A note as it is in the state file and the record; one that knows nothing if it is damaged."""
    try:
        text = zlib.decompressobj(wbits=31).decompress(b64decode(data), LARGEST)
    except (ValueError, zlib.error):
        return Note(why=SILENT)
    head, bracket, dump = text.decode(errors="replace").partition("\n[")
    facts = dict(line.partition(" ")[::2] for line in head.splitlines())
    pid, _, rest = facts.get("process", "").partition(" (")
    command, _, numbers = rest.rpartition(") ")
    stack = stacks.parse(bracket + dump, facts.get("folder", "")) if bracket else None
    waits = facts.get("waits", "")
    return Note(
        pid=int(pid) if pid.isdecimal() and len(pid) < 20 else 0,
        command="python" if facts.get("python") else command,
        state=numbers[:1],
        waits="" if waits == "0" else waits,
        why="" if stack else facts.get("why", "") or SILENT,
        stack=stack,
    )


def fold(attempt: int, seconds: float, notes: Mapping[int, str]) -> Hang:
    """The notes of an attempt's ranks, as they are kept: of ranks at the same place that of the
    first. The most common place comes first."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(notes):
        groups.setdefault(read(notes[rank]).place, []).append(rank)
    order = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    places = tuple(HungRanks(ranks=tuple(ranks), note=notes[ranks[0]]) for ranks in order)
    return Hang(attempt=attempt, seconds=seconds, places=places)


def describe(hang: Hang, name: Callable[[int], str]) -> str:
    """Which ranks stood elsewhere than the others, and where; "" where nothing is known. `name`:
    of a rank, with its node."""
    found = [(place.ranks, read(place.note)) for place in hang.places]
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
