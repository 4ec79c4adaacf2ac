"""Why a job hangs or has failed: a judgement over what its nodes show. Pure.

Findings come in the order of their weight: what breaks a job by itself (a machine, memory, a disk:
`nodes`) before what the program did (`failures`, `waits`), and that before what may only make it
slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterctl.core import stacks
from clusterctl.core.job import Hang, JobState
from clusterctl.core.stacks import name_ranks
from clusterctl.insight import messages
from clusterctl.insight.doctor import endings, failures, nodes, waits
from clusterctl.insight.doctor.findings import (
    Evidence,
    Finding,
)
from clusterctl.insight.doctor.tracebacks import find_last_error
from clusterctl.insight.node_views import Rank


def describe_hang(hang: Hang) -> Finding:
    """Says what the stacks are, which are not of now."""
    return Finding(
        "hung",
        f"attempt {hang.attempt} printed nothing for {hang.seconds:g} s; the stacks are those of"
        " its ranks before clusterctl ended it",
        serious=False,
    )


def judge(evidence: Evidence) -> tuple[Finding, ...]:
    """All that is wrong, the cause first."""
    found = [
        *nodes.judge_machines(evidence),
        *nodes.judge_memory(evidence),
        *nodes.judge_disks(evidence),
        *nodes.judge_networks(evidence),
        *nodes.judge_silences(evidence),
        *waits.find_stopped(evidence),
        *endings.judge_calls(evidence),
        *failures.find_first_failure(evidence),
        *failures.find_vanished(evidence),
        *endings.find_unfinished(evidence),
        *waits.judge_collectives(evidence),
        *nodes.judge_late_nodes(evidence),
        *waits.find_limited(evidence),
        *waits.find_idle(evidence),
        *nodes.judge_clocks(evidence),
        *waits.find_without_stacks(evidence),
        *nodes.list_missed(evidence),
    ]
    explained = {finding.ranks for finding in found if finding.kind == "memory"}
    kept = [f for f in found if f.kind != "exit" or f.ranks not in explained]
    if not any(finding.serious for finding in kept):
        kept = [*_judge_record(evidence), *(_promote(evidence, finding) for finding in kept)]
    if not any(finding.serious for finding in kept):
        kept += waits.find_asleep(evidence)
    kept = [replace(f, advice=messages.advise(f.advice, evidence.job)) for f in kept]
    return tuple(sorted(kept, key=lambda finding: (not finding.serious, _is_aside(finding))))


def _is_aside(finding: Finding) -> bool:
    """A full disk that nothing shows the job to use."""
    return finding.kind == "disk" and not finding.serious


def _promote(evidence: Evidence, finding: Finding) -> Finding:
    """A known message in the last exception of a rank that lives is the cause if nothing else is:
    it is about to end."""
    raised = [find_last_error(evidence.ranks[number].err) for number in finding.ranks]
    message = finding.kind.startswith("message:")
    return replace(finding, serious=True) if message and any(raised) else finding


def _judge_record(evidence: Evidence) -> Iterator[Finding]:
    """What the record says of a job that never started, or that was ended from outside."""
    job = evidence.job
    if job.reason and job.state in (JobState.FAILED, JobState.LOST, JobState.TIMEOUT):
        yield Finding("record", f"job {job.id}: {job.reason}")


def summarize(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """What to say where nothing is wrong."""
    if any(finding.serious for finding in findings):
        return ""
    if evidence.job.state is JobState.SUCCEEDED:
        return f"job {evidence.job.id} succeeded, and nothing is wrong"
    living = [rank for rank in evidence.ranks.values() if rank.alive]
    if evidence.job.state is JobState.CANCELLED and not living:
        return f"job {evidence.job.id} was cancelled, and nothing is wrong with the nodes"
    if evidence.missed.keys() - {"watch"}:
        return "nothing wrong was found in the time that there was"
    if not living:
        return "nothing is wrong with the nodes, and no rank printed a known error"
    waiting = [stack.collective for stack in evidence.stacks.values() if stack.collective]
    same = len({stack.point for stack in evidence.stacks.values()}) == 1
    if same and len(waiting) == len(living):
        return _describe_same(waiting[0], any(rank.moved for rank in living))
    if waiting and any(rank.moved for rank in living):
        return "the ranks communicate and make progress, and nothing is wrong with the nodes"
    busy = [rank for rank in living if _computes(rank)]
    if not evidence.stacks:
        doing = "they compute, or poll for messages" if busy else "they may wait for each other"
        return f"nothing is wrong with the nodes; without stacks of the ranks, {doing}"
    if busy:
        who = (
            f"{len(busy)} of {len(living)} ranks compute"
            if len(living) > 1
            else "the rank computes"
        )
        return f"{who}, and nothing is wrong with the nodes{_describe_places(busy)}"
    if any(rank.moved for rank in living):
        doing = "the ranks make progress, and nothing is wrong with the nodes"
    else:
        doing = "nothing is wrong with the nodes, and no rank is in a collective of PyTorch or MPI"
    return f"{doing}{_describe_places(living)}"


def _computes(rank: Rank) -> bool:
    """Whether it uses a processor, and its main thread is not known to wait meanwhile."""
    stack = rank.stack
    waiting = stack is not None and (stack.blocked or bool(stack.waits))
    return not waiting and (rank.running or (rank.usage or 0.0) >= waits.BUSY)


def _describe_places(ranks: Sequence[Rank]) -> str:
    """`: rank 0 at load, a.py:3`, as the end of a sentence; "" if they have no stacks."""
    folded = stacks.fold({rank.number: rank.stack for rank in ranks if rank.stack})
    places = [f"{name_ranks(item.ranks)} at {item.stack.describe()}" for item in folded[:3]]
    return f": {'; '.join(places)}" if places else ""


def _describe_same(call: str, moved: bool) -> str:
    """What it may mean that all ranks are in one call at the same line, if they may go on."""
    place = f"all ranks are in {call} at the same line"
    if moved:
        return f"{place} and make progress, and nothing is wrong with the nodes"
    return (
        f"{place}, and nothing is wrong with the nodes: it may only be slow, or the ranks use"
        " different sizes or groups"
    )
