"""Reads a job's output from all its nodes while it runs, without losing or repeating a byte.

Each node gets one agent that answers questions (clusterctl/agent/watch.py) when there is something
new, or when it is time to say that there is nothing. The state home's copy of the files doubles as
the memory of how far we came, so that following again, from another terminal or another day,
continues where it stopped.
"""

from __future__ import annotations

import fcntl
import math
import select
import shlex
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from io import BufferedWriter
from pathlib import Path
from types import FrameType
from typing import TypeVar

from msgspec import Struct, field

from clusterctl.agent import messages
from clusterctl.agent.watch import SHARED, SUPERVISED
from clusterctl.batch import verdict
from clusterctl.batch.system import list_nodes, load_system
from clusterctl.core import assets
from clusterctl.core.clock import now, run_in_background
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster, NodeResult, Reporter, shorten
from clusterctl.errors import ClusterctlError, NodeUnreachable
from clusterctl.jobs import control, records
from clusterctl.jobs.records import Piece
from clusterctl.process import ENDING, Terminated
from clusterctl.state.files import explain_write_errors
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
# Connections to the nodes of a job: which of them work, and what becomes of those that do not.

ANSWER = 4 << 20
"""Bytes that a node answers with at a time, and so what we hold of its output in memory."""
ANSWERS = 64 << 20
"""The same for all nodes together."""
WAIT = 2.0
"""Seconds for which a node may say nothing while there is nothing new."""
ANSWER_TIMEOUT = 30.0
NOTICE, PROBE = 8.0, 4.0
"""Seconds of silence beyond that after which a new connection shows whether a node is there, and
seconds for that: within 15 s it is told that one is not."""
FROZEN = 14.0
"""The same of a node that can be reached, which gets another connection: this one is dead, for this
machine has another address now, or what ran before is frozen or very slow."""
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

News = tuple[messages.FileHeader, bytes]
"""What a node has sent of one of its files."""
T = TypeVar("T")


class OutputFile(Struct):
    """One output file on one node: how far we are in it, and how far we have to come."""

    rank: int | None
    stream: str
    offset: int = 0
    goal: int = 0
    stored: int = 0
    """How far its copy here is."""
    copy: Path | None = None
    """What of it is stored here. It is opened only to write to it: a job may have thousands."""


class Watch(Struct, eq=False):
    """A node, and what is known of its files. Without a channel it is not asked."""

    node: str
    place: str
    """Who has the node's output: the launcher, or the node itself."""
    channel: Channel | None = None
    files: dict[str, OutputFile] = field(default_factory=dict)
    reconnected: int = 0
    """How often in a row, without an answer since."""
    asked: int = 0
    """Questions on this channel without an answer."""
    wait: float = 0.0
    """Seconds that the last of them has given to it."""
    silence: float = 0.0
    """Seconds beyond these in which we have listened and heard nothing."""
    probed: bool = False
    is_bare: bool = False
    """It has said that our agent is not there."""
    is_abandoned: bool = False
    """It has said that the job's supervisor is dead."""
    knows: bool = False
    """Whether the node was told how far we are in its files; it keeps that in mind."""
    buffer: bytearray = field(default_factory=bytearray)
    news: list[News] = field(default_factory=list)
    """What has come of an answer."""

    def connect(self, channel: Channel | None) -> None:
        """Nothing that was said on the channel before counts."""
        self.channel = channel
        self.asked, self.knows, self.probed, self.is_bare = 0, False, False, False
        self.buffer.clear()
        self.news.clear()

    def take_answer(self) -> list[News] | None:
        """What has come of the oldest question, once that is whole."""
        while (end := self.buffer.find(b"\n")) >= 0:
            line = bytes(self.buffer[:end])
            if line == messages.END:
                del self.buffer[: end + 1]
                found, self.news, self.reconnected = self.news, [], 0
                self.asked -= 1
                return found
            start = end + 1
            self.is_bare = self.is_bare or line == BARE
            self.is_abandoned = self.is_abandoned or line == messages.ABANDONED
            if header := messages.read_header(line):  # else what a login shell says
                begin, start = start, start + header.length
                if len(self.buffer) < start:
                    return None
                self.news.append((header, bytes(self.buffer[begin:start])))
            del self.buffer[:start]
        return None


