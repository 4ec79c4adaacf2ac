"""What became of a job, from the facts that its scripts note on the nodes.

The scripts (templates/job, templates/batch) append lines to the file `state` in the job's folder,
and judge nothing. TIME is in seconds since the epoch. A line counts for the attempt before it:

    queued TIME                       it waits for its turn, or is back in the batch system's queue
    running TIME ATTEMPT              an attempt starts
    placed TIME NODE:RANKS,…          in rank order (batch systems: nobody knew before)
    stop TIME CAUSE                   its ranks are told to end, for one of CAUSES
    hung TIME SECONDS                 its ranks are ended, for none has written anything for so long
    stack TIME RANK NOTE              where one of them stood then (see clusterctl/hangs.py)
    launcher TIME CODE                mpirun or srun has ended
    started TIME COUNT                so many ranks were started
    exit TIME RANK CODE ATTEMPT       a rank has ended, or a point of a sweep
    clock TIME NODE OFFSET DOUBT      its clock, by which `exit` has the time of its ranks, was so
                                      many seconds ahead of the launcher's, give or take DOUBT
    point TIME POINT NODE             a point of a sweep was given to that node
    survivors TIME NODE COUNT         processes that were left there at last; `?`: it did not answer
    full TIME NODE                    its disk is full
    oom TIME RANK ATTEMPT             memory ran out, and the kernel killed a process there
    node TIME NODE WORD               something came over the node: one of EVENTS
    dead TIME                         the supervisor is gone, and nobody else writes anything
    absent TIME                       there is no such file: the job was never handed in, or the
                                      launcher was made anew
    ended TIME                        nothing more will happen (`survivors` may follow)

Jobs that were started by earlier versions end with one line that says it all, and are read too:

    ended TIME state=failed code=3 rank=1 node=worker-2 started=2 mpirun=1 full=w-1, survivors=…
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterctl import hangs
from clusterctl.job_model import Hang, Job, JobState, Placement, RankFailure
from clusterctl.schedulers.first_failure import TOLD_TO_END, RankEnd, correct, sort_failures

CAUSES: Mapping[str, JobState] = {
    "cancelled": JobState.CANCELLED,
    "timeout": JobState.TIMEOUT,
    "checkpoint": JobState.TIMEOUT,  # the batch system's limit is near
    "no-rank": JobState.FAILED,  # the launch took too long
    "stopped": JobState.RUNNING,  # by the batch system, which knows whether it will run again
}

EVENTS: Mapping[str, str] = {
    "restarted": "{} restarted while the job ran",
    "spot": "EC2 reclaimed the spot instance {}",
    "deadline": "{} reached the cluster's deadline",
}
"""What may come over a node, and how it is said."""

NO_RANK = "no rank was started"
NO_SUPERVISOR = "its supervisor on the launcher is gone"
NO_FOLDER = "the launcher no longer has the job's files; it was probably replaced by a new machine"
_FULL = "disk full on "
_NAMED = 4
"""Ranks that a reason names; of others it gives the number."""


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
    started: int = 0
    exits: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By rank: when, and with which code."""
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By node: how many seconds its clock is ahead of the launcher's, and to within how many."""
    where: dict[int, str] = field(default_factory=dict)
    """By point of a sweep: its node."""
    survivors: dict[str, int] = field(default_factory=dict)
    """By node; -1: it did not answer."""
    full: list[str] = field(default_factory=list)
    out_of_memory: set[int] = field(default_factory=set)
    """Ranks."""
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
        return tuple(hangs.fold(item.number, item.hung, item.stacks) for item in self.hung)

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
            self.placement = _placed(rest[0]) or self.placement
        elif word == "stop" and rest[0] in CAUSES:
            last.stop = rest[0]
        elif word == "hung":
            last.hung = float(rest[0])
            self.hung = [*(item for item in self.hung if item is not last), last]
        elif word == "stack":
            last.stacks[int(rest[0])] = rest[1]
        elif word == "launcher":
            last.launcher_code = int(rest[0])
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
        elif word == "full":
            last.full = list(dict.fromkeys((*last.full, rest[0])))
        elif word == "oom":
            rank, attempt = map(int, rest)
            if attempt == last.number:
                last.out_of_memory.add(rank)
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
            last.survivors = _survivors(rest[0].removeprefix("survivors="))
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


