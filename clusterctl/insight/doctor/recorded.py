"""What PyTorch's flight recorder has written: which call of a process group a rank has not made, or
has made otherwise than the others. The files outlive their ranks, so that this says it of jobs that
have ended, too. Their form: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterctl.insight.doctor.finding import Evidence, Finding
from clusterctl.insight.recorded_calls import RecordedCall, RecordedGroup
from clusterctl.stacks import name_ranks

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
