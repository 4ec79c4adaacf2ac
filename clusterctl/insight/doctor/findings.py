"""What a judgement is made from, and what it consists of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.batch.verdict import correct
from clusterctl.core import assets, stacks
from clusterctl.core.job import UNPLACED, Hang, Job
from clusterctl.core.stacks import Stack
from clusterctl.insight.node_views import NodeView, Rank, RankProcess

WATCH = 5
"""Seconds for which ranks that wait are watched."""
POLLS = 0.1
"""Processors in use by a rank that polls for messages on a machine with too few processors."""
NAMED = 3
"""Ranks that are named one by one."""
KILLED = 137
"""The exit code after SIGKILL."""


class Finding(Struct, frozen=True):
    """`kind` is a word for programs. `lines` are the evidence. `serious`: it can be the cause."""

    kind: str
    text: str
    advice: str = ""
    lines: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    serious: bool = True


class Words(Struct, frozen=True):
    """A row of findings.toml."""

    text: str
    advice: str = ""
    kind: str = ""
    serious: bool = True


class Vocabulary(Struct, frozen=True):
    """findings.toml."""

    findings: dict[str, Words]
    missed: dict[str, str]
    advice: dict[str, str]


@cache
def load_words() -> Vocabulary:
    return assets.load_table("insight/doctor/findings.toml", Vocabulary)


class Subject(Struct, frozen=True):
    """Ranks or nodes by name. A format has the verb for one and for several: `{who:is/are}`."""

    name: str
    several: bool

    def __str__(self) -> str:
        return self.name

    def __format__(self, verbs: str) -> str:
        return f"{self.name} {verbs.split('/')[self.several]}" if verbs else self.name


def name_ranks(ranks: Collection[int]) -> Subject:
    """Without their nodes."""
    return Subject(stacks.name_ranks(ranks), len(ranks) > 1)


class Evidence(Struct, frozen=True):
    """What was collected. `watched`: for how many seconds, whether ranks that wait make progress.
    `missed`: what there was no time for, and on which nodes."""

    job: Job
    nodes: Mapping[str, NodeView]
    ranks: Mapping[int, Rank] = field(default_factory=dict)
    watched: int = WATCH
    missed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def stacks(self) -> dict[int, Stack]:
        return {number: rank.stack for number, rank in self.ranks.items() if rank.stack}

    @property
    def living(self) -> dict[int, Rank]:
        return {number: rank for number, rank in self.ranks.items() if rank.alive}

    def correct_end(self, rank: Rank) -> float:
        """When it ended, by the clock of the machine that asks."""
        view = self.nodes.get(rank.node)
        return correct(rank.ended, view.offset, view.uncertainty) if view else rank.ended

    def name(self, ranks: Collection[int]) -> Subject:
        """One rank with its node, several without."""
        subject = name_ranks(ranks)
        if len(ranks) != 1:
            return subject
        (number,) = ranks
        node = self.find_node(number)
        return Subject(f"{subject.name} on {node}" if node else subject.name, several=False)

    def find_node(self, number: int) -> str:
        """Where it runs, which is not where its output is seen on the login node of a batch
        system; "" where neither is known."""
        placed = self.job.find_node(number)
        seen = self.ranks[number].node if number in self.ranks else placed
        return seen if placed in {"", UNPLACED} else placed

    def name_each(self, ranks: Collection[int]) -> str:
        """With their nodes, as long as they are few."""
        named = [str(self.name([number])) for number in ranks]
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        return ", ".join(named[:NAMED]) + more

    def make_finding(
        self,
        row: str,
        ranks: Collection[int] = (),
        lines: Iterable[str] = (),
        *,
        nodes: Iterable[str] = (),
        advice: str | None = None,
        serious: bool | None = None,
        **facts: object,
    ) -> Finding:
        """In the words of that row of findings.toml. `nodes`: else those of the ranks. `advice` and
        `serious`: else as the row has them."""
        words = load_words().findings[row]
        places = tuple(nodes) or tuple(
            dict.fromkeys(self.find_node(number) for number in ranks if number in self.ranks)
        )
        facts["rank"], facts["node"] = next(iter(ranks), ""), next(iter(places), "")
        facts["who"], facts["each"] = self.name(ranks), self.name_each(ranks)
        facts["job"] = self.job.id
        return Finding(
            words.kind or row,
            words.text.format(**facts),
            words.advice.format(**facts) if advice is None else advice,
            tuple(lines),
            tuple(ranks),
            places,
            words.serious if serious is None else serious,
        )


def assemble(job: Job, views: Mapping[str, NodeView]) -> Evidence:
    """Each rank as its own node shows it: nodes that are names of one host see each other's
    processes. A batch system's nodes are not asked, and any view of their ranks is taken."""
    ranks = {
        number: rank
        for view in views.values()
        for number, rank in view.ranks.items()
        if job.find_node(number) == view.name or job.find_node(number) not in views
    }
    return Evidence(job, views, dict(sorted(ranks.items())))


