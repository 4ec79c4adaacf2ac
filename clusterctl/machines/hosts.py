"""Files that name machines: our own lines, or an Open MPI hostfile. Pure.

    gpu1 slots=4 gpu=4 user=ana port=2222     # a line per host; what is left out is found out
    head role=launcher                        # starts jobs and runs no ranks

Open MPI: `slots=N`, `max_slots=N`; a host that comes twice has the slots of both lines
(https://docs.open-mpi.org/en/v5.0.x/launching-apps/scheduling.html).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from clusterctl.core.model import Node, Role
from clusterctl.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def parse_hosts(text: str, source: str, user: str = "") -> tuple[Node, ...]:
    """The hosts in the file's order, but the launcher first. What the file leaves out is the
    machine's own answer, or ssh_config's business; roots, addresses among each other and facts are
    found out later. UsageError names the line (`source`:12) that is wrong."""
    found: dict[str, dict[str, Any]] = {}
    for name, said in _read_lines(text, source):
        known = found.setdefault(name, said)
        if known is not said and "slots" in said:
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


def _read_lines(text: str, source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's host, and what is known of it: the keys of _FIELDS."""
    # Windows editors begin a file with this mark.
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        where = f"{source}:{number}"
        try:
            words = shlex.split(raw, comments=True)
        except ValueError as error:
            raise _make_error(where, raw, "close the quotes") from error
        if not words:
            continue
        if re.match(r"---|\[|[\w.-]+:$", words[0]):
            raise _make_error(
                where,
                raw,
                "this looks like an inventory of Ansible: list its hosts, one per line:"
                " ansible all -i INVENTORY --list-hosts",
            )
        yield _parse_line(words[0], _read_values(words[1:], where, raw), where)


def _read_values(words: list[str], where: str, raw: str) -> dict[str, str]:
    """By name, in the words of _FIELDS."""
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise _make_error(
                where, raw, "after the host come NAME=VALUE pairs, without blanks around ="
            )
        name = name.replace("-", "_")
        if name in _IGNORED:
            continue
        if (name := _ALIASES.get(name, name)) not in _FIELDS:
            raise _make_error(where, raw, f"known: {', '.join(_FIELDS)}")
        values[name] = value
    return values


_IGNORED = {"max_slots", "max"}
"""Open MPI's upper limit: we never oversubscribe machines that are not ours."""

_ALIASES = {
    "gpus": "gpu",
    "count": "slots",
    "cpu": "slots",
    "cpus": "slots",
}


def _parse_line(host: str, values: dict[str, str], where: str) -> tuple[str, dict[str, Any]]:
    user, _, name = host.rpartition("@")
    if not _NAME.fullmatch(name):
        hint = "an IPv6 address needs a name in ssh_config" if ":" in name else "a name or address"
        raise _make_error(where, host, hint)
    return name, {
        **({"user": user} if user else {}),
        **{key: _FIELDS[key](value, where) for key, value in values.items()},
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
