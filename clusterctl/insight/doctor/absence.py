"""What else is known of a rank that does not go on: what it waits for, where its threads and
processes are, who holds a lock, what it has printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterctl.core import stacks
from clusterctl.core.stacks import CHILD, FILE_LOCK, LOCK, OWN_LOCK, Folded, Stack, Wait
from clusterctl.insight.doctor.findings import Evidence
from clusterctl.insight.doctor.tracebacks import find_last_error
from clusterctl.insight.node_views import Rank

_SHOWN = 120
"""Characters of a line of output that are shown."""


def find_wait(rank: Rank, stack: Stack | None = None) -> Wait:
    inside = stacks.explain_kernel(rank.waits)
    if rank.main and rank.main.state == "D":
        return inside or Wait("waiting for a disk or a network file system")
    clear, guess = (stack.wait, stack.unclear_wait) if stack else (None, None)
    if clear is LOCK and stack and not (rank.descendants or any(t.own for t in stack.others)):
        return OWN_LOCK
    return clear or inside or guess or Wait("blocked")


def describe_elsewhere(rank: Rank, main: Stack) -> Iterator[str]:
    """Where other threads and processes of a rank are in lines of the program."""
    threads = (
        (f"its thread {other.thread or number}", other)
        for number, other in enumerate(main.others, 2)
    )
    for name, stack in (*threads, *rank.helpers.items()):
        if main.find_left_by(stack):
            yield f"{name} is at {stack.describe()}{f': {stack.waits}' if stack.waits else ''}"


def describe_unmoved(evidence: Evidence) -> tuple[str, ...]:
    """That nobody has gone on, if somebody was watched."""
    watched = [rank.moved for rank in evidence.ranks.values()]
    return (f"no rank has made progress for {evidence.watched} s",) if False in watched else ()


def explain_absence(evidence: Evidence, late: Sequence[Rank], wait: Wait) -> Iterator[str]:
    """What stacks do not show: who holds a lock, what a child runs, how a thread has ended."""
    if wait is FILE_LOCK:
        yield from dict.fromkeys(
            text for rank in late for text in _describe_holders(evidence, rank)
        )
    if wait is CHILD:
        for child in late[0].children:
            yield f"its process {child.pid} runs {child.command}"
    for disk in evidence.nodes[late[0].node].disks:
        if disk.full and disk.elsewhere:
            yield f"{disk.mount} of {late[0].node} is full: it may try to write there"
    if error := find_last_error(late[0].err):
        yield f"it has printed: {' '.join(' '.join(error).split())}"
    elif said := _find_last_line(late[0]):
        yield f"its last line of output: {said}"


def find_last_lines(evidence: Evidence, waiting: Sequence[Folded]) -> Iterator[str]:
    """What ranks at different places have printed last, which may say why they are there."""
    raised = {n: find_last_error(evidence.ranks[n].err) for item in waiting for n in item.ranks}
    printed = [number for number, error in raised.items() if error]
    for number in printed[:3]:
        yield f"rank {number} has printed: {' '.join(' '.join(raised[number]).split())}"
    for number in (item.ranks[0] for item in waiting[:3]):
        if number not in printed and (said := _find_last_line(evidence.ranks[number])):
            yield f"rank {number}'s last line of output: {said}"


def _find_last_line(rank: Rank) -> str:
    lines = rank.out.split("\n")
    return next((line.strip()[:_SHOWN] for line in reversed(lines) if line.strip()), "")


def _describe_holders(evidence: Evidence, rank: Rank) -> Iterator[str]:
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
