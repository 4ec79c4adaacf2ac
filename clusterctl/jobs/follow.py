"""Reads a job's output from all its nodes while it runs, without losing or repeating a byte.

Each node gets one sh that answers polls (templates/job/follow.sh.j2): we say what we have, it says
what is new. The state home's copy of the files doubles as the memory of how far we came, so that
following again, from another terminal or another day, continues where it stopped.
"""

from __future__ import annotations

import fcntl
import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path

from clusterctl.batch import verdict
from clusterctl.batch.system import load_system
from clusterctl.core.clock import now
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster, Reporter
from clusterctl.jobs import control, records
from clusterctl.jobs.connections import (
    Connections,
    FileNews,
    FindDead,
    Interrupts,
    OutputFile,
    TimeIsUpError,
    Watch,
)
from clusterctl.jobs.records import Piece
from clusterctl.state.home import explain_write_errors
from clusterctl.transport.pool import Pool

# -------------------------------------------------------------------------------------------------
# When a follower looks again at a job, and when it asks whether anybody still looks after it.


FASTEST, STREAMING, SLOWEST = 0.02, 0.2, 0.5
"""Seconds between polls: quick after output, slower while it goes on, or while nothing comes. A
poll starts a few programs on each node, and takes their time from the ranks."""
MUCH = 1 << 16
"""A poll that brings as many bytes is followed by the next at once."""
STILL = 300.0
"""Seconds without output of a running job after which that is said."""
SUSPICION = 5.0
"""Seconds of silence after which we ask whether the supervisor is still there."""

LONGEST = 60.0
"""The longest time between such questions of a batch system, whose queue is asked less and less
often."""
STEADY = 10.0
"""The same of a launcher, also with output that never pauses."""


@dataclass(slots=True)
class Pace:
    """When to look again, and when to ask whether anybody still looks after the job."""

    backoff: float
    sleep: Callable[[float], None] = time.sleep
    pause: float = FASTEST
    streams: bool = False
    """Whether the last poll had news."""
    patience: float = SUSPICION
    last_output: float = field(default_factory=now)
    asked: float = field(default_factory=now)
    told: float = 0.0
    """The silence that was told last began then."""

    def should_tell(self, at: float) -> bool:
        """Whether nothing has come for long, and that was not said yet."""
        if self.told == self.last_output or at - self.last_output < STILL:
            return False
        self.told = self.last_output
        return True

    def should_ask(self, moved: int, at: float) -> bool:
        """Whether it is time to ask, after a look that saw news or did not."""
        if moved:
            self.last_output, self.patience = at, SUSPICION
        longest = LONGEST if self.backoff > 1 else STEADY
        if at - max(self.last_output, self.asked) <= self.patience and at - self.asked <= longest:
            return False
        self.asked = at
        self.patience = min(self.patience * self.backoff, LONGEST)
        return True

    def rest(self, moved: int) -> None:
        """Waits for the next look. `moved`: bytes that this one has brought."""
        if moved >= MUCH:
            return
        if moved and not self.streams:
            self.pause = FASTEST
        self.sleep(self.pause)
        growth, slowest = (1.5, STREAMING) if moved else (1.25, SLOWEST)
        self.pause = min(self.pause * growth, slowest)
        self.streams = bool(moved)


# -------------------------------------------------------------------------------------------------

LAST = 20.0
"""Seconds that workers which were lost have to answer again when the job has ended without them."""


