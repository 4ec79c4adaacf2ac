"""What a batch system adds to the command line. Each declares it in a module of its own here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.options.table import Group, Option

BATCH_SYSTEMS: dict[str, str] = {
    "slurm": "clusterctl.options.slurm:OPTIONS",
    "sge": "clusterctl.options.sge:OPTIONS",
}
"""The row that makes a batch system known: where its options are. By the same name, `batch` has
the module NAME with a class Name, and `machines` one with a class NameProvider.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """`--NAME` of `attach` is its name in BATCH_SYSTEMS."""

    title: str
    """Its name for people."""
    emits: str
    """The format of its scripts, as `--emit` names it."""
    passed: Callable[[Group], tuple[Option[Any], ...]]
    """Options of `run` that no other batch system has, and that it takes as they are."""
    dash_q: str
    """The option that its users mean by -q, which is --quiet here."""
    sizes: tuple[str, ...] = ()
    """Those of its options that say how many ranks there are."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Short options that its users know and `run` does not have, and what to write."""
    slots: str = ""
    """How to ask for slots, where those are allocated, not nodes."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """By option of another batch system: what to write here."""
