"""Why a job hangs or has failed: a judgement over what its nodes show. Pure.

Findings come in the order of their weight: what breaks a job by itself (a machine, memory, a disk)
before what the program did, and that before what may only make it slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterctl import hangs, stacks
from clusterctl.insight import messages
from clusterctl.insight.evidence import KernelLine, NodeView, Process, Rank
from clusterctl.job_model import Hang, Job, JobState
from clusterctl.stacks import Folded, Stack, name_ranks

CLOCK = 1.0
"""Seconds that clocks may differ by before it is told."""
SOON = 10.0
"""Seconds between the kernel's line about a killed process and the end of its rank."""
KILLED, TOLD = 137, 143
"""Exit codes after SIGKILL and SIGTERM."""
BUSY, IDLE = 0.5, 0.05
"""Processors in use by a rank that computes, and by one that does not."""
POLLS = 0.1
"""The same of one that polls for messages on a machine with too few processors."""
SAME_TIME = 0.2
"""Seconds by which the end of a rank may be noticed by others before it is written down."""
WATCH = 5
"""Seconds for which ranks that wait are watched."""
LITTLE_MEMORY = 0.03
"""Free share of a node's memory below which programs are about to be killed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind` is a word for programs. `lines` are the evidence. `serious`: it can be the cause."""

    kind: str
    text: str
    advice: str = ""
    lines: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    serious: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was collected. `ended`: when each rank did, by one clock."""

    job: Job
    nodes: Mapping[str, NodeView]
    ranks: Mapping[int, Rank] = field(default_factory=dict)

    @property
    def stacks(self) -> dict[int, Stack]:
        return {number: rank.stack for number, rank in self.ranks.items() if rank.stack}

    def corrected(self, rank: Rank) -> float:
        """When it ended, by the clock of the machine that asks."""
        view = self.nodes.get(rank.node)
        return rank.ended - (view.offset if view else 0.0)

    def place(self, number: int) -> str:
        node = self.ranks[number].node if number in self.ranks else _planned(self.job, number)
        return f"rank {number} on {node}" if node else f"rank {number}"


def assemble(job: Job, views: Mapping[str, NodeView]) -> Evidence:
    """Each rank as its own node shows it: nodes that are names of one host see each other's
    processes. A batch system's nodes are not asked, and any view of their ranks is taken."""
    ranks = {
        number: rank
        for view in views.values()
        for number, rank in view.ranks.items()
        if _planned(job, number) == view.name or _planned(job, number) not in views
    }
    return Evidence(job, views, dict(sorted(ranks.items())))


def recall(evidence: Evidence, hang: Hang) -> Evidence:
    """The same with the ranks as they were when this attempt was ended, as far as that is known."""
    ranks = dict(evidence.ranks)
    for place in hang.places:
        note = hangs.read(place.note)
        for number in place.ranks:
            now = ranks.get(number) or Rank(number, _planned(evidence.job, number))
            process = Process(note.pid, 0, note.command, note.state, 0, 0)
            ranks[number] = Rank(
                number,
                now.node,
                processes=(process,),
                out=now.out,
                err=now.err,
                waits=note.waits,
                stack=note.stack,
                no_stack=note.why,
                running=note.state == "R",
            )
    return replace(evidence, ranks=dict(sorted(ranks.items())))


def describe_hang(hang: Hang) -> Finding:
    """Says what the stacks are, which are not of now."""
    return Finding(
        "hung",
        f"attempt {hang.attempt} printed nothing for {hang.seconds:g} s; the stacks are those of"
        " its ranks before clusterctl ended it",
        serious=False,
    )


def _planned(job: Job, rank: int) -> str:
    return next((place.node for place in job.placement if rank in place.ranks), "")


def judge(evidence: Evidence) -> tuple[Finding, ...]:
    """All that is wrong, the cause first."""
    found = [
        *_machines(evidence),
        *_memory(evidence),
        *_disks(evidence),
        *_networks(evidence),
        *_stopped(evidence),
        *_failures(evidence),
        *_vanished(evidence),
        *_places(evidence),
        *_idle(evidence),
        *_warnings(evidence),
    ]
    explained = {finding.ranks for finding in found if finding.kind == "memory"}
    kept = [f for f in found if f.kind != "exit" or f.ranks not in explained]
    if not any(finding.serious for finding in kept):
        kept = [*_recorded(evidence), *(_promoted(evidence, finding) for finding in kept)]
    return tuple(sorted(kept, key=lambda finding: not finding.serious))


