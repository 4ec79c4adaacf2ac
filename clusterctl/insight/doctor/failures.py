"""Ranks that ended: the one that failed first, and those that vanished or left early."""

from __future__ import annotations

import itertools
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from clusterctl.batch.verdict import TOLD_TO_END, RankEnd, sort_failures
from clusterctl.core.job import JobState
from clusterctl.core.stacks import name_ranks
from clusterctl.insight import messages
from clusterctl.insight.doctor.absence import find_wait
from clusterctl.insight.doctor.findings import KILLED, Evidence, Finding
from clusterctl.insight.doctor.tracebacks import (
    PREFIX,
    WORK,
    drop_handled,
    find_fatal,
    find_last_error,
    find_last_words,
    is_library,
)
from clusterctl.insight.node_views import NodeView, Rank

_CRASH = re.compile(
    r"^(?:Current thread|Thread) 0x\w+ .*\(most recent call first\):$", re.MULTILINE
)
"""What Python's fault handler prints before the lines of a thread."""
_CRASH_LINE = re.compile(r'^  File (".*"), line (\d+) in (.+)$')
_OWN = re.compile(
    r"(Value|Key|Type|Index|Attribute|Assertion|Name|UnboundLocal|ZeroDivision|NotImplemented)Error"
)
_DEEP = 20
"""Times that a line stands in the innermost calls of a thread whose recursion has no end."""
SHORT = 160
"""Characters of an exception that is told beside what it means."""
SAME_TIME = 0.2
"""Seconds by which the end of a rank may be noticed by others before it is written down."""


def find_first_failure(evidence: Evidence) -> Iterator[Finding]:
    """The rank that failed first, by one clock, and why. What the others printed because of that
    is left out."""
    failed = [rank for rank in evidence.ranks.values() if rank.exit_code]
    if evidence.job.state is JobState.CANCELLED:  # that is what ended them
        failed = [rank for rank in failed if rank.exit_code not in (KILLED, TOLD_TO_END)]
    ends = sort_failures(
        RankEnd(rank.number, rank.exit_code or 0, evidence.correct_end(rank), _is_consequence(rank))
        for rank in failed
    )
    if ends:
        first = evidence.ranks[ends[0].rank]
        lost = any(view.error for view in evidence.nodes.values())
        ended_with_it = lost and (ends[0].code == TOLD_TO_END or ends[0].follows)
        if ends[0].follows and (before := _find_earlier_end(evidence, first)):
            yield before
        elif not ended_with_it:  # by the loss of that node
            yield _judge_failure(evidence, first)
    if failed:
        return
    said = "".join(view.launcher_said for view in evidence.nodes.values())
    if (match := messages.find_known_message(said)) and not match.message.after:
        yield _explain_match(match, "mpirun on the launcher", ())
    for number, rank in sorted(evidence.ranks.items()):
        match = messages.find_known_message(rank.err) if not evidence.job.state.ended else None
        if match and not match.message.after and _CRASH.search(rank.err):  # it is about to end
            yield _judge_failure(evidence, rank)
        elif match and not match.message.after:
            yield _explain_match(match, evidence.name_rank(number), (number,), serious=False)


def _find_earlier_end(evidence: Evidence, failed: Rank) -> Finding | None:
    """The rank whose end a failed one reports, if it ended without a failure of its own."""
    when = evidence.correct_end(failed) + SAME_TIME
    quiet = [r for r in evidence.ranks.values() if r.exit_code == 0]
    early = [rank for rank in quiet if evidence.correct_end(rank) <= when]
    if early and len(quiet) < len(evidence.ranks):
        first = min(early, key=evidence.correct_end)
        match = messages.find_known_message(f"{failed.err}\n{failed.out}")
        return Finding(
            "left",
            f"{evidence.name_rank(first.number)} ended with code 0 while"
            f" {evidence.name_rank(failed.number)} still needed it",
            "give all ranks the same number of steps (a sampler with drop_last, or model.join());"
            " look for sys.exit, a return or a collective that only some ranks reach",
            (*find_last_error(failed.err)[:1], *((match.line,) if match else ())),
            (first.number,),
            (first.node,),
        )
    silent = [r for r in evidence.ranks.values() if not r.alive and r.exit_code is None]
    there = [rank for rank in silent if not evidence.nodes[rank.node].error]
    return _judge_vanished(evidence, there[0]) if there else None


