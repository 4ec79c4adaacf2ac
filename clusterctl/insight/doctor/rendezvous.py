"""Ranks that have not found each other: all are in init_process_group, and it does not end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterctl.insight import messages
from clusterctl.insight.doctor.finding import Evidence, Finding
from clusterctl.stacks import Meeting, Stack, name_ranks

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
        match.line for number in outside if (match := messages.find(evidence.ranks[number].err))
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
