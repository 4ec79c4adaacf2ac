"""Hosts in the words of other launchers: lists, files, and what they come to on a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from clusterctl.errors import UsageError
from clusterctl.input_files import MAX_HOST_LINE, read_input

MOST_HOSTS = 10_000
"""Names that are read of a list with ranges: `node[1-999999999]` is a mistake."""


class NamedHost(NamedTuple):
    """`slots`: how many ranks it may have; 0: that is not said."""

    name: str
    slots: int = 0


def read_list(text: str, typed: str) -> tuple[NamedHost, ...]:
    """`a,b`, `a:2,b:*`, or `a,a,b`, as mpirun's -H has it. IPv6 addresses may be in brackets."""
    found = []
    for item in filter(None, text.split(",")):
        match = re.fullmatch(
            r"(?:\[(?P<six>[^]]+)\]|(?P<name>[^:\s]+))(?::(?P<slots>\d+|\*))?", item
        )
        if match is None:
            found.append(NamedHost(item))  # an IPv6 address
            continue
        name, slots = match["six"] or match["name"].rpartition("@")[2], match["slots"] or ""
        found.append(NamedHost(name, int(slots) if slots.isdecimal() else 0))
    return _require(found, typed)


def read_file(text: str, typed: str) -> tuple[NamedHost, ...]:
    """Open MPI's `a slots=2 max_slots=4`, MPICH's `a:2`, and a line for each slot."""
    found: list[NamedHost] = []
    for line in _read(Path(text).expanduser(), typed).splitlines():
        name, *more = line.partition("#")[0].split() or [""]
        if not name:
            continue
        counts = [word.partition("=")[2] for word in more if word.startswith("slots=")]
        host = NamedHost(name.rpartition("@")[2])
        if counts:
            if not counts[-1].isdecimal() or not int(counts[-1]):
                raise UsageError(f"{typed}: {line.strip()!r} is not a host", hint="NAME slots=N")
            found.append(host._replace(slots=int(counts[-1])))
        else:
            found += read_list(host.name, typed)
    return _require(found, typed)


def read_included(text: str, typed: str) -> tuple[NamedHost, ...]:
    """DeepSpeed's `a@b:0,1`: the numbers are GPUs."""
    found = []
    for item in filter(None, text.split("@")):
        name, colon, numbers = item.partition(":")
        given = set(numbers.split(",")) if colon else set()
        if given != {str(n) for n in range(len(given))}:
            raise UsageError(
                f"{typed}: {item} chooses GPUs by their numbers", hint=f"{name}, or {name}:0,1"
            )
        found.append(NamedHost(name, len(given)))
    return _require(found, typed)


def read_excluded(text: str, typed: str) -> tuple[str, ...]:
    """DeepSpeed's `a@b`."""
    if ":" in text:
        raise UsageError(f"{typed} excludes GPUs by their numbers", hint="exclude whole nodes")
    return tuple(filter(None, text.split("@")))


def read_nodelist(text: str, typed: str) -> tuple[NamedHost, ...]:
    """Slurm's `a,b[1-3,5]`, or a file of names where there is a `/`."""
    if "/" in text:
        return read_file(text, typed)
    items = re.findall(r"(?:\[[^]]*\]|[^,\[])+", text)
    names = islice((name for item in items for name in _expand(item)), MOST_HOSTS)
    return tuple(NamedHost(name) for name in dict.fromkeys(names))


def choose_named(
    named: Sequence[NamedHost], in_files: Sequence[NamedHost], typed: str
) -> tuple[NamedHost, ...]:
    """Those of the hosts in a file that are named beside it, or all; without a file, those named.
    Raises UsageError for a name that the file does not have."""
    if not named or not in_files:
        return _merge(named or in_files)
    slots = dict(_merge(in_files))
    if missing := [host.name for host in named if host.name not in slots]:
        raise UsageError(
            f"{typed}: the host file does not have {missing[0]}", hint="leave one of the two out"
        )
    return tuple(NamedHost(name, count or slots[name]) for name, count in _merge(named))


def deal(ranks: int, slots: Sequence[int], *, by_turns: bool) -> list[int]:
    """How many ranks each host gets: one host is filled after the other, as mpirun does it, or
    they get one each by turns."""
    taken = [0] * len(slots)
    while ranks:
        for index, most in enumerate(slots):
            share = min(ranks, most - taken[index], 1 if by_turns else ranks)
            taken[index] += share
            ranks -= share
    return taken


def _expand(item: str) -> Iterator[str]:
    match = re.fullmatch(r"(.*?)\[([\d,-]+)\](.*)", item)
    if match is None:
        yield item
        return
    head, ranges, tail = match.groups()
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first or 0), int(last or first or 0) + 1):
            yield from (f"{head}{number:0{len(first)}}{rest}" for rest in _expand(tail))


def _merge(hosts: Sequence[NamedHost]) -> tuple[NamedHost, ...]:
    """Each host once: one that is named several times has as many slots."""
    names = [host.name for host in hosts]
    repeats = len(set(names)) < len(names)
    slots = dict.fromkeys(names, 0)
    for host in hosts:
        slots[host.name] += host.slots or repeats
    return tuple(NamedHost(name, count) for name, count in slots.items())


def _require(hosts: Sequence[NamedHost], typed: str) -> tuple[NamedHost, ...]:
    if not hosts:
        raise UsageError(f"{typed} names no host", hint="give the names of nodes")
    return tuple(hosts)


def _read(path: Path, typed: str) -> str:
    return read_input(
        path,
        f"{typed} (the file {path})",
        hint="check the path, or leave it out: clusterctl knows the nodes",
        max_line=MAX_HOST_LINE,
    )
