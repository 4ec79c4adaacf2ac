"""The state file of a job: the facts that its scripts note on the nodes.

The scripts (templates/job, templates/batch) append lines to the file `state` in the job's folder,
and judge nothing: `job_state` does. TIME is in seconds since the epoch. A line counts for the
attempt before it:

    queued TIME                       it waits for its turn, or is back in the batch system's queue
    running TIME ATTEMPT              an attempt starts
    placed TIME NODE:RANKS,…          in rank order (batch systems: nobody knew before)
    stop TIME CAUSE                   its ranks are told to end, for one of CAUSES
    hung TIME SECONDS                 its ranks are ended, for none has written anything for so long
    stack TIME RANK NOTE              where one of them stood then (see clusterctl/hang_notes.py)
    launcher TIME CODE                mpirun or srun has ended
    daemon TIME NODE                  mpirun has lost its daemon there
    first TIME RANK CODE              whose end mpirun gives as its reason: a rank's, a torchrun's
    away TIME NODE                    it does not answer now; it may later
    started TIME COUNT                so many ranks were started
    exit TIME RANK CODE ATTEMPT       a rank has ended, or a point of a sweep
    clock TIME NODE OFFSET DOUBT      its clock, by which `exit` has the time of its ranks, was so
                                      many seconds ahead of the launcher's, give or take DOUBT
    point TIME POINT NODE             a point of a sweep was given to that node
    survivors TIME NODE COUNT         processes that were left there at last
    survivors TIME NODE ? CODE TEXT   it did not answer; what ssh ended with, and its last line
    full TIME NODE                    its disk is full
    oom TIME RANK ATTEMPT             memory ran out, and the kernel killed a process there
    told TIME RANK ATTEMPT            it was told to end before it did
    alone TIME RANK DIGEST            it used torch, and has joined no other rank; DIGEST is that of
                                      its arguments (see templates/job/sitecustomize.py)
    node TIME NODE WORD               something came over the node: one of EVENTS
    dead TIME                         the supervisor is gone, and nobody else writes anything
    absent TIME                       there is no such file: the job was never handed in, or the
                                      launcher was made anew
    ended TIME                        nothing more will happen (`survivors` may follow)

Jobs that were started by earlier versions end with one line that says it all, and are read too:

    ended TIME state=failed code=3 rank=1 node=worker-2 started=2 mpirun=1 full=w-1, survivors=…
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterctl import hang_notes
from clusterctl.job_model import Hang, JobState, Placement

CAUSES: Mapping[str, JobState] = {
    "cancelled": JobState.CANCELLED,
    "timeout": JobState.TIMEOUT,
    "checkpoint": JobState.TIMEOUT,  # the batch system's limit is near
    "no-rank": JobState.FAILED,  # the launch took too long
    "signal": JobState.FAILED,  # to the supervisor, from somebody else than clusterctl
    "stopped": JobState.RUNNING,  # by the batch system, which knows whether it will run again
}

EVENTS: Mapping[str, str] = {
    "restarted": "{} restarted while the job ran",
    "spot": "EC2 reclaimed the spot instance {}",
    "deadline": "{} reached the cluster's deadline",
}
"""What may come over a node, and how it is said."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What has been noted since the last attempt began."""

    number: int = 0
    waits: bool = False
    stop: str = ""
    hung: float = 0.0
    """Seconds without output after which it was ended; 0: it was not."""
    stacks: dict[int, str] = field(default_factory=dict)
    """By rank, where they stood before that."""
    launcher_code: int | None = None
    """That of mpirun or srun: the program, not the node."""
    launcher_ended: float = 0.0
    lost_daemons: list[str] = field(default_factory=list)
    """Nodes on which mpirun has lost its daemon."""
    blamed: tuple[int, int] | None = None
    """The process that mpirun blames, and its exit code."""
    away: dict[str, float] = field(default_factory=dict)
    """By node that did not answer for a while: the last time."""
    started: int = 0
    exits: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By rank: when, and with which code."""
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By node: how many seconds its clock is ahead of the launcher's, and to within how many."""
    where: dict[int, str] = field(default_factory=dict)
    """By point of a sweep: its node."""
    survivors: dict[str, int] = field(default_factory=dict)
    """By node; -1: it did not answer."""
    silences: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By node that did not answer, if that is known: what ssh ended with, and its last line."""
    full: list[str] = field(default_factory=list)
    out_of_memory: set[int] = field(default_factory=set)
    """Ranks."""
    told: set[int] = field(default_factory=set)
    """Ranks that did not end by themselves."""
    alone: dict[int, str] = field(default_factory=dict)
    """By rank that has joined no other one: the digest of its arguments."""
    events: dict[str, str] = field(default_factory=dict)
    """By node: one of EVENTS."""
    dead: float | None = None
    ended: float | None = None
    said: JobState | None = None
    """The state that a script of an earlier version has named."""


@dataclass(slots=True)
class Facts:
    """The lines, read one by one."""

    last: Attempt = field(default_factory=Attempt)
    before: Attempt | None = None
    """The attempt before the last, if that has failed."""
    began: float | None = None
    """When the first attempt did."""
    placement: tuple[Placement, ...] = ()
    absent: float | None = None
    hung: list[Attempt] = field(default_factory=list)
    """The attempts that were ended because their ranks had written nothing."""

    @property
    def hangs(self) -> tuple[Hang, ...]:
        return tuple(hang_notes.fold(item.number, item.hung, item.stacks) for item in self.hung)

    def add(self, line: str) -> None:
        """Raises ValueError or LookupError for a line that means nothing."""
        word, time, *rest = line.split()
        when, last = float(time), self.last
        if word == "queued" and not last.ended:
            self.last = Attempt(number=last.number, waits=True)
        elif word == "running" and not last.ended:
            attempt = int(rest[0]) if rest else 1
            if attempt == 1:
                self.began = when
            self.before = last if last.launcher_code is not None and attempt > last.number else None
            self.last = Attempt(number=attempt)
        elif word == "placed":
            self.placement = _read_placements(rest[0]) or self.placement
        elif word == "stop" and rest[0] in CAUSES:
            last.stop = rest[0]
        elif word == "hung":
            last.hung = float(rest[0])
            self.hung = [*(item for item in self.hung if item is not last), last]
        elif word == "stack":
            last.stacks[int(rest[0])] = rest[1]
        elif word == "launcher":
            last.launcher_code, last.launcher_ended = int(rest[0]), when
        elif word == "daemon":
            last.lost_daemons = list(dict.fromkeys((*last.lost_daemons, rest[0])))
        elif word == "first":
            last.blamed = last.blamed or (int(rest[0]), int(rest[1]))
        elif word == "away":
            last.away[rest[0]] = when
        elif word == "started":
            last.started = int(rest[0])
        elif word == "exit":
            rank, code, attempt = map(int, rest)
            if attempt == last.number:
                last.exits[rank] = (when, code)
        elif word == "clock":
            last.clocks[rest[0]] = float(rest[1]), float(rest[2])
        elif word == "point":
            last.where[int(rest[0])] = rest[1]
        elif word == "survivors":
            last.survivors[rest[0]] = -1 if rest[1] == "?" else int(rest[1])
            last.silences.pop(rest[0], None)
            if rest[2:]:
                last.silences[rest[0]] = int(rest[2]), " ".join(rest[3:])
        elif word == "full":
            last.full = list(dict.fromkeys((*last.full, rest[0])))
        elif word in ("oom", "told"):
            rank, attempt = map(int, rest)
            if attempt == last.number:
                (last.told if word == "told" else last.out_of_memory).add(rank)
        elif word == "alone":
            last.alone[int(rest[0])] = rest[1]
        elif word == "node" and rest[1] in EVENTS:
            last.events[rest[0]] = rest[1]
        elif word == "dead" and not last.ended:
            last.dead = when
        elif word == "absent":
            self.absent = when
        elif word == "ended":
            if rest and not last.ended:
                _add_old(last, when, rest)
            last.ended = last.ended or when
        elif word == "swept":  # of earlier versions, as the next
            last.survivors = _read_survivors(rest[0].removeprefix("survivors="))
        elif word == "stopped":
            last.stop = word


def read(text: str) -> Facts:
    """What a state file says. A line that means nothing, or that a full disk has cut off, is left
    out."""
    facts = Facts()
    for line in text.splitlines():
        try:
            facts.add(line)
        except (ValueError, LookupError):
            continue
    return facts


def _add_old(last: Attempt, when: float, rest: list[str]) -> None:
    """The line with which a script of an earlier version ends."""
    values = dict(item.split("=", 1) for item in rest)
    code = int(values.get("code") or 0)
    if values.get("rank"):
        last.exits[int(values["rank"])] = (when, code)
    last.launcher_code = int(values.get("mpirun") or code)
    last.started = int(values.get("started") or 1)
    last.survivors = _read_survivors(values.get("survivors", ""))
    last.full = [name for name in values.get("full", "").split(",") if name]
    last.said = JobState(values["state"])


def _read_placements(text: str) -> tuple[Placement, ...]:
    """`node-1:2,node-2:1,` in rank order."""
    places: list[Placement] = []
    for item in text.split(","):
        node, _, count = item.rpartition(":")
        if node:
            first = sum(place.count for place in places)
            places.append(Placement(node=node, first=first, count=int(count)))
    return tuple(places)


def _read_survivors(text: str) -> dict[str, int]:
    """`worker-1:0,worker-2:?,` of earlier versions."""
    pairs = (item.split(":") for item in text.split(",") if item)
    return {name: -1 if count == "?" else int(count) for name, count in pairs}
