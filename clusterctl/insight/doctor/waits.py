"""Ranks that live: those that wait for others in a collective, and those that are not in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clusterctl import stacks
from clusterctl.insight.doctor import asleep, endings, rendezvous
from clusterctl.insight.doctor.absence import (
    describe_elsewhere,
    describe_unmoved,
    explain_absence,
    find_last_lines,
    find_wait,
)
from clusterctl.insight.doctor.finding import POLLS, Evidence, Finding
from clusterctl.insight.doctor.finding import WATCH as WATCH
from clusterctl.stacks import GRADIENTS, Folded, Stack, name_ranks

BUSY, IDLE = 0.5, 0.05
"""Processors in use by a rank that computes, and by one that does not."""
LIMITED = 0.5
"""Share of the time slices in which a cgroup stops a rank, above which the rank is slow."""
_SAME_LINE = (
    "print the tensor's shape, the group and the root (src, dst) on each rank before that line:"
    " they have to be equal; or one of them has skipped a step, and is in another pass of a loop"
    " (after an exception that was caught, for example); or much data takes its time on a slow"
    " network"
)
_FEWER_STEPS = (
    "most likely its loop of steps was shorter: give all ranks equally many batches (drop_last, a"
    " DistributedSampler, or torch.distributed.algorithms.join.Join); else look for a branch that"
    " only some ranks take"
)
_GROUPS = (
    "all ranks have to create the same groups in the same order, also those groups that they are"
    " not in"
)


def find_stopped(evidence: Evidence) -> Iterator[Finding]:
    stopped = [number for number, rank in sorted(evidence.ranks.items()) if rank.stopped]
    for number in stopped:
        rank = evidence.ranks[number]
        main = rank.main
        yield Finding(
            "stopped",
            f"{evidence.name_rank(number)} is stopped (SIGSTOP, or a debugger holds it)",
            f"`clusterctl ssh {rank.node} -- kill -CONT {main.pid if main else ''}` resumes it",
            ranks=(number,),
            nodes=(rank.node,),
        )
    for number, rank in sorted(evidence.ranks.items()):
        halted = [process for process in rank.descendants if process.state == "T"]
        if number not in stopped and halted:
            pids = " ".join(str(process.pid) for process in halted)
            yield Finding(
                "stopped",
                f"process {pids.replace(' ', ', ')} ({halted[0].command}), started by"
                f" {evidence.name_rank(number)}, is stopped (SIGSTOP, or a debugger holds it)",
                f"`clusterctl ssh {rank.node} -- kill -CONT {pids}` resumes it",
                ranks=(number,),
                nodes=(rank.node,),
                serious=rank.stack is None or not rank.stack.collective,
            )


def judge_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that wait for others in a collective, and those that are not in it."""
    living = {n: s for n, s in evidence.stacks.items() if not evidence.ranks[n].stopped}
    folded = stacks.fold(living)
    waiting = [item for item in folded if item.stack.collective]
    if not waiting:
        return
    absent = [item for item in folded if not item.stack.collective]
    for item in absent:
        if not any(endings.is_exiting(evidence.ranks[n]) for n in item.ranks):  # told there
            yield from _judge_missing(evidence, waiting[0], item)
    if all(stack.tears_down for stack in living.values()):  # `endings` says it
        return
    if absent or len(living) < max(len(evidence.ranks), evidence.job.ranks):
        return
    if all(stack.receives for stack in living.values()):
        yield from _judge_receivers(evidence, waiting)
    elif all(stack.sends for stack in living.values()):
        yield from _judge_senders(evidence, waiting)
    elif len(waiting) > 1:
        yield from _judge_mismatch(evidence, waiting)
    elif rendezvous.is_rendezvous(living.values()):
        yield from rendezvous.judge_rendezvous(evidence)
    else:
        yield from _judge_same_line(evidence, living)


def _judge_receivers(evidence: Evidence, waiting: Sequence[Folded]) -> Iterator[Finding]:
    """Nobody sends: what a healthy job does only while a message is on its way."""
    if not any(evidence.ranks[number].moved for number in evidence.stacks):
        yield Finding(
            "receive",
            f"all ranks wait for a message, and none sends: {_describe_places(evidence, waiting)}",
            "let one of two partners send first, or use sendrecv; each receive needs a send with"
            " its rank, tag and communicator",
            describe_unmoved(evidence),
            ranks=tuple(evidence.stacks),
            serious=bool(describe_unmoved(evidence)),
        )


