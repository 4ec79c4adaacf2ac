"""Reads a job's output from all its nodes while it runs, without losing or repeating a byte.

Each node gets one sh that answers polls (templates/job/follow.sh.j2): we say what we have, it says
what is new. The state home's copy of the files doubles as the memory of how far we came, so that
following again, from another terminal or another day, goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path
from types import TracebackType

from clusterctl import assets
from clusterctl.errors import NodeUnreachable
from clusterctl.jobs import control
from clusterctl.jobs.interrupts import Interrupts
from clusterctl.jobs.start import involved
from clusterctl.model import Cluster, Job, JobState
from clusterctl.schedulers import direct
from clusterctl.transport import Channel
from clusterctl.transport.pool import Pool

CHUNK = 1 << 20
"""Bytes per file and poll."""
FASTEST, SLOWEST = 0.02, 0.5
"""Seconds between polls: quick after output, slower while nothing comes."""
ANSWER_TIMEOUT = 30.0
GLANCE = 0.5
"""Seconds between looks whether somebody has pressed Ctrl-C."""
SUSPICION = 5.0
"""Seconds of silence after which we ask whether the supervisor is still there."""

LONGEST = 60.0
"""The longest such silence with a batch system, whose queue is asked less and less often."""

_RANK_FILE = re.compile(r"out/(?:rank|(?P<agent>agent))-(?P<number>\d+)\.(?P<stream>out|err)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a rank's output, without its newline. `rank` is None for a torchrun agent."""

    rank: int | None
    node: str
    stream: str
    text: bytes


@dataclass(slots=True)
class _File:
    """One output file on one node: where we are in it, and the line that is not complete yet."""

    rank: int | None
    stream: str
    offset: int = 0
    partial: bytes = b""
    sink: BufferedWriter | None = None


@dataclass(slots=True)
class _Watch:
    node: str
    channel: Channel
    files: dict[str, _File] = field(default_factory=dict)
    buffer: bytearray = field(default_factory=bytearray)


