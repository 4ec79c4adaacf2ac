"""What libraries print when something is wrong, its cause, and what to do next.

Rows of one table stand in the order in which they are tried. A row with `after` is what a rank
prints because another one has already gone: it explains a failure only if no other row does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl.core.job import Job
from clusterctl.insight import known_messages
from clusterctl.insight.known_messages import Message

MESSAGES: tuple[Message, ...] = (
    *known_messages.MACHINE_MESSAGES,
    *known_messages.MESSAGES,
    *known_messages.MPI_MESSAGES,
)

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
    for line in text.splitlines():
        for message in MESSAGES:
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


EXITS = {
    137: "SIGKILL comes from the kernel when memory runs out, or from a user or a limit; use a"
    " smaller batch or larger machines; use fewer ranks on each (--ranks-per-node)",
    139: "a segmentation fault is a bug in native code, or in a package built for another version;"
    " its output has the Python line at which that happened",
    142: "SIGALRM comes from a timer that the program, or what it uses, has set with signal.alarm",
    153: "SIGXFSZ comes from the kernel when a file grows beyond `ulimit -f`",
    127: "the program, or one that it starts, was not found on the node; check its name and PATH",
    126: "the program may not be executed there; check its mode, and what its #! line names",
}
"""What to do about exit codes of programs that have said nothing that the table knows."""


def explain_exit(code: int, job: Job) -> str:
    """A hint for that exit code of a job's rank; "" where it says nothing."""
    return advise(EXITS.get(code, ""), job)
