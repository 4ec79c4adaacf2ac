"""What libraries print when something is wrong, its cause, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from clusterctl.core import assets
from clusterctl.core.job import Job


@dataclass(frozen=True, slots=True)
class Message:
    """A row. `advice`: clauses with `; ` between them, of which those are left out that recommend
    what the job already has; `source`: where the message and its cause are described; `after`: a
    rank prints it because another one has already gone."""

    name: str
    pattern: str
    cause: str
    advice: str
    source: str
    after: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How programs in that language, or that kind of program, say why they end."""

    language: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Tables:
    """messages.toml. `exits`: what to do about exit codes of programs that have said nothing that
    the table knows."""

    messages: tuple[Message, ...]
    exits: dict[int, str]
    endings: tuple[Ending, ...]


@cache
def load_tables() -> Tables:
    return assets.load_table("insight/messages.toml", Tables)


MEETINGS = frozenset({"gloo-size", "mpi-truncated"})
"""Rows that ranks print when they have met in a collective and do not fit together."""

TIMEOUTS = frozenset({"gloo-timeout", "nccl-timeout"})
"""Rows that ranks print when they have waited for others in a collective for too long."""


@dataclass(frozen=True, slots=True)
class Match:
    """A row, and the line in which its pattern was found."""

    message: Message
    line: str


def find_known_message(text: str) -> Match | None:
    """The row for the first line that has one; a row that is only `after` yields to any other."""
    fallback: Match | None = None
    messages = load_tables().messages
    for line in text.splitlines():
        for message in messages:
            if re.search(message.pattern, line):
                match = Match(message, line.strip())
                if not message.after:
                    return match
                fallback = fallback or match
                break
    return fallback


_SET: Mapping[str, Callable[[Job, Mapping[str, str]], bool]] = {
    r"--backend gloo": lambda job, _: job.spec.backend == "gloo",
    r"--backend=gloo": lambda job, _: any("gloo" in word for word in job.spec.program.args),
    r"--device=cpu": lambda job, _: any("cpu" in word for word in job.spec.program.args),
    r"--allow-cpu": lambda job, _: job.spec.allow_cpu or not job.spec.program.bundled,
    r"--ranks-per-node": lambda job, _: all(place.count <= 1 for place in job.placement),
    r"-e (?P<name>\w+)=(?P<value>\w+)": lambda job, found: (
        job.spec.env.get(found["name"]) == found["value"]
    ),
}
"""What advice may name, and whether a job already has it, or can have no use for it."""


def advise(advice: str, job: Job) -> str:
    """The clauses of the advice that recommend nothing the job already has."""

    def is_set(clause: str) -> bool:
        found = ((has, re.search(pattern, clause)) for pattern, has in _SET.items())
        return any(match and has(job, match.groupdict()) for has, match in found)

    return "; ".join(clause for clause in advice.split("; ") if not is_set(clause))


def explain_exit(code: int, job: Job) -> str:
    """A hint for that exit code of a job's rank; "" where it says nothing."""
    return advise(load_tables().exits.get(code, ""), job)
