"""Why a job hangs or has failed: a judgement over what its nodes show. Pure.

Findings come in the order of their weight: what breaks a job by itself (a machine, memory, a disk)
before what the program did (`failures`, `waits`), and that before what may only make it slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from clusterctl.core.job import Hang, JobState
from clusterctl.core.model import shorten
from clusterctl.core.stacks import explain_kernel, fold
from clusterctl.core.text import count
from clusterctl.insight import messages
from clusterctl.insight.doctor import failures, waits
from clusterctl.insight.doctor.findings import (
    KILLED,
    Evidence,
    Finding,
    Subject,
    load_words,
    name_ranks,
)
from clusterctl.insight.messages import find_last_error
from clusterctl.insight.node_views import NodeView, Rank

CLOCK = 1.0
"""Seconds that clocks may differ by before it is told."""
SOON = 10.0
"""Seconds between the kernel's line about a killed process and the end of its rank."""
LITTLE_MEMORY = 0.03
"""Free share of a node's memory below which programs are about to be killed."""
KERNEL_SIGNS = {
    "gpu": r"Xid|fallen off|GPU reset|amdgpu",
    "hardware": r"I/O error|EXT4-fs|XFS|Hardware Error|Machine",
}
"""Findings that lines of the kernel's log make."""
_SAID = re.compile("(error|left)$|message:")
"""Kinds of findings about what ranks have said."""
_ENDED = {JobState.CANCELLED: "was cancelled", JobState.TIMEOUT: "was ended when its time was up"}


def judge(evidence: Evidence) -> tuple[Finding, ...]:
    """All that is wrong, the cause first."""
    judges = (
        *(_judge_machines, _judge_memory, _judge_disks, _judge_networks, _judge_silences),
        waits.find_stopped,
        *(failures.find_first_failure, failures.find_vanished, failures.find_unfinished),
        *(waits.judge_collectives, _judge_late_nodes, waits.find_limited, waits.find_idle),
        *(_judge_clocks, waits.find_without_stacks, _list_missed),
    )
    found = [finding for each in judges for finding in each(evidence)]
    explained = {finding.ranks for finding in found if finding.kind == "memory"}
    kept = [f for f in found if f.kind != "exit" or f.ranks not in explained]
    job = evidence.job
    recorded = job.reason and job.state in (JobState.FAILED, JobState.LOST, JobState.TIMEOUT)
    if recorded and not job.failure:  # how its ranks ended follows from that
        kept = [
            replace(f, serious=f.serious and not (f.ranks and _SAID.match(f.kind)))
            for f in kept
            if f.kind != "exit"
        ]
    if not any(finding.serious for finding in kept):
        kept = [_promote(evidence, finding) for finding in kept]
        # What the record says of a job that never started, or that was ended from outside.
        if recorded:
            kept.insert(0, evidence.make_finding("record", why=job.reason))
    if not any(finding.serious for finding in kept):
        kept += waits.find_asleep(evidence)
    kept = [replace(f, advice=messages.advise(f.advice, job)) for f in kept]
    # A full disk that nothing shows the job to use comes last.
    return tuple(sorted(kept, key=lambda f: (not f.serious, f.kind == "disk" and not f.serious)))


def _promote(evidence: Evidence, finding: Finding) -> Finding:
    """A known message in the last exception of a rank that lives is the cause if nothing else is:
    it is about to end."""
    raised = any(find_last_error(evidence.ranks[number].err) for number in finding.ranks)
    message = finding.kind.startswith("message:")
    return replace(finding, serious=True) if message and raised else finding


def describe_hang(evidence: Evidence, hang: Hang) -> Finding:
    """Says what the stacks are, which are not of now."""
    return evidence.make_finding("hung", attempt=hang.attempt, seconds=hang.seconds)


# -------------------------------------------------------------------------------------------------
# Machines, memory, disks, links and clocks: what breaks a job by itself.


