"""The batch systems that there are, on the command line: what all of them take, and each alone."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from shutil import which
from typing import Any

from clusterctl.options import kinds
from clusterctl.options.batch import BATCH_SYSTEMS
from clusterctl.options.kinds import Group, Limit, Option, Verb, flag, join_words, text


@cache
def _join_titles(names: tuple[str, ...], last: str = "and") -> str:
    return join_words([BATCH_SYSTEMS[name].title for name in names], last)


ALL = tuple(BATCH_SYSTEMS)
FLAGS = {f"--{name}": name for name in BATCH_SYSTEMS}
"""Of `attach`, with the batch system of each."""
SIZES = tuple(flag for row in BATCH_SYSTEMS.values() for flag in row.sizes)
CONFUSED = {flag for row in BATCH_SYSTEMS.values() for flag in row.confused}
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
LAUNCHERS = Limit(
    f"has no effect with --emit {' or '.join(BATCH_SYSTEMS[name].emits for name in _SLOTS)}",
    "leave it out: mpirun starts the ranks",
    never=frozenset(f"emit {name}" for name in _SLOTS),
)
GROUP = Group(f"Batch systems ({_join_titles(ALL)})", (ONLY,))
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
        text(flags=f"--{name}", group=_ALL)
        for name in ("account", "job-name", "mail-type", "mail-user", "time")
    ],
    flag(flags="--requeue", group=_ALL, limits=(ONLY, kinds.STAGED)),
    *[kind(flags=word, group=_GROUPS[word]) for word, kind in _KINDS.items()],
)
"""Options of `run` that go to the batch system as they are."""


# -------------------------------------------------------------------------------------------------
# What somebody types who knows a batch system's own command.


def _name_argument(row: Any, words: str) -> str:
    return f"--{row.emits}-arg '{words}' ({row.title})"


ARGUMENTS = " or ".join(f"--{row.emits}-arg" for row in BATCH_SYSTEMS.values())


def suggest_short(word: str) -> str:
    """What to write for a short option that `run` does not have; "" if no system has it."""
    found: dict[str, list[str]] = {}
    for row in BATCH_SYSTEMS.values():
        argument = f"--{row.emits}-arg '{word}{' VALUE' * row.others.get(word, 0)}'"
        if flag := row.short.get(word, argument if word in row.others else ""):
            found.setdefault(flag, []).append(row.title)
    return " or ".join(f"{flag} ({', '.join(titles)})" for flag, titles in found.items())


def _is_name_before(word: str, script: str) -> bool:
    """Whether a word is the value of an option, and a batch script stands behind it, rather than
    that script's command."""
    starts = re.fullmatch(r"\w[\w-]*", word) and not os.path.exists(word) and not which(word)
    return bool(starts) and script.endswith(".sh") and os.path.isfile(script)


NOT_SET = "the variable is not set here"
MODULE = "-m"
"""What follows its value is the module's own."""


def translate(words: Sequence[str], system: str, own: Mapping[str, Option[Any]]) -> list[str]:
    """A command line of `run` with that batch system's own options before SCRIPT under the names
    that `run` has for them; `own`: its options. From an unknown one on it stays as it is."""
    row, rest, found = BATCH_SYSTEMS[system], list(words), list[str]()
    mode = ""
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        name, sign, value = word.partition("=")
        given = [value] if sign else []
        known = name in own or name in row.short or name in row.others
        if not known and row.attaches and word[1] != "-" and word[:2] in {*row.short, *row.others}:
            name, given = word[:2], [word[2:]]
        mode = name if name in row.orders else mode
        changed = name in row.orders.get(mode, ())
        if name in row.others or changed:
            while len(given) < row.others.get(name, 1) and rest:
                given.append(rest.pop(0))
            text = f"{name}{sign}{shlex.quote(value)}" if sign else shlex.join([name, *given])
            found += [f"--{row.emits}-arg", f"{mode} {text}" if changed else text]
        elif row.short.get(name, "") in own:
            instead = row.short[name]
            given = given or rest[:1]
            del rest[: 0 if sign or name != word else 1]
            if not own[instead].is_flag:
                found += [instead, *given]
            else:  # `-r y`
                yes = given in (["y"], ["yes"])
                found += [instead] if yes else [f"--{row.emits}-arg", shlex.join([name, *given])]
        elif name in own:
            count = 0 if sign or own[name].is_flag else own[name].words
            found += [word, *rest[:count]]
            del rest[:count]
            if name == MODULE:
                return [*found, *rest]
        elif word[1] != "-" and word[:2] in own and word[:2] != MODULE:  # `-n2`, `-qd`
            last = own.get(f"-{word[-1]}", own[word[:2]])
            count = 0 if last.is_flag or not own[word[:2]].is_flag else last.words
            found += [word, *rest[:count]]
            del rest[:count]
        else:
            return [*found, word, *rest]
    return [*found, *rest]


def find_misread(words: Sequence[str], run: type[Verb], system: str = "") -> tuple[str, str]:
    """Of a command line of `run`, the words before SCRIPT that would be read as options of ours,
    but are a batch system's, and what to write; "", "" if there are none. `system`: the only one
    that may be meant."""
    rows, own = [BATCH_SYSTEMS[system]] if system else BATCH_SYSTEMS.values(), run.spellings()
    for place in run.list_leading(words)[:-1]:
        word = words[place]
        value, script = [*words[place + 1 : place + 3], "", ""][:2]
        given = f"{word} {value}".strip()
        if word == "-np":  # mpirun's
            return given, f"--ranks {value}".strip()
        option = own.get(word)
        is_flag = bool(option and option.is_flag)
        ours = any(map(os.path.exists, (value, f"{value}.py"))) and (is_flag or word == "-m")
        named = is_flag and _is_name_before(value, script)
        found = []
        for row in rows:
            if system and value and word in row.confused:
                return f"{word} before {value}", row.confused[word]
            if re.match("-[^-]{2}", word) and word in row.others:
                whole = " ".join((word, *words[place + 1 :][: row.others[word]]))
                return whole, _name_argument(row, whole)
            pattern, instead = row.misread.get(word, ("", ""))
            if word == "-e" and os.path.isfile(script) and value not in os.environ:
                pattern = "[^=]+"  # no variable
                if value.isidentifier():
                    theirs = f"; {row.emits}'s own -e: {_name_argument(row, given)}"
                    hint = f"-e {value}=VALUE{theirs if system else ''}"
                    return f"{given}: {NOT_SET}", hint
            if pattern and re.fullmatch(pattern, value) and not ours:
                return given, f"{instead} {value}" if instead else _name_argument(row, given)
            if named and word in row.named:
                found.append(f"{row.named[word]} {value} ({row.title})")
        if found:
            return given, " or ".join(found)
        if word == MODULE:
            break
    return "", ""
