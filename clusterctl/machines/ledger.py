"""The ledger: what was seen of all that costs money, and the charges that follow from that.

It is a file of JSON lines in the cluster's folder. Each look at the account appends one: when that
was, each thing that is new or has changed, and the ids of those that are not shown any more. A line
that a kill has cut off is passed over; the next look sees that again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.core.model import GATEWAY_ADDRESS, NETWORK_PARTS, Charge, Cluster, Thing
from clusterctl.machines.charges import ENDED, REMOVED

FILE = "ledger"
SHOWN = 3000.0
"""Seconds for which a cloud surely shows what has ended: EC2 does for about an hour."""
SLACK = 60.0
"""Seconds by which two clocks may differ."""
SELDOM = 60.0
"""A look that has seen nothing new is kept where the last one is older."""


class Sighting(Struct, frozen=True):
    """What one look at the account has seen. `gone`: the ids of what is not shown any more;
    `stopping`: a `stop` was cut off before, which may have stopped what has ended since."""

    at: float
    things: tuple[Thing, ...] = ()
    gone: tuple[str, ...] = ()
    stopping: bool = False


def read_looks(folder: Path | None) -> tuple[Sighting, ...]:
    """All looks of a cluster, the first one first."""
    looks = []
    with suppress(OSError):
        for line in (folder / FILE).read_bytes().splitlines() if folder else ():
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                looks.append(msgspec.json.decode(line, type=Sighting))
    return tuple(looks)


def add(
    folder: Path | None, cluster: Cluster, things: Iterable[Thing], now: float
) -> tuple[Sighting, ...]:
    """The looks with this one, which goes into the ledger where the cluster has a `folder`: a disk
    that is full must not keep anybody from looking. `things`: all that are shown."""
    looks = read_looks(folder)
    last, gone = _list_last(looks)
    there: dict[str, Thing] = {}
    for thing in things:
        known = last.get(thing.id, thing)  # with its price, which is asked for once
        thing = replace(thing, hourly=known.hourly, source=known.source)
        if (thing.state, thing.until, known.state) == ("ended", None, "ended"):
            thing = replace(thing, until=known.until)  # as others have told: see `add_ends`
        there[thing.id] = thing
    missing = last.keys() - there.keys() - gone
    look = Sighting(
        now,
        tuple(thing for id, thing in there.items() if id in gone or thing != last.get(id)),
        tuple(sorted(id for id in missing if last[id].state != "ended")),
        cluster.stopping,
    )
    if look.things or look.gone or not looks or now >= looks[-1].at + SELDOM:
        _write_line(folder, look)
    return (*looks, look)


def _list_last(looks: Iterable[Sighting]) -> tuple[dict[str, Thing], set[str]]:
    """How each thing was when it was last shown, and those that are not shown any more."""
    last: dict[str, Thing] = {}
    gone: set[str] = set()
    for look in looks:
        last |= {thing.id: thing for thing in look.things}
        gone.difference_update(thing.id for thing in look.things)
        gone.update(look.gone)
    return last, gone


def add_ends(
    folder: Path, looks: Sequence[Sighting], cluster: Cluster, ends: dict[str, float], now: float
) -> tuple[Sighting, ...]:
    """The same with what others know of the ends of nodes that the cloud does not show any more."""
    lives = _fold(looks, cluster.deadline)
    told = [life.thing for life in lives.values() if life.unseen and life.thing.node in ends]
    known = {thing.node for thing in told} | {life.thing.node for life in lives.values()}
    told += [
        Thing(id=node.machine or node.name, node=node.name, since=since)
        for node in cluster.nodes
        if node.name in ends and node.name not in known
        for since in [row.since for row in cluster.charges if row.node == node.name][:1]
    ]
    # Of two times by which it had ended, the earlier one is nearer.
    shown = {id: life.until for id, life in lives.items() if life.until is not None}
    times = {thing.id: min(ends[thing.node], shown.get(thing.id, inf)) for thing in told}
    look = Sighting(now, tuple(replace(t, state="ended", until=times[t.id]) for t in told))
    if look.things:
        _write_line(folder, look)
    return (*looks, look)


def _write_line(folder: Path | None, look: Sighting) -> None:
    if folder is None:
        return
    with suppress(OSError):
        fd = os.open(folder / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(fd, "rb+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            torn = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * torn + msgspec.json.encode(look) + b"\n")
            os.fsync(file.fileno())


def list_living(looks: Sequence[Sighting]) -> dict[str, str]:
    """The nodes whose machines were there at the last look, with the ids of these."""
    last, gone = _list_last(looks)
    return {
        thing.node: id
        for id, thing in last.items()
        if thing.part == "instance" and thing.state != "ended" and id not in gone
    }


class _Run(Struct):
    """From a start to the stop or end after it. `closed`: at which look that was known."""

    since: float
    until: float | None = None
    unseen: bool = False
    closed: float = inf


class _Life(Struct):
    """All that was seen of one thing. `first`: when its first run began that was seen."""

    thing: Thing
    born: float
    first: float
    runs: list[_Run] = field(default_factory=list)
    until: float | None = None
    unseen: bool = False

    def observe(self, thing: Thing, look: Sighting, before: float, deadline: float | None) -> None:
        """`before`: when the last look was."""
        at, latest = look.at, self.find_latest(look.at, before, deadline)
        ran, self.thing = self.thing.state == "on", thing
        last = self.runs[-1]
        if thing.since is not None and thing.since > last.since:
            if last.until is None or last.unseen:  # nobody saw it stop
                last.until, last.unseen, last.closed = thing.since, True, at
            last = _Run(thing.since)
            self.runs.append(last)
        if thing.state == "on":
            last.until, last.unseen, last.closed = None, False, inf
        elif last.until is None or last.unseen:
            end = latest if thing.until is None else thing.until
            last.until = max(end, last.since)
            last.unseen, last.closed = thing.until is None, at
            last.unseen |= look.stopping and ran and thing.state == "ended"
        self.until, self.unseen = None, False
        if thing.state == "ended":
            self.until = max(latest if thing.until is None else thing.until, self.born)
            self.unseen = thing.until is None

    def lose(self, at: float, before: float, deadline: float | None) -> None:
        """It is not shown any more. What still ran soon after the deadline outlived that."""
        last, end = self.runs[-1], self.find_latest(at, before, deadline)
        if last.until is None:
            last.until, last.unseen, last.closed = max(end, last.since), True, at
        self.until, self.unseen = max(end, self.born), True

    def find_latest(self, at: float, before: float, deadline: float | None) -> float:
        """When it ended at the latest, if it ended between two looks."""
        end = None if self.thing.lasts else deadline
        return _find_latest(at, before, end, self.thing.part)


def _find_latest(at: float, before: float, deadline: float | None, part: str) -> float:
    """When something ended at the latest that was there `before`, and had gone `at` a look."""
    over = inf if deadline is None else deadline + REMOVED.get(part, ENDED)
    return min(at + SLACK, over) if before <= over else at + SLACK


def _fold(looks: Sequence[Sighting], deadline: float | None) -> dict[str, _Life]:
    """What was seen, by thing."""
    lives: dict[str, _Life] = {}
    before = 0.0
    for look in looks:
        for thing in look.things:
            if thing.id not in lives:
                since = before if thing.since is None else thing.since
                born = since if thing.born is None else min(thing.born, since)
                life = lives[thing.id] = _Life(thing, born, since, [_Run(since)])
                if since > born + SLACK:  # it was stopped and started again, and nobody saw when
                    life.runs.insert(0, _Run(born, since, True, look.at))
            lives[thing.id].observe(thing, look, before, deadline)
        for id in look.gone:
            if id in lives:
                lives[id].lose(look.at, before, deadline)
        before = look.at
    return lives


def settle(cluster: Cluster, looks: Sequence[Sighting]) -> tuple[Charge, ...]:
    """The charges of a cluster as what was seen bears them out. Each thing costs what it was seen
    to be there; what is only planned and was not seen was never made, unless nobody looked for so
    long that it may have come and gone: then it cost money for as long as that can be."""
    if not looks:
        return cluster.charges
    rows, lives = cluster.charges, _fold(looks, cluster.deadline)
    by_kind: dict[tuple[str, str], list[_Life]] = {}
    for life in lives.values():
        by_kind.setdefault((life.thing.node, life.thing.part), []).append(life)
    found: list[Charge] = []
    for row in rows:
        if row.thing in lives:
            kept = _keep_earlier(row, lives[row.thing])
        else:
            mine = by_kind.get((row.node, _name_kind(row.part)), ())
            kept = _keep(row, mine, looks, cluster.deadline)
        found += [kept] if kept else []
    known = {row.thing for row in found}
    by_node: dict[str, list[Charge]] = {}
    for row in rows:
        by_node.setdefault(row.node, []).append(row)
    for life in lives.values():
        item = life.thing.item  # its own node may have been planned by an `up` that was cut off
        same = next((row.node for row in rows if item and row.item == item), "")
        like = by_node.get(life.thing.node) or by_node.get(same, [])
        found += _charge(life, like, whole=life.thing.id not in known)
    place = {key: at for at, key in reversed([*enumerate((r.node, r.part) for r in rows)])}
    return tuple(
        sorted(found, key=lambda row: (place.get((row.node, row.part), len(rows)), row.since))
    )


def _name_kind(part: str) -> str:
    """The kind of thing that has this part."""
    return part if part in NETWORK_PARTS else "instance"


def _keep_earlier(row: Charge, life: _Life) -> Charge | None:
    """A row of a thing, if that is of a run that the ledger has lost."""
    earlier = row.until is not None and max(row.since + 1, row.until) <= life.first
    return row if earlier and row.part not in ("disk", *NETWORK_PARTS) else None


def _keep(
    row: Charge, mine: Sequence[_Life], looks: Sequence[Sighting], deadline: float | None
) -> Charge | None:
    """A row of the record that nothing in the ledger stands for, as far as that is known. `mine`:
    the lives of its node."""
    runs = [run for life in mine for run in life.runs]
    if row.until is not None:
        began = any(row.since - SLACK <= run.since < row.until for run in runs)
        return None if began and not (row.thing or row.unseen) else row
    if not row.thing:
        if any(run.until is None or run.closed > row.since for run in runs):
            return None
        if any(life.until is None for life in mine):
            return None  # it stands still: it was not started
    # Nobody may have told AWS to end a network whose `up` was cut off.
    end_of_all = None if row.part in NETWORK_PARTS else deadline
    times = [row.since, *(look.at for look in looks if look.at > row.since)]
    for before, at in pairwise(times):
        if row.thing or at >= before + SHOWN:
            end = _find_latest(at, before, end_of_all, row.part)
            return replace(row, until=max(end, row.since), unseen=True)
    return None if len(times) > 1 else row


def _charge(life: _Life, rows: Sequence[Charge], *, whole: bool) -> Iterator[Charge]:
    """What a thing has cost. `whole`: the record has no earlier runs of it."""
    thing = life.thing
    for row in _find_rows(thing, rows):
        row = replace(row, node=thing.node, thing=thing.id, until=None, unseen=False)
        if row.part == "instance" and thing.source:
            row = replace(row, item=thing.item or row.item, hourly=thing.hourly)
            row = replace(row, source=thing.source)
        if row.part == "disk":
            since = row.since if thing.since is None else life.born
            yield replace(row, since=since, until=life.until, unseen=life.unseen)
            continue
        for run in life.runs if whole else [r for r in life.runs if r.since >= life.first]:
            since = max(row.since, run.since) if thing.since is None else run.since
            until = None if run.until is None else max(run.until, since)
            # Of an address nobody is told when it goes: it is looked at as soon as it may have.
            unseen = run.unseen and row.part != GATEWAY_ADDRESS
            yield replace(row, since=since, until=until, unseen=unseen)


def _find_rows(thing: Thing, rows: Iterable[Charge]) -> list[Charge]:
    """One row for each part of a thing, with its price: its own, else what was planned for its node
    before it began."""
    kind = [row for row in rows if _name_kind(row.part) == thing.part]
    mine = [row for row in kind if row.thing == thing.id]
    mine = mine or [row for row in kind if not row.thing] or kind
    began = inf if thing.since is None else thing.since + SLACK
    found: dict[str, Charge] = {}
    for row in sorted(mine, key=lambda row: row.since):
        if row.since <= began or row.part not in found:
            found[row.part] = row
    return list(found.values()) or [
        Charge(
            node=thing.node,
            part=thing.part,
            item=thing.item or thing.part,
            hourly=thing.hourly,
            source=thing.source or "unknown",
            since=thing.since or 0.0,
        )
    ]