def _promoted(evidence: Evidence, finding: Finding) -> Finding:
    """A known message in the last exception of a rank that lives is the cause if nothing else is:
    it is about to end."""
    raised = [_last_error(evidence.ranks[number].err) for number in finding.ranks]
    message = finding.kind.startswith("message:")
    return replace(finding, serious=True) if message and any(raised) else finding


def _recorded(evidence: Evidence) -> Iterator[Finding]:
    """What the record says of a job that never started, or that was ended from outside."""
    job = evidence.job
    if job.reason and job.state in (JobState.FAILED, JobState.LOST, JobState.TIMEOUT):
        yield Finding("record", f"job {job.id}: {job.reason}")


# ------------------------------------------------------------------------------------- machines


def _machines(evidence: Evidence) -> Iterator[Finding]:
    for view in evidence.nodes.values():
        if view.error:
            yield Finding(
                "unreachable",
                f"{view.name} does not answer: {view.error}",
                "`clusterctl status --live` asks again; `clusterctl up` replaces a machine that is"
                " gone",
                nodes=(view.name,),
            )
        if view.spot:
            yield Finding(
                "spot",
                f"EC2 is taking back the spot instance {view.name}",
                f"`clusterctl fetch {evidence.job.id}` saves its files; run on with"
                f" `clusterctl rerun {evidence.job.id} --resume` on another one",
                (view.spot,),
                nodes=(view.name,),
            )
        for line in _since_start(evidence, view, r"Xid|fallen off|GPU reset|amdgpu"):
            yield Finding(
                "gpu",
                f"a GPU of {view.name} has failed",
                "restart the node, or replace it if that happens again",
                (line.text,),
                nodes=(view.name,),
            )
        for line in _since_start(evidence, view, r"I/O error|EXT4-fs|XFS|Hardware Error|Machine"):
            yield Finding(
                "hardware",
                f"the kernel of {view.name} reports an error of its hardware",
                "replace the node",
                (line.text,),
                nodes=(view.name,),
                serious=False,
            )


def _since_start(evidence: Evidence, view: NodeView, pattern: str) -> list[KernelLine]:
    """The last line of that kind since the job has started."""
    began = (evidence.job.started or evidence.job.created) + view.offset - 1
    found = [k for k in view.kernel if k.when >= began and re.search(pattern, k.text)]
    return found[-1:]