def _judge_vanished(evidence: Evidence, rank: Rank) -> Finding:
    return Finding(
        "gone",
        f"{evidence.name_rank(rank.number)} is gone without an exit code: it was killed with its"
        " parent processes, its node restarted, or the disk of its output was full",
        ""
        if evidence.job.state.ended
        else f"`clusterctl cancel {evidence.job.id}` ends the others",
        ranks=(rank.number,),
        nodes=(rank.node,),
    )


def _is_consequence(rank: Rank) -> bool:
    """Whether it failed because another one had gone."""
    match = _find_message(rank)
    return match is not None and match.message.after


def _judge_failure(evidence: Evidence, rank: Rank) -> Finding:
    place = evidence.name_rank(rank.number)
    error = find_last_error(rank.err)
    match = _find_message(rank)
    if match and match.message.name in messages.MEETINGS:
        places = _find_places(evidence)
        if len(places) > 1:
            return _judge_mismatch(match, places)
    if match and not (error and match.message.name == "cpp-thread"):  # it follows an exception
        where = tuple(filter(None, (_find_line(rank.err),)))
        if match.message.name == "host-memory":
            match = _weigh_free_memory(match, evidence.nodes.get(rank.node))
        if match.message.name == "torch-file":
            match = _weigh_free_disks(match, evidence.nodes.get(rank.node))
        found = _explain_match(match, place, (rank.number,), nodes=(rank.node,), where=where)
        line = PREFIX.sub("", match.line)
        if error and error[-1].startswith(line) and len(line) <= SHORT:  # it names the file
            found = replace(found, text=f"{found.text}: {line}")
        return _name_late(evidence, match, rank, found)
    code = rank.exit_code or 0
    heard = [view.launcher_said for view in evidence.nodes.values()]
    if not error and (
        said := next(filter(None, map(find_fatal, (rank.err, rank.out, *heard))), "")
    ):
        error = (said,)
    if error:
        return Finding(
            "error",
            f"{place} failed first: {error[-1].strip()}",
            f"`clusterctl logs {evidence.job.id} --rank {rank.number}` shows all that it printed",
            error,
            (rank.number,),
            (rank.node,),
        )
    how = f"was ended by {_name_signal(code)}" if 128 < code < 193 else f"ended with code {code}"
    advice = f"`clusterctl logs {evidence.job.id} --rank {rank.number}` shows all that it printed"
    if known := messages.explain_exit(code, evidence.job):
        advice = f"{known}; {advice}"
    if code == KILLED:
        how = "was killed (SIGKILL)"
        advice = "find out what killed it; the kernel log of the node does not show it"
    last = tuple((rank.err.strip() or rank.out.strip()).splitlines()[-3:])
    said = find_last_words(rank.err) or find_last_words(rank.out)
    words = f"; the last line that it printed: {said}" if said and code < 128 else ""
    if code == 128 + signal.SIGSEGV and _has_recursed(rank.err):
        how = "failed by a recursion deeper than its stack (SIGSEGV; `ulimit -s` is the limit)"
        advice = "look for a recursion without an end at that line"
    if _CRASH.search(rank.err):
        last = (_find_line(rank.err),) if _find_line(rank.err) else ()
    return Finding(
        "exit", f"{place} {how} first{words}", advice, last, (rank.number,), (rank.node,)
    )


def _find_message(rank: Rank) -> messages.Match | None:
    """What it has printed of known messages, but for exceptions that it has caught. An exception
    that is the program's own counts for more than what stands around it."""
    match = messages.find_known_message(f"{drop_handled(rank.err)}\n{rank.out}")
    error = "".join(find_last_error(rank.err)[-1:])
    return None if match and _OWN.match(error) and not messages.find_known_message(error) else match


