"""Files that name machines: our own lines, an Open MPI hostfile, an Ansible-like INI. Pure.

    gpu1 slots=4 gpu=4 user=ana port=2222     # a line per host; what is left out is found out
    head role=launcher                        # starts jobs and runs no ranks

Open MPI: `slots=N`, `max_slots=N`; a host that comes twice has the slots of both lines
(https://docs.open-mpi.org/en/v5.0.x/launching-apps/scheduling.html). Ansible: `[groups]`,
`[group:vars]`, `[group:children]`, `node[01:16]`, `ansible_host`, `ansible_user`, `ansible_port`
(https://docs.ansible.com/ansible/latest/inventory_guide/intro_inventory.html).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from clusterctl.core.model import Node, Role
from clusterctl.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_RANGE = re.compile(r"(.*?)\[(\w+):(\w+)\](.*)")
MOST = 1024
"""Hosts in a file: a range that is mistyped must not become a million of them."""


@dataclass(slots=True)
class _Entry:
    """A line with what it says, before groups have had their say."""

    where: str
    name: str
    values: dict[str, str] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)


def parse_hosts(text: str, source: str, user: str = "") -> tuple[Node, ...]:
    """The hosts in the file's order, but the launcher first. What the file leaves out is the
    machine's own answer, or ssh_config's business; roots, addresses among each other and facts are
    found out later. UsageError names the line (`source`:12) that is wrong."""
    lines, variables, children = _read(text, source)
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        inherited = _inherit(line.groups, variables, children)
        name, said = _parse_line(line, {**inherited, **line.values})
        known = found.setdefault(name, said)
        if known is not said and "slots" in line.values:
            known["slots"] = known.get("slots", 0) + said["slots"]
    if not found:
        raise UsageError(f"{source} lists no hosts", hint="one line per host: HOST [slots=N]")
    launchers = [name for name, said in found.items() if said.get("role") == "launcher"]
    if len(launchers) > 1:
        raise UsageError(
            f"{source}: {' and '.join(launchers)} cannot both be the launcher",
            hint="one line with role=launcher, or none: then it is the first host",
        )
    if launchers and len(found) == 1:
        raise UsageError(
            f"{source}: the only host is the launcher, so no host can run ranks",
            hint="leave out role=launcher: the first host then does both",
        )
    names = [*launchers, *(name for name in found if name not in launchers)]
    roles = [Role.LAUNCHER if launchers else Role.BOTH, *[Role.WORKER] * (len(names) - 1)]
    return tuple(
        Node(
            name=name,
            role=role,
            address=said.get("address", name),
            private_address=said.get("address", name),
            ssh_port=said.get("port", 0),
            job_port=said.get("port", 0),
            user=said.get("user", user),
            root="",
            python=said.get("python", ""),
            slots=said.get("gpu", 0) or said.get("slots", 0),
        )
        for name, role, said in zip(names, roles, map(found.__getitem__, names), strict=True)
    )


def _read(
    text: str, source: str
) -> tuple[list[_Entry], dict[str, dict[str, str]], dict[str, set[str]]]:
    """Host lines with their groups, variables by group, and each group's parents."""
    lines: list[_Entry] = []
    variables: dict[str, dict[str, str]] = {}
    parents: dict[str, set[str]] = {}
    section, kind = "", ""
    # Windows editors begin a file with this mark.
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        where = f"{source}:{number}"
        words = _split_words(raw, where)
        if not words:
            continue
        if words[0] == "---" or words[0].endswith(":"):
            raise _make_error(where, raw, "this looks like YAML: give the inventory in INI form")
        if words[0].startswith("[") and words[-1].endswith("]"):
            section, _, kind = " ".join(words).strip("[]").strip().partition(":")
            if kind not in ("", "vars", "children"):
                raise _make_error(
                    where, raw, "a section is [GROUP], [GROUP:vars] or [GROUP:children]"
                )
        elif kind == "vars":
            name, _, value = " ".join(words).partition("=")
            variables.setdefault(section, {})[name.strip()] = value.strip()
        elif kind == "children":
            parents.setdefault(words[0], set()).add(section)
        else:
            for name in _expand(words[0], where, raw):
                if len(lines) == MOST:
                    raise UsageError(f"{where}: over {MOST} hosts", hint="correct the range")
                values = _read_values(words[1:], where, raw)
                lines.append(_Entry(where, name, values, {section} if section else set()))
    return lines, variables, parents


