"""What libraries print when something is wrong, its cause, and what to do next.

Rows of one table stand in the order in which they are tried. A row with `after` is what a rank
prints because another one has already gone: it explains a failure only if no other row does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.insight.known_messages import machine, mpi, pytorch
from clusterctl.insight.known_messages.row import Message

MESSAGES: tuple[Message, ...] = (*machine.MESSAGES, *pytorch.MESSAGES, *mpi.MESSAGES)

MEETINGS = frozenset({"gloo-size", "mpi-truncated"})
"""Rows that ranks print when they have met in a collective and do not fit together."""

TIMEOUTS = frozenset({"gloo-timeout", "nccl-timeout"})
"""Rows that ranks print when they have waited for others in a collective for too long."""


@dataclass(frozen=True, slots=True)
class Match:
    """A row, and the line in which its pattern was found."""

    message: Message
    line: str


def find(text: str) -> Match | None:
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


EXITS = {
    137: "SIGKILL comes from the kernel when memory runs out, or from a user or a limit; use a"
    " smaller batch, fewer ranks per node (--ranks-per-node) or larger machines",
    139: "a segmentation fault is a bug in native code, or in a package built for another version;"
    " its output has the Python line at which that happened",
    142: "SIGALRM comes from a timer that the program, or what it uses, has set with signal.alarm",
    153: "SIGXFSZ comes from the kernel when a file grows beyond `ulimit -f`",
    127: "the program, or one that it starts, was not found on the node; check its name and PATH",
    126: "the program may not be executed there; check its mode, and what its #! line names",
}
"""What to do about exit codes of programs that have said nothing that the table knows."""


def explain_exit(code: int) -> str:
    """A hint for that exit code; "" where it says nothing."""
    return EXITS.get(code, "")
