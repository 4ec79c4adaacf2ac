"""A follower's connections to the nodes of a job: which of them work, and what becomes of those
that do not."""

from __future__ import annotations

import math
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar

from clusterctl.core import assets
from clusterctl.core.clock import now, run_in_background
from clusterctl.core.job import Job
from clusterctl.core.model import Cluster, NodeResult, Reporter, shorten
from clusterctl.errors import ClusterctlError, NodeUnreachable
from clusterctl.jobs.submit import list_nodes
from clusterctl.options.values import MIN_IDLE
from clusterctl.process import ENDING, Terminated
from clusterctl.transport import pool as transport_pool
from clusterctl.transport.diagnosis import FAILURES, describe_failure
from clusterctl.transport.pool import Pool
from clusterctl.transport.protocol import Channel

# -------------------------------------------------------------------------------------------------
# Ctrl-C where an exception in the middle of things would do harm.
#
# A KeyboardInterrupt that is raised while the main thread holds one of the SSH library's locks
# leaves that lock held, and the clean-up that follows waits for it for ever. So the first Ctrl-C
# is noted and raised where we choose; a second one is raised at once.


class Interrupts:
    """While the context is open, `check` raises the KeyboardInterrupt that came meanwhile.

    `patient`: any further Ctrl-C is noted too, for what has a time limit of its own and must not be
    left half done.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._seen = False
        self._ours = False

    def check(self) -> None:
        if self._seen:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        # Whoever started us in the background has SIGINT ignored, and means it.
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._note)
            self._ours = True
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._seen and not self._patient:
            raise KeyboardInterrupt
        self._seen = True


class StartSignals:
    """While the context is open, a job is started: what SIGTERM and SIGHUP mean in a command that
    else leaves its job alone. Until `start_waiting` they are raised as Terminated, once. From then
    on the job may run, and they wait for the end of the context."""

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._waits = False
        self._seen: list[int] = []

    def start_waiting(self) -> None:
        self._waits = True

    def __enter__(self) -> StartSignals:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                before = signal.getsignal(number)
                if callable(before):  # else nobody handles it, and it ends the process
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if kind is None and self._waits and self._seen:
            self._before[self._seen[0]](self._seen[0], None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen.append(number)
        if not self._waits and len(self._seen) == 1:
            raise Terminated(number)


# -------------------------------------------------------------------------------------------------

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
"""In a row, to a node that answers new connections and gives no answer on them."""
GIVE_UP = 600.0
"""Seconds for which a launcher that was lost is waited for: a laptop that changes networks, or a
router that restarts, takes minutes."""
CERTAINTY = 4.0
"""Seconds for whoever has made the launcher to say that it is gone, before that is waited for."""
GLANCE, BLINK = 0.5, 0.02
"""Seconds between looks whether somebody has pressed Ctrl-C."""
ATTEMPT, PAUSE = 30.0, 3.0
"""Seconds that an attempt to connect again may take, and those between its end and the next one."""
LOOK = 30.0
"""Seconds between questions to whoever has made the machines."""

FindDead = Callable[[], Mapping[str, str]]
"""Nodes whose machines are known not to run, and why: no wait brings them back. May take long;
raises ClusterctlError or OSError where that is not told."""

T = TypeVar("T")


@dataclass(slots=True)
class OutputFile:
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
class Watch:
    """A node, and what is known of its files. Without a channel it is not asked."""

    node: str
    channel: Channel | None = None
    files: dict[str, OutputFile] = field(default_factory=dict)
    buffer: bytearray = field(default_factory=bytearray)
    reconnected: int = 0
    """How often in a row, without an answer since."""


@dataclass(slots=True)
class _Absence:
    """Of a node that was lost and may come back. Attempts to connect run in the background, until
    one succeeds."""

    why: str
    """What the last attempt has shown."""
    since: float = field(default_factory=now)
    due: float = field(default_factory=now)
    attempt: Future[Channel] | None = None


class FileNews(NamedTuple):
    """What a node has sent of one of its files: from `offset` on, and how large the file is."""

    name: str
    offset: int
    data: bytes
    size: int


_HEADER = re.compile(rb"F (\S+) (\d{1,18}) (\d{1,18}) (\d{1,18})")


def parse_header(line: bytes) -> tuple[str, int, int, int] | None:
    """Of a file: its name, from where on and how many bytes of it follow, and its size. None for
    any other line."""
    match = _HEADER.fullmatch(line)
    if match is None:
        return None
    offset, length, size = (int(number) for number in match.groups()[1:])
    return match[1].decode(errors="replace"), offset, length, size


class TimeIsUpError(Exception):
    """The deadline has passed in the middle of an answer."""


class Connections:
    """One Watch for each node that the job has output on, and a channel to a script there, which
    answers questions (templates/job/follow.sh.j2).

    A worker that is lost has no channel any more: `lost` has the reason. A launcher without which
    nobody knows how the job goes (`needs_launcher`) raises NodeUnreachable when it is given up:
    after GIVE_UP seconds, or when it is known to be gone. Where `reconnects`, all that were lost
    are tried again in the background, until `welcome_back` has found them.

    `deadline`: by the clock of `timeouts`. `report` gets what people should know.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        pool: Pool,
        interrupts: Interrupts,
        report: Reporter,
        find_dead: FindDead | None,
    ) -> None:
        self.watches = [Watch(name) for name in list_nodes(job, cluster)]
        self.lost: dict[str, str] = {}
        self.reconnects = self.needs_launcher = True
        self.deadline = math.inf
        self._job, self._cluster, self._pool = job, cluster, pool
        self._launcher = cluster.launcher.name
        self._interrupts, self._report = interrupts, report
        self._silent: dict[str, str] = {}
        """What a probe showed of nodes that have not answered since."""
        self._restarted: set[str] = set()
        """Those of which it showed that: they answer, and have all that was on their disks."""
        self._away: dict[str, _Absence] = {}
        self._find_dead, self._asked = find_dead, -math.inf
        self._question: Future[Mapping[str, str]] | None = None
        self._saved: frozenset[str] = frozenset()
        self._began = time.monotonic()

    def open(self) -> None:
        """Connects to all nodes. One that does not answer now is lost."""
        channels: dict[str, Channel] = {}
        self._saved = find_saved(self._job, self._cluster, self._pool)

        def connect(name: str) -> NodeResult:
            channels[name] = self._open(name)
            return NodeResult(node=name, exit_code=0)

        results = self._pool.call_each(connect, [watch.node for watch in self.watches])
        for watch in self.watches:
            watch.channel = channels.get(watch.node)
        for watch, result in zip(self.watches, results, strict=True):
            if result.error:
                if self.needs_launcher and watch.node == self._launcher:
                    raise self._give_up(result.error)
                self._lose(watch, result.error)

    def close(self) -> None:
        for watch in self.watches:
            if watch.channel:
                watch.channel.close()
        for absence in self._away.values():
            if absence.attempt:
                absence.attempt.add_done_callback(_drop)
        self._away.clear()
        for name in self._silent:  # whoever needs it next has to connect anew
            self._pool.find_transport(name).close()

    # ------------------------------------------------------------------------------ questions

    def ask_all(self) -> None:
        """Asks all nodes for what has been added to their files."""
        for watch in self.watches:
            self.ask(watch)

    def ask(self, watch: Watch) -> None:
        """Asks a node for what has been added to its files."""
        while watch.channel:
            known = "".join(f" {name}={file.offset}" for name, file in watch.files.items())
            try:
                return watch.channel.send(f"{known} \n".encode(), self._choose_timeout())
            except OSError as error:
                self.lose_or_reconnect(watch, error)

    def read_answer(self, watch: Watch) -> list[FileNews]:
        """What a node that was asked has sent; [] of one that is lost. An answer that breaks off
        is asked for again as a whole. TimeIsUpError."""
        while watch.channel:
            found: list[FileNews] = []
            try:
                while (line := self._read_line(watch, watch.channel)) != b"E":
                    if header := parse_header(line):  # else what a login shell says
                        name, offset, length, size = header
                        data = self._read(watch, watch.channel, length)
                        found.append(FileNews(name, offset, data, size))
                watch.reconnected = 0
                return found
            except OSError as error:
                self.lose_or_reconnect(watch, error)
                self.ask(watch)
        return []

    def _read_line(self, watch: Watch, channel: Channel) -> bytes:
        """The next line of an answer, without its end. OSError, TimeIsUpError."""
        while (end := watch.buffer.find(b"\n")) < 0:
            self._receive(watch, channel)
        line = bytes(watch.buffer[:end])
        del watch.buffer[: end + 1]
        return line

    def _read(self, watch: Watch, channel: Channel, length: int) -> bytes:
        """So many bytes of an answer. OSError, TimeIsUpError."""
        while len(watch.buffer) < length:
            self._receive(watch, channel)
        data = bytes(watch.buffer[:length])
        del watch.buffer[:length]
        return data

    def _receive(self, watch: Watch, channel: Channel) -> None:
        asked, probed = 0.0, False
        while True:
            self.check()
            try:
                data = channel.receive(GLANCE)
                break
            except TimeoutError:
                asked = asked or now() - GLANCE
                silence = now() - asked
                if silence > ANSWER_TIMEOUT:
                    raise TimeoutError(f"no answer for {ANSWER_TIMEOUT:g} s") from None
                if silence > NOTICE and not probed:
                    probed = True
                    self._report_silence()
                if silence > FROZEN and watch.node not in self._silent:
                    if self.reconnects and not watch.reconnected:
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

    def check(self) -> None:
        """Raises the Ctrl-C that came meanwhile, and TimeIsUpError."""
        self._interrupts.check()
        if self.deadline < math.inf and now() > self.deadline:
            raise TimeIsUpError

    def _wait(self, action: Callable[[], T]) -> T:
        """Does what may take its time, and raises a Ctrl-C that comes meanwhile."""
        future = run_in_background(action)
        while not futures.wait((future,), GLANCE).done:
            self._interrupts.check()
        return future.result()

    def _choose_timeout(self) -> float:
        """Seconds that a node may take now."""
        if self.deadline == math.inf:
            return ANSWER_TIMEOUT
        return max(GLANCE, min(ANSWER_TIMEOUT, self.deadline - now()))

    def _open(self, name: str) -> Channel:
        where = self._describe_place(name)
        root = self._cluster.node(where).root
        folder = f"{root}/jobs/{self._job.id}" + f"/saved/{name}" * (name in self._saved)
        answer = min(ANSWER, ANSWERS // len(self.watches))
        script = assets.render("job/follow.sh.j2", folder=folder, answer=answer)
        command = f"exec /bin/sh -c {shlex.quote(script)}"
        return self._pool.find_transport(where).open(command, timeout=self._choose_timeout())

    def _describe_place(self, name: str) -> str:
        """Who has the node's output: the launcher, or the node itself."""
        return self._launcher if name in self._saved else name

    # -------------------------------------------------------------------------------- silence

    def _report_silence(self) -> None:
        """Says which nodes cannot be reached, and why: all of them at once, since several may be
        gone together."""
        folded: dict[str, list[str]] = {}
        for name, why in self._probe().items():
            folded.setdefault(why, []).append(name)
        for why, names in folded.items():
            verb = "have" if len(names) > 1 else "has"
            self._report(f"{shorten(names)} {verb} not answered for {NOTICE:g} s: {why}")

    def _probe(self) -> dict[str, str]:
        """What is known about nodes that are not as they were."""
        names = [w.node for w in self.watches if w.channel and w.node not in self._silent]
        passed = time.monotonic() - self._began  # its answer may wait for us
        self._restarted.difference_update(names)
        found = {}
        for result in self._wait(lambda: self._pool.probe(names, timeout=PROBE)):
            if result.error:
                found[result.node] = result.error
            elif (up := transport_pool.read_uptime(result.text)) < passed:
                found[result.node] = f"it restarted {up:.0f} s ago"
                self._restarted.add(result.node)
        self._silent |= found
        return found

    # ----------------------------------------------------------------------------------- loss

    def lose_or_reconnect(self, watch: Watch, error: OSError) -> None:
        """A connection may end for reasons of its own, on a node that goes on working."""
        if self.reconnects and watch.node not in self._silent:
            self._probe()
        if watch.channel and isinstance(error, ConnectionError) and self._may_reconnect(watch):
            self._hang_up(watch)
            try:
                watch.channel = self._wait(lambda: self._open(watch.node))
            except FAILURES as another:
                return self._lose(watch, describe_failure(another, ANSWER_TIMEOUT) or "no answer")
            watch.reconnected += 1
            why = self._silent.pop(watch.node, str(error))
            return self._report(f"reconnected to {watch.node}: {why}")
        self._lose(watch, str(error) or "no answer")

    def _may_reconnect(self, watch: Watch) -> bool:
        answers = watch.node not in self._silent or watch.node in self._restarted
        return self.reconnects and answers and watch.reconnected < RECONNECTIONS

    def _hang_up(self, watch: Watch) -> None:
        """Ends its connection, on which nobody would hear anything any more."""
        if watch.channel:
            watch.channel.close()
        watch.channel = None
        watch.buffer.clear()
        self._pool.find_transport(self._describe_place(watch.node)).close()

    def _lose(self, watch: Watch, why: str) -> None:
        why = self._silent.pop(watch.node, why)
        if self.reconnects:
            self._hang_up(watch)
        elif watch.channel:
            watch.channel.close()
        watch.channel = None
        launcher = self._find_launcher()
        if self.needs_launcher and launcher and (watch is launcher or self._is_silent(launcher)):
            return self._lose_launcher(launcher, watch, why)
        self.lost[watch.node] = why
        if self.reconnects and watch.reconnected < RECONNECTIONS:
            self._away[watch.node] = _Absence(why)
        missing = "its output is missing"
        if watch is launcher:
            missing = f"the state of job {self._job.id} is as last seen"
        self._report(f"{watch.node} does not answer, {missing}: {why}")

    def _find_launcher(self) -> Watch | None:
        return next((watch for watch in self.watches if watch.node == self._launcher), None)

    def _is_silent(self, watch: Watch) -> bool:
        return watch.channel is not None and watch.node in self._silent

    def _lose_launcher(self, launcher: Watch, noticed: Watch, why: str) -> None:
        """Begins to wait for it, unless it is of no use. `noticed`: the node that was lost first;
        with the launcher goes all that does not answer, for it is one outage."""
        if launcher.reconnected >= RECONNECTIONS:
            raise self._give_up(why)
        gone = {launcher.node: why, noticed.node: why}
        for other in filter(self._is_silent, self.watches):
            self._hang_up(other)
            gone[other.node] = self._silent.pop(other.node)
        for name, reason in gone.items():
            self._away[name] = _Absence(reason)
            if name != launcher.node:
                self.lost[name] = reason
        began = now()
        while self._check_alive() and now() - began < CERTAINTY:
            self._interrupts.check()
            time.sleep(BLINK)
        names = shorten(sorted(gone))
        self._report(
            f"lost the connection to {names}: {why}; job {self._job.id} keeps running. Trying"
            f" to reconnect for {GIVE_UP / 60:g} minutes; press Ctrl-C to stop trying"
        )

    def _check_alive(self) -> bool:
        """Raises NodeUnreachable for a launcher of which it is known that it is gone. Whether an
        answer about that is still awaited."""
        if self._question is None and self._find_dead and now() - self._asked >= LOOK:
            self._question, self._asked = run_in_background(self._find_dead), now()
        if self._question is None or not self._question.done():
            return self._question is not None
        question, self._question = self._question, None
        dead: Mapping[str, str] = {}
        with suppress(ClusterctlError, OSError):
            dead = question.result()
        if self._launcher in dead:
            raise self._give_up(dead[self._launcher])
        return False

    def _give_up(self, why: str) -> NodeUnreachable:
        number = self._job.id
        return NodeUnreachable(
            f"lost {self._launcher} while following job {number}: {why}",
            hint=f"if the launcher still runs, so does the job: `clusterctl logs {number} -f`"
            f" reconnects; if not, run `{self._cluster.repair}`,"
            f" then `clusterctl rerun {number} --resume`",
            transient=True,
        )

    # --------------------------------------------------------------------------------- return

    @property
    def launcher_is_away(self) -> bool:
        return self._launcher in self._away

    def is_away(self, name: str) -> bool:
        """Whether it was lost, and may come back."""
        return name in self._away

    def welcome_back(self) -> bool:
        """Goes on with the nodes that answer again, where it stopped; whether there are any.
        Raises as `check`."""
        self.check()
        back, seconds = {}, 0.0
        for name, absence in list(self._away.items()):
            if absence.attempt is None:
                if now() >= absence.due:
                    absence.attempt = run_in_background(partial(self._connect_anew, name))
            elif absence.attempt.done():
                try:
                    back[name] = absence.attempt.result()
                    seconds = max(seconds, now() - absence.since)
                    del self._away[name]
                except FAILURES as error:
                    absence.why = describe_failure(error, ATTEMPT) or absence.why
                    absence.attempt, absence.due = None, now() + PAUSE
        for watch in self.watches:
            if watch.node in back:
                watch.channel = back[watch.node]
                watch.reconnected += 1
                self.lost.pop(watch.node, None)
        if back:
            self._report(f"reconnected to {shorten(sorted(back))} after {seconds:.0f} s")
        if self.needs_launcher and (absent := self._away.get(self._launcher)):
            self._check_alive()
            if now() - absent.since > GIVE_UP:
                raise self._give_up(absent.why)
        return bool(back)

    def _connect_anew(self, name: str) -> Channel:
        """For a node that was away. Raises FAILURES."""
        self._pool.find_transport(self._describe_place(name)).connect(ATTEMPT)
        return self._open(name)


def _drop(attempt: Future[Channel]) -> None:
    """An attempt that succeeds when nobody follows any more is for nobody."""
    if attempt.exception() is None:
        attempt.result().close()


def find_saved(job: Job, cluster: Cluster, pool: Pool) -> frozenset[str]:
    """The nodes whose output the launcher has, for they were about to end unused (see
    templates/job/save.sh.j2)."""
    if cluster.spec.cloud.idle is None or time.time() - job.created < MIN_IDLE:
        return frozenset()
    launcher = cluster.launcher
    command = f"cd {shlex.quote(launcher.root)}/jobs/{job.id}/saved && ls -d */.done"
    result = pool.find_transport(launcher.name).run(command, timeout=ANSWER_TIMEOUT)
    return frozenset(line.partition("/")[0] for line in result.text.splitlines())