def _memory(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that the kernel killed for want of memory. Nodes that share a machine share its log,
    so a line counts for the rank that ended with it."""
    seen: set[str] = set()
    began = evidence.job.started or evidence.job.created
    for number, rank in sorted(evidence.ranks.items()):
        view = evidence.nodes[rank.node]
        if rank.alive or rank.exit_code not in (KILLED, None):
            continue
        near = [
            line
            for line in view.kernel
            if "Kill" in line.text
            and line.when >= began + view.offset - 1
            and (not rank.ended or abs(line.when - rank.ended) <= SOON)
        ]
        if near:
            seen.add(near[-1].text)
            yield Finding(
                "memory",
                f"the kernel killed {evidence.place(number)}: out of memory",
                "use a smaller batch, fewer ranks per node (--ranks-per-node), or larger nodes",
                (near[-1].text,),
                (number,),
                (rank.node,),
            )
    for view in evidence.nodes.values():
        if view.memory_total and view.memory_free < LITTLE_MEMORY * view.memory_total:
            yield Finding(
                "little-memory",
                f"{view.name} has {view.memory_free / 2**20:.1f} of"
                f" {view.memory_total / 2**20:.1f} GiB of memory left",
                "use a smaller batch, fewer ranks per node (--ranks-per-node), or larger nodes",
                nodes=(view.name,),
                serious=False,
            )


def _disks(evidence: Evidence) -> Iterator[Finding]:
    for view in evidence.nodes.values():
        for disk in view.disks:
            if disk.full:
                left = f"is full: {disk.free} KiB free"
                yield Finding(
                    "disk",
                    f"{disk.mount} of {view.name} {'has no inodes left' if disk.inodes else left}",
                    "free space there, or create the cluster with a larger --disk",
                    nodes=(view.name,),
                )


# ---------------------------------------------------------------------------------------- ranks


def _stopped(evidence: Evidence) -> Iterator[Finding]:
    stopped = [number for number, rank in sorted(evidence.ranks.items()) if rank.stopped]
    for number in stopped:
        rank = evidence.ranks[number]
        main = rank.main
        yield Finding(
            "stopped",
            f"{evidence.place(number)} is stopped (SIGSTOP, or a debugger holds it)",
            f"`clusterctl ssh {rank.node} -- kill -CONT {main.pid if main else ''}` resumes it",
            ranks=(number,),
            nodes=(rank.node,),
        )


def _failures(evidence: Evidence) -> Iterator[Finding]:
    """The rank that failed first, by one clock, and why. What the others printed because of that
    is left out."""
    failed = [rank for rank in evidence.ranks.values() if rank.exit_code]
    if evidence.job.state is JobState.CANCELLED:  # that is what ended them
        failed = [rank for rank in failed if rank.exit_code not in (KILLED, TOLD)]
    told = [rank for rank in failed if rank.exit_code == TOLD]
    first = sorted(
        (rank for rank in failed if rank not in told or len(told) == len(failed)),
        key=lambda rank: (_follows(rank), evidence.corrected(rank), rank.number),
    )
    lost = any(view.error for view in evidence.nodes.values())
    ended_with_it = lost and len(told) == len(failed)  # with the lost node
    before = _gone_before(evidence, first[0]) if first and _follows(first[0]) else None
    if before:
        yield before
    elif first and not ended_with_it:
        yield _failure(evidence, first[0])
    if failed:
        return
    said = "".join(view.launcher_said for view in evidence.nodes.values())
    if (match := messages.find(said)) and not match.message.after:
        yield _explained(match, "mpirun on the launcher", ())
    for number, rank in sorted(evidence.ranks.items()):
        match = messages.find(rank.err) if not evidence.job.state.ended else None
        if match and not match.message.after:
            yield _explained(match, evidence.place(number), (number,), serious=False)


def _gone_before(evidence: Evidence, failed: Rank) -> Finding | None:
    """The rank whose end a failed one reports, if it ended without a failure of its own."""
    when = evidence.corrected(failed) + SAME_TIME
    quiet = [r for r in evidence.ranks.values() if r.exit_code == 0]
    early = [rank for rank in quiet if evidence.corrected(rank) <= when]
    if early and len(quiet) < len(evidence.ranks):
        first = min(early, key=evidence.corrected)
        match = messages.find(f"{failed.err}\n{failed.out}")
        return Finding(
            "left",
            f"{evidence.place(first.number)} ended with code 0 while"
            f" {evidence.place(failed.number)} still needed it",
            "give all ranks the same number of steps (a sampler with drop_last, or model.join());"
            " look for sys.exit or a return that only some ranks reach",
            (match.line,) if match else (),
            (first.number,),
            (first.node,),
        )
    silent = [r for r in evidence.ranks.values() if not r.alive and r.exit_code is None]
    there = [rank for rank in silent if not evidence.nodes[rank.node].error]
    return _without_trace(evidence, there[0]) if there else None


def _without_trace(evidence: Evidence, rank: Rank) -> Finding:
    return Finding(
        "gone",
        f"{evidence.place(rank.number)} is gone without an exit code: it was killed with its"
        " parent processes, its node restarted, or the disk of its output was full",
        ""
        if evidence.job.state.ended
        else f"`clusterctl cancel {evidence.job.id}` ends the others",
        ranks=(rank.number,),
        nodes=(rank.node,),
    )


def _follows(rank: Rank) -> bool:
    """Whether it failed because another one had gone."""
    match = messages.find(f"{rank.err}\n{rank.out}")
    return match is not None and match.message.after


def _failure(evidence: Evidence, rank: Rank) -> Finding:
    place = evidence.place(rank.number)
    match = messages.find(rank.err) or messages.find(rank.out)
    if match:
        return _explained(match, place, (rank.number,), nodes=(rank.node,))
    code = rank.exit_code or 0
    if error := _last_error(rank.err):
        return Finding(
            "error",
            f"{place} failed first: {error[-1].strip()}",
            f"`clusterctl logs {evidence.job.id} --rank {rank.number}` shows all that it printed",
            error,
            (rank.number,),
            (rank.node,),
        )
    how = f"was ended by signal {code - 128}" if 128 < code < 193 else f"ended with code {code}"
    advice = f"`clusterctl logs {evidence.job.id} --rank {rank.number}` shows all that it printed"
    if code == KILLED:
        how = "was killed (SIGKILL)"
        advice = "find out what killed it; the kernel log of the node does not show it"
    last = tuple(rank.err.splitlines()[-3:])
    return Finding("exit", f"{place} {how} first", advice, last, (rank.number,), (rank.node,))


def _explained(
    match: messages.Match,
    place: str,
    ranks: tuple[int, ...],
    *,
    nodes: tuple[str, ...] = (),
    serious: bool = True,
) -> Finding:
    message = match.message
    lines = (match.line, message.source)
    text = f"{place}: {message.cause}"
    return Finding(f"message:{message.name}", text, message.advice, lines, ranks, nodes, serious)


def _last_error(text: str) -> tuple[str, ...]:
    """The last line of the program's own in the last traceback, and the exception."""
    trace = text.rpartition("Traceback (most recent call last):")
    if not trace[1]:
        return ()
    lines = trace[2].splitlines()
    files = [line.strip() for line in lines if line.startswith("  File ")]
    own = [line for line in files if "-packages/" not in line and "/lib/python3" not in line]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    return (*(own or files)[-1:], *errors[-1:]) if errors else ()


def _vanished(evidence: Evidence) -> Iterator[Finding]:
    """Ranks without a process and without an exit code, on nodes that answer."""
    if evidence.job.state.ended or not any(rank.alive for rank in evidence.ranks.values()):
        return
    gone = [n for n, r in sorted(evidence.ranks.items()) if not r.alive and r.exit_code is None]
    for number in gone:
        yield _without_trace(evidence, evidence.ranks[number])
    quiet = [n for n, r in sorted(evidence.ranks.items()) if r.exit_code == 0]
    if quiet and any(stack.collective for stack in evidence.stacks.values()):
        yield Finding(
            "left",
            f"{name_ranks(quiet)} ended with code 0 while others wait in"
            f" {next(s.collective for s in evidence.stacks.values() if s.collective)}",
            "give all ranks the same number of steps (a sampler with drop_last, or model.join())",
            ranks=tuple(quiet),
        )


# --------------------------------------------------------------------------------------- places


def _places(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that wait for others in a collective, and those that are not in it."""
    living = {n: s for n, s in evidence.stacks.items() if not evidence.ranks[n].stopped}
    folded = stacks.fold(living)
    waiting = [item for item in folded if item.stack.collective]
    if not waiting:
        return
    absent = [item for item in folded if not item.stack.collective]
    for item in absent:
        yield from _missing(evidence, waiting[0], item)
    if not absent and len(waiting) > 1:
        others = "; ".join(
            f"{name_ranks(item.ranks)} in {item.stack.describe()}" for item in waiting[1:]
        )
        same = len({item.stack.collective for item in waiting}) == 1
        yield Finding(
            "mismatch",
            f"ranks wait in different {'places' if same else 'collectives'}:"
            f" {name_ranks(waiting[0].ranks)} in {waiting[0].stack.describe()}; {others}",
            "look for a branch that only some ranks take",
            ranks=tuple(rank for item in waiting[1:] for rank in item.ranks),
        )


def _missing(evidence: Evidence, waiting: Folded, item: Folded) -> Iterator[Finding]:
    """Ranks that have not come to the collective: they compute, they are slow, or they hang."""
    late = [evidence.ranks[number] for number in item.ranks]
    busy = any(rank.running or (rank.usage or 0.0) >= BUSY for rank in late)
    moved = [evidence.ranks[number].moved for number in waiting.ranks]
    ranks = [evidence.place(number) for number in item.ranks[:3]]
    more = f" and {len(item.ranks) - 3} more" if len(item.ranks) > 3 else ""
    doing = "computing" if busy else item.stack.waits or _waiting(late[0])
    slow = any(moved)
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
        advice = "look at that line: all ranks have to call the same collectives"
    elsewhere = list(_elsewhere(late[0], item.stack))
    if any(moved):
        elsewhere.insert(0, "the others make progress from time to time: the job is slow, not hung")
    elif False in moved:
        elsewhere.insert(0, f"no rank has made progress for {WATCH} s")
    yield Finding(
        "straggler" if busy or slow else "missing",
        f"{name_ranks(waiting.ranks)} wait{'s' if len(waiting.ranks) == 1 else ''}"
        f" in {waiting.stack.describe()}"
        f" for {', '.join(ranks)}{more}: {doing} at {item.stack.describe()}",
        advice,
        tuple(elsewhere),
        item.ranks,
        tuple(dict.fromkeys(rank.node for rank in late)),
    )


def _elsewhere(rank: Rank, main: Stack) -> Iterator[str]:
    """Where other threads and processes of a rank are in lines of the program."""
    threads = (
        (f"its thread {other.thread or number}", other)
        for number, other in enumerate(main.others, 2)
    )
    for name, stack in (*threads, *rank.helpers.items()):
        if main.left_by(stack):
            yield f"{name} is at {stack.describe()}{f': {stack.waits}' if stack.waits else ''}"


def watchable(evidence: Evidence) -> tuple[int, ...]:
    """Ranks that wait, asleep, for others that are elsewhere: if they wake, the job goes on."""
    folded = stacks.fold(
        {n: s for n, s in evidence.stacks.items() if not evidence.ranks[n].stopped}
    )
    if all(item.stack.collective for item in folded):
        return ()
    return tuple(
        number
        for number, stack in evidence.stacks.items()
        if stack.collective
        and (stack.blocked or "futex" in evidence.ranks[number].waits)
        and not evidence.ranks[number].stopped
    )


def _idle(evidence: Evidence) -> Iterator[Finding]:
    """Ranks without stacks, as of programs in C: most poll for a message, and some do nothing."""
    unseen = {n: r.usage for n, r in evidence.ranks.items() if r.alive and not r.stack}
    idle = [n for n, use in sorted(unseen.items()) if use is not None and use <= IDLE]
    busy = [n for n, use in unseen.items() if use is not None and use >= POLLS]
    if busy and 0 < len(idle) <= len(busy) and not any(evidence.ranks[n].stopped for n in idle):
        rank = evidence.ranks[idle[0]]
        yield Finding(
            "idle",
            f"{', '.join(map(evidence.place, idle[:3]))} does nothing ({_waiting(rank)}), while the"
            " others compute or wait for a message",
            "look at what it does there: all ranks have to come to the same communication",
            ranks=tuple(idle),
            nodes=tuple(dict.fromkeys(evidence.ranks[number].node for number in idle)),
        )


_WAITS = (
    (r"nanosleep", "sleeping"),
    (r"nfs|rpc_|ceph|fuse|lustre|\bll_", "waiting for a network file system"),
    (r"sk_|tcp_|inet_|unix_|skb_", "waiting for the network"),
    (r"pipe_|anon_pipe", "waiting for a pipe"),
    (r"do_wait|kernel_wait", "waiting for a child process"),
    (r"futex", "waiting for another thread"),
    (r"poll|select", "waiting for input"),
    (r"flock|locks_lock", "waiting for a lock on a file"),
)
"""Functions of the kernel that a process waits in."""


def _waiting(rank: Rank) -> str:
    if rank.main and rank.main.state == "D":
        return "waiting for a disk or a network file system"
    return next((text for pattern, text in _WAITS if re.search(pattern, rank.waits)), "blocked")


# ------------------------------------------------------------------------- networks and clocks


def _networks(evidence: Evidence) -> Iterator[Finding]:
    for view in evidence.nodes.values():
        for peer, how in view.peers.items():
            if how != "ok":
                yield Finding(
                    "network",
                    f"{view.name} cannot reach {peer}: {how}",
                    "check routes, firewalls and security groups between them",
                    nodes=(view.name, peer),
                )


def _warnings(evidence: Evidence) -> Iterator[Finding]:
    views = [view for view in evidence.nodes.values() if not view.error]
    middle = sorted(view.offset for view in views)[len(views) // 2] if views else 0.0
    for view in views:
        difference = view.offset - middle
        if abs(difference) > CLOCK + view.uncertainty:
            yield Finding(
                "clock",
                f"the clock of {view.name} is {abs(difference):.1f} s"
                f" {'ahead' if difference > 0 else 'behind'}",
                "start a time service there (chrony, or systemd-timesyncd)",
                nodes=(view.name,),
                serious=False,
            )
    without: dict[str, list[int]] = {}
    for number, rank in sorted(evidence.ranks.items()):
        if rank.alive and not rank.stack and rank.no_stack:
            without.setdefault(rank.no_stack, []).append(number)
    for why, numbers in without.items():
        yield Finding(
            "no-stack",
            f"no stack of {name_ranks(numbers)}: {why}",
            ranks=tuple(numbers),
            serious=False,
        )


def summarize(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """What to say where nothing is wrong."""
    if any(finding.serious for finding in findings):
        return ""
    if evidence.job.state is JobState.SUCCEEDED:
        return f"job {evidence.job.id} succeeded, and nothing is wrong"
    living = [rank for rank in evidence.ranks.values() if rank.alive]
    if evidence.job.state is JobState.CANCELLED and not living:
        return f"job {evidence.job.id} was cancelled, and nothing is wrong with the nodes"
    if not living:
        return "nothing is wrong with the nodes, and no rank printed a known error"
    busy = [rank for rank in living if rank.usage is not None and rank.usage >= BUSY]
    if busy:
        return f"{len(busy)} of {len(living)} ranks compute, and nothing is wrong with the nodes"
    waiting = [stack.collective for stack in evidence.stacks.values() if stack.collective]
    if waiting and len(waiting) == len(living):
        return (
            f"all ranks are in {waiting[0]} at the same line, and nothing is wrong with the nodes:"
            " it may only be slow, or the ranks use different sizes or groups"
        )
    return "nothing is wrong with the nodes, and no rank waits for another one"