def _judge_machines(evidence: Evidence) -> Iterator[Finding]:
    for view in evidence.nodes.values():
        make = partial(evidence.make_finding, nodes=[view.name])
        if view.error and not view.late:
            yield make("unreachable", error=view.error)
        if view.spot:
            yield make("spot", lines=[view.spot])
        for row, signs in KERNEL_SIGNS.items():
            if found := _find_since_start(evidence, view, signs):
                yield make(row, lines=found[-1:])


def _find_since_start(
    evidence: Evidence, view: NodeView, pattern: str, ended: float = 0.0
) -> list[str]:
    """Lines of the kernel's log of that kind since the job has started, and soon before or after
    `ended`."""
    began = (evidence.job.started or evidence.job.created) + view.offset - 1
    return [
        line.text
        for line in view.kernel
        if line.when >= began
        and re.search(pattern, line.text)
        and (not ended or abs(line.when - ended) <= SOON)
    ]


def _judge_memory(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that the kernel killed for want of memory. Nodes that share a machine share its log,
    so a line counts for the rank that ended with it."""
    for number, rank in evidence.ranks.items():
        near = _find_since_start(evidence, evidence.nodes[rank.node], "Kill", rank.ended)
        if near and not rank.alive and rank.exit_code in (KILLED, None):
            yield evidence.make_finding("memory", [number], near[-1:])
    for view in evidence.nodes.values():
        free, total = view.memory_free / 2**20, view.memory_total / 2**20
        if total and free < LITTLE_MEMORY * total:
            yield evidence.make_finding("little-memory", nodes=[view.name], free=free, total=total)


def _judge_disks(evidence: Evidence) -> Iterator[Finding]:
    """One may be mounted in several places of a node, and shared by nodes of one machine."""
    alike: dict[tuple[tuple[str, ...], bool, bool], list[tuple[str, int]]] = {}
    for view in evidence.nodes.values():
        for kind in {(disk.inodes, disk.elsewhere): None for disk in view.disks if disk.full}:
            full = [d for d in view.disks if d.full and (d.inodes, d.elsewhere) == kind]
            mounts, free = tuple(disk.mount for disk in full), max(disk.free for disk in full)
            alike.setdefault((mounts, *kind), []).append((view.name, free))
    for (mounts, inodes, elsewhere), seen in alike.items():
        are, have = ("are", "have") if mounts[1:] else ("is", "has")
        free = max(free for _, free in seen)
        state = f"{have} no inodes left" if inodes else f"{are} full: {free} KiB free"
        yield evidence.make_finding(
            "disk",
            nodes=(names := [name for name, _ in seen]),
            serious=not elsewhere,
            disks=", ".join(mounts),
            names=shorten(names),
            state=state,
        )


def _judge_networks(evidence: Evidence) -> Iterator[Finding]:
    silent = [name for name, view in evidence.nodes.items() if view.error]
    for view in evidence.nodes.values():
        for peer, why in view.peers.items():
            if why != "ok" and peer not in silent:
                yield evidence.make_finding("network", nodes=[view.name, peer], peer=peer, why=why)


def _judge_silences(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that send and get no answer. A firewall may let SSH pass, so that nodes reach each
    other, and not what ranks use."""
    names = {view.address: view.name for view in evidence.nodes.values() if view.address}
    told = {frozenset(finding.nodes) for finding in _judge_networks(evidence)}
    told |= {frozenset((view.name,)) for view in evidence.nodes.values() if view.error}
    for number, rank in evidence.ranks.items():
        for silence in sorted(set(rank.silent), key=lambda item: (item.made, item.port))[:1]:
            peer = names.get(silence.address, "")
            if not {frozenset((rank.node, peer)), frozenset((peer,))} & told:
                yield evidence.make_finding(
                    "silence" if peer else "silence-elsewhere",
                    [number],
                    nodes=filter(None, (rank.node, peer)),
                    what="its connection to" if silence.made else "it tries to connect to",
                    port=silence.port,
                    peer=peer or silence.address,
                )


def _judge_late_nodes(evidence: Evidence) -> Iterator[Finding]:
    """Nodes that have not answered in time, which may only be busy, as may this machine: what the
    others show comes first."""
    late = [view for view in evidence.nodes.values() if view.late]
    if late:
        names = [view.name for view in late]
        errors = dict.fromkeys(view.error for view in late)
        subject = Subject(", ".join(names), len(late) > 1)
        yield evidence.make_finding("late", lines=errors, nodes=names, late=subject)


def _judge_clocks(evidence: Evidence) -> Iterator[Finding]:
    views = [view for view in evidence.nodes.values() if not view.error]
    middle = sorted(view.offset for view in views)[len(views) // 2] if views else 0.0
    for view in views:
        ahead = view.offset - middle
        if abs(ahead) > CLOCK + view.uncertainty:
            side = "ahead" if ahead > 0 else "behind"
            yield evidence.make_finding("clock", nodes=[view.name], seconds=abs(ahead), side=side)


def _list_missed(evidence: Evidence) -> Iterator[Finding]:
    """What there was no time for, with what the kernel says of ranks without stacks."""
    if not evidence.missed:
        return
    words = load_words().missed
    told = (words[word].format(", ".join(names)) for word, names in evidence.missed.items())
    found: dict[str, list[int]] = {}
    for number, rank in evidence.living.items():
        if not rank.stack and (wait := explain_kernel(rank.waits)):
            found.setdefault(wait.text, []).append(number)
    yield evidence.make_finding(
        "time",
        lines=[f"{name_ranks(numbers):is/are} {text}" for text, numbers in found.items()],
        nodes=dict.fromkeys(name for names in evidence.missed.values() for name in names),
        what="; to ".join(told),
    )


# -------------------------------------------------------------------------------------------------
# What to say where nothing is wrong.


def summarize(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """What to say where nothing is wrong."""
    if any(finding.serious for finding in findings):
        return ""
    if evidence.job.state is JobState.SUCCEEDED:
        return f"job {evidence.job.id} succeeded, and nothing is wrong"
    living = list(evidence.living.values())
    if (how := _ENDED.get(evidence.job.state)) and not living:
        return f"job {evidence.job.id} {how}, and nothing is wrong with the nodes"
    if evidence.missed.keys() - {"watch"}:
        return "nothing wrong was found in the time that there was"
    if not living:
        return "nothing is wrong with the nodes, and no rank printed a known error"
    waiting = [stack.collective for stack in evidence.stacks.values() if stack.collective]
    same = len({stack.point for stack in evidence.stacks.values()}) == 1
    moved = any(rank.moved for rank in living)
    if same and len(waiting) == len(living):
        return _describe_same(waiting[0], moved)
    busy = [rank for rank in living if _computes(rank)]
    if not evidence.stacks:
        doing = "they compute, or poll for messages" if busy else "they may wait for each other"
        return f"nothing is wrong with the nodes; without stacks of the ranks, {doing}"
    if moved and (waiting or not busy):
        doing = "the ranks make progress"
    elif busy:
        doing = f"{len(busy)} of {count(len(living), 'rank')} compute"
    else:
        doing = "no rank is in a collective of PyTorch or MPI"
    places = _describe_places(busy or living)
    return f"{doing}, and nothing is wrong with the nodes{places}"


def _computes(rank: Rank) -> bool:
    """Whether it uses a processor, and its main thread is not known to wait meanwhile."""
    stack = rank.stack
    waiting = stack is not None and (stack.blocked or bool(stack.waits))
    return not waiting and (rank.running or (rank.usage or 0.0) >= waits.BUSY)


def _describe_places(ranks: Sequence[Rank]) -> str:
    """`: rank 0 at load, a.py:3`, as the end of a sentence; "" if they have no stacks."""
    folded = fold({rank.number: rank.stack for rank in ranks if rank.stack})
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
