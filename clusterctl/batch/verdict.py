"""What became of a job: whether it waits, runs, has succeeded, failed, or is lost, and why. It is
judged by the lines of its file `state` (clusterctl/agent/messages.py).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.agent import messages
from clusterctl.core.job import Hang, Job, JobState, Placement, RankFailure
from clusterctl.core.text import count, describe_exit

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


class Attempt(Struct, kw_only=True):
    """What has been noted since the last attempt began."""

    number: int = 0
    waits: bool = False
    ahead: str = ""
    """The numbers of the jobs for which it waits."""
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


class Facts(Struct):
    """The lines, read one by one."""

    attempts: list[Attempt] = field(default_factory=lambda: [Attempt()])
    began: float | None = None
    """When the first attempt did."""
    placement: tuple[Placement, ...] = ()
    absent: float | None = None

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    @property
    def before(self) -> Attempt | None:
        """The attempt before the last, if that has failed."""
        *_, before, last = (Attempt(), *self.attempts)
        ended = before.launcher_code is not None and before.number < last.number
        return before if ended else None

    @property
    def hangs(self) -> tuple[Hang, ...]:
        """Of the attempts that were ended because their ranks had written nothing."""
        return tuple(_fold_hang(attempt) for attempt in self.attempts if attempt.hung)

    def add(self, line: str) -> None:
        """Raises ValueError or LookupError for a line that means nothing."""
        word, when, said = messages.read_line(line)
        last = self.last
        match [word, *said]:
            case ["queued", *ahead] if not last.ended:
                behind = "".join(map(str, ahead)).replace(",", ", ")
                self.attempts.append(Attempt(number=last.number, waits=True, ahead=behind))
            case ["running", *number] if not last.ended:
                self.attempts.append(Attempt(number=number[0] if number else 1))
                if self.last.number == 1:
                    self.began = when
            case ["placed", places]:
                self.placement = _read_placements(places) or self.placement
            case ["stop", cause] if cause in CAUSES:
                last.stop = cause
            case ["hung", seconds]:
                last.hung = seconds
            case ["stack", rank, note]:
                last.stacks[rank] = note
            case ["launcher", code]:
                last.launcher_code, last.launcher_ended = code, when
            case ["daemon", node] if node not in last.lost_daemons:
                last.lost_daemons.append(node)
            case ["first", rank, code] if not last.blamed:
                last.blamed = rank, code
            case ["away", node]:
                last.away[node] = when
            case ["started", number]:
                last.started = number
            case ["exit", rank, code, last.number]:
                last.exits[rank] = when, code
            case ["clock", node, ahead, uncertainty]:
                last.clocks[node] = ahead, uncertainty
            case ["point", point, node]:
                last.where[point] = node
            case ["survivors", node, left, *silence]:
                last.survivors[node] = left
                last.silences.pop(node, None)
                if silence:
                    last.silences[node] = silence[0], " ".join(silence[1:])
            case ["full", node] if node not in last.full:
                last.full.append(node)
            case ["oom", rank, last.number]:
                last.out_of_memory.add(rank)
            case ["told", rank, last.number]:
                last.told.add(rank)
            case ["alone", rank, arguments]:
                last.alone[rank] = arguments
            case ["node", node, event] if event in EVENTS:
                last.events[node] = event
            case ["dead"] if not last.ended:
                last.dead = when
            case ["absent"]:
                self.absent = when
            case ["ended"]:
                last.ended = last.ended or when


def read_state(text: str) -> Facts:
    """What a state file says. A line that means nothing, or that a full disk has cut off, is left
    out."""
    facts = Facts()
    for line in text.splitlines():
        try:
            facts.add(line)
        except (ValueError, LookupError):
            continue
    return facts


def _read_placements(text: str) -> tuple[Placement, ...]:
    """`node-1:2,node-2:1,` in rank order."""
    places: list[Placement] = []
    for node, number in re.findall(r"([^,:]+):(\d+)", text):
        first = sum(place.count for place in places)
        places.append(Placement(node=node, first=first, count=int(number)))
    return tuple(places)


def _fold_hang(attempt: Attempt) -> Hang:
    from clusterctl.core import stacks as core_stacks  # its tables are for jobs that hang

    return core_stacks.fold_hang_notes(attempt.number, attempt.hung, attempt.stacks)


# -------------------------------------------------------------------------------------------------
# Which rank failed first: what `run` and `doctor` go by. Pure.


TOLD_TO_END = 143
"""The exit code of a rank that SIGTERM has ended, which is how a launcher ends the others."""
CRASHES = (132, 134, 135, 136, 139)
"""Of ranks that SIGILL, SIGABRT, SIGBUS, SIGFPE or SIGSEGV have ended, which is their own fault."""
LOST_PEER = 14
"""MPI_ERR_UNKNOWN: with it Open MPI ends a rank that loses its connection to another one. MPI may
notice that sooner than the shell that waits for the other one, which has crashed (seen with Open
MPI 5.0.11)."""

LOST_DAEMON = 195
"""PMIX_ERR_LOST_CONNECTION: with it a rank ends whose daemon of mpirun has gone."""


class RankEnd(NamedTuple):
    """How a rank has ended. `when` is by one clock for all; `follows`: what it has printed says
    that another one had gone before it, as far as anybody has looked; `told`: whether it was told
    to end, if that is known."""

    rank: int
    code: int
    when: float
    follows: bool = False
    told: bool | None = None


def correct(when: float, offset: float, uncertainty: float) -> float:
    """`when`, by a clock that is `offset` seconds ahead, known to within `uncertainty`, by the one
    that it was compared with. A difference that may be none changes nothing: it would put ranks of
    nodes with good clocks into the order in which the network was slow."""
    return when - offset if abs(offset) > uncertainty >= 0 else when


def sort_failures(ends: Iterable[RankEnd]) -> list[RankEnd]:
    """The failed ones, the first before the others: who was told to end comes after those that were
    not, and who only follows comes after those that have failed by themselves."""
    failed = [end for end in ends if end.code]
    crashed = any(end.code in CRASHES for end in failed)

    def place(end: RankEnd) -> tuple[bool, bool, float, int]:
        follows = end.follows or (crashed and end.code == LOST_PEER)
        told = end.code == TOLD_TO_END if end.told is None else end.told
        return told, follows, end.when, end.rank

    return sorted(failed, key=place)


# -------------------------------------------------------------------------------------------------

NO_RANK = "no rank was started"
NOT_HANDED_IN = "its clusterctl ended, or lost its connection,"
NO_SUPERVISOR = "its supervisor on the launcher is gone"
_SIGNALLED = "a signal ended its supervisor on the launcher"
NO_FOLDER = "the launcher no longer has the job's files; it was probably replaced by a new machine"
_FULL = "disk full on "
_AWAY = "{} was away while the job ran"
_GIVES_UP = 120.0
"""Seconds after which mpirun has given up a node that does not answer: it takes half a minute."""
_ABORTED = 128 + signal.SIGABRT
_NAMED = 4
"""Ranks that a reason names; of others it gives the number."""


def judge(job: Job, text: str) -> Job:
    """The job as its state file, from the beginning, describes it."""
    facts = read_state(text)
    last = facts.last
    if job.state.ended:
        seen = (last.ended or last.dead) and last.survivors
        return replace(job, survivors=last.survivors) if seen else job
    if facts.absent is not None:
        if job.state is JobState.QUEUED:
            return mark_unsubmitted(job, facts)
        # A running job that loses its folder may still be running.
        lost = replace(job, state=JobState.LOST, finished=facts.absent, reason=NO_FOLDER)
        return lost if facts.last.dead else job
    job = replace(
        job,
        placement=facts.placement or job.placement,
        started=facts.began or job.started,
        attempt=last.number or job.attempt,
        hangs=facts.hangs,
    )
    if job.spec.is_sweep:
        ended = {str(point): code for point, (_, code) in sorted(last.exits.items())}
        job = replace(job, points_ended=ended or job.points_ended)
    if last.ended or last.dead:
        return _end(job, last)
    if last.waits:
        several = "s" * ("," in last.ahead)
        waits = f"behind job{several} {last.ahead}" if last.ahead else job.reason
        return replace(job, state=JobState.QUEUED, reason=waits)
    if not last.number:
        return job
    return replace(job, state=JobState.RUNNING, reason=_explain_again(job, facts.before))


def _explain_again(job: Job, before: Attempt | None) -> str:
    """How the attempt before has failed; "" where that is not known, or there was none."""
    if before is None:
        return ""
    failure = None if before.hung else _find_first_failure(job, before)
    reason = _explain(job, JobState.FAILED, before, failure)
    return "; ".join(filter(None, (failure.text if failure else "", reason)))


def mark_unsubmitted(job: Job, facts: Facts, when: float | None = None) -> Job:
    """A job that nobody hands in any more, since `when`: given up, or its clusterctl died."""
    finished = facts.absent or when
    if facts.last.stop:
        return replace(job, state=CAUSES[facts.last.stop], finished=finished, reason="")
    restarted = [name for name, word in facts.last.events.items() if word == "restarted"]
    cause = f"{', '.join(restarted)} restarted" if restarted else NOT_HANDED_IN
    reason = f"{cause} before it was submitted"
    return replace(job, state=JobState.LOST, finished=finished, reason=reason)


def has_never_started(job: Job) -> bool:
    """Whether a job failed before any of its ranks ran."""
    return job.state is JobState.FAILED and (job.started is None or job.reason.startswith(NO_RANK))


def is_disk_full(job: Job) -> bool:
    """Whether a job failed on a node whose disk is full."""
    return _FULL in job.reason


def is_cut_off(job: Job, node: str) -> bool:
    """Whether a job failed only because that node, which answers again, was away for a while."""
    return job.state is JobState.FAILED and _AWAY.format(node) in _split(job)


def is_reclaimed(job: Job, node: str) -> bool:
    """Whether EC2 has announced the end of that node, a spot instance, while the job ran. The node
    may still answer for two minutes."""
    return EVENTS["spot"].format(node) in _split(job)


def has_restarted(job: Job, node: str) -> bool:
    """Whether that node restarted while the job ran, as far as it has said so. It may answer."""
    return EVENTS["restarted"].format(node) in _split(job)


def _split(job: Job) -> list[str]:
    return job.reason.removeprefix(f"{NO_RANK}: ").split(", ")


def note_restart(job: Job, names: Sequence[str]) -> Job:
    """A failed job whose reason says that these nodes restarted, as was found out later."""
    said = [EVENTS["restarted"].format(name) for name in names if not has_restarted(job, name)]
    return replace(job, reason=", ".join((*said, *([job.reason] if job.reason else []))))


def _end(job: Job, last: Attempt) -> Job:
    state = _judge_state(job, last)
    failed = state is JobState.FAILED and not last.hung
    failure = _find_first_failure(job, last) if failed else None
    code = 0 if state is JobState.SUCCEEDED else None
    if failure:
        code = failure.exit_code
    return replace(
        job,
        state=state,
        finished=last.ended or last.dead,
        program_exit_code=code,
        failure=failure,
        survivors=last.survivors,
        reason=_explain(job, state, last, failure),
        never_met=state is JobState.SUCCEEDED and _have_never_met(job, last),
    )


def _have_never_met(job: Job, last: Attempt) -> bool:
    """Whether each of several ranks has done all of the work. Those that were told apart by their
    arguments have not."""
    same = len(set(last.alone.values())) == 1
    return job.ranks > 1 and same and set(last.alone) == set(range(job.ranks))


def _judge_state(job: Job, last: Attempt) -> JobState:
    """A launcher may say 0 after it has lost a node, or after MPI_Abort(comm, 0), and something
    else after it has only lost its connections: how every rank has ended counts. Who was told to
    end may do so with 0, and has not finished."""
    told = CAUSES.get(last.stop, JobState.RUNNING)
    if told.ended:
        return told
    if last.dead:
        return JobState.LOST
    broken = last.told or (last.launcher_code != 0 and (last.events or last.hung))
    well = sum(code == 0 for _, code in last.exits.values())
    whole = last.launcher_code is not None and not broken and well >= len(job.processes)
    return JobState.SUCCEEDED if whole else JobState.FAILED


def _find_first_failure(job: Job, last: Attempt) -> RankFailure | None:
    """The rank that failed first by itself. Where all were told to end, the one that mpirun blames
    for it, if that is a rank: somebody has ended it from outside."""
    where = {rank: last.where.get(rank) or job.find_node(rank) for rank in last.exits}
    own = sort_failures(
        RankEnd(rank, code, correct(when, *last.clocks.get(where[rank], (0, 0))), told=False)
        for rank, (when, code) in last.exits.items()
        if rank not in last.told and not (last.lost_daemons and _is_after_loss(code))
    )
    if own:
        return RankFailure(rank=own[0].rank, node=where[own[0].rank], exit_code=own[0].code)
    if last.lost_daemons or last.stop or not (last.blamed and last.started):
        return None
    if job.spec.launcher == "torchrun":
        return None
    rank, code = last.blamed
    node = job.find_node(rank)
    if not code or last.events.get(node) == "restarted":  # where its wrapper starts no program
        return None
    return RankFailure(rank=rank, node=node, exit_code=code)


def _is_after_loss(code: int) -> bool:
    """Whether a rank may have ended so because it lost its daemon, or a rank that did: no signal
    did it, or its own."""
    return code < 128 or code in (LOST_DAEMON, _ABORTED)


def _explain(job: Job, state: JobState, last: Attempt, failure: RankFailure | None) -> str:
    """Why a job is lost, or failed, where that is not the exit code of a rank."""
    silent = ", ".join(name for name, count in last.survivors.items() if count < 0)
    if state is JobState.LOST:
        restarted = [name for name, word in sorted(last.events.items()) if word == "restarted"]
        parts = [*(EVENTS["restarted"].format(name) for name in restarted), NO_SUPERVISOR]
        return ", ".join(parts) + (f"; {silent} did not answer when it was found" if silent else "")
    if state is not JobState.FAILED:
        return ""
    why = _describe_lost(last)
    if last.full:
        why = f"{_FULL}{', '.join(last.full)}"
    elif last.events:
        said = (EVENTS[word].format(name) for name, word in sorted(last.events.items()))
        why = ", ".join((*said, *([why] if why else [])))
    elif failure and failure.rank in last.out_of_memory:
        why = f"{failure.node} ran out of memory, and the kernel killed a process"
    elif last.stop == "signal" and not failure:
        why = ", ".join(filter(None, (_SIGNALLED, why)))
    elif last.hung and not silent:
        why = describe_hang(job, _fold_hang(last))
    launcher = "mpirun on the launcher" if job.scheduler == "direct" else "srun or mpirun"
    how = describe_exit(last.launcher_code or 0).replace("exited", "ended with")
    if job.scheduler == "direct" and not how.startswith("ended"):
        launcher += " or its daemon on a node"  # whose code it takes for its own
    ended = f"{launcher} {how}"
    if not last.started and not last.where:
        why = why or _describe_cut_off(job, last)
        why = why or ended * (how.startswith("was killed") and not last.stop)
        return f"{NO_RANK}: {why}" if why else NO_RANK
    if why:
        return why
    if job.spec.is_sweep:
        return _describe_points(job)
    if failure:
        return ""
    if why := _describe_cut_off(job, last):
        return why
    if last.told and last.launcher_code == 0 and len(last.told) < job.ranks:
        others = _name_ranks(job, sorted({*range(job.ranks)} - last.told))
        return f"a rank ended the others, as MPI_Abort(…, 0) does; not ended: {others} ({ended})"
    missing = [rank for rank in range(job.ranks) if rank not in last.exits]
    if missing and last.exits:
        return f"{_name_ranks(job, missing)} left no exit code: killed or lost ({ended})"
    if missing:
        return f"{ended}, and no rank left an exit code: it or the ranks were killed or lost"
    return f"{ended} although no rank had failed"


def _describe_cut_off(job: Job, last: Attempt) -> str:
    """What took the ranks from mpirun, and is no failure of theirs."""
    away = [n for n, when in last.away.items() if when > last.launcher_ended - _GIVES_UP]
    if away:
        return ", ".join(_AWAY.format(name) for name in sorted(away))
    if last.lost_daemons:
        return f"mpirun lost its daemon on {', '.join(last.lost_daemons)}"
    if last.blamed and job.spec.launcher == "torchrun" and last.blamed[0] < len(job.placement):
        node = job.placement[last.blamed[0]].node
        return f"torchrun on {node} {describe_exit(last.blamed[1])}"
    return ""


def describe_hang(job: Job, hang: Hang) -> str:
    """That an attempt hung, and which of its ranks stood elsewhere than the others."""
    from clusterctl.core import stacks as core_stacks

    where = core_stacks.describe_hang(hang, lambda rank: f"rank {rank} on {job.find_node(rank)}")
    silence = f"hung: no rank printed anything for {hang.seconds:g} s"
    return f"{silence}; {where}" if where else silence


def _describe_points(job: Job) -> str:
    """Which points of a sweep did not end well."""
    names = [f"{job.id}.{number}" for number in job.unfinished_points]
    total = count(len(job.processes), "point")
    return f"{len(names)} of {total} did not succeed: {_name_some(names)}"


def _name_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


_STUCK = (124, 137)
"""With these `timeout` ends ssh, which would have said why it had not connected."""


def _describe_lost(last: Attempt) -> str:
    """The nodes that did not answer in the end, and why not, as far as that is known."""
    why: dict[str, list[str]] = {}
    for name in (name for name, left in last.survivors.items() if left < 0):
        code, text = last.silences.get(name, (0, ""))
        # Of `ssh: connect to host worker-2 port 22: …`; with _STUCK, it had connected.
        said = "connected, but no reply in time" if code in _STUCK else text.rpartition(": ")[2]
        why.setdefault(said or "no answer when the job ended", []).append(name)
    return ", ".join(f"lost {', '.join(names)}: {said}" for said, names in why.items())


def _name_ranks(job: Job, ranks: Iterable[int]) -> str:
    return _name_some([f"rank {rank} on {job.find_node(rank)}" for rank in ranks])