def judge(job: Job, text: str) -> Job:
    """The job as its state file, from the beginning, describes it."""
    facts = read(text)
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
        return _ended(job, last)
    if last.waits:
        return replace(job, state=JobState.QUEUED)
    if not last.number:
        return job
    return replace(job, state=JobState.RUNNING, reason=_why_again(job, facts.before))


def _why_again(job: Job, before: Attempt | None) -> str:
    """How the attempt before has failed; "" where that is not known, or there was none."""
    if before is None:
        return ""
    failure = None if before.hung else _first_failure(job, before)
    reason = _reason(job, JobState.FAILED, before, failure)
    return "; ".join(filter(None, (failure.text if failure else "", reason)))


def mark_unsubmitted(job: Job, facts: Facts, when: float | None = None) -> Job:
    """A job that nobody hands in any more, since `when`: given up, or its clusterctl died."""
    finished = facts.absent or when
    if facts.last.stop:
        return replace(job, state=CAUSES[facts.last.stop], finished=finished, reason="")
    reason = "its clusterctl ended before it was submitted"
    return replace(job, state=JobState.LOST, finished=finished, reason=reason)


def never_started(job: Job) -> bool:
    """Whether a job failed before any of its ranks ran."""
    return job.state is JobState.FAILED and (job.started is None or job.reason.startswith(NO_RANK))


def is_disk_full(job: Job) -> bool:
    """Whether a job failed on a node whose disk is full."""
    return _FULL in job.reason


def is_reclaimed(job: Job, node: str) -> bool:
    """Whether EC2 has announced the end of that node, a spot instance, while the job ran. The node
    may still answer for two minutes."""
    return EVENTS["spot"].format(node) in job.reason.split(", ")


def has_restarted(job: Job, node: str) -> bool:
    """Whether that node restarted while the job ran, as far as it has said so. It may answer."""
    return EVENTS["restarted"].format(node) in job.reason.split(", ")


def note_restart(job: Job, names: Sequence[str]) -> Job:
    """A failed job whose reason says that these nodes restarted, as was found out later."""
    said = [EVENTS["restarted"].format(name) for name in names if not has_restarted(job, name)]
    return replace(job, reason=", ".join((*said, *([job.reason] if job.reason else []))))


def _ended(job: Job, last: Attempt) -> Job:
    state = last.said or _state(job, last)
    failed = state is JobState.FAILED and not last.hung
    failure = _first_failure(job, last) if failed else None
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
        reason=_reason(job, state, last, failure),
    )


def _state(job: Job, last: Attempt) -> JobState:
    """A launcher may say 0 after it has lost a node: every rank has to have ended well. Who was
    told to end may do so with 0, and has not finished."""
    told = CAUSES.get(last.stop, JobState.RUNNING)
    if told.ended:
        return told
    if last.dead:
        return JobState.LOST
    well = last.launcher_code == 0 and _well(last) >= len(job.processes)
    return JobState.SUCCEEDED if well else JobState.FAILED


def _well(last: Attempt) -> int:
    return sum(code == 0 for _, code in last.exits.values())


def _first_failure(job: Job, last: Attempt) -> RankFailure | None:
    """Who has only SIGTERM to show did not fail, unless the launcher itself ended with the same."""
    where = {rank: last.where.get(rank) or job.node_of(rank) for rank in last.exits}
    failed = sort_failures(
        RankEnd(rank, code, correct(when, *last.clocks.get(where[rank], (0.0, 0.0))))
        for rank, (when, code) in last.exits.items()
    )
    if not failed or (failed[0].code == TOLD_TO_END != last.launcher_code):
        return None
    first = failed[0]
    return RankFailure(rank=first.rank, node=where[first.rank], exit_code=first.code)


