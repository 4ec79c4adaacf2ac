"""What a program asks for, as uv is told."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

NONE = "none"
"""What --requirements says for no packages."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a program asks for.

    Args:
        source: The file that says it, for people.
        texts: The files for uv, by name; the first one names the others.
        asked: Given by --requirements, not only found: it may install torch.
        locked: The first of `texts` is what uv has exported from a lock.
    """

    source: str
    texts: dict[str, str]
    asked: bool = False
    locked: bool = False
    requirements: tuple[str, ...] | None = None
    """Those of a file that was only found and that the nodes may have already (see `installed`);
    None where they are installed in any case."""
    keeps_nodes: str = ""
    """What --requirements may name instead of a lock to keep the nodes' own torch and mpi4py."""
    left_out: tuple[str, ...] = ()
    """What the file asks for beside that, and nobody installs."""
    local: dict[str, str] = field(default_factory=dict)
    """Projects of the tree among these packages, with their metadata: their code travels with the
    tree, only what they need is installed."""
    folders: tuple[str, ...] = ()
    """The folders of these projects, relative to the tree's root."""

    @property
    def decides(self) -> bool:
        """Whether it may put another torch or mpi4py in place of the nodes' own: a lock is there
        to decide versions, and what was asked for is meant."""
        return self.asked or self.locked

    @property
    def digest(self) -> str:
        # A version that is made of each commit must not make another environment.
        local = (re.sub("(?m)^Version:.*$", "", text) for text in self.local.values())
        return hash_parts(self.source, str(self.asked), *self.texts, *self.texts.values(), *local)


def hash_parts(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
