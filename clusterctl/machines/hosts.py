"""Files that name machines: our own lines, or an Open MPI hostfile. Pure.

    gpu1 slots=4 gpu=4 user=ana port=2222     # a line per host; what is left out is found out
    head role=launcher                        # starts jobs and runs no ranks

Open MPI: `slots=N`, `max_slots=N`; a host that comes twice has the slots of both lines
(https://docs.open-mpi.org/en/v5.0.x/launching-apps/scheduling.html).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
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
        yield _parse_line(words, where, raw)


def _parse_line(words: list[str], where: str, raw: str) -> tuple[str, dict[str, Any]]:
    """`[USER@]HOST [NAME=VALUE …]`."""
    user, _, host = words[0].rpartition("@")
    if not _NAME.fullmatch(host):
        hint = "an IPv6 address needs a name in ssh_config" if ":" in host else "a name or address"
        raise _make_error(where, words[0], hint)
    said: dict[str, Any] = {"user": user} if user else {}
    for word in words[1:]:
        name, _, value = word.partition("=")
        if not name or not value:
            raise _make_error(
                where, raw, "after the host come NAME=VALUE pairs, without blanks around ="
            )
        name = name.replace("-", "_")
        if name in _IGNORED:
            continue
        name = _ALIASES.get(name, name)
        if name not in _FIELDS:
            raise _make_error(where, raw, f"known: {', '.join(_FIELDS)}")
        kind, pattern, hint = _FIELDS[name]
        if not re.fullmatch(pattern, value) or (name == "port" and int(value) > 65535):
            raise _make_error(where, word, hint)
        said[name] = kind(value)
    return host, said


_IGNORED = {"max_slots", "max"}
"""Open MPI's upper limit: we never oversubscribe machines that are not ours."""

_ALIASES = {"gpus": "gpu", "count": "slots", "cpu": "slots", "cpus": "slots"}

_NUMBER = (int, r"0*[1-9]\d{0,5}", "a number of at least 1")
_WORD = (str, r"[\w.@+][\w.@+-]*", "letters, digits, dots and dashes")
_FIELDS: dict[str, tuple[type, str, str]] = {
    "slots": _NUMBER,
    "user": _WORD,
    "port": (int, r"0*[1-9]\d{0,4}", "a port, at most 65535"),
    "gpu": _NUMBER,
    "python": (str, "/.*", "an absolute path"),
    "role": (str, "launcher|worker", "role=launcher or role=worker"),
    "address": _WORD,
}


def _make_error(where: str, what: str, hint: str) -> UsageError:
    return UsageError(f"{where}: invalid hostfile line: {what.strip()!r}", hint=hint)
