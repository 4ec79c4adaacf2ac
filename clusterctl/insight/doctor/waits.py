"""Ranks that live: those that wait for others in a collective, those that are not in it, and what
each of them waits for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterctl.core import stacks as core_stacks
from clusterctl.core.stacks import (
    CHILD,
    FILE_LOCK,
    GRADIENTS,
    LOADER,
    SLEEP,
    Folded,
    Meeting,
    Stack,
    Wait,
)
from clusterctl.insight import messages
from clusterctl.insight.doctor import failures, findings
from clusterctl.insight.messages import find_last_error
from clusterctl.insight.node_views import Rank

BUSY, IDLE = 0.5, 0.05
"""Processors in use by a rank that computes, and by one that does not."""
LIMITED = 0.5
"""Share of the time slices in which a cgroup stops a rank, above which the rank is slow."""
SHOWN = 3
"""Places that are told."""


def find_stopped(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    stopped = {n: rank for n, rank in evidence.ranks.items() if rank.stopped}
    for number, rank in stopped.items():
        pid = rank.main.pid if rank.main else ""
        yield evidence.make_finding("stopped", [number], pids=pid)
    for number, rank in evidence.ranks.items():
        halted = [process for process in rank.descendants if process.state == "T"]
        if number not in stopped and halted:
            pids = [str(process.pid) for process in halted]
            yield evidence.make_finding(
                "stopped-child",
                [number],
                serious=rank.stack is None or not rank.stack.collective,
                pids=" ".join(pids),
                numbers=", ".join(pids),
                command=halted[0].command,
            )


# -------------------------------------------------------------------------------------------------
# Ranks in collectives, and those that are not.


def judge_collectives(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    """Ranks that wait for others in a collective, and those that are not in it."""
    living = {n: s for n, s in evidence.stacks.items() if not evidence.ranks[n].stopped}
    folded = core_stacks.fold(living)
    waiting = [item for item in folded if item.stack.collective]
    if not waiting:
        return
    absent = [item for item in folded if not item.stack.collective]
    for item in absent:
        if not any(failures.is_exiting(evidence.ranks[n]) for n in item.ranks):  # told there
            yield _judge_missing(evidence, waiting[0], item)
    if all(stack.tears_down for stack in living.values()):  # `failures` says it
        return
    if absent or len(living) < max(len(evidence.ranks), evidence.job.ranks):
        return
    moved = any(evidence.ranks[number].moved for number in living)
    if all(stack.receives for stack in living.values()):
        # What a healthy job does only while a message is on its way.
        yield from _judge_messages(evidence, "receive", waiting, moved)
    elif all(stack.sends for stack in living.values()):
        # Small messages are sent at once, large ones only when they are wanted.
        yield from _judge_messages(evidence, "send", waiting, moved)
    elif len(waiting) > 1:
        yield from _judge_mismatch(evidence, waiting, moved)
    elif is_rendezvous(living.values()):
        yield _judge_rendezvous(evidence)
    else:
        yield from _judge_same_line(evidence, living, moved)


def _judge_messages(
    evidence: findings.Evidence, row: str, waiting: Sequence[Folded], moved: bool
) -> Iterator[findings.Finding]:
    """All wait for the same half of messages between two ranks."""
    unmoved = _describe_unmoved(evidence)
    if not moved:
        yield evidence.make_finding(
            row,
            evidence.stacks,
            unmoved,
            serious=bool(unmoved),
            places=_describe_places(evidence, waiting),
        )


def _describe_places(evidence: findings.Evidence, waiting: Sequence[Folded]) -> str:
    told = "; ".join(
        f"{findings.name_ranks(item.ranks)} in {item.stack.describe()}" for item in waiting
    )
    alone = {n: evidence.stacks[n] for item in waiting for n in item.ranks if len(waiting) == 1}
    callers = core_stacks.tell_callers(alone)
    return f"{told} ({callers})" if callers else told


def _judge_mismatch(
    evidence: findings.Evidence, waiting: Sequence[Folded], moved: bool
) -> Iterator[findings.Finding]:
    direct = any(item.stack.receives or item.stack.sends for item in waiting)
    if moved and direct:  # what one look sees of any ranks that send each other messages
        return
    lines = ["ranks make progress from time to time: they may only be at different steps"]
    if not moved:
        lines = [*_describe_unmoved(evidence), *_find_last_lines(evidence, waiting)]
    what = "calls" if direct else "collectives"
    yield evidence.make_finding(
        "mismatched-messages" if direct else "mismatch",
        [rank for item in waiting[1:] for rank in item.ranks],
        lines,
        serious=not moved,
        what="places" if len({item.stack.collective for item in waiting}) == 1 else what,
        places=_describe_places(evidence, waiting),
    )


def _judge_same_line(
    evidence: findings.Evidence, living: Mapping[int, Stack], moved: bool
) -> Iterator[findings.Finding]:
    """All ranks are in one call at the same line, which ends unless they do not fit together: they
    may have come there from others, through a function that calls it for several."""
    first = next(iter(living.values()))
    callers = core_stacks.tell_callers(living)
    unmoved = _describe_unmoved(evidence)
    row = "spawn" if "MPI_Comm_spawn" in first.collective else "same-line"
    if not moved and (callers or unmoved):
        yield evidence.make_finding(
            "callers-differ" if callers else row,
            living,
            unmoved if callers else (),
            place=first.describe(),
            callers=callers,
            watched=evidence.watched,
        )


def _judge_missing(evidence: findings.Evidence, waiting: Folded, item: Folded) -> findings.Finding:
    """Ranks that have not come to the collective: they compute, they are slow, or they hang."""
    late = [evidence.ranks[number] for number in item.ranks]
    # On a machine with too much to do, a rank that computes gets little of a core, too.
    enough = BUSY if item.stack.waits else findings.POLLS
    busy = any(rank.running or (rank.usage or 0.0) >= enough for rank in late)
    moved = [evidence.ranks[number].moved for number in waiting.ranks]
    slow = any(moved)
    usual = slow and not _keeps_waiting(evidence, waiting, item)
    wait = late[0].wait
    lines = [*_describe_elsewhere(late[0], item.stack), *_explain_absence(evidence, late, wait)]
    if usual:
        lines.insert(0, "the job makes progress: this may be one moment of a healthy job")
    elif slow:
        lines.insert(0, "the others make progress from time to time: the job is slow, not hung")
    elif False in moved:
        lines.insert(0, f"no rank has made progress for {evidence.watched} s")
    row = "slow" if slow else "straggler" if busy else "missing"
    return evidence.make_finding(
        row,
        item.ranks,
        lines,
        advice=wait.advice if row == "missing" and wait.advice else None,
        serious=not usual,
        waiting=findings.name_ranks(waiting.ranks),
        call=waiting.stack.describe(),
        doing="computing" if busy else wait.text,
        place=item.stack.describe(),
    )


def _keeps_waiting(evidence: findings.Evidence, waiting: Folded, item: Folded) -> bool:
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


def find_watchable(evidence: findings.Evidence) -> dict[int, str]:
    """Ranks to look at again, and how they wait: those that are asleep in a collective (`sleeps`)
    wake when the job goes on; those that poll there, as MPI does, are awake all the time (`polls`);
    the others are to come to it (`late`).

    Where none is in one, all may wait for something else, in a healthy job for data: that wakes
    them (`sleeps`), or is read (`reads`) where a timeout wakes them, too. Those that sleep wake by
    themselves, and their later stacks tell (`late`)."""
    living = {n: s for n, s in evidence.stacks.items() if not evidence.ranks[n].stopped}
    if not any(stack.collective for stack in living.values()):
        kinds: dict[Wait, str] = {SLEEP: "late", LOADER: "reads"}
        asleep = _find_candidates(evidence).items()
        return {n: kinds.get(rank.wait, "sleeps") for n, rank in asleep}
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


# -------------------------------------------------------------------------------------------------
# Ranks that have not found each other: all are in init_process_group, and it does not end.


_LOCALHOST = re.compile(r"localhost|127\.|::1$")


def is_rendezvous(stacks: Iterable[Stack]) -> bool:
    """Whether all of them are in the rendezvous: rank 0 keeps the store, where it waits for all to
    connect, and the others then wait there for the addresses of all."""
    return all(stack.collective == "init_process_group" for stack in stacks)


def _judge_rendezvous(evidence: findings.Evidence) -> findings.Finding:
    """Those that cannot connect to the store of rank 0, as far as C++ frames tell, which a stack
    may lack on a busy machine; and what each was given to find it."""
    living = evidence.stacks
    called = {n: " ".join(frame.name for frame in stack.frames) for n, stack in living.items()}
    waits = ("TCPStore::waitForWorkers", "TCPStore::wait", "TCPStore::doWait")
    outside = [
        number
        for number, calls in called.items()
        if "TCPStore" in calls and not any(name in calls for name in waits)
    ]
    meetings = {number: stack.meeting for number, stack in living.items() if stack.meeting}
    said = (messages.find_known_message(evidence.ranks[number].err) for number in outside)
    lines = [match.line for match in said if match][:1]
    home = any(n in meetings and _LOCALHOST.match(meetings[n].host) for n in outside)
    words = findings.load_words()
    return evidence.make_finding(
        "rendezvous-outside" if outside else "rendezvous",
        outside,
        [*lines, *_describe_meetings(meetings)],
        advice=words.advice["localhost"] if home else words.findings["rendezvous"].advice,
        place=next(iter(living.values())).describe(),
        size=len(living),
    )


def _describe_meetings(meetings: Mapping[int, Meeting]) -> Iterator[str]:
    """With what ranks have called init_process_group, in one line where that is the same."""
    alike: dict[tuple[str, int], list[int]] = {}
    for number, meeting in meetings.items():
        alike.setdefault((meeting.address, meeting.world_size), []).append(number)
    for (address, size), ranks in alike.items():
        yield f"{findings.name_ranks(ranks)}: MASTER_ADDR:MASTER_PORT {address}, WORLD_SIZE {size}"
    for number, meeting in meetings.items():
        if meeting.rank != number:
            yield f"rank {number}: RANK {meeting.rank}"


# -------------------------------------------------------------------------------------------------
# Ranks that all wait for something else than each other: a file, a download, a lock.


def find_asleep(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    """No rank that lives computes or is in a collective, and none goes on. The others may have
    ended."""
    living = _find_candidates(evidence)
    if not living or any(map(_goes_on, living.values())):
        return
    folded = core_stacks.fold({n: rank.stack for n, rank in living.items() if rank.stack})
    told = []
    for item in folded[:SHOWN]:
        who = evidence.name(item.ranks) if len(living) == 1 else findings.name_ranks(item.ranks)
        wait = living[item.ranks[0]].wait
        told.append(f"{who:is/are each} {wait.text} at {item.stack.describe()}")
    common = folded[0]
    late = [living[number] for number in common.ranks]
    wait = late[0].wait
    yield evidence.make_finding(
        "asleep",
        living,
        (
            *_describe_unmoved(evidence),
            *_describe_elsewhere(late[0], common.stack),
            *_explain_absence(evidence, late, wait),
        ),
        advice=wait.advice or None,
        places="; ".join(told),
    )


def _find_candidates(evidence: findings.Evidence) -> dict[int, Rank]:
    """All ranks that live, if each of them is asleep."""
    return evidence.living if all(map(_is_asleep, evidence.living.values())) else {}


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
    if rank.stopped or rank.running or failures.is_exiting(rank):
        return False
    threads = (*stack.others, *rank.helpers.values())
    works = any(other.active and stack.find_left_by(other) for other in threads)
    child = any(process.state in "RD" for process in rank.descendants)
    return (rank.usage or 0.0) < findings.POLLS and not works and not child


# -------------------------------------------------------------------------------------------------
# Ranks that are kept from running, or that do nothing.


def find_limited(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    """Ranks that a limit of their cgroup keeps from running, while others run freely and may wait
    for them."""
    limited = {n: rank for n, rank in evidence.living.items() if rank.throttled >= LIMITED}
    for number, rank in limited.items():
        serious = len(limited) < len(evidence.living)
        yield evidence.make_finding("limited", [number], serious=serious, share=rank.throttled)


def find_idle(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    """Ranks without stacks, as of programs in C: most poll for a message, and some do nothing."""
    unseen = {n: r.usage for n, r in evidence.living.items() if not r.stack}
    idle = [n for n, use in unseen.items() if use is not None and use <= IDLE]
    busy = [n for n, use in unseen.items() if use is not None and use >= findings.POLLS]
    if busy and 0 < len(idle) <= len(busy) and not any(evidence.ranks[n].stopped for n in idle):
        doing = evidence.ranks[idle[0]].wait.text
        yield evidence.make_finding("idle", idle, doing=doing)


def find_without_stacks(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    without: dict[str, list[int]] = {}
    for number, rank in evidence.living.items():
        if not rank.stack and rank.no_stack and not failures.lacks_python(evidence, rank):
            without.setdefault(rank.no_stack, []).append(number)
    for why, numbers in without.items():
        main = evidence.ranks[numbers[0]].main
        compiled = main is not None and main.command != "python"
        yield evidence.make_finding(
            "no-stack-compiled" if compiled else "no-stack",
            numbers,
            why=why,
            those=findings.name_ranks(numbers),
            pid=main.pid if main else "",
            first=evidence.name(numbers[:1]),
        )


# -------------------------------------------------------------------------------------------------
# What else is known of a rank that does not go on: what it waits for, where its threads and
# processes are, who holds a lock, what it has printed.


def _describe_unmoved(evidence: findings.Evidence) -> tuple[str, ...]:
    """That nobody has gone on, if somebody was watched."""
    watched = [rank.moved for rank in evidence.ranks.values()]
    return (f"no rank has made progress for {evidence.watched} s",) if False in watched else ()


def _describe_elsewhere(rank: Rank, main: Stack) -> Iterator[str]:
    """Where other threads and processes of a rank are in lines of the program."""
    for name, stack in failures.list_threads(rank, main):
        if main.find_left_by(stack):
            yield f"{name} is at {stack.describe()}{f': {stack.waits}' if stack.waits else ''}"


def _explain_absence(
    evidence: findings.Evidence, late: Sequence[Rank], wait: Wait
) -> Iterator[str]:
    """What stacks do not show: who holds a lock, what a child runs, how a thread has ended."""
    if wait is FILE_LOCK:
        yield from dict.fromkeys(
            text for rank in late for text in _describe_holders(evidence, rank)
        )
    if wait is CHILD:
        for child in late[0].children:
            yield f"its process {child.pid} runs {child.command}"
    disks = evidence.nodes[late[0].node].disks
    if full := ", ".join(disk.mount for disk in disks if disk.full and disk.elsewhere):
        yield f"no space is left in {full} of {late[0].node}: it may try to write there"
    if error := find_last_error(late[0].err):
        yield f"it has printed: {' '.join(' '.join(error).split())}"
    elif said := late[0].last_line:
        yield f"its last line of output: {said}"


def _find_last_lines(evidence: findings.Evidence, waiting: Sequence[Folded]) -> Iterator[str]:
    """What ranks at different places have printed last, which may say why they are there."""
    raised = {n: find_last_error(evidence.ranks[n].err) for item in waiting for n in item.ranks}
    printed = [number for number, error in raised.items() if error]
    for number in printed[:SHOWN]:
        yield f"rank {number} has printed: {' '.join(' '.join(raised[number]).split())}"
    for number in (item.ranks[0] for item in waiting[:SHOWN]):
        if number not in printed and (said := evidence.ranks[number].last_line):
            yield f"rank {number}'s last line of output: {said}"


def _describe_holders(evidence: findings.Evidence, rank: Rank) -> Iterator[str]:
    """Those on its own node: a process has another number elsewhere."""
    main = rank.main
    holder = evidence.nodes[rank.node].locks.get(main.pid) if main else None
    if holder:
        there = (other for other in evidence.ranks.values() if other.node == rank.node)
        owners = (o for o in there if holder in [process.pid for process in o.processes])
        owner = next(owners, None)
        who = f" (rank {owner.number})" if owner else ""
        itself = main and holder == main.pid
        why = ", the same that waits: it has opened the file twice" if itself else ""
        yield f"process {holder} on {rank.node}{who} holds the lock{why}"