def _split_words(raw: str, where: str) -> list[str]:
    if raw.lstrip()[:1] in ("#", ";"):
        return []
    try:
        return shlex.split(raw, comments=True)
    except ValueError as error:
        raise _make_error(where, raw, "close the quotes") from error


def _expand(pattern: str, where: str, raw: str) -> Iterator[str]:
    """`node[01:03].site` as node01.site to node03.site; letters count too."""
    match = _RANGE.fullmatch(pattern)
    if match is None:
        yield pattern
        return
    head, first, last, tail = match.groups()
    if first.isdecimal() and last.isdecimal() and 0 <= int(last) - int(first) <= MOST:
        inside = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    elif len(first) == len(last) == 1 and first.isalpha() and first <= last:
        inside = [chr(code) for code in range(ord(first), ord(last) + 1)]
    else:
        raise _make_error(where, raw, "a range is [01:16] or [a:f]")
    for middle in inside:
        yield from _expand(f"{head}{middle}{tail}", where, raw)


def _read_values(words: list[str], where: str, raw: str) -> dict[str, str]:
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise _make_error(
                where, raw, "after the host come NAME=VALUE pairs, without blanks around ="
            )
        values[name.replace("-", "_")] = value
    return values


def _inherit(
    groups: set[str], variables: dict[str, dict[str, str]], parents: dict[str, set[str]]
) -> dict[str, str]:
    """What groups say, the innermost last. A group that is its own ancestor adds nothing new."""
    levels = [set(groups)]
    seen = set(groups)
    while levels[-1]:
        above = {parent for group in levels[-1] for parent in parents.get(group, ())} - seen
        seen |= above
        levels.append(above)
    values = dict(variables.get("all", {}))
    for level in reversed(levels):
        for group in sorted(level):
            values.update(variables.get(group, {}))
    if "launcher" in groups:
        values.setdefault("role", "launcher")
    return values


_IGNORED = {"max_slots", "max"}
"""Open MPI's upper limit: we never oversubscribe machines that are not ours."""

_ALIASES = {
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_python_interpreter": "python",
    "gpus": "gpu",
    "count": "slots",
    "cpu": "slots",
    "cpus": "slots",
}


def _parse_line(line: _Entry, values: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """The host, and what is known of it: the keys of _FIELDS."""
    said: dict[str, str] = {}
    for key, value in values.items():
        name = _ALIASES.get(key, key)
        if name in _FIELDS:
            said[name] = value
        elif name not in _IGNORED and not name.startswith("ansible_") and key in line.values:
            raise _make_error(
                line.where, f"{line.name} {key}={value}", f"known: {', '.join(_FIELDS)}"
            )
    user, _, name = line.name.rpartition("@")
    if not _NAME.fullmatch(name):
        hint = "an IPv6 address needs a name in ssh_config" if ":" in name else "a name or address"
        raise _make_error(line.where, line.name, hint)
    return name, {
        **({"user": user} if user else {}),
        **{key: _FIELDS[key](value, line.where) for key, value in said.items()},
    }


def _parse_text(value: str, where: str) -> str:
    if value.startswith("-") or not re.fullmatch(r"[\w.@+-]+", value):
        raise _make_error(where, value, "letters, digits, dots and dashes")
    return value


def _parse_number(value: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,6}", value) or int(value) < 1:
        raise _make_error(where, value, "a number of at least 1")
    return int(value)


def _parse_port(value: str, where: str) -> int:
    number = _parse_number(value, where)
    if number > 65535:
        raise _make_error(where, value, "ports end at 65535")
    return number


def _parse_path(value: str, where: str) -> str:
    if value.startswith("auto"):  # Ansible's words for finding one
        return ""
    if not value.startswith("/"):
        raise _make_error(where, f"python={value}", "an absolute path")
    return value


def _parse_role(value: str, where: str) -> str:
    if value not in ("launcher", "worker"):
        raise _make_error(where, f"role={value}", "role=launcher or role=worker")
    return value


_FIELDS: dict[str, Callable[[str, str], str | int]] = {
    "slots": _parse_number,
    "user": _parse_text,
    "port": _parse_port,
    "gpu": _parse_number,
    "python": _parse_path,
    "role": _parse_role,
    "address": _parse_text,
}


def _make_error(where: str, what: str, hint: str) -> UsageError:
    return UsageError(f"{where}: invalid hostfile line: {what.strip()!r}", hint=hint)
