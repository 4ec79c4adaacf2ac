"""The batch systems that there are, on the command line: what all of them take, and each alone."""

from __future__ import annotations

from functools import cache
from typing import Any

from clusterctl.options import kinds
from clusterctl.options.batch import BATCH_SYSTEMS
from clusterctl.options.kinds import Group, Limit, Option, flag, join_words, text


@cache
def _join_titles(names: tuple[str, ...], last: str = "and") -> str:
    return join_words([BATCH_SYSTEMS[name].title for name in names], last)


ALL = tuple(BATCH_SYSTEMS)
FLAGS = {f"--{name}": name for name in BATCH_SYSTEMS}
"""Of `attach`, with the batch system of each."""
SHORT = {word: flag for row in BATCH_SYSTEMS.values() for word, flag in row.short.items()}
SIZES = tuple(flag for row in BATCH_SYSTEMS.values() for flag in row.sizes)
_SLOTS = {name: row.slots for name, row in BATCH_SYSTEMS.items() if row.slots}

ONLY = Limit(
    f"works only with {_join_titles(ALL)}",
    f"leave it out, or `clusterctl attach NAME {'` or `'.join(FLAGS)}`",
    only=frozenset(BATCH_SYSTEMS),
)
TERMINAL = ONLY._replace(hint="`clusterctl ssh` opens a shell on a node of this cluster")
NODES = Limit(
    f"has no effect with {_join_titles(tuple(_SLOTS))}, which allocates slots",
    "; ".join(_SLOTS.values()),
    only=frozenset({"direct", *BATCH_SYSTEMS}.difference(_SLOTS)),
)
RANKS = Limit(
    f"has no effect with --interactive on {_join_titles(tuple(_SLOTS), 'or')}",
    "; ".join(_SLOTS.values()),
    never=frozenset(f"interactive {name}" for name in _SLOTS),
)
GROUP = Group(f"Batch systems ({_join_titles(ALL)})", (ONLY, kinds.STAGED))
_ALL = Group(
    GROUP.heading, (ONLY,), True, f"Passed to {'either' if len(BATCH_SYSTEMS) == 2 else 'any'}"
)


def _make_group(word: str) -> Group:
    """Of an option that only some batch systems have."""
    rows = {name: row for name, row in BATCH_SYSTEMS.items() if word in row.passed}
    titles = _join_titles(tuple(rows))
    limit = Limit(f"works only with {titles}", only=frozenset(rows))
    more = [row.limits[word] for row in rows.values() if word in row.limits]
    return Group(GROUP.heading, (limit, *more), True, f"Passed to {titles}")


_KINDS = {word: kind for row in BATCH_SYSTEMS.values() for word, kind in row.passed.items()}
_GROUPS = {word: _make_group(word) for word in _KINDS}

PASSED: tuple[Option[Any], ...] = (
    *[
        text(f"--{name}", _ALL)
        for name in ("account", "job-name", "mail-type", "mail-user", "time")
    ],
    flag("--requeue", _ALL, limits=(ONLY, kinds.SUPERVISED, kinds.STAGED)),
    *[kind(word, _GROUPS[word]) for word, kind in _KINDS.items()],
)
"""Options of `run` that go to the batch system as they are."""
