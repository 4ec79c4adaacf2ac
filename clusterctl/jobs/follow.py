"""Reads a job's output from all its nodes while it runs, without losing or repeating a byte.

Each node gets one sh that answers polls (templates/job/follow.sh.j2): we say what we have, it says
what is new. The state home's copy of the files doubles as the memory of how far we came, so that
following again, from another terminal or another day, goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import math
import re
import shlex
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path

from clusterctl import assets
from clusterctl.errors import NodeUnreachable
from clusterctl.job_model import Job, JobState
from clusterctl.jobs import control, logs, pace, systems
from clusterctl.jobs.interrupts import Interrupts
from clusterctl.jobs.logs import Piece
from clusterctl.jobs.start import list_nodes
from clusterctl.model import Cluster, Node, NodeResult, Reporter
from clusterctl.options.table import MIN_IDLE
from clusterctl.schedulers import verdict
from clusterctl.state.home import writing
from clusterctl.timeouts import now
from clusterctl.transport import Channel
from clusterctl.transport.pool import Pool

ANSWER = 4 << 20
"""Bytes that a node answers with at a time, and so what we hold of its output in memory."""
ANSWERS = 64 << 20
"""The same for all nodes together."""
ANSWER_TIMEOUT = 30.0
NOTICE, PROBE = 8.0, 4.0
"""Seconds of silence after which a new connection shows whether a node is there, and seconds for
that: within 15 s it is told that one is not."""
FROZEN = 14.0
"""The same of a node that can be reached: the connection is dead, for this machine has another
address now, or what ran before is frozen or very slow."""
RECONNECTIONS = 3
"""In a row, to a node that answers other connections."""
GLANCE = 0.5
"""Seconds between looks whether somebody has pressed Ctrl-C."""

_HEADER = re.compile(rb"F (\S+) (\d{1,18}) (\d{1,18}) (\d{1,18})")


def parse_header(line: bytes) -> tuple[str, int, int, int] | None:
    """Of a file: its name, from where on and how many bytes of it follow, and its size. None for
    any other line."""
    match = _HEADER.fullmatch(line)
    if match is None:
        return None
    offset, length, size = (int(number) for number in match.groups()[1:])
    return match[1].decode(errors="replace"), offset, length, size


@dataclass(slots=True)
class _File:
    """One output file on one node: how far we are in it, and how far we have to come."""

    rank: int | None
    stream: str
    offset: int = 0
    goal: int = 0
    stored: int = 0
    """How far its copy here is."""
    facts: bytes = b""
    """What has come of the state file."""
    copy: Path | None = None
    """What of it is stored here. It is opened only to write to it: a job may have thousands."""


@dataclass(slots=True)
class _Watch:
    node: str
    channel: Channel | None = None
    files: dict[str, _File] = field(default_factory=dict)
    buffer: bytearray = field(default_factory=bytearray)
    reconnected: int = 0
    """How often in a row, without an answer since."""


class _TimeIsUpError(Exception):
    """The deadline has passed in the middle of an answer."""


class Follower:
    """Iterate over `batches()`; `job` is always the job as its state file last described it.
    `report` hears why it waits, and hears it again when that changes. `cut_short`: time was up
    before all output that was there had been read.

    A worker that does not answer is left out: `lost` has the reason. So is the launcher where only
    what is there now is wanted. Who follows a job to its end gets NodeUnreachable when the launcher
    stops answering: the job goes on without us.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        pool: Pool,
        folder: Path,
        interrupts: Interrupts,
        report: Reporter = lambda text: None,
    ) -> None:
        self.job = job
        self.cut_short = False
        self.lost: dict[str, str] = {}
        self._cluster = cluster
        self._system = systems.load(cluster)
        self._pool = pool
        self._folder = folder / "out"
        self._file: BufferedWriter | None = None
        self._watches = [_Watch(name) for name in list_nodes(job, cluster)]
        self._interrupts = interrupts
        self._report = report
        self._told = ""
        self._keep = False
        self._silent: dict[str, str] = {}
        """What a probe showed of nodes that have not answered since."""
        self._saved: frozenset[str] = frozenset()
        self._until_ended = True
        self._began = time.monotonic()
        self._deadline = math.inf

    def __enter__(self) -> Follower:
        with writing(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = (self._folder / ".following").open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._keep = True  # we alone extend the copy; a second follower only reads
        except BlockingIOError:
            self._keep = False
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for watch in self._watches:
            if watch.channel:
                watch.channel.close()
        if self._file:
            self._file.close()

    def batches(
        self, *, until_ended: bool = True, replay: bool = True, limit: float = math.inf
    ) -> Iterator[list[Piece]]:
        """What the ranks write, as it comes: a list per look and node, an empty one for a look that
        saw nothing. Ends when the job has, or, with `until_ended` false, with what is there now: in
        both cases at the sizes that the files have then, for something may go on writing to them.
        `replay` starts with what the state home has.

        `limit`: seconds for the reading itself, from the job's end on, or with `until_ended` false
        from the beginning.
        """
        self._until_ended = until_ended
        yield from self._remembered(replay)
        if not until_ended:
            self._deadline = now() + limit
            if limit <= 0:
                self.cut_short = True
                return
        self._open_channels()
        try:
            if until_ended:
                self._say()
                yield from self._wait_for_end()
            complete = self.job.state.ended
            self._deadline = min(self._deadline, now() + limit)
            yield from self._read_rest()
        except _TimeIsUpError:
            self.cut_short = True
            return
        if complete and self._keep and not self.lost:
            (self._folder / ".complete").touch()

    def _wait_for_end(self) -> Iterator[list[Piece]]:
        """Looks at all nodes again and again until the job has ended."""
        clock = pace.Pace(self._system.backoff)
        while not self.job.state.ended:
            moved = yield from self._round(seal=False)
            if clock.should_ask(moved):
                self.job = control.refresh(self.job, self._cluster, self._pool)
                self._say()
            if self.job.state is JobState.RUNNING and clock.should_tell():
                self._report(
                    f"job {self.job.id} has written nothing for {pace.STILL / 60:g} minutes;"
                    f" `clusterctl doctor {self.job.id}` shows what its ranks are doing"
                )
            if not moved:
                yield []
            clock.rest(moved)

    def _read_rest(self) -> Iterator[list[Piece]]:
        """Reads the files as far as they go now."""
        yield from self._round(seal=True)
        while self._is_behind():
            yield from self._round(seal=False)

    def _say(self) -> None:
        waiting = self.job.state is JobState.QUEUED
        text = self._system.describe_wait(self.job) if waiting else ""
        if text and text != self._told:
            self._report(text)
        self._told = text

    def _remembered(self, replay: bool) -> Iterator[list[Piece]]:
        for watch in self._watches:
            for path in sorted((self._folder / watch.node).glob("*-*.*")):
                file = self._book(watch, f"out/{path.name}")
                if file is None:
                    continue
                for chunk, file.offset in logs.read(path):
                    file.stored = file.offset
                    if replay:
                        yield [Piece(file.rank, watch.node, file.stream, chunk)]

    def _open_channels(self) -> None:
        channels: dict[str, Channel] = {}
        self._saved = find_saved(self.job, self._cluster, self._pool)

        def connect(name: str) -> NodeResult:
            channels[name] = self._open(name)
            return NodeResult(node=name, exit_code=0)

        results = self._pool.each(connect, [watch.node for watch in self._watches])
        for watch in self._watches:
            watch.channel = channels.get(watch.node)
        for watch, result in zip(self._watches, results, strict=True):
            if result.error:
                self._lose(watch, result.error)

    def _where(self, name: str) -> Node:
        """Who has the node's output: the launcher, or the node itself."""
        return self._cluster.launcher if name in self._saved else self._cluster.node(name)

    def _open(self, name: str) -> Channel:
        where = self._where(name)
        folder = f"{where.root}/jobs/{self.job.id}" + f"/saved/{name}" * (name in self._saved)
        answer = min(ANSWER, ANSWERS // len(self._watches))
        script = assets.render("job/follow.sh.j2", folder=folder, answer=answer)
        command = f"exec /bin/sh -c {shlex.quote(script)}"
        return self._pool.transport(where.name).open(command, timeout=self._patience())

    def _round(self, seal: bool) -> Generator[list[Piece], None, int]:
        """Asks all nodes once; returns how many bytes of news they had. `seal` makes the files'
        sizes as they are now the goal."""
        for watch in self._watches:
            self._ask(watch)
        moved = 0
        for watch in self._watches:
            news: list[tuple[_File, int, bytes]] = []
            while watch.channel:
                try:
                    self._answer(watch, watch.channel, seal, news)
                    watch.reconnected = 0
                    break
                except OSError as error:
                    self._lose_or_reconnect(watch, error)
                    self._ask(watch)
            moved += sum(len(data) for _, _, data in news)
            if shown := self._keep_news(watch, news):
                began = now()
                yield shown
                self._deadline += now() - began  # a reader may take its time
        return moved

    def _ask(self, watch: _Watch) -> None:
        while watch.channel:
            known = "".join(f" {name}={file.offset}" for name, file in watch.files.items())
            try:
                return watch.channel.send(f"{known} \n".encode(), self._patience())
            except OSError as error:
                self._lose_or_reconnect(watch, error)

    def _keep_news(self, watch: _Watch, news: list[tuple[_File, int, bytes]]) -> list[Piece]:
        """Stores what has come; returns what is to be shown of it."""
        pieces = []
        for file, offset, data in news:
            if file.stream == "state":
                self._apply(file, data)
                continue
            if missing := offset - file.stored:
                pieces.append(Piece(file.rank, watch.node, file.stream, logs.marker(missing)))
            if file.copy:
                if missing:
                    logs.leave_out(file.copy, file.stored, offset)
                with writing(file.copy), file.copy.open("ab") as sink:
                    sink.write(data)
                logs.shorten(file.copy, len(watch.files))
            file.stored = offset + len(data)
            pieces.append(Piece(file.rank, watch.node, file.stream, data))
        return pieces

    def _answer(
        self, watch: _Watch, channel: Channel, seal: bool, news: list[tuple[_File, int, bytes]]
    ) -> None:
        """Adds to `news` what the node has; OSError."""
        names = set()
        while (header := self._header(watch, channel)) != b"E":
            found = parse_header(header)
            if found is None:
                continue  # what a login shell says before it obeys
            name, offset, length, size = found
            data = self._take(watch, channel, length)
            file = self._book(watch, name)
            if file is None:
                continue
            names.add(name)
            news.append((file, offset, data))
            file.offset = offset + len(data)
            if seal:
                file.goal = size
        for name, file in watch.files.items():
            if name not in names:
                file.goal = file.offset  # all there is, also of a file that was cut off meanwhile

    def _is_behind(self) -> bool:
        reached = (watch for watch in self._watches if watch.channel)
        files = (file for watch in reached for file in watch.files.values())
        return any(file.offset < file.goal for file in files)

    def _book(self, watch: _Watch, name: str) -> _File | None:
        """The book-keeping for a file a node told us of. Only names that we gave are taken."""
        if name in watch.files:
            return watch.files[name]
        if name == "state":
            if watch.node != self._cluster.launcher.name:
                return None
            file = _File(None, "state")
        else:
            match = logs.FILE.fullmatch(name)
            if match is None:
                return None
            rank = None if match["agent"] else int(match["number"])
            file = _File(rank, "stdout" if match["stream"] == "out" else "stderr")
            if self._keep:
                file.copy = self._folder / watch.node / name.removeprefix("out/")
                with writing(file.copy):
                    file.copy.parent.mkdir(mode=0o700, exist_ok=True)
        watch.files[name] = file
        return file

    def _apply(self, file: _File, data: bytes) -> None:
        file.facts += data
        whole, _, _ = file.facts.rpartition(b"\n")
        self.job = verdict.judge(self.job, whole.decode(errors="replace"))

    def _header(self, watch: _Watch, channel: Channel) -> bytes:
        while (end := watch.buffer.find(b"\n")) < 0:
            self._receive(watch, channel)
        header = bytes(watch.buffer[:end])
        del watch.buffer[: end + 1]
        return header

    def _take(self, watch: _Watch, channel: Channel, length: int) -> bytes:
        while len(watch.buffer) < length:
            self._receive(watch, channel)
        data = bytes(watch.buffer[:length])
        del watch.buffer[:length]
        return data

    def _receive(self, watch: _Watch, channel: Channel) -> None:
        asked = now()
        probed = False
        while True:
            self._interrupts.check()
            if now() > self._deadline:
                raise _TimeIsUpError
            try:
                data = channel.receive(GLANCE)
                break
            except TimeoutError:
                silence = now() - asked
                if silence > ANSWER_TIMEOUT:
                    raise TimeoutError(f"no answer for {ANSWER_TIMEOUT:g} s") from None
                if silence > NOTICE and not probed:
                    probed = True
                    self._report_silence()
                if silence > FROZEN and watch.node not in self._silent:
                    if self._until_ended and not watch.reconnected:
                        raise ConnectionError(f"no answer for {FROZEN:g} s") from None
                    why = "new connections work, but its earlier processes are frozen or very slow"
                    self._silent[watch.node] = why
                    self._report(f"{watch.node} has not answered for {FROZEN:g} s: {why}")
        if watch.node in self._silent:
            del self._silent[watch.node]
            self._report(f"{watch.node} answers again")
        if not data:
            raise ConnectionError("it closed the connection")
        watch.buffer += data

    def _report_silence(self) -> None:
        """Says which nodes cannot be reached, and why: all of them at once, since several may be
        gone together."""
        for name, why in self._probe().items():
            self._report(f"{name} has not answered for {NOTICE:g} s: {why}")

    def _probe(self) -> dict[str, str]:
        """What is known about nodes that are not as they were."""
        names = [w.node for w in self._watches if w.channel and w.node not in self._silent]
        passed = time.monotonic() - self._began  # its answer may wait for us
        found = {}
        for result in self._pool.probe(names, timeout=PROBE):
            # A login shell may say something first.
            times = re.findall(r"^(\d+\.\d+) ", result.text, re.MULTILINE)
            up = float(times[-1]) if times else math.inf
            if result.error:
                found[result.node] = result.error
            elif up < passed:
                found[result.node] = f"it restarted {up:.0f} s ago"
        self._silent |= found
        return found

    def _patience(self) -> float:
        """Seconds that a node may take now."""
        return max(GLANCE, min(ANSWER_TIMEOUT, self._deadline - now()))

    def _lose_or_reconnect(self, watch: _Watch, error: OSError) -> None:
        """A connection may end for reasons of its own, on a node that goes on working."""
        if self._until_ended and watch.node not in self._silent:
            self._probe()
        if watch.channel and isinstance(error, ConnectionError) and self._may_reconnect(watch):
            watch.channel.close()
            watch.buffer.clear()
            self._pool.transport(self._where(watch.node).name).close()
            try:
                watch.channel = self._open(watch.node)
            except (OSError, NodeUnreachable) as another:
                return self._lose(watch, str(another) or "no answer")
            watch.reconnected += 1
            return self._report(f"reconnected to {watch.node}: {error}")
        self._lose(watch, str(error) or "no answer")

    def _may_reconnect(self, watch: _Watch) -> bool:
        found_well = self._until_ended and watch.node not in self._silent
        return found_well and watch.reconnected < RECONNECTIONS

    def _lose(self, watch: _Watch, why: str) -> None:
        why = self._silent.pop(watch.node, why)
        launcher = watch.node == self._cluster.launcher.name
        if launcher and self._until_ended:
            raise NodeUnreachable(
                f"lost {watch.node} while following job {self.job.id}: {why}",
                hint="if the launcher still runs, so does the job:"
                f" `clusterctl logs {self.job.id} -f` reconnects; if not, run"
                f" `{self._cluster.repair}`, then `clusterctl rerun {self.job.id} --resume`",
                transient=True,
            )
        if watch.channel:
            watch.channel.close()
        watch.channel = None
        self.lost[watch.node] = why
        missing = "its output is missing"
        if launcher:
            missing = f"the state of job {self.job.id} is as last seen ({self.job.state.value})"
        self._report(f"{watch.node} does not answer, {missing}: {why}")


def find_saved(job: Job, cluster: Cluster, pool: Pool) -> frozenset[str]:
    """The nodes whose output the launcher has, for they were about to end unused (see
    templates/job/save.sh.j2)."""
    if cluster.spec.cloud.idle is None or time.time() - job.created < MIN_IDLE:
        return frozenset()
    launcher = cluster.launcher
    command = f"cd {shlex.quote(launcher.root)}/jobs/{job.id}/saved && ls -d */.done"
    result = pool.transport(launcher.name).run(command, timeout=ANSWER_TIMEOUT)
    return frozenset(line.partition("/")[0] for line in result.text.splitlines())