def _name_late(evidence: Evidence, match: messages.Match, waited: Rank, found: Finding) -> Finding:
    """The same with the ranks that others have waited for until a timeout: those that have not
    reported one themselves, and are not in a collective."""
    if match.message.name not in messages.TIMEOUTS:
        return found
    ranks = sorted(evidence.ranks.items())
    late = [n for n, r in ranks if not _times_out(r) and not (r.stack and r.stack.collective)]
    if not late or not _times_out(waited):
        return found
    one = evidence.ranks[late[0]]
    places = evidence.name_rank(late[0]) if len(late) == 1 else name_ranks(late)
    wait = find_wait(one, one.stack)
    where = f" ({wait.text} at {one.stack.describe()})" if one.stack else ""
    text = (
        f"{evidence.name_rank(waited.number)} waited in a collective until its timeout, most"
        f" likely for {places}{where}, which {'has' if len(late) == 1 else 'have'} reported none"
    )
    advice = wait.advice if one.stack and wait.advice else found.advice
    nodes = tuple(dict.fromkeys(evidence.ranks[n].node for n in late))
    return replace(found, text=text, advice=advice, ranks=tuple(late), nodes=nodes)


def _times_out(rank: Rank) -> bool:
    match = _find_message(rank)
    return match is not None and match.message.name in messages.TIMEOUTS


def _weigh_free_memory(match: messages.Match, view: NodeView | None) -> messages.Match:
    """The same, or that its node has memory, which a rank may have filled itself."""
    if not view or not view.memory_total or view.memory_free < view.memory_total / 2:
        return match
    free, total = view.memory_free / 2**20, view.memory_total / 2**20
    message = replace(
        match.message,
        cause=f"it was refused memory; {view.name} has {free:.1f} of {total:.1f} GiB free now",
        advice="if the rank had not filled the node itself, look at the size of that allocation,"
        " and for a limit: `ulimit -v`, its container or batch job; else use a smaller batch,"
        " fewer ranks per node (--ranks-per-node), or larger nodes",
    )
    return replace(match, message=message)


def _weigh_free_disks(match: messages.Match, view: NodeView | None) -> messages.Match:
    """The same, or that its node has space."""
    if not view or not view.disks or any(disk.full for disk in view.disks):
        return match
    message = replace(
        match.message,
        cause=f"torch.save could not write its file to the end, though no disk of {view.name} is"
        " full now",
        advice="look for a limit on the size of files (`ulimit -f`) or a quota, and for a disk that"
        " was full only then",
    )
    return replace(match, message=message)


def _has_recursed(text: str) -> bool:
    """Whether the fault handler shows one line of the program again and again."""
    *_, last = ("", *_CRASH.split(PREFIX.sub("", text)))
    lines = itertools.takewhile(_CRASH_LINE.match, last.lstrip("\n").splitlines())
    return max(Counter(lines).values(), default=0) >= _DEEP


def _find_places(evidence: Evidence) -> dict[str, list[int]]:
    """Where ranks were when they failed, as far as they have said so."""
    places: dict[str, list[int]] = {}
    for number, rank in sorted(evidence.ranks.items()):
        ended = rank.exit_code or evidence.job.state.ended or _CRASH.search(rank.err)
        if ended and (line := _find_line(rank.err)):
            places.setdefault(line, []).append(number)
    return places


def _judge_mismatch(match: messages.Match, places: Mapping[str, Sequence[int]]) -> Finding:
    """Ranks that have met in a collective from different lines."""
    order = sorted(places.items(), key=lambda item: (-len(item[1]), item[1]))
    said = "; ".join(f"{name_ranks(ranks)} in {line}" for line, ranks in order)
    return Finding(
        "mismatch",
        f"ranks were in different collectives: {said}",
        "look for a branch that only some ranks take, a rank with fewer or more steps, or one that"
        " has caught an exception: it has skipped collectives, and meets the others in a wrong one;"
        " or for sizes that do not fit (the splits of all_to_all), where one has gone on already",
        (match.line, match.message.source),
        tuple(number for _, ranks in order[1:] for number in ranks),
    )