_ENDED = re.compile(
    r"[Cc]heck that the process is running|[Nn]o such process|os error 3\b"
    r"|find a python interpreter"
)
"""What py-spy says of a process that has ended, or is about to."""


def is_ending(evidence: Evidence) -> bool:
    """Whether a rank ends while it is looked at: it has no process and no exit code yet, or its
    program is gone when its stack is read. A later look shows how."""
    return any(
        (_is_leaving(rank) if rank.alive else rank.exit_code is None)
        for rank in evidence.ranks.values()
        if evidence.nodes[rank.node].listed
    )


def _is_leaving(rank: Rank) -> bool:
    stack = rank.stack
    if stack is None:
        return bool(_ENDED.search(rank.no_stack))
    return not stack.collective and not any(frame.python for frame in stack.frames)


def note_missed(evidence: Evidence, what: str, nodes: Collection[str]) -> Evidence:
    """The same, with what there was no time for on these nodes: a word of `nodes.MISSED`."""
    missed = {what: tuple(nodes)} if nodes else {}
    return replace(evidence, missed={**evidence.missed, **missed})


def fill_in(evidence: Evidence, stored: Evidence) -> Evidence:
    """The same with what is stored of ranks whose nodes have not shown them."""
    shown = {name for name, view in evidence.nodes.items() if not (view.absent or view.error)}
    ranks = {n: r for n, r in stored.ranks.items() if r.node not in shown}
    nodes = {**stored.nodes, **evidence.nodes}
    return replace(evidence, nodes=nodes, ranks=dict(sorted({**ranks, **evidence.ranks}.items())))


def keep_stacks(before: Evidence, after: Evidence) -> Evidence:
    """A later look, with the stacks of an earlier one of ranks that still live. Where it had no
    time, the earlier one counts."""
    listed = {name: view for name, view in after.nodes.items() if view.listed}
    after = replace(assemble(after.job, {**before.nodes, **listed}), missed=before.missed)
    for number, rank in after.ranks.items():
        old = before.ranks.get(number)
        if old and rank.main and old.main and rank.main.pid == old.main.pid:
            rank.stack, rank.no_stack, rank.helpers = old.stack, old.no_stack, old.helpers
            rank.usage, rank.running = old.usage, old.running
            rank.throttled = old.throttled
    for name, view in after.nodes.items():
        view.peers = view.peers or before.nodes[name].peers
    return after


def restore_stacks(evidence: Evidence, hang: Hang) -> Evidence:
    """The same with the ranks as they were when this attempt was ended, as far as that is known."""
    ranks = dict(evidence.ranks)
    for place in hang.places:
        note = stacks.read_hang_notes(place.note)
        for number in place.ranks:
            now = ranks.get(number) or Rank(number, evidence.job.find_node(number))
            process = RankProcess(note.pid, 0, note.state, 0, note.command)
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