def _judge_senders(evidence: Evidence, waiting: Sequence[Folded]) -> Iterator[Finding]:
    """Nobody receives: small messages are sent at once, large ones only when they are wanted."""
    if not any(evidence.ranks[number].moved for number in evidence.stacks):
        yield Finding(
            "send",
            f"all ranks send a message, and none receives: {_describe_places(evidence, waiting)}",
            "let one of two partners receive first, or use Sendrecv or Isend: a large message (more"
            " than 4 to 64 kB) is sent only when its receiver has called Recv, so that this may"
            " work with small ones",
            describe_unmoved(evidence),
            ranks=tuple(evidence.stacks),
            serious=bool(describe_unmoved(evidence)),
        )


def _describe_places(evidence: Evidence, waiting: Sequence[Folded]) -> str:
    told = "; ".join(f"{name_ranks(item.ranks)} in {item.stack.describe()}" for item in waiting)
    alone = {n: evidence.stacks[n] for item in waiting for n in item.ranks if len(waiting) == 1}
    callers = stacks.tell_callers(alone)
    return f"{told} ({callers})" if callers else told


def _judge_mismatch(evidence: Evidence, waiting: Sequence[Folded]) -> Iterator[Finding]:
    same = len({item.stack.collective for item in waiting}) == 1
    direct = any(item.stack.receives or item.stack.sends for item in waiting)
    calls = "calls" if direct else "collectives"
    moved = any(evidence.ranks[n].moved for item in waiting for n in item.ranks)
    if moved and direct:  # what one look sees of any ranks that send each other messages
        return
    lines = () if moved else (*describe_unmoved(evidence), *find_last_lines(evidence, waiting))
    outrun = None if moved else stacks.find_outrun(waiting)
    if outrun:
        item, frame = outrun
        are = "is" if len(item.ranks) == 1 else "are"
        lines = (f"{name_ranks(item.ranks)} {are} already at {frame.place} of {frame.name}", *lines)
    yield Finding(
        "mismatch",
        f"ranks wait in different {'places' if same else calls}:"
        f" {_describe_places(evidence, waiting)}",
        "each receive needs a send with its rank, tag and communicator; look for a branch that only"
        " some ranks take"
        if direct
        else _FEWER_STEPS
        if outrun
        else "look for a branch that only some ranks take, ranks with more steps, or one that has"
        " caught an exception and skipped a collective",
        ("ranks make progress from time to time: they may only be at different steps",)
        if moved
        else lines,
        ranks=tuple(rank for item in waiting[1:] for rank in item.ranks),
        serious=not moved,
    )


def _judge_same_line(evidence: Evidence, living: Mapping[int, Stack]) -> Iterator[Finding]:
    """All ranks are in one call at the same line, which ends unless they do not fit together: they
    may have come there from others, through a function that calls it for several."""
    moved = [evidence.ranks[number].moved for number in living]
    where = next(iter(living.values())).describe()
    callers = stacks.tell_callers(living)
    if any(moved) or not (callers or False in moved):
        return
    yield Finding(
        "mismatch",
        f"ranks wait in {where}, and have come there from different lines: {callers}"
        if callers
        else f"all ranks wait in {where}, and none has made progress for {evidence.watched} s: they"
        " may have different sizes, groups or roots there",
        "look for a branch that only some ranks take: each of these lines may have another group,"
        " tensor or root"
        if callers
        else _GROUPS
        if next(iter(living.values())).collective == "new_group"
        else _SAME_LINE,
        describe_unmoved(evidence) if callers else (),
        ranks=tuple(living),
    )


def _judge_missing(evidence: Evidence, waiting: Folded, item: Folded) -> Iterator[Finding]:
    """Ranks that have not come to the collective: they compute, they are slow, or they hang."""
    late = [evidence.ranks[number] for number in item.ranks]
    # On a machine with too much to do, a rank that computes gets little of a core, too.
    enough = BUSY if item.stack.waits else POLLS
    busy = any(rank.running or (rank.usage or 0.0) >= enough for rank in late)
    moved = [evidence.ranks[number].moved for number in waiting.ranks]
    ranks = [evidence.name_rank(number) for number in item.ranks[:3]]
    more = f" and {len(item.ranks) - 3} more" if len(item.ranks) > 3 else ""
    wait = find_wait(late[0], item.stack)
    doing = "computing" if busy else wait.text
    slow = any(moved)
    usual = slow and not _keeps_waiting(evidence, waiting, item)
    if slow:
        advice = (
            "these ranks have more work than the others, wait longer for it, or have a slower"
            " processor: `clusterctl verify` compares the nodes"
        )
    elif busy:
        advice = (
            "look at that line: an endless loop, more work than the others have, or a slower"
            " processor (`clusterctl verify` compares the nodes)"
        )
    else:
        advice = wait.advice or "look at that line: all ranks have to call the same collectives"
    elsewhere = [*describe_elsewhere(late[0], item.stack), *explain_absence(evidence, late, wait)]
    if usual:
        elsewhere.insert(0, "the job makes progress: this may be one moment of a healthy job")
    elif slow:
        elsewhere.insert(0, "the others make progress from time to time: the job is slow, not hung")
    elif False in moved:
        elsewhere.insert(0, f"no rank has made progress for {evidence.watched} s")
    yield Finding(
        "straggler" if busy or slow else "missing",
        f"{name_ranks(waiting.ranks)} wait{'s' if len(waiting.ranks) == 1 else ''}"
        f" in {waiting.stack.describe()}"
        f" for {', '.join(ranks)}{more}: {doing} at {item.stack.describe()}",
        advice,
        tuple(elsewhere),
        item.ranks,
        tuple(dict.fromkeys(rank.node for rank in late)),
        serious=not usual,
    )


