"""A row of the tables of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A row. `pattern` is compiled when it is first searched for, since every command loads this;
    `advice`: clauses with `; ` between them, of which those are left out that recommend what the
    job already has; `source`: where the message and its cause are described."""

    name: str
    pattern: str
    cause: str
    advice: str
    source: str
    after: bool = False
