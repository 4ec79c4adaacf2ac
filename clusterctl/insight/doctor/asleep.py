"""Ranks that all wait for something else than each other: a file, a download, a lock."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl import stacks
from clusterctl.insight.doctor import endings
from clusterctl.insight.doctor.absence import describe_elsewhere, explain_absence, find_wait
from clusterctl.insight.doctor.finding import POLLS, Evidence, Finding
from clusterctl.insight.evidence import Rank
from clusterctl.stacks import name_ranks

_SHOWN = 3
"""Places that are told."""


def find_asleep(evidence: Evidence) -> Iterator[Finding]:
    """No rank that lives computes or is in a collective. The others may have ended."""
    living = {n: rank for n, rank in sorted(evidence.ranks.items()) if rank.alive}
    if not living or not all(map(_is_asleep, living.values())):
        return
    folded = stacks.fold({n: rank.stack for n, rank in living.items() if rank.stack})
    told = []
    for item in folded[:_SHOWN]:
        first = living[item.ranks[0]]
        who = evidence.place(first.number) if len(living) == 1 else name_ranks(item.ranks)
        doing = (
            f"{'is' if len(item.ranks) == 1 else 'are each'} {find_wait(first, item.stack).text}"
        )
        told.append(f"{who} {doing} at {item.stack.describe()}")
    more = f"; and {len(folded) - _SHOWN} other places" if len(folded) > _SHOWN else ""
    common = folded[0]
    late = [living[number] for number in common.ranks]
    wait = find_wait(late[0], common.stack)
    yield Finding(
        "asleep",
        f"no rank computes, and none waits for the others: {'; '.join(told)}{more}",
        wait.advice or "look at that line: what it waits for may never come",
        (
            *describe_elsewhere(late[0], common.stack),
            *explain_absence(evidence, late, wait),
        ),
        tuple(living),
        tuple(dict.fromkeys(rank.node for rank in living.values())),
    )


def _is_asleep(rank: Rank) -> bool:
    """Whether it waits in a line of the program, and nothing that it has started computes."""
    stack = rank.stack
    if stack is None or not stack.own or stack.collective:
        return False
    if rank.stopped or rank.running or endings.is_exiting(rank):
        return False
    threads = (*stack.others, *rank.helpers.values())
    works = any(other.active and stack.left_by(other) for other in threads)
    child = any(process.state in "RD" for process in rank.descendants)
    return (rank.usage or 0.0) < POLLS and not works and not child