class Follower:
    """Iterate over `read_batches()`; `job` is always the job as its state file last described it.
    `report` hears why it waits, and hears it again when that changes. `cut_short`: time was up
    before all output that was there had been read.

    A worker that does not answer is left out: `lost` has the reason. So is the launcher where only
    what is there now is wanted. Who follows a job to its end tries to reach them again until it has
    ended, and continues where it stopped. It gets NodeUnreachable when the launcher has not
    answered for GIVE_UP seconds, or is known to be gone (`find_dead`): the job goes on without us.
    `describe_use`: whether the ranks of a job that has written nothing for long compute.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        pool: Pool,
        folder: Path,
        interrupts: Interrupts,
        report: Reporter = lambda text: None,
        find_dead: FindDead | None = None,
        describe_use: Callable[[], str] = lambda: "",
    ) -> None:
        self.job = job
        self.cut_short = False
        self._cluster = cluster
        self._system = load_system(cluster.system)
        self._pool = pool
        self._folder = folder / "out"
        self._file: BufferedWriter | None = None
        self._nodes = Connections(job, cluster, pool, interrupts, report, find_dead)
        self._report = report
        self._describe_use = describe_use
        self._told = ""
        self._keep = False

    @property
    def lost(self) -> dict[str, str]:
        return self._nodes.lost

    def __enter__(self) -> Follower:
        with explain_write_errors(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = (self._folder / ".following").open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._keep = True  # we alone extend the copy; a second follower only reads
        except BlockingIOError:
            self._keep = False
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._nodes.close()
        if self._file:
            self._file.close()

    def read_batches(
        self, *, until_ended: bool = True, replay: bool = True, limit: float = math.inf
    ) -> Iterator[list[Piece]]:
        """What the ranks write, as it comes: a list per look and node, an empty one for a look that
        saw nothing. Ends when the job has, or, with `until_ended` false, with what is there now: in
        both cases at the sizes that the files have then, for something may go on writing to them.
        `replay` starts with what the state home has.

        `limit`: seconds for the reading itself, from the job's end on, or with `until_ended` false
        from the beginning.
        """
        nodes = self._nodes
        nodes.reconnects = nodes.needs_launcher = until_ended
        yield from self._replay(replay)
        if not until_ended:
            nodes.deadline = now() + limit
            if limit <= 0:
                self.cut_short = True
                return
        nodes.open()
        try:
            if until_ended:
                self._report_wait()
                yield from self._wait_for_end()
            complete = self.job.state.ended
            nodes.needs_launcher = False
            nodes.deadline = min(nodes.deadline, now() + limit)
            yield from self._read_rest()
        except TimeIsUpError:
            self.cut_short = True
            return
        if complete and self._keep and not self.lost:
            (self._folder / ".complete").touch()

    def _wait_for_end(self) -> Iterator[list[Piece]]:
        """Looks at all nodes again and again until the job has ended."""
        clock = Pace(self._system.backoff)
        while not self.job.state.ended:
            self._nodes.welcome_back()
            moved = yield from self._ask_all(seal=False)
            at = now()
            if self._nodes.launcher_is_away:
                clock.last_output = at  # nobody knows what it has to say
            elif clock.should_ask(moved, at):
                self.job = control.refresh(self.job, self._cluster, self._pool)
                self._report_wait()
            if self.job.state is JobState.RUNNING and clock.should_tell(at):
                self._tell_silence()
            if not moved:
                yield []
            clock.rest(moved)

    def _tell_silence(self) -> None:
        job, minutes = self.job.id, f"{STILL / 60:g} minutes"
        self._report(
            f"job {job} has written nothing for {minutes}{self._describe_use()};"
            f" `clusterctl doctor {job}` shows what its ranks are doing"
        )

    def _read_rest(self) -> Iterator[list[Piece]]:
        """Reads the files as far as they go now, also of nodes that are back soon."""
        while True:
            yield from self._ask_all(seal=True)
            while self._is_behind():
                yield from self._ask_all(seal=False)
            if not (yield from self._await_lost()):
                return

    def _await_lost(self) -> Generator[list[Piece], None, bool]:
        """Waits for nodes that this machine has lost, and not the job; whether one is back. After
        an outage of our own network, they are back a moment after the launcher."""
        began = now()
        lost = [name for name in self.lost if self.job.survivors.get(name) != -1]
        while any(self._nodes.is_away(name) for name in lost) and now() - began < LAST:
            if self._nodes.welcome_back():
                return True
            yield []
            time.sleep(FASTEST)
        return False

    def _report_wait(self) -> None:
        waiting = self.job.state is JobState.QUEUED
        text = self._system.describe_wait(self.job) if waiting else ""
        if text and text != self._told:
            self._report(text)
        self._told = text

    def _replay(self, replay: bool) -> Iterator[list[Piece]]:
        for watch in self._nodes.watches:
            for path in sorted((self._folder / watch.node).glob("*-*.*")):
                file = self._find_file(watch, f"out/{path.name}")
                if file is None:
                    continue
                for chunk, file.offset in records.read_log(path):
                    file.stored = file.offset
                    if replay:
                        yield [Piece(file.rank, watch.node, file.stream, chunk)]

    def _ask_all(self, seal: bool) -> Generator[list[Piece], None, int]:
        """Asks all nodes once; returns how many bytes of news they had. `seal` makes the files'
        sizes as they are now the goal."""
        self._nodes.ask_all()
        moved = 0
        for watch in self._nodes.watches:
            news = self._nodes.read_answer(watch)
            for answer in news:
                moved += len(answer.data)
            if (news or seal) and (shown := self._keep_news(watch, news, seal)):
                began = now()
                yield shown
                self._nodes.deadline += now() - began  # a reader may take its time
        return moved

    def _keep_news(self, watch: Watch, news: list[FileNews], seal: bool) -> list[Piece]:
        """Stores what has come; returns what is to be shown of it. `seal`: as in `_ask_all`."""
        pieces: list[Piece] = []
        for name, offset, data, size in news:
            file = self._find_file(watch, name)
            if file is None:
                continue
            file.offset = offset + len(data)
            file.goal = size if seal else file.goal
            if file.stream == "state":
                self._apply(file, data)
            else:
                pieces += self._store(watch, file, offset, data)
        names = {answer.name for answer in news}
        for name, file in watch.files.items():
            if name not in names:
                file.goal = file.offset  # all there is, also of a file that was cut off meanwhile
        return pieces

    def _store(self, watch: Watch, file: OutputFile, offset: int, data: bytes) -> Iterator[Piece]:
        if missing := offset - file.stored:
            yield Piece(file.rank, watch.node, file.stream, records.render_marker(missing))
        if file.copy:
            if missing:
                records.leave_out(file.copy, file.stored, offset)
            with explain_write_errors(file.copy), file.copy.open("ab") as sink:
                sink.write(data)
            records.shorten(file.copy, len(watch.files))
        file.stored = offset + len(data)
        yield Piece(file.rank, watch.node, file.stream, data)

    def _is_behind(self) -> bool:
        reached = (watch for watch in self._nodes.watches if watch.channel)
        files = (file for watch in reached for file in watch.files.values())
        return any(file.offset < file.goal for file in files)

    def _find_file(self, watch: Watch, name: str) -> OutputFile | None:
        """The book-keeping for a file a node told us of. Only names that we gave are taken."""
        if name in watch.files:
            return watch.files[name]
        if name == "state":
            if watch.node != self._cluster.launcher.name:
                return None
            file = OutputFile(None, "state")
        else:
            match = records.FILE.fullmatch(name)
            if match is None:
                return None
            rank = None if match["agent"] else int(match["number"])
            file = OutputFile(rank, "stdout" if match["stream"] == "out" else "stderr")
            if self._keep:
                file.copy = self._folder / watch.node / name.removeprefix("out/")
                with explain_write_errors(file.copy):
                    file.copy.parent.mkdir(mode=0o700, exist_ok=True)
        watch.files[name] = file
        return file

    def _apply(self, file: OutputFile, data: bytes) -> None:
        file.facts += data
        whole, _, _ = file.facts.rpartition(b"\n")
        self.job = verdict.judge(self.job, whole.decode(errors="replace"))