class _Absence(Struct):
    """Of a node that was lost and may come back. Attempts to connect run in the background, until
    one succeeds."""

    why: str
    """What the last attempt has shown."""
    since: float = field(default_factory=now)
    due: float = field(default_factory=now)
    attempt: Future[Channel] | None = None


BARE = b"@@clusterctl-no-agent"
"""A node says so where our agent is missing."""


class TimeIsUpError(Exception):
    """The deadline has passed in the middle of an answer."""


class Connections:
    """One Watch for each node that the job has output on, and a channel to the agent there, which
    answers questions (clusterctl/agent/watch.py).

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
        self.watches = [Watch(name, name) for name in list_nodes(job, cluster)]
        self.lost: dict[str, str] = {}
        self.reconnects = self.needs_launcher = True
        self.deadline = math.inf
        self._job, self._cluster, self._pool = job, cluster, pool
        self._launcher = cluster.launcher.name
        self._interrupts, self._report = interrupts, report
        self._away: dict[str, _Absence] = {}
        self._find_dead, self._asked = find_dead, -math.inf
        self._question: Future[Mapping[str, str]] | None = None

    def open(self) -> None:
        """Connects to all nodes. One that does not answer now is lost."""
        saved = control.find_saved(self._job, self._cluster, self._pool)
        by_name = {watch.node: watch for watch in self.watches}

        def connect(name: str) -> NodeResult:
            by_name[name].connect(self._open(by_name[name]))
            return NodeResult(node=name, exit_code=0)

        for name in saved & by_name.keys():
            by_name[name].place = self._launcher
        results = self._pool.call_each(connect, list(by_name))
        for watch, result in zip(self.watches, results, strict=True):
            if result.error:
                if self.needs_launcher and watch.node == self._launcher:
                    raise self._give_up(result.error)
                self._lose({watch.node: result.error})

    def close(self) -> None:
        for watch in self.watches:
            if watch.channel:
                watch.channel.close()
        for absence in self._away.values():
            if absence.attempt:
                absence.attempt.add_done_callback(_drop)
        self._away.clear()

    # ------------------------------------------------------------------------------ questions

    def ask_all(self, wait: float) -> None:
        """Asks all nodes for what has been added to their files, for as many seconds as nothing
        has. Without a wait, that ends the waits of before."""
        for watch in self.watches:
            if not (wait and watch.asked):
                self._ask(watch, wait)

    @property
    def awaits_answers(self) -> bool:
        return any(watch.asked for watch in self.watches)

    def _ask(self, watch: Watch, wait: float) -> None:
        watch.wait = wait
        if watch.channel is None:
            return
        offsets = {} if watch.knows else {n: file.offset for n, file in watch.files.items()}
        most = min(ANSWER, ANSWERS // len(self.watches))
        question = messages.FollowQuestion(offsets, wait, most)
        try:
            watch.channel.send(messages.pack(*question), self._choose_timeout())
        except OSError as error:
            return self._ask_again(watch, error)
        watch.asked += 1
        watch.knows = True
        watch.silence, watch.probed = -wait, False

    def read_answers(self) -> Iterator[tuple[Watch, list[News]]]:
        """Waits a little for answers of nodes that were asked, and gives those that are whole. One
        that breaks off is asked for again as a whole. TimeIsUpError."""
        self.check()
        began = now()
        heard = self._receive([watch for watch in self.watches if watch.asked])
        waited = now() - began
        for watch in self.watches:
            if watch not in heard and watch.asked:
                watch.silence += waited
                self._bear_silence(watch)
        for watch in heard:
            while (news := watch.take_answer()) is not None:
                yield watch, news
            if watch.is_bare:
                self._equip(watch)

    def _receive(self, watches: Sequence[Watch]) -> list[Watch]:
        """Those of them that something has come from."""
        poll = select.poll()
        channels = {w.channel.fileno(): w for w in watches if w.channel}
        for descriptor in channels:
            poll.register(descriptor, select.POLLIN)
        ready = [channels[number] for number, _ in poll.poll(GLANCE * 1000)]
        heard = []
        # Where nothing was to be read, it is tried all the same: a lost connection shows itself.
        for watch in ready or watches:
            if not watch.channel:  # it was lost together with another one
                continue
            try:
                data = watch.channel.receive(GLANCE if ready else 0.0)
                if not data:
                    raise ConnectionError("it closed the connection")
            except TimeoutError:
                continue
            except OSError as error:
                self._ask_again(watch, error)
                continue
            watch.buffer += data
            watch.silence, watch.probed = min(watch.silence, 0.0), False
            heard.append(watch)
        return heard

    def _equip(self, watch: Watch) -> None:
        """Brings our agent to a node that an older clusterctl has made ready."""
        from clusterctl.jobs.submit import place_agent

        node, missing = self._cluster.node(watch.place), "our agent cannot be put there"
        placed = self._wait(lambda: place_agent(node, self._pool))
        if why := self._reopen(watch, missing) if placed.ok else f"{missing}: {placed.why}":
            return self._lose({watch.node: why})
        self._ask(watch, watch.wait)

    def _bear_silence(self, watch: Watch) -> None:
        """What is done about a node that should have answered by now."""
        reopens = self.reconnects and not watch.reconnected
        limit = FROZEN if reopens else ANSWER_TIMEOUT
        if watch.silence > limit:
            kind = ConnectionError if reopens else TimeoutError
            return self._ask_again(watch, kind(f"no answer for {limit:g} s"))
        if watch.silence > NOTICE and not watch.probed:
            watch.probed = True
            self._lose(self._probe())

    def check(self) -> None:
        """Raises the Ctrl-C that came meanwhile, and TimeIsUpError."""
        self._interrupts.check()
        if now() > self.deadline:
            raise TimeIsUpError

    def _wait(self, action: Callable[[], T]) -> T:
        """Does what may take its time, and raises a Ctrl-C that comes meanwhile."""
        future = run_in_background(action)
        while not futures.wait((future,), GLANCE).done:
            self._interrupts.check()
        return future.result()

    def _choose_timeout(self) -> float:
        """Seconds that a node may take now."""
        return max(GLANCE, min(ANSWER_TIMEOUT, self.deadline - now()))

    def _open(self, watch: Watch) -> Channel:
        root = self._cluster.node(watch.place).root
        folder = f"{root}/jobs/{self._job.id}"
        if watch.place != watch.node:
            folder += f"/saved/{watch.node}"
        agent = shlex.quote(assets.locate_agent(root))
        words = ["follow", folder]
        if not load_system(self._cluster.system).places_ranks:
            words.append(SHARED)
        elif watch.node == self._launcher:
            words.append(SUPERVISED)
        command = (
            # Behind the question: who asks would find the connection closed, and not read the word.
            f"[ -e {agent} ] || {{ read -r _; echo {BARE.decode()}; exit; }};"
            f" exec /bin/sh {agent} {shlex.join(words)}"
        )
        return self._pool.find_transport(watch.place).open(command, timeout=self._choose_timeout())

    # ----------------------------------------------------------------------------------- loss

    def _probe(self) -> dict[str, str]:
        """The nodes that cannot be reached, and why: of all, since several may be gone together."""
        names = [watch.node for watch in self.watches if watch.channel]
        results = self._wait(lambda: self._pool.probe(names, timeout=PROBE))
        return {result.node: result.error for result in results if result.error}

    def _ask_again(self, watch: Watch, error: OSError) -> None:
        """On another connection, if the node answers one: they end for reasons of their own."""
        why = failed = str(error) or "no answer"
        gone = self._probe() if self.reconnects else {}
        if watch.node not in gone:
            if self.reconnects and not isinstance(error, TimeoutError):
                failed = self._reopen(watch, why)
            if failed:
                gone[watch.node] = failed
            else:
                self._report(f"reconnected to {watch.node}: {why}")
        self._lose(gone)
        self._ask(watch, watch.wait)

    def _reopen(self, watch: Watch, why: str) -> str:
        """Gives the node another connection; why it has none. `why` it needs one."""
        if watch.reconnected >= RECONNECTIONS:
            return why
        self._hang_up(watch)
        try:
            watch.connect(self._wait(lambda: self._open(watch)))
        except FAILURES as error:
            return describe_failure(error, ANSWER_TIMEOUT) or "no answer"
        watch.reconnected += 1
        return ""

    def _hang_up(self, watch: Watch) -> None:
        """Ends its connection, on which nobody would hear anything any more."""
        if watch.channel:
            watch.channel.close()
        watch.connect(None)
        if self.reconnects:
            self._pool.find_transport(watch.place).close()

    def _lose(self, gone: Mapping[str, str]) -> None:
        """`gone`: why, by node."""
        watches = [watch for watch in self.watches if watch.node in gone]
        for watch in watches:
            self._hang_up(watch)
            if self.reconnects and watch.reconnected < RECONNECTIONS:
                self._away[watch.node] = _Absence(gone[watch.node])
        if self.needs_launcher and self._launcher in gone:
            return self._await_launcher(gone)
        self.lost |= gone
        for why in dict.fromkeys(gone.values()):
            names = shorten([name for name in gone if gone[name] == why])
            self._report(f"no answer from {names}, showing what came before: {why}")

    def _await_launcher(self, gone: Mapping[str, str]) -> None:
        """Begins to wait for it, unless it is of no use. What is gone with it is so by the same
        outage."""
        why = gone[self._launcher]
        if not self.launcher_is_away:
            raise self._give_up(why)
        self.lost |= {name: reason for name, reason in gone.items() if name != self._launcher}
        began = now()
        while self._check_alive() and now() - began < CERTAINTY:
            self._interrupts.check()
            time.sleep(BLINK)
        self._report(
            f"lost the connection to {shorten(sorted(gone))}: {why}; job {self._job.id} keeps"
            f" running. Trying to reconnect for {GIVE_UP / 60:g} minutes; press Ctrl-C to stop"
            " trying"
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

    def is_abandoned(self) -> bool:
        """Whether the launcher has said since the last call that nobody looks after the job."""
        said = any(watch.is_abandoned for watch in self.watches)
        for watch in self.watches:
            watch.is_abandoned = False
        return said

    def is_away(self, name: str) -> bool:
        """Whether it was lost, and may come back."""
        return name in self._away

    def welcome_back(self) -> bool:
        """Goes on with the nodes that answer again, where it stopped; whether there are any.
        Raises as `check`."""
        self.check()
        back, seconds = [], 0.0
        for watch in self.watches:
            absence = self._away.get(watch.node)
            if absence is None:
                continue
            if absence.attempt is None:
                if now() >= absence.due:
                    absence.attempt = run_in_background(partial(self._connect_anew, watch))
            elif absence.attempt.done():
                try:
                    watch.connect(absence.attempt.result())
                except FAILURES as error:
                    absence.why = describe_failure(error, ATTEMPT) or absence.why
                    absence.attempt, absence.due = None, now() + PAUSE
                    continue
                watch.reconnected += 1
                self.lost.pop(watch.node, None)
                del self._away[watch.node]
                back.append(watch.node)
                seconds = max(seconds, now() - absence.since)
        if back:
            self._report(f"reconnected to {shorten(sorted(back))} after {seconds:.0f} s")
        if self.needs_launcher and (absent := self._away.get(self._launcher)):
            self._check_alive()
            if now() - absent.since > GIVE_UP:
                raise self._give_up(absent.why)
        return bool(back)

    def _connect_anew(self, watch: Watch) -> Channel:
        """For a node that was away. Raises FAILURES."""
        self._pool.find_transport(watch.place).connect(ATTEMPT)
        return self._open(watch)


def _drop(attempt: Future[Channel]) -> None:
    """An attempt that succeeds when nobody follows any more is for nobody."""
    if attempt.exception() is None:
        attempt.result().close()


# -------------------------------------------------------------------------------------------------

STILL = 300.0
"""Seconds without output of a running job after which that is said."""
SUSPICION = 5.0
"""Seconds of silence after which the queue of a batch system is asked."""
LONGEST, BACKOFF = 60.0, 1.5
"""The longest time between such questions, and how much longer each is than the one before."""
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
        self._state = b""
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
            what = "all" if self.job.fetched else "logs"
            control.note_fetched(self.job, self._cluster, self._pool, what)

    def _wait_for_end(self) -> Iterator[list[Piece]]:
        """Asks all nodes again and again until the job has ended."""
        heard = asked = now()
        told, patience = 0.0, SUSPICION
        while not self.job.state.ended:
            self._nodes.welcome_back()
            self._nodes.ask_all(WAIT)
            moved = yield from self._pass_on(seal=False)
            at, away = now(), self._nodes.launcher_is_away
            if moved or away:  # nobody knows what a launcher that is away has to say
                heard, patience = at, SUSPICION
            quiet = at - max(heard, asked) > patience or at - asked > LONGEST
            if self._nodes.is_abandoned() or (quiet and not (away or self._system.places_ranks)):
                asked, patience = at, min(patience * BACKOFF, LONGEST)
                # All who follow jobs share what the queue says.
                self.job = control.refresh(self.job, self._cluster, self._pool, age=patience)
            self._report_wait()
            silent = at - heard >= STILL and told != heard
            if silent and self.job.state is JobState.RUNNING:
                told = heard
                self._report(
                    f"job {self.job.id} has written nothing for {STILL / 60:g} minutes;"
                    f" `clusterctl doctor {self.job.id}` shows what its ranks are doing"
                )
            if not moved:
                yield []

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
            time.sleep(BLINK)
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

    def _ask_all(self, seal: bool) -> Iterator[list[Piece]]:
        """Asks all nodes once. `seal` makes the files' sizes as they are now the goal."""
        self._nodes.ask_all(0.0)
        while self._nodes.awaits_answers:
            yield from self._pass_on(seal)

    def _pass_on(self, seal: bool) -> Generator[list[Piece], None, int]:
        """What nodes answer within a moment; returns how many bytes of news that were."""
        moved = 0
        for watch, news in self._nodes.read_answers():
            moved += sum(len(data) for _, data in news)
            if shown := self._keep_news(watch, news, seal and not watch.asked):
                began = now()
                yield shown
                self._nodes.deadline += now() - began  # a reader may take its time
        return moved

    def _keep_news(self, watch: Watch, news: list[News], seal: bool) -> list[Piece]:
        """Stores what has come; returns what is to be shown of it. `seal`: as in `_ask_all`."""
        pieces: list[Piece] = []
        for header, data in news:
            file = self._find_file(watch, header.name)
            if file is None:
                continue
            file.offset = header.start + len(data)
            file.goal = header.size if seal else file.goal
            if file.stream == "state":
                self._state += data
                whole = self._state.rpartition(b"\n")[0]
                self.job = verdict.judge(self.job, whole.decode(errors="replace"))
            else:
                pieces += self._store(watch, file, header.start, data)
        names = {header.name for header, _ in news}
        for name, file in watch.files.items():
            if name not in names:
                file.goal = file.offset  # all there is, also of a file that was cut off meanwhile
        return pieces

    def _store(self, watch: Watch, file: OutputFile, offset: int, data: bytes) -> Iterator[Piece]:
        missing = offset - file.stored
        if missing and file.stored:  # else it is what lay in the file before the job
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
            found = records.read_name(name)
            if found is None:
                return None
            file = OutputFile(*found)
            if self._keep:
                file.copy = self._folder / watch.node / name.removeprefix("out/")
                with explain_write_errors(file.copy):
                    file.copy.parent.mkdir(mode=0o700, exist_ok=True)
        watch.files[name] = file
        return file
