"""Ranks whose program has ended while their process has not: what runs after the last line of a
Python program can wait for other ranks, or for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterctl.core.stacks import TEARDOWN, Stack, name_ranks
from clusterctl.insight.doctor.findings import Evidence, Finding
from clusterctl.insight.doctor.tracebacks import find_last_error
from clusterctl.insight.node_views import Rank, RecordedCall, RecordedGroup

_NO_PYTHON = "find a python interpreter"
"""What py-spy says of a process whose Python has ended (and of a Python that it does not know)."""
_MPI = (
    "MPI waits for all ranks as a rank exits: `clusterctl run -m mpi4py SCRIPT` lets an exception"
    " end all of them"
)
_THREADS = (
    "Python waits for threads and processes that are not daemons as it exits: stop them in a"
    " `finally`, or create them with daemon=True"
)
DESTRUCTORS = "https://github.com/pytorch/pytorch/issues/56297"


def find_unfinished(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that have run their whole program, and still live."""
    yield from _find_destructors(evidence)
    for rank in evidence.ranks.values():
        if lacks_python(evidence, rank) or is_exiting(rank):
            yield _explain_exit(evidence, rank)


def is_exiting(rank: Rank) -> bool:
    """Whether its program has ended, and its process waits for its own threads or processes, or
    cleans up after an exception."""
    stack = rank.stack
    if stack is None or not rank.alive:
        return False
    no_python = not stack.collective and not any(frame.python for frame in stack.frames)
    return stack.joins_threads or (no_python and bool(find_last_error(rank.err)))


def lacks_python(evidence: Evidence, rank: Rank) -> bool:
    """Whether it lives without a Python interpreter. If that is so of all ranks, and none has
    printed an exception, py-spy does not know this Python."""
    gone = _NO_PYTHON in rank.no_stack and rank.alive and not rank.stack
    return gone and bool(evidence.stacks or find_last_error(rank.err))


def _explain_exit(evidence: Evidence, rank: Rank) -> Finding:
    """Others wait for it, and it waits for them (MPI ends only when all ranks have come to that),
    or for its own threads."""
    stack = rank.stack if rank.stack and rank.stack.joins_threads else None
    usual = "" if rank.stack else f"{_MPI}; "
    others = {n: s for n, s in evidence.stacks.items() if s.collective}
    first = next(iter(others), None)
    where = f", while {name_ranks(others)} waits" if len(others) == 1 else ""
    where = f", while {name_ranks(others)} wait" if len(others) > 1 else where
    where += f" in {others[first].describe()}" if first is not None else ""
    place, number = evidence.name_rank(rank.number), rank.number
    if error := find_last_error(rank.err):
        return Finding(
            "error",
            f"{place} has failed, but its process has not ended: {error[-1].strip()}{where}",
            f"{f'{_THREADS}; ' if stack else usual}`clusterctl logs {evidence.job.id}"
            f" --rank {number}` shows all that it printed",
            (*error, *(_describe_living(rank, stack) if stack else ())),
            (number,),
            (rank.node,),
        )
    return Finding(
        "left",
        f"{place} has reached the end of its program, and waits for"
        f" {'its threads or processes' if stack else 'the others'} as it exits{where}",
        f"{f'{_THREADS}; ' if stack else ''}give all ranks the same number of steps and the same"
        " collectives; look for sys.exit, a return or a branch that only some ranks take",
        _describe_living(rank, stack) if stack else (),
        ranks=(number,),
        nodes=(rank.node,),
        serious=not any(evidence.ranks[n].moved for n in others)
        and (bool(others) or _is_kept_by_threads(evidence)),
    )


def _is_kept_by_threads(evidence: Evidence) -> bool:
    """Whether nothing but threads or processes of ended programs keeps the job alive."""
    living = [rank.stack for rank in evidence.ranks.values() if rank.alive]
    return all(stack and stack.joins_threads for stack in living)


def _describe_living(rank: Rank, stack: Stack) -> tuple[str, ...]:
    """The threads and processes of the program that it may wait for."""
    threads = [(f"thread {other.thread or n}", other) for n, other in enumerate(stack.others, 2)]
    there = [*threads, *((name.removeprefix("its "), s) for name, s in rank.helpers.items())]
    told = [
        f"its {name} is at {s.describe()}{f': {s.waits}' if s.waits else ''}"
        for name, s in there
        if s.own
    ]
    seen = {name for name, _ in there}
    others = [p for p in rank.children if f"process {p.pid}" not in seen]
    return (*told, *(f"its process {p.pid} runs {p.command}" for p in others))