def _keeps_waiting(evidence: Evidence, waiting: Folded, item: Folded) -> bool:
    """Whether later looks show the same ranks waiting for the same others: in any job, some rank
    comes first to each collective."""
    first = [look for number in waiting.ranks for look in evidence.ranks[number].looks]
    late = [look for number in item.ranks for look in evidence.ranks[number].looks]
    if not first or not late:  # too busy a machine for another look
        return False
    came = any(_is_in(look, waiting.stack) for look in late)
    return not came and all(_is_in(look, waiting.stack) for look in first)


def _is_in(look: Stack, call: Stack) -> bool:
    """Whether a later stack, which may lack C frames, waits in a collective like an earlier one."""
    return bool(look.collective) or (call.collective == GRADIENTS and look.asleep_in_ddp)


def find_watchable(evidence: Evidence) -> dict[int, str]:
    """Ranks to look at again if some wait for others, and how they wait: those that are asleep in
    a collective (`sleeps`) wake when the job goes on; those that poll there, as MPI does, are awake
    all the time (`polls`); the others are to come to it (`late`). Where none does, all may wait for
    something else."""
    living = {n: s for n, s in evidence.stacks.items() if not evidence.ranks[n].stopped}
    waiting = [number for number, stack in living.items() if stack.collective]
    if not waiting:
        return asleep.find_watchable(evidence)
    if rendezvous.is_rendezvous(living.values()):
        return {}
    return {
        number: "late"
        if not stack.collective
        else "sleeps"
        if stack.blocked or "futex" in evidence.ranks[number].waits
        else "polls"
        for number, stack in living.items()
    }


def find_limited(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that a limit of their cgroup keeps from running, while others run freely and may wait
    for them."""
    living = {n: rank for n, rank in sorted(evidence.ranks.items()) if rank.alive}
    limited = [n for n, rank in living.items() if rank.throttled >= LIMITED]
    for number in limited:
        rank = living[number]
        yield Finding(
            "limited",
            f"{evidence.name_rank(number)} is slow: a limit of its cgroup stops it in"
            f" {rank.throttled:.0%} of the time slices",
            "raise the limit of processors of its container, service or batch job",
            ranks=(number,),
            nodes=(rank.node,),
            serious=len(limited) < len(living),
        )


def find_idle(evidence: Evidence) -> Iterator[Finding]:
    """Ranks without stacks, as of programs in C: most poll for a message, and some do nothing."""
    unseen = {n: r.usage for n, r in evidence.ranks.items() if r.alive and not r.stack}
    idle = [n for n, use in sorted(unseen.items()) if use is not None and use <= IDLE]
    busy = [n for n, use in unseen.items() if use is not None and use >= POLLS]
    if busy and 0 < len(idle) <= len(busy) and not any(evidence.ranks[n].stopped for n in idle):
        rank = evidence.ranks[idle[0]]
        yield Finding(
            "idle",
            f"{', '.join(map(evidence.name_rank, idle[:3]))} does nothing ({find_wait(rank).text}),"
            " while the others compute or wait for a message",
            "look at what it does there: all ranks have to come to the same communication",
            ranks=tuple(idle),
            nodes=tuple(dict.fromkeys(evidence.ranks[number].node for number in idle)),
        )


def find_without_stacks(evidence: Evidence) -> Iterator[Finding]:
    without: dict[str, list[int]] = {}
    for number, rank in sorted(evidence.ranks.items()):
        told = endings.lacks_python(evidence, rank)
        if rank.alive and not rank.stack and rank.no_stack and not told:
            without.setdefault(rank.no_stack, []).append(number)
    for why, numbers in without.items():
        rank = evidence.ranks[numbers[0]]
        main = rank.main
        gdb = f"`clusterctl ssh {rank.node} -- gdb -p {main.pid if main else ''} --batch -ex bt`"
        compiled = main is not None and main.command != "python"
        yield Finding(
            "no-stack",
            f"no stack of {name_ranks(numbers)}: {why}",
            f"{gdb} shows where {evidence.name_rank(rank.number)} is, where the node has gdb"
            if compiled
            else "",
            ranks=tuple(numbers),
            serious=False,
        )
