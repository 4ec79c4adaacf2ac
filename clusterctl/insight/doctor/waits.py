"""Ranks that live: those that wait for others in a collective, and those that are not in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterctl.core import stacks as core_stacks
from clusterctl.core.stacks import (
    GRADIENTS,
    LOADER,
    SLEEP,
    Folded,
    Meeting,
    Stack,
    Wait,
    name_ranks,
)
from clusterctl.insight import messages
from clusterctl.insight.doctor import endings
from clusterctl.insight.doctor.absence import (
    describe_elsewhere,
    describe_unmoved,
    explain_absence,
    find_last_lines,
    find_wait,
)
from clusterctl.insight.doctor.findings import POLLS, Evidence, Finding
from clusterctl.insight.node_views import Rank

# -------------------------------------------------------------------------------------------------
# Ranks that have not found each other: all are in init_process_group, and it does not end.


_LOCALHOST = re.compile(r"localhost|127\.|::1$")
ADVICE = (
    "all ranks need the same MASTER_ADDR and MASTER_PORT, and RANK and WORLD_SIZE as clusterctl"
    " sets them: look for lines of the program that set others"
)

AT_HOME = (
    "each node is its own localhost: let the program leave MASTER_ADDR and MASTER_PORT as"
    " clusterctl sets them"
)


def judge_rendezvous(evidence: Evidence) -> Iterator[Finding]:
    """Of ranks that are all in PyTorch's rendezvous: those that cannot connect to rank 0's store,
    that there are too few of them, or that two have one number. Only C++ frames tell these apart,
    and on a busy machine a stack may lack them."""
    living = evidence.stacks
    if not living or not is_rendezvous(living.values()):
        return
    waiting = [number for number, stack in living.items() if _is_connected(stack)]
    outside = [n for n, stack in living.items() if n not in waiting and _is_in_store(stack)]
    said = [
        match.line
        for number in outside
        if (match := messages.find_known_message(evidence.ranks[number].err))
    ]
    own = next(iter(living.values())).describe()
    meetings = {number: stack.meeting for number, stack in living.items() if stack.meeting}
    if outside and waiting:
        text = (
            f"{_describe_ranks(evidence, outside)} cannot connect to"
            f" {_name_address(meetings, outside)} in {own}, while {name_ranks(waiting)}"
            f" wait{'s' if len(waiting) == 1 else ''} {_name_place(meetings, waiting)}"
        )
    elif outside:
        text = f"no rank can connect to {_name_address(meetings, outside)} in {own}"
    elif all(map(_has_connected_all, living.values())):
        text = (
            f"as many ranks as WORLD_SIZE have connected in {own}, and wait for one that none of"
            " them is: two use the same RANK, or the world_size that the program passes is larger"
            f" than {len(living)}"
        )
    elif len(waiting) == len(living):
        text = (
            f"every rank has connected in {own}, which waits for more ranks:"
            f" WORLD_SIZE, or the world_size that the program passes, is larger than {len(waiting)}"
        )
    else:
        text = (
            f"every rank is in {own}: some cannot connect to"
            " MASTER_ADDR:MASTER_PORT, or WORLD_SIZE, or the world_size that the program passes, is"
            f" larger than {len(living)}"
        )
    nodes = tuple(dict.fromkeys(evidence.ranks[number].node for number in outside))
    lines = (*said[:1], *_describe_meetings(meetings))
    home = any(n in meetings and _LOCALHOST.match(meetings[n].host) for n in outside)
    advice = AT_HOME if home else ADVICE
    yield Finding("rendezvous", text, advice, lines, tuple(outside), nodes)


def is_rendezvous(stacks: Iterable[Stack]) -> bool:
    """Whether all of them are in the rendezvous: rank 0 keeps the store, where it waits for all to
    connect, and the others then wait there for the addresses of all."""
    return all(stack.collective == "init_process_group" for stack in stacks)


def _name_address(meetings: Mapping[int, Meeting], ranks: Sequence[int]) -> str:
    """Where these ranks look for the store: by its value, if that is known and the same."""
    found = {meetings[number].address for number in ranks if number in meetings}
    return found.pop() if len(found) == 1 else "MASTER_ADDR:MASTER_PORT"


def _name_place(meetings: Mapping[int, Meeting], ranks: Sequence[int]) -> str:
    address = _name_address(meetings, ranks)
    return f"at {address}" if any(number in meetings for number in ranks) else "there"


def _describe_meetings(meetings: Mapping[int, Meeting]) -> Iterator[str]:
    """With what ranks have called init_process_group, in one line where that is the same."""
    alike: dict[tuple[str, int], list[int]] = {}
    for number, meeting in meetings.items():
        alike.setdefault((meeting.address, meeting.world_size), []).append(number)
    for (address, size), ranks in alike.items():
        yield f"{name_ranks(ranks)}: MASTER_ADDR:MASTER_PORT {address}, WORLD_SIZE {size}"
    for number, meeting in meetings.items():
        if meeting.rank != number:
            yield f"rank {number}: RANK {meeting.rank}"


def _describe_ranks(evidence: Evidence, ranks: Sequence[int]) -> str:
    return evidence.name_rank(ranks[0]) if len(ranks) == 1 else name_ranks(ranks)


def _is_in_store(stack: Stack) -> bool:
    return any("TCPStore" in frame.name for frame in stack.frames)


def _has_connected_all(stack: Stack) -> bool:
    """Whether its store has seen all ranks, and it waits for the address of each by its number."""
    return any("connectFullMesh" in frame.name for frame in stack.frames)


def _is_connected(stack: Stack) -> bool:
    waits = ("TCPStore::waitForWorkers", "TCPStore::wait", "TCPStore::doWait")
    return any(name in frame.name for frame in stack.frames for name in waits)


# -------------------------------------------------------------------------------------------------
# Ranks that all wait for something else than each other: a file, a download, a lock.


_SHOWN_ASLEEP = 3
"""Places that are told."""


def find_asleep(evidence: Evidence) -> Iterator[Finding]:
    """No rank that lives computes or is in a collective, and none goes on. The others may have
    ended."""
    living = _find_candidates(evidence)
    if not living or any(map(_goes_on, living.values())):
        return
    folded = core_stacks.fold({n: rank.stack for n, rank in living.items() if rank.stack})
    told = []
    for item in folded[:_SHOWN_ASLEEP]:
        first = living[item.ranks[0]]
        who = evidence.name_rank(first.number) if len(living) == 1 else name_ranks(item.ranks)
        doing = (
            f"{'is' if len(item.ranks) == 1 else 'are each'} {find_wait(first, item.stack).text}"
        )
        told.append(f"{who} {doing} at {item.stack.describe()}")
    more = (
        f"; and {len(folded) - _SHOWN_ASLEEP} other places" if len(folded) > _SHOWN_ASLEEP else ""
    )
    common = folded[0]
    late = [living[number] for number in common.ranks]
    wait = find_wait(late[0], common.stack)
    yield Finding(
        "asleep",
        f"no rank computes, and none waits for the others: {'; '.join(told)}{more}",
        wait.advice or "look at that line: what it waits for may never come",
        (
            *describe_unmoved(evidence),
            *describe_elsewhere(late[0], common.stack),
            *explain_absence(evidence, late, wait),
        ),
        tuple(living),
        tuple(dict.fromkeys(rank.node for rank in living.values())),
    )


def find_watchable_asleep(evidence: Evidence) -> dict[int, str]:
    """Such ranks, to look at again, and how: in a healthy job, all may wait for data at times. What
    they wait for wakes them (`sleeps`), or is read (`reads`) where a timeout wakes them, too. Those
    that sleep wake by themselves, and their later stacks tell (`late`)."""
    kinds: dict[Wait, str] = {SLEEP: "late", LOADER: "reads"}
    return {
        number: kinds.get(find_wait(rank, rank.stack), "sleeps")
        for number, rank in _find_candidates(evidence).items()
    }


def _find_candidates(evidence: Evidence) -> dict[int, Rank]:
    """All ranks that live, if each of them is asleep."""
    living = {n: rank for n, rank in sorted(evidence.ranks.items()) if rank.alive}
    return living if all(map(_is_asleep, living.values())) else {}


def _goes_on(rank: Rank) -> bool:
    """Whether it has been seen to wake, or in other functions than at first. A loop that tries
    something again and again stays in its functions."""
    ways = {
        tuple((f.name, f.file) for f in look.path) for look in (rank.stack, *rank.looks) if look
    }
    return bool(rank.moved) or len(ways) > 1


def _is_asleep(rank: Rank) -> bool:
    """Whether it waits in a line of the program, and nothing that it has started computes."""
    stack = rank.stack
    if stack is None or not stack.own or stack.collective:
        return False
    if rank.stopped or rank.running or endings.is_exiting(rank):
        return False
    threads = (*stack.others, *rank.helpers.values())
    works = any(other.active and stack.find_left_by(other) for other in threads)
    child = any(process.state in "RD" for process in rank.descendants)
    return (rank.usage or 0.0) < POLLS and not works and not child


# -------------------------------------------------------------------------------------------------

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
    folded = core_stacks.fold(living)
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
    elif is_rendezvous(living.values()):
        yield from judge_rendezvous(evidence)
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
    callers = core_stacks.tell_callers(alone)
    return f"{told} ({callers})" if callers else told


def _judge_mismatch(evidence: Evidence, waiting: Sequence[Folded]) -> Iterator[Finding]:
    same = len({item.stack.collective for item in waiting}) == 1
    direct = any(item.stack.receives or item.stack.sends for item in waiting)
    calls = "calls" if direct else "collectives"
    moved = any(evidence.ranks[n].moved for item in waiting for n in item.ranks)
    if moved and direct:  # what one look sees of any ranks that send each other messages
        return
    lines = () if moved else (*describe_unmoved(evidence), *find_last_lines(evidence, waiting))
    outrun = None if moved else core_stacks.find_outrun(waiting)
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
    callers = core_stacks.tell_callers(living)
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
        return find_watchable_asleep(evidence)
    if is_rendezvous(living.values()):
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