def _reason(job: Job, state: JobState, last: Attempt, failure: RankFailure | None) -> str:
    """Why a job is lost, or failed, where that is not the exit code of a rank."""
    silent = ", ".join(name for name, count in last.survivors.items() if count < 0)
    if state is JobState.LOST:
        restarted = [name for name, word in sorted(last.events.items()) if word == "restarted"]
        parts = [*(EVENTS["restarted"].format(name) for name in restarted), NO_SUPERVISOR]
        return ", ".join(parts) + (f"; {silent} did not answer when it was found" if silent else "")
    if state is not JobState.FAILED:
        return ""
    why = f"lost {silent}: no answer when the job ended" if silent else ""
    if last.full:
        why = f"{_FULL}{', '.join(last.full)}"
    elif last.events:
        said = (EVENTS[word].format(name) for name, word in sorted(last.events.items()))
        why = ", ".join((*said, *([why] if why else [])))
    elif failure and failure.rank in last.out_of_memory:
        why = f"{failure.node} ran out of memory, and the kernel killed a process"
    elif last.hung and not silent:
        why = describe_hang(job, hangs.fold(last.number, last.hung, last.stacks))
    if not last.started:
        return f"{NO_RANK}: {why}" if why else NO_RANK
    if why:
        return why
    if job.spec.is_sweep:
        return _describe_points(job)
    if failure:
        return ""
    launcher = "mpirun on the launcher" if job.scheduler == "direct" else "srun or mpirun"
    ended = f"{launcher} ended with {last.launcher_code or 0}"
    missing = [rank for rank in range(job.ranks) if rank not in last.exits]
    if missing and last.exits and last.started >= job.ranks:
        return f"{_killed(job, missing)} ({ended})"
    if missing and last.launcher_code and not last.said:
        return f"{ended}, and no rank left an exit code: it or the ranks were killed or lost"
    if last.launcher_code:
        return f"{ended} while no rank had failed: it or one of its daemons was lost"
    return f"{ended}, but only {_well(last)} of {job.ranks} ranks did"


def describe_hang(job: Job, hang: Hang) -> str:
    """That an attempt hung, and which of its ranks stood elsewhere than the others."""
    where = hangs.describe(hang, lambda rank: f"rank {rank} on {job.node_of(rank)}")
    silence = f"hung: no rank printed anything for {hang.seconds:g} s"
    return f"{silence}; {where}" if where else silence


def _describe_points(job: Job) -> str:
    """Which points of a sweep did not end well."""
    names = [f"{job.id}.{number}" for number in job.unfinished_points]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"{len(names)} of {len(job.processes)} points did not succeed:"
        f" {', '.join(names[:_NAMED])}{more}"
    )


def _killed(job: Job, missing: Sequence[int]) -> str:
    """The ranks that have left no exit code, while others have."""
    names = [f"rank {rank} on {job.node_of(rank)}" for rank in missing[:_NAMED]]
    if more := len(missing) - len(names):
        names.append(f"{more} more")
    were, they = ("was", "it") if len(missing) == 1 else ("were", "they")
    return f"{', '.join(names)} {were} killed or lost: {they} left no exit code"


def _add_old(last: Attempt, when: float, rest: list[str]) -> None:
    """The line with which a script of an earlier version ends."""
    values = dict(item.split("=", 1) for item in rest)
    code = int(values.get("code") or 0)
    if values.get("rank"):
        last.exits[int(values["rank"])] = (when, code)
    last.launcher_code = int(values.get("mpirun") or code)
    last.started = int(values.get("started") or 1)
    last.survivors = _survivors(values.get("survivors", ""))
    last.full = [name for name in values.get("full", "").split(",") if name]
    last.said = JobState(values["state"])


def _placed(text: str) -> tuple[Placement, ...]:
    """`node-1:2,node-2:1,` in rank order."""
    places: list[Placement] = []
    for item in text.split(","):
        node, _, count = item.rpartition(":")
        if node:
            first = sum(place.count for place in places)
            places.append(Placement(node=node, first=first, count=int(count)))
    return tuple(places)


def _survivors(text: str) -> dict[str, int]:
    """`worker-1:0,worker-2:?,` of earlier versions."""
    pairs = (item.split(":") for item in text.split(",") if item)
    return {name: -1 if count == "?" else int(count) for name, count in pairs}
