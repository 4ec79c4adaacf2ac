"""The batch systems that there are, on the command line: what all of them take, and each alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, cast

from clusterctl.options import table
from clusterctl.options.batch import BATCH_SYSTEMS, BatchOptions
from clusterctl.options.table import Group, Limit, Option, flag, join_words, text


def _load(row: str) -> BatchOptions:
    module, _, attribute = row.partition(":")
    return cast(BatchOptions, getattr(import_module(module), attribute))


SYSTEMS: Mapping[str, BatchOptions] = {name: _load(row) for name, row in BATCH_SYSTEMS.items()}


_TITLES = {name: row.title for name, row in SYSTEMS.items()}


def _join_titles(names: Iterable[str], last: str = "and") -> str:
    return join_words(list(map(_TITLES.__getitem__, names)), last)


FLAGS = {f"--{name}": name for name in SYSTEMS}
"""Of `attach`, with the batch system of each."""
SHORT = {word: flag for row in SYSTEMS.values() for word, flag in row.short.items()}
DASH_Q = tuple(row.dash_q for row in SYSTEMS.values())
SIZES = tuple(flag for row in SYSTEMS.values() for flag in row.sizes)
_SLOTS = {name: row.slots for name, row in SYSTEMS.items() if row.slots}
_FIRST, *_OTHERS = FLAGS

ONLY = Limit(
    only=frozenset(SYSTEMS),
    says=f"works only with {_join_titles(SYSTEMS)}",
    hint="leave it out, or attach a batch system: "
    + join_words([f"`clusterctl attach NAME {_FIRST}`", *(f"`{word}`" for word in _OTHERS)], "or"),
)
TERMINAL = ONLY._replace(hint="`clusterctl ssh` opens a shell on a node of this cluster")
NODES = Limit(
    only=frozenset({"direct", *SYSTEMS}.difference(_SLOTS)),
    says=f"has no effect with {_join_titles(_SLOTS)}, which allocates slots",
    instead=_SLOTS,
)
RANKS = Limit(
    never=frozenset(f"interactive {name}" for name in _SLOTS),
    says=f"has no effect with --interactive on {_join_titles(_SLOTS, 'or')}",
    hint="; ".join(_SLOTS.values()),
)
NOT_MOUNTED = Limit(
    only=frozenset(),
    says="works only with `up`: nothing is mounted on machines that are attached",
    hint="leave it out, and mount a folder of your own on all hosts",
    instead=dict.fromkeys(
        SYSTEMS, "leave it out: the nodes of a site share the folder of --workdir already"
    ),
)

GROUP = Group(f"Batch systems ({_join_titles(SYSTEMS)})", (ONLY, table.STAGED))
_ALL = Group(GROUP.heading, (ONLY,), True, f"Passed to {'either' if len(SYSTEMS) == 2 else 'any'}")


@cache
def _make_limit(names: tuple[str, ...]) -> Limit:
    """Of the options that only these batch systems have."""
    return Limit(only=frozenset(names), says=f"works only with {_join_titles(names)}")


@cache
def _make_group(names: tuple[str, ...]) -> Group:
    """Their heading."""
    return Group(GROUP.heading, (_make_limit(names),), True, f"Passed to {_join_titles(names)}")


def _collect() -> Iterator[Option[Any]]:
    """The options of each batch system; those that several of them have once, as the first has
    declared them."""
    found: dict[str, Option[Any]] = {}
    owners: dict[str, tuple[str, ...]] = {}
    for name, system in SYSTEMS.items():
        for option in system.passed(_make_group((name,))):
            found.setdefault(option.flag, option)
            owners[option.flag] = (*owners.get(option.flag, ()), name)
    for word, option in found.items():
        option.group = _make_group(owners[word])
        instead = {name: row.instead[word] for name, row in SYSTEMS.items() if word in row.instead}
        own = _make_limit(owners[word])._replace(instead=instead)
        option.limits = (own, *option.limits[1:])
        yield option


PASSED: tuple[Option[Any], ...] = (
    *(
        text(f"--{name}", _ALL)
        for name in ("account", "job-name", "mail-type", "mail-user", "time")
    ),
    flag("--requeue", _ALL, limits=(ONLY, table.SUPERVISED, table.ENDS_ONCE)),
    *_collect(),
)
"""Options of `run` that go to the batch system as they are."""
