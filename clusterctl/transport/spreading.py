"""The same files to many nodes, each byte once: from here to one of them, and from there over the
network between them. Each node has a store of files by their content (`agent.store`).

Every node is asked what it lacks. One gets that from here, and passes it on as it comes to the
next, and so on. A node that dies, or takes nothing any more, is gone around.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from errno import ESTALE
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from shlex import join
from threading import Lock
from typing import Any

from msgspec import Struct, field

from clusterctl.agent import relay
from clusterctl.agent.store import STEP, Missing, TreeEntry, list_files, pack_manifest, sum_up_next
from clusterctl.core.clock import run_in_background
from clusterctl.core.model import NodeResult
from clusterctl.core.progress import COPIED
from clusterctl.transport.diagnosis import FAILURES, Failure, describe_failure
from clusterctl.transport.pool import Pool
from clusterctl.transport.protocol import Channel

FEW = 100_000
"""Bytes that all nodes lack together up to which each gets its own from here: connections between
nodes would take longer."""
HASTE = 5.0
"""Seconds that a node has to say what it lacks before the others are served."""
STALLED = 20.0
SOURCES = 2
"""How often a node may fail to get files from others before it gets them from here."""
TICK = 0.5

HERE = ""
"""The name of this machine as a source."""


class Content(Struct, frozen=True):
    """What is sent. `places`: where the content of a digest lies here: a file, and from which of
    its bytes on."""

    entries: Sequence[TreeEntry]
    places: Mapping[str, tuple[Path, int]]


class Receiver(Struct, frozen=True):
    """A node: the command that starts the agent's `store` there, that which runs one on another
    node, for `connect NAME COMMAND`, and the folder that is made."""

    name: str
    command: str
    connect: str
    folder: str


class _State(Struct, eq=False):
    """How far a node is. `missing`: None while it has not said. `source`: who sends it files; None:
    nobody yet. `tried`: who could not. `refused`: the node itself has said why. `ours`: a file here
    could not be read."""

    to: Receiver
    channel: Channel | None = None
    missing: list[Missing] | None = None
    store: str = ""
    source: str | None = None
    tried: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    made: bool = False
    error: str = ""
    failures: int = 0
    refused: bool = False
    ours: bool = False
    errno: int = 0
    stuck: bool = False
    news: float = 0.0
    said: bytes = b""
    lock: Lock = field(default_factory=Lock)

    @property
    def over(self) -> bool:
        return self.made or bool(self.error)


class Spread:
    """Makes the content in a folder of each node."""

    def __init__(
        self,
        pool: Pool,
        receivers: Sequence[Receiver],
        content: Content,
        *,
        link: bool = False,
        timeout: float,
        patience: float = STALLED,
    ) -> None:
        """`link`: programs only read it there. `patience`: seconds without progress after which a
        copy is given up."""
        self._pool, self._content, self._link = pool, content, link
        self._manifest = pack_manifest(content.entries)
        self._states = {to.name: _State(to) for to in receivers}
        self._events: Queue[tuple[str, list[Any]]] = Queue()
        self._began = time.monotonic()
        self._timeout, self._patience = timeout, patience
        self._planned = False

    def run(self) -> tuple[NodeResult, ...]:
        states = list(self._states.values())
        for state in states:
            run_in_background(partial(self._converse, state))
        try:
            while not all(state.over for state in states):
                try:
                    name, (verb, *args) = self._events.get(timeout=TICK)
                    self._note(self._states[name], verb, args)
                except Empty:
                    pass
                self._look_for_stuck()
                self._plan()
        except Failure as error:
            for state in states:
                self._fail(state, str(error))
                state.errno, state.ours = error.errno, True
        finally:
            for state in states:
                if state.channel:
                    state.channel.close()
        return tuple(map(_make_result, states))

    # ---------------------------------------------------------------------------------------------
    # Each node's conversation.

    def _converse(self, state: _State) -> None:
        """In a thread of its own."""
        name = state.to.name
        try:
            transport = self._pool.find_transport(name)
            state.channel = transport.open(f"exec 2>&1; {state.to.command}", timeout=self._timeout)
            with suppress(BrokenPipeError):  # it says why
                order = relay.pack_order("manifest", len(self._manifest))
                self._send(state, order + self._manifest)
            rest = b""
            while data := state.channel.receive(self._timeout):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if words := relay.read_news(line):
                        self._events.put((name, list(words)))
                    elif line.strip():
                        state.said = line.strip()
            why = (rest or state.said).decode(errors="replace")
            why = why or "the program that takes files there ended before it had them all"
        except FAILURES as error:
            why = describe_failure(error, self._timeout)
        except ValueError as error:
            why = str(error)
        self._events.put((name, ["lost", why]))

    def _send(self, state: _State, data: bytes) -> None:
        assert state.channel
        with state.lock:
            state.channel.send(data, self._patience)

    def _order(self, state: _State, *words: object, data: bytes = b"") -> None:
        try:
            self._send(state, relay.pack_order(*words) + data)
        except FAILURES as error:
            self._fail(state, describe_failure(error, self._patience))

    def _send_files(self, state: _State, missing: Sequence[Missing]) -> None:
        """In a thread of its own."""
        size = sum(wanted.size - wanted.had for wanted in missing)
        try:
            with COPIED.count_copy(size) as copy:
                for data, count in _join(self._read_files(missing)):
                    self._send(state, data)
                    copy.add(count)
                    self._events.put((state.to.name, ["sent", state.to.name, count]))
            self._send(state, relay.pack_order("end"))
        except Failure as error:
            self._events.put((state.to.name, ["unreadable", error]))
        except FAILURES as error:
            self._events.put((state.to.name, ["lost", describe_failure(error, self._patience)]))

    def _read_files(self, missing: Iterable[Missing]) -> Iterator[tuple[bytes, int]]:
        """Messages, and the bytes of files in each."""
        for wanted in missing:
            path, offset = self._content.places[wanted.digest]
            left = wanted.size - wanted.had
            yield relay.pack_order("file", *wanted), 0
            try:
                with path.open("rb") as file:
                    file.seek(offset + wanted.had)
                    while left:
                        data = file.read(min(STEP, left))
                        if not data:
                            raise Failure(f"{path} became shorter while it was read", ESTALE)
                        left -= len(data)
                        yield relay.pack_order("data", len(data)) + data, len(data)
            except OSError as error:
                raise Failure(
                    f"{path} cannot be read: {error.strerror}", error.errno or 0
                ) from error

    # ---------------------------------------------------------------------------------------------
    # What the nodes say.

    def _note(self, state: _State, verb: str, args: Sequence[Any]) -> None:
        if verb == "missing":
            state.store = args[0]
            state.missing = relay.unpack_missing(args[1], self._content.entries)
            if not state.missing:
                self._finish(state)
            elif state.source == HERE:  # what arrived otherwise than it was, once more
                run_in_background(partial(self._send_files, state, state.missing))
        elif verb == "sent":
            self._states[args[0]].news = time.monotonic()
        elif verb == "fed":
            target = self._states[args[0]]
            if target.source == state.to.name and not target.whole:
                if args[1]:
                    target.source, target.tried[state.to.name] = None, args[1]
                    target.failures += 1
                else:
                    self._finish(target)
        elif verb == "end" and not args[0]:
            self._finish(state)
        elif verb == "end" and "wrong" in state.tried:
            self._find_changed(args[0])
            self._fail(state, f"{len(args[0])} files did not arrive as they were sent")
        elif verb == "end":
            state.tried["wrong"] = "wrong"
            state.missing = None
            self._order(state, "manifest", len(self._manifest), data=self._manifest)
        elif verb == "made":
            state.made = True
        elif verb == "unreadable":
            raise args[0]
        elif verb in ("error", "lost") and state.made:
            state.stuck = True  # it has all, and passes nothing on any more
            self._free_targets(state)
        elif verb in ("error", "lost") and not state.over:
            state.refused = verb == "error"
            self._fail(state, args[0])

    def _find_changed(self, wrong: Sequence[str]) -> None:
        """Raises Failure with the file here whose content is no longer the one that was to be
        sent."""
        for digest, size in list_files(self._content.entries).items():
            if digest in wrong:
                path, offset = self._content.places[digest]
                with suppress(OSError, EOFError), path.open("rb") as file:
                    file.seek(offset)
                    if sum_up_next(file, size).hexdigest() == digest:
                        continue
                raise Failure(f"{path} changed while it was read", ESTALE)

    def _finish(self, state: _State) -> None:
        """It has all; so have those that share its store."""
        for other in self._states.values():
            if other.store == state.store and not (other.whole or other.error):
                other.whole = True
                self._order(other, "make", other.to.folder, self._link)

    def _fail(self, state: _State, why: str) -> None:
        if not state.over:
            state.error = why
            self._free_targets(state)

    def _free_targets(self, state: _State) -> None:
        """Others have to send what it was to pass on."""
        for other in self._states.values():
            if other.source == state.to.name and not (other.whole or other.error):
                if not state.error:
                    self._order(state, "stop", other.to.name)
                other.source = None

    def _look_for_stuck(self) -> None:
        """A node that takes nothing, although there is something to take, is served last, and
        passes nothing on."""
        now = time.monotonic()
        for state in self._states.values():
            source = state.source
            if source is None or state.over or state.whole or now - state.news < self._patience:
                continue
            if source == HERE:
                continue  # sending has a limit of its own
            state.stuck, state.news = True, now
            state.tried[source] = "no progress"
            state.failures += 1
            self._order(self._states[source], "stop", state.to.name)
            state.source = None
            self._free_targets(state)
        if now - self._began > self._timeout:
            for state in self._states.values():
                self._fail(state, f"did not end within {self._timeout:g} s")

    # ---------------------------------------------------------------------------------------------
    # Who sends to whom.

    def _plan(self) -> None:
        states = [state for state in self._states.values() if not state.error]
        unknown = [state for state in states if state.missing is None and not state.whole]
        if not self._planned and unknown and time.monotonic() - self._began < HASTE:
            return
        leaders = {state.store: state for state in reversed(states) if state.missing is not None}
        waiting = [
            state
            for state in leaders.values()
            if state.source is None and not state.whole and state.missing
        ]
        if not waiting:
            return
        first, self._planned = not self._planned, True
        few = first and sum(map(_count_bytes, waiting)) <= FEW
        for state in sorted(waiting, key=_count_bytes):
            source = HERE if few else self._choose_source(state, list(leaders.values()))
            if source is None:
                self._fail(state, next(iter(state.tried.values())))
                continue
            state.source, state.news = source, time.monotonic()
            if source == HERE:
                state.tried[HERE] = "no progress"
                if first:
                    run_in_background(partial(self._send_files, state, state.missing or []))
                else:  # others have sent some of it meanwhile
                    state.missing = None
                    self._order(state, "manifest", len(self._manifest), data=self._manifest)
            else:
                giver = self._states[source].to
                command = f"{giver.connect} {join([state.to.name, state.to.command])}"
                argv = ["/bin/sh", "-c", f"exec {command}"]
                self._order(self._states[source], "feed", state.to.name, argv)

    def _choose_source(self, state: _State, leaders: Sequence[_State]) -> str | None:
        """Another node that has all, or gets it: one that was not tried, and passes it on to the
        fewest; this machine where there is none. None: all have been tried."""
        feeds = [other.source for other in leaders if not other.whole]
        found = [
            other
            for other in leaders
            if (other.whole or other.source is not None)
            and not (other.stuck or other.error)
            and not (state.stuck and other.to.name in state.tried)
            and state not in self._follow_sources(other)
        ]
        if found and state.failures < SOURCES:
            return min(
                found, key=lambda other: (other.to.name in state.tried, feeds.count(other.to.name))
            ).to.name
        return None if HERE in state.tried else HERE

    def _follow_sources(self, state: _State) -> Iterator[_State]:
        """It, and those that its files come from."""
        found: _State | None = state
        while found is not None:
            yield found
            found = self._states.get(found.source or HERE) if not found.whole else None


def _make_result(state: _State) -> NodeResult:
    name, why = state.to.name, state.error
    if state.refused:
        return NodeResult(node=name, exit_code=1, stderr=why.encode(errors="surrogateescape"))
    code, cut = None if why else 0, bool(why) and not state.ours
    return NodeResult(node=name, exit_code=code, error=why, cut=cut, errno=state.errno)


def _count_bytes(state: _State) -> int:
    return sum(wanted.size - wanted.had for wanted in state.missing or ())


def _join(parts: Iterable[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Small ones together."""
    waiting: list[bytes] = []
    size = count = 0
    for data, inside in parts:
        waiting.append(data)
        size += len(data)
        count += inside
        if size >= STEP:
            yield b"".join(waiting), count
            waiting, size, count = [], 0, 0
    if waiting:
        yield b"".join(waiting), count