def _find_line(text: str) -> str:
    """The line of the program at which a rank failed: of its last exception, or of its crash."""
    text = PREFIX.sub("", text)
    if not (crashes := list(_CRASH.finditer(text))):
        return next(iter(find_last_error(text)), "")
    own = [_find_crash_line(text[crash.end() :]) for crash in crashes]
    # The main thread comes last; one that crashed in Python itself is the current one.
    current = [line for crash, line in zip(crashes, own, strict=True) if crash[0][0] == "C"]
    return next((line for line in (*current, *reversed(own)) if line), "")


def _find_crash_line(text: str) -> str:
    """The innermost line of the program among those of one thread, written as in a traceback."""
    lines = itertools.takewhile(_CRASH_LINE.match, text.lstrip("\n").splitlines())
    for line in lines:
        if (found := _CRASH_LINE.match(line)) and not is_library(line):
            file = WORK.sub('"', found[1])
            return f"File {file}, line {found[2]}, in {found[3]}"
    return ""


def _name_signal(code: int) -> str:
    with suppress(ValueError):
        return f"signal {code - 128} ({signal.Signals(code - 128).name})"
    return f"signal {code - 128}"


def _explain_match(
    match: messages.Match,
    place: str,
    ranks: tuple[int, ...],
    *,
    nodes: tuple[str, ...] = (),
    serious: bool = True,
    where: tuple[str, ...] = (),
) -> Finding:
    message = match.message
    lines = (*where, match.line, message.source)
    text = f"{place}: {message.cause}"
    return Finding(f"message:{message.name}", text, message.advice, lines, ranks, nodes, serious)


def find_vanished(evidence: Evidence) -> Iterator[Finding]:
    """Ranks without a process and without an exit code, on nodes that answer."""
    if evidence.job.state.ended or not any(rank.alive for rank in evidence.ranks.values()):
        return
    gone = [
        number
        for number, rank in sorted(evidence.ranks.items())
        if not rank.alive and rank.exit_code is None and evidence.nodes[rank.node].listed
    ]
    for number in gone:
        yield _judge_vanished(evidence, evidence.ranks[number])
    yield from _judge_left(evidence)


def _judge_left(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that have ended with code 0 while others live. That may be right, unless these wait in
    a collective, or have printed that a rank is gone."""
    quiet = [n for n, r in sorted(evidence.ranks.items()) if r.exit_code == 0]
    living = {n: rank for n, rank in sorted(evidence.ranks.items()) if rank.alive}
    if not quiet:
        return
    stacks = [rank.stack for rank in living.values() if rank.stack]
    waiting = [stack for stack in stacks if stack.collective and not stack.tears_down]
    follow = [n for n, rank in living.items() if _is_consequence(rank)]
    if waiting:
        doing = f"others wait in {waiting[0].describe()}"
    elif follow:
        doing = f"{evidence.name_rank(follow[0])} still needed it"
    elif not any(stack.tears_down for stack in stacks):
        doing = f"{name_ranks(living)} still run{'s' if len(living) == 1 else ''}"
    else:
        return
    places = evidence.name_rank(quiet[0]) if len(quiet) == 1 else name_ranks(quiet)
    yield Finding(
        "left",
        f"{places} ended with code 0 while {doing}",
        "give all ranks the same number of steps (a sampler with drop_last, or model.join());"
        " look for sys.exit, a return or a collective that only some ranks reach",
        tuple(last for n in quiet[:1] if (last := _describe_last_line(evidence.ranks[n]))),
        tuple(quiet),
        tuple(dict.fromkeys(evidence.ranks[number].node for number in quiet)),
        serious=bool(waiting or follow),
    )


def _describe_last_line(rank: Rank) -> str:
    said = [line.strip() for line in rank.out.splitlines() if line.strip()]
    return f"its last line of output: {said[-1][:120]}" if said else ""
