"""Ranks that ended, and the one that failed first; those that vanished or left early, and those
whose program has ended while their process has not."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from clusterctl.batch.verdict import TOLD_TO_END, RankEnd, sort_failures
from clusterctl.core.job import JobState
from clusterctl.core.stacks import TEARDOWN, Stack
from clusterctl.insight import messages
from clusterctl.insight.doctor import findings
from clusterctl.insight.node_views import Rank

_CRASH = re.compile(
    r"^(?:Current thread|Thread) 0x\w+ .*\(most recent call first\):$", re.MULTILINE
)
"""What Python's fault handler prints before the lines of a thread."""
_CRASH_LINE = re.compile(r'^  File (".*"), line (\d+) in (.+)$')
_OWN = re.compile(
    r"(Value|Key|Type|Index|Attribute|Assertion|Name|UnboundLocal|ZeroDivision|NotImplemented)Error"
)
SHORT = 160
"""Characters of an exception that is told beside what it means."""
SAME_TIME = 0.2
"""Seconds by which the end of a rank may be noticed by others before it is written down."""


def find_first_failure(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    """The rank that failed first, by one clock, and why. What the others printed because of that
    is left out."""
    failed = [rank for rank in evidence.ranks.values() if rank.exit_code]
    if evidence.job.state in (JobState.CANCELLED, JobState.TIMEOUT):  # that is what ended them
        failed = [rank for rank in failed if rank.exit_code not in (findings.KILLED, TOLD_TO_END)]
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
        yield _explain_match(evidence, match, "mpirun on the launcher")
    for number, rank in evidence.ranks.items():
        match = messages.find_known_message(rank.err) if not evidence.job.state.ended else None
        if match and not match.message.after and _CRASH.search(rank.err):  # it is about to end
            yield _judge_failure(evidence, rank)
        elif match and not match.message.after:
            found = _explain_match(evidence, match, evidence.name([number]), rank)
            yield replace(found, nodes=(), serious=False)


def _find_earlier_end(evidence: findings.Evidence, failed: Rank) -> findings.Finding | None:
    """The rank whose end a failed one reports, if it ended without a failure of its own."""
    when = evidence.correct_end(failed) + SAME_TIME
    quiet = [r for r in evidence.ranks.values() if r.exit_code == 0]
    early = [rank for rank in quiet if evidence.correct_end(rank) <= when]
    if early and len(quiet) < len(evidence.ranks):
        first = min(early, key=evidence.correct_end)
        match = messages.find_known_message(f"{failed.err}\n{failed.out}")
        return evidence.make_finding(
            "left",
            [first.number],
            (*messages.find_last_error(failed.err)[:1], *((match.line,) if match else ())),
            doing=f"{evidence.name([failed.number])} still needed it",
        )
    silent = [r for r in evidence.ranks.values() if not r.alive and r.exit_code is None]
    there = [rank for rank in silent if not evidence.nodes[rank.node].error]
    return _judge_vanished(evidence, there[0]) if there else None


def _judge_vanished(evidence: findings.Evidence, rank: Rank) -> findings.Finding:
    advice = "" if evidence.job.state.ended else None
    return evidence.make_finding("gone", [rank.number], advice=advice)


def _is_consequence(rank: Rank) -> bool:
    """Whether it failed because another one had gone."""
    match = _find_message(rank)
    return match is not None and match.message.after


def _judge_failure(evidence: findings.Evidence, rank: Rank) -> findings.Finding:
    error = messages.find_last_error(rank.err)
    match = _find_message(rank) or _find_killer(evidence, rank)
    if match and match.message.name in messages.MEETINGS:
        places = _find_places(evidence)
        if len(places) > 1:
            return _judge_meeting(evidence, match, places)
    if match and not (error and match.message.name == "cpp-thread"):  # it follows an exception
        found = _explain_match(evidence, match, evidence.name([rank.number]), rank)
        found = replace(found, lines=(*filter(None, [_find_line(rank.err)]), *found.lines))
        line = messages.PREFIX.sub("", match.line)
        if error and error[-1].startswith(line) and len(line) <= SHORT:  # it names the file
            found = replace(found, text=f"{found.text}: {line}")
        return _name_late(evidence, match, rank, found)
    heard = [view.launcher_said for view in evidence.nodes.values()]
    fatal = filter(None, map(messages.find_fatal, (rank.err, rank.out, *heard)))
    if error := error or tuple(itertools.islice(fatal, 1)):
        return evidence.make_finding("error", [rank.number], error, error=error[-1].strip())
    return _judge_exit(evidence, rank, rank.exit_code or 0)


def _judge_exit(evidence: findings.Evidence, rank: Rank, code: int) -> findings.Finding:
    """Of a rank that has not said why."""
    how = f"was ended by {_name_signal(code)}" if 128 < code < 193 else f"ended with code {code}"
    advice = None
    if code == findings.KILLED:
        how, advice = "was killed (SIGKILL)", findings.load_words().advice["killed"]
    lines = (rank.err.strip() or rank.out.strip()).splitlines()[-3:]
    if _CRASH.search(rank.err):
        lines = [_find_line(rank.err)] if _find_line(rank.err) else []
    said = messages.find_last_words(rank.err) or messages.find_last_words(rank.out)
    known = messages.explain_exit(code, evidence.job)
    return evidence.make_finding(
        "exit",
        [rank.number],
        lines,
        advice=advice,
        how=how,
        words=f"; the last line that it printed: {said}" if said and code < 128 else "",
        known=f"{known}; " if known else "",
    )


def _find_message(rank: Rank) -> messages.Match | None:
    """What it has printed of known messages, but for exceptions that it has caught. An exception
    that is the program's own counts for more than what stands around it."""
    match = messages.find_known_message(f"{messages.drop_handled(rank.err)}\n{rank.out}")
    error = "".join(messages.find_last_error(rank.err)[-1:])
    return None if match and _OWN.match(error) and not messages.find_known_message(error) else match


def _find_killer(evidence: findings.Evidence, rank: Rank) -> messages.Match | None:
    """What the launcher says of a rank that was killed without a word: a batch system whose limit
    on memory it has reached."""
    heard = "".join(view.launcher_said for view in evidence.nodes.values())
    match = messages.find_known_message(heard) if rank.exit_code == findings.KILLED else None
    return match if match and match.message.name == messages.BATCH_MEMORY else None


def _name_late(
    evidence: findings.Evidence, match: messages.Match, waited: Rank, found: findings.Finding
) -> findings.Finding:
    """The same with the ranks that others have waited for until a timeout: those that have not
    reported one themselves, and are not in a collective."""
    if match.message.name not in messages.TIMEOUTS:
        return found
    ranks = evidence.ranks.items()
    late = [n for n, r in ranks if not _times_out(r) and not (r.stack and r.stack.collective)]
    if not late or not _times_out(waited):
        return found
    one = evidence.ranks[late[0]]
    wait = one.wait
    where = f" ({wait.text} at {one.stack.describe()})" if one.stack else ""
    text = (
        f"{evidence.name([waited.number])} waited in a collective until its timeout, most"
        f" likely for {evidence.name(late)}{where}, which {'have' if late[1:] else 'has'} reported"
        " none"
    )
    advice = wait.advice if one.stack and wait.advice else found.advice
    nodes = tuple(dict.fromkeys(evidence.ranks[n].node for n in late))
    return replace(found, text=text, advice=advice, ranks=tuple(late), nodes=nodes)


def _times_out(rank: Rank) -> bool:
    match = _find_message(rank)
    return match is not None and match.message.name in messages.TIMEOUTS


def _find_places(evidence: findings.Evidence) -> dict[str, list[int]]:
    """Where ranks were when they failed, as far as they have said so."""
    places: dict[str, list[int]] = {}
    for number, rank in evidence.ranks.items():
        ended = rank.exit_code or evidence.job.state.ended or _CRASH.search(rank.err)
        if ended and (line := _find_line(rank.err)):
            places.setdefault(line, []).append(number)
    return places


def _judge_meeting(
    evidence: findings.Evidence, match: messages.Match, places: Mapping[str, Sequence[int]]
) -> findings.Finding:
    """Ranks that have met in a collective from different lines."""
    order = sorted(places.items(), key=lambda item: (-len(item[1]), item[1]))
    said = "; ".join(f"{findings.name_ranks(ranks)} in {line}" for line, ranks in order)
    others = [number for _, ranks in order[1:] for number in ranks]
    lines = (match.line, match.message.source)
    return evidence.make_finding("met", others, lines, places=said)


def _find_line(text: str) -> str:
    """The line of the program at which a rank failed: of its last exception, or of its crash."""
    text = messages.PREFIX.sub("", text)
    if not (crashes := list(_CRASH.finditer(text))):
        return next(iter(messages.find_last_error(text)), "")
    own = [_find_crash_line(text[crash.end() :]) for crash in crashes]
    # The main thread comes last; one that crashed in Python itself is the current one.
    current = [line for crash, line in zip(crashes, own, strict=True) if crash[0][0] == "C"]
    return next((line for line in (*current, *reversed(own)) if line), "")


def _find_crash_line(text: str) -> str:
    """The innermost line of the program among those of one thread, written as in a traceback."""
    lines = itertools.takewhile(_CRASH_LINE.match, text.lstrip("\n").splitlines())
    for line in lines:
        if (found := _CRASH_LINE.match(line)) and not messages.is_library(line):
            file = messages.WORK.sub('"', found[1])
            return f"File {file}, line {found[2]}, in {found[3]}"
    return ""


def _name_signal(code: int) -> str:
    with suppress(ValueError):
        return f"signal {code - 128} ({signal.Signals(code - 128).name})"
    return f"signal {code - 128}"


def _explain_match(
    evidence: findings.Evidence, match: messages.Match, place: object, rank: Rank | None = None
) -> findings.Finding:
    message = match.message
    return findings.Finding(
        f"message:{message.name}",
        f"{place}: {message.cause}",
        match.advise(evidence.job),
        (match.line, message.source),
        (rank.number,) if rank else (),
        (rank.node,) if rank else (),
    )


def find_vanished(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    """Ranks without a process and without an exit code, on nodes that answer."""
    if evidence.job.state.ended or not evidence.living:
        return
    for rank in evidence.ranks.values():
        if not rank.alive and rank.exit_code is None and evidence.nodes[rank.node].listed:
            yield _judge_vanished(evidence, rank)
    yield from _judge_left(evidence)


def _judge_left(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    """Ranks that have ended with code 0 while others live. That may be right, unless these wait in
    a collective, or have printed that a rank is gone."""
    quiet = [n for n, rank in evidence.ranks.items() if rank.exit_code == 0]
    stacks = [rank.stack for rank in evidence.living.values() if rank.stack]
    waiting = [stack for stack in stacks if stack.collective and not stack.tears_down]
    follow = [n for n, rank in evidence.living.items() if _is_consequence(rank)]
    if waiting:
        doing = f"others wait in {waiting[0].describe()}"
    elif follow:
        doing = f"{evidence.name(follow[:1])} still needed it"
    else:
        doing = f"{findings.name_ranks(evidence.living):still runs/still run}"
    if quiet and (waiting or follow or not any(stack.tears_down for stack in stacks)):
        said = evidence.ranks[quiet[0]].last_line
        yield evidence.make_finding(
            "left",
            quiet,
            [f"its last line of output: {said}"] if said else (),
            serious=bool(waiting or follow),
            doing=doing,
        )


# -------------------------------------------------------------------------------------------------
# Ranks whose program has ended while their process has not: what runs after the last line of a
# Python program can wait for other ranks, or for ever.


_NO_PYTHON = "find a python interpreter"
"""What py-spy says of a process whose Python has ended (and of a Python that it does not know)."""
DESTRUCTORS = "https://github.com/pytorch/pytorch/issues/56297"


def find_unfinished(evidence: findings.Evidence) -> Iterator[findings.Finding]:
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
    return stack.joins_threads or (no_python and bool(messages.find_last_error(rank.err)))


def lacks_python(evidence: findings.Evidence, rank: Rank) -> bool:
    """Whether it lives without a Python interpreter. If that is so of all ranks, and none has
    printed an exception, py-spy does not know this Python."""
    gone = _NO_PYTHON in rank.no_stack and rank.alive and not rank.stack
    return gone and bool(evidence.stacks or messages.find_last_error(rank.err))


def _explain_exit(evidence: findings.Evidence, rank: Rank) -> findings.Finding:
    """Others wait for it, and it waits for them (MPI ends only when all ranks have come to that),
    or for its own threads."""
    stack = rank.stack if rank.stack and rank.stack.joins_threads else None
    others = {n: s for n, s in evidence.stacks.items() if s.collective}
    where = f", while {findings.name_ranks(others):waits/wait}" if others else ""
    where += f" in {next(iter(others.values())).describe()}" if others else ""
    advice = findings.load_words().advice
    living = list(_describe_living(rank, stack)) if stack else []
    if error := messages.find_last_error(rank.err):
        usual = "" if rank.stack else advice["mpi-exit"]
        return evidence.make_finding(
            "unended",
            [rank.number],
            [*error, *living],
            error=error[-1].strip(),
            others=where,
            usual=advice["threads"] if stack else usual,
        )
    alone = all(r.stack and r.stack.joins_threads for r in evidence.living.values())
    return evidence.make_finding(
        "exiting",
        [rank.number],
        living,
        serious=not any(evidence.ranks[n].moved for n in others) and (bool(others) or alone),
        what="its threads or processes" if stack else "the others",
        others=where,
        usual=advice["threads"] if stack else "",
    )


def list_threads(rank: Rank, main: Stack) -> list[tuple[str, Stack]]:
    """Its other threads and its Python processes, by name."""
    threads = [(f"its thread {other.thread or n}", other) for n, other in enumerate(main.others, 2)]
    return [*threads, *rank.helpers.items()]


def _describe_living(rank: Rank, stack: Stack) -> Iterator[str]:
    """The threads and processes of the program that it may wait for."""
    for name, other in list_threads(rank, stack):
        if other.own:
            yield f"{name} is at {other.describe()}{f': {other.waits}' if other.waits else ''}"
    for process in rank.children:
        if f"its process {process.pid}" not in rank.helpers:
            yield f"its process {process.pid} runs {process.command}"


def _find_destructors(evidence: findings.Evidence) -> Iterator[findings.Finding]:
    """Ranks in the destructor of a process group, when no other rank lives that could still come
    to one of its collectives: nothing will end it."""
    living = evidence.living
    if living and all(rank.stack and rank.stack.tears_down for rank in living.values()):
        why = (
            "the destructor keeps Python's lock (the GIL) while it waits for a thread of the"
            " backend, and that thread may want this lock"
        )
        moved = any(rank.moved for rank in living.values())
        yield evidence.make_finding(
            "teardown", living, (why, DESTRUCTORS), serious=not moved, place=TEARDOWN
        )