def _find_destructors(evidence: Evidence) -> Iterator[Finding]:
    """Ranks in the destructor of a process group, when no other rank lives that could still come
    to one of its collectives: nothing will end it."""
    living = {n: rank for n, rank in evidence.ranks.items() if rank.alive}
    inside = [n for n, rank in living.items() if rank.stack and rank.stack.tears_down]
    if not inside or len(inside) < len(living):
        return
    moved = [living[number].moved for number in inside]
    alone = len(inside) == 1
    ranks = evidence.name_rank(inside[0]) if alone else name_ranks(inside)
    yield Finding(
        "teardown",
        f"{ranks} {'has' if alone else 'have'} ended the program, and hang{'s' if alone else ''}"
        f" in {TEARDOWN}",
        "a model in DistributedDataParallel, or another object that holds the process group, is"
        " still there after destroy_process_group(): train in a function, or `del model` before"
        f" destroy_process_group(); `clusterctl cancel {evidence.job.id}` ends the job",
        (
            "the destructor keeps Python's lock (the GIL) while it waits for a thread of the"
            " backend, and that thread may want this lock",
            DESTRUCTORS,
        ),
        tuple(inside),
        tuple(dict.fromkeys(living[number].node for number in inside)),
        serious=not any(moved),
    )


# -------------------------------------------------------------------------------------------------
# What PyTorch's flight recorder has written: which call of a process group a rank has not made, or
# has made otherwise than the others. The files outlive their ranks, so that this says it of jobs
# that have ended, too. Their form:
# https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html


_ONE_SIZE = ("all_reduce", "broadcast", "reduce", "_allgather_base", "_reduce_scatter_base")
"""Collectives to which all ranks bring as much."""


def judge_calls(evidence: Evidence) -> Iterator[Finding]:
    """For each process group of which two ranks or more have a record."""
    found: dict[str, dict[int, RecordedGroup]] = {}
    for number, rank in evidence.ranks.items():
        for name, group in rank.recorded.items():
            found.setdefault(name, {})[number] = group
    for groups in found.values():
        known = {n: g for n, g in groups.items() if g.calls or n in g.ranks}
        if len(known) > 1:
            yield from _compare(evidence, known)


def _compare(evidence: Evidence, groups: Mapping[int, RecordedGroup]) -> Iterator[Finding]:
    title = next(iter(groups.values())).title
    last = {n: max((call.number for call in g.calls), default=0) for n, g in groups.items()}
    for number in sorted({call.number for group in groups.values() for call in group.calls}):
        made = {n: call for n, group in groups.items() if (call := group.find_call(number))}
        if len({_make_key(call) for call in made.values()}) > 1:
            yield _describe_mismatch(evidence, title, number, made)
            return
    behind = [n for n in groups if last[n] == min(last.values())]
    ahead = [n for n in groups if last[n] > last[behind[0]]]
    waited = [call for n in ahead if (call := groups[n].find_call(last[behind[0]] + 1))]
    if not waited or all(call.done for call in waited):
        return  # they are even, or nobody waited for the others
    next_call = waited[0]
    places = ", ".join(evidence.name_rank(number) for number in behind[:3])
    more = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
    yield Finding(
        "recorded",
        f"{places}{more} did not make call {next_call.number} of process group {title},"
        f" {next_call.describe()}, in which {name_ranks(ahead)} waited",
        "all ranks of a group have to make the same calls: look for a branch that only some ranks"
        " take, an exception that was caught, or fewer steps",
        (f"PyTorch's flight recorder: {_describe_last(groups, behind[0])}",),
        tuple(behind),
        tuple(dict.fromkeys(evidence.ranks[number].node for number in behind)),
    )


def _make_key(call: RecordedCall) -> tuple[str, str]:
    return call.name, str(call.sizes) if call.name in _ONE_SIZE else ""


def _describe_mismatch(
    evidence: Evidence, title: str, number: int, made: Mapping[int, RecordedCall]
) -> Finding:
    forms: dict[tuple[str, str], list[int]] = {}
    for rank, call in made.items():
        forms.setdefault(_make_key(call), []).append(rank)
    said = (f"{name_ranks(ranks)} made {made[ranks[0]].describe()}" for ranks in forms.values())
    odd = min(forms.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    return Finding(
        "recorded",
        f"ranks made different calls as call {number} of process group {title}: {'; '.join(said)}",
        "all ranks of a group have to make the same calls in the same order, with tensors of the"
        " same size",
        ("PyTorch's flight recorder has both",),
        tuple(odd),
        tuple(dict.fromkeys(evidence.ranks[rank].node for rank in odd)),
    )


def _describe_last(groups: Mapping[int, RecordedGroup], rank: int) -> str:
    made = groups[rank].calls
    return f"the last call of rank {rank} was {made[-1].describe()}" if made else "it made none"
