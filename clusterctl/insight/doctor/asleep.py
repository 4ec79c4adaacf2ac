"""Ranks that all wait for something else than each other: a file, a download, a lock."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl import stacks
from clusterctl.insight.doctor import endings
from clusterctl.insight.doctor.absence import (
    describe_elsewhere,
    describe_unmoved,
    explain_absence,
    find_wait,
)
from clusterctl.insight.doctor.finding import POLLS, Evidence, Finding
from clusterctl.insight.node_views import Rank
from clusterctl.known_waits import LOADER, SLEEP, Wait
from clusterctl.stacks import name_ranks

_SHOWN = 3
"""Places that are told."""


def find_asleep(evidence: Evidence) -> Iterator[Finding]:
    """No rank that lives computes or is in a collective, and none goes on. The others may have
    ended."""
    living = _find_candidates(evidence)
    if not living or any(map(_goes_on, living.values())):
        return
    folded = stacks.fold({n: rank.stack for n, rank in living.items() if rank.stack})
    told = []
    for item in folded[:_SHOWN]:
        first = living[item.ranks[0]]
        who = evidence.name_rank(first.number) if len(living) == 1 else name_ranks(item.ranks)
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
            *describe_unmoved(evidence),
            *describe_elsewhere(late[0], common.stack),
            *explain_absence(evidence, late, wait),
        ),
        tuple(living),
        tuple(dict.fromkeys(rank.node for rank in living.values())),
    )


def find_watchable(evidence: Evidence) -> dict[int, str]:
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