class Follower:
    """Iterate over `batches()`; `job` is always the job as its state file last described it. `tell`
    hears why it waits, and hears it again when that changes.

    Raises NodeUnreachable when a node stops answering: the job goes on without us.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        pool: Pool,
        folder: Path,
        interrupts: Interrupts,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.job = job
        self._cluster = cluster
        self._pool = pool
        self._folder = folder / "out"
        self._lock: int | None = None
        self._file: BufferedWriter | None = None
        self._watches: list[_Watch] = []
        self._interrupts = interrupts
        self._tell = tell
        self._told = ""
        self._keep = False
        self._moved = False

    def __enter__(self) -> Follower:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = (self._folder / ".following").open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._keep = True  # we alone extend the copy; a second follower only reads
        except BlockingIOError:
            self._keep = False
        for name in involved(self.job, self._cluster):
            folder = f"{self._cluster.node(name).root}/jobs/{self.job.id}"
            script = assets.render("job/follow.sh.j2", folder=folder, chunk=CHUNK)
            channel = self._pool.transport(name).open(f"exec /bin/sh -c {shlex.quote(script)}")
            self._watches.append(_Watch(name, channel))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for watch in self._watches:
            for file in watch.files.values():
                if file.sink:
                    file.sink.close()
            watch.channel.close()
        if self._file:
            self._file.close()

    def batches(self, *, until_ended: bool = True, replay: bool = True) -> Iterator[list[Line]]:
        """What the ranks write, as it comes, a list per look. Ends when the job has, or, with
        `until_ended` false, when all that is there has been read. `replay` starts with what the
        state home has."""
        yield from self._remembered(replay)
        if until_ended:
            self._say()
        pause = FASTEST
        drained = False
        heard = time.monotonic()
        patience = SUSPICION
        while True:
            self._interrupts.check()
            ended = self.job.state.ended
            if lines := self._poll():
                yield lines
            if self._moved:
                pause, drained, heard = FASTEST, False, time.monotonic()
                patience = SUSPICION
                continue
            if ended or not until_ended:
                # Nothing new since the end was seen: nothing can come any more.
                if drained or not ended:
                    break
                drained = True
                continue
            if time.monotonic() - heard > patience:
                heard = time.monotonic()
                patience = min(patience * 1.5, LONGEST) if self._cluster.batch else SUSPICION
                self.job = control.refresh(self.job, self._cluster, self._pool)
                self._say()
            time.sleep(pause)
            pause = min(pause * 1.25, SLOWEST)
        if rest := self._rest():
            yield rest
        if self.job.state.ended and self._keep:
            (self._folder / ".complete").touch()

    def _say(self) -> None:
        text = waits(self.job, self._cluster) if self.job.state is JobState.QUEUED else ""
        if text and text != self._told:
            self._tell(text)
        self._told = text

    def _remembered(self, replay: bool) -> Iterator[list[Line]]:
        for watch in self._watches:
            for path in sorted((self._folder / watch.node).glob("*-*.*")):
                file = self._open(watch, f"out/{path.name}")
                if file is None:
                    continue
                with path.open("rb") as stored:
                    while chunk := stored.read(CHUNK):
                        file.offset += len(chunk)
                        lines = _split(watch.node, file, chunk)
                        if replay:
                            yield lines

    def _poll(self) -> list[Line]:
        for watch in self._watches:
            known = "".join(f" {name}={file.offset}" for name, file in watch.files.items())
            try:
                watch.channel.send(f"{known} \n".encode(), ANSWER_TIMEOUT)
            except OSError as error:
                raise self._lost(watch, error) from error
        self._moved = False
        lines: list[Line] = []
        for watch in self._watches:
            while (header := self._header(watch))[:1] == b"F":
                _, name, _, length = header.decode().split(" ")
                data = self._take(watch, int(length))
                file = self._open(watch, name)
                if file is None:
                    continue
                self._moved = True
                file.offset += len(data)
                if name == "state":
                    self._apply(file, data)
                    continue
                if file.sink:
                    file.sink.write(data)
                    file.sink.flush()
                lines += _split(watch.node, file, data)
        return lines

    def _rest(self) -> list[Line]:
        lines = []
        for watch in self._watches:
            for file in watch.files.values():
                if file.partial and file.stream != "state":
                    lines.append(Line(file.rank, watch.node, file.stream, file.partial))
                    file.partial = b""
        return lines

    def _open(self, watch: _Watch, name: str) -> _File | None:
        """The book-keeping for a file a node told us of. Only names that we gave are taken."""
        if name in watch.files:
            return watch.files[name]
        if name == "state":
            if watch.node != self._cluster.launcher.name:
                return None
            file = _File(None, "state")
        else:
            match = _RANK_FILE.fullmatch(name)
            if match is None:
                return None
            rank = None if match["agent"] else int(match["number"])
            file = _File(rank, "stdout" if match["stream"] == "out" else "stderr")
            if self._keep:
                copy = self._folder / watch.node / name.removeprefix("out/")
                copy.parent.mkdir(mode=0o700, exist_ok=True)
                file.sink = copy.open("ab")
        watch.files[name] = file
        return file

    def _apply(self, file: _File, data: bytes) -> None:
        *whole, file.partial = (file.partial + data).split(b"\n")
        for line in whole:
            self.job = direct.apply(self.job, line.decode(errors="replace"))

    def _header(self, watch: _Watch) -> bytes:
        while (end := watch.buffer.find(b"\n")) < 0:
            self._receive(watch)
        header = bytes(watch.buffer[:end])
        del watch.buffer[: end + 1]
        return header

    def _take(self, watch: _Watch, length: int) -> bytes:
        while len(watch.buffer) < length:
            self._receive(watch)
        data = bytes(watch.buffer[:length])
        del watch.buffer[:length]
        return data

    def _receive(self, watch: _Watch) -> None:
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while True:
            self._interrupts.check()
            try:
                data = watch.channel.receive(GLANCE)
                break
            except TimeoutError as error:
                if time.monotonic() > deadline:
                    raise self._lost(watch, error) from error
            except OSError as error:
                raise self._lost(watch, error) from error
        if not data:
            raise self._lost(watch, None)
        watch.buffer += data

    def _lost(self, watch: _Watch, error: OSError | None) -> NodeUnreachable:
        return NodeUnreachable(
            f"lost {watch.node} while following job {self.job.id}"
            + (f": {error}" if error else ": it closed the connection"),
            hint=f"the job goes on; `clusterctl logs {self.job.id} -f` attaches again",
            transient=True,
        )


def _split(node: str, file: _File, data: bytes) -> list[Line]:
    *whole, file.partial = (file.partial + data).split(b"\n")
    return [Line(file.rank, node, file.stream, text) for text in whole]


def waits(job: Job, cluster: Cluster) -> str:
    """For people: that a job waits, and for what."""
    if cluster.batch:
        why = f": {job.reason}" if job.reason else ""
        return f"job {job.id} ({cluster.spec.provider} {job.native_id}) is in the queue{why}"
    return f"job {job.id} waits: other jobs use the slots (--now skips the queue)"


def stored(folder: Path) -> Iterator[list[Line]]:
    """The output that the state home has, file by file: all there is once the cluster is gone."""
    for path in sorted(folder.glob("out/*/*-*.*"), key=_natural):
        match = _RANK_FILE.fullmatch(f"out/{path.name}")
        if match is None:
            continue
        rank = None if match["agent"] else int(match["number"])
        stream = "stdout" if match["stream"] == "out" else "stderr"
        with path.open("rb") as file:
            node = path.parent.name
            yield [Line(rank, node, stream, line.removesuffix(b"\n")) for line in file]


def complete(folder: Path) -> bool:
    """Whether the state home has all the output there will ever be."""
    return (folder / "out" / ".complete").exists()


def _natural(path: Path) -> tuple[str, int]:
    return path.suffix, int("".join(filter(str.isdigit, path.stem)) or 0)
