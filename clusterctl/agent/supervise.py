"""Sees a job through on the launcher, whether or not anybody is watching: waits for its turn,
starts it, stops it when told to or when its time is up, ends what is left of it on every node, and
notes how it went in `state`. It notes facts, and decides only when to stop waiting and whether to
try again: clusterctl judges.
"""

import contextlib
import fcntl
import functools
import json
import os
import queue
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from typing import IO, Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import attend, messages, processes
from .attend import NodeAnswer
from .messages import Fact

PATIENCE = 0.5
"""Seconds for which a question waits for the answer to another one on the same connection."""
LATE = 5.0
"""Seconds that a question may take beyond its limit, for the end of one ssh and another try."""
SETTLED = 0.5
"""Seconds after which mpirun has started its ranks, as a rule."""
FOLDER = 2.0
"""Seconds between two looks whether the job's folder is still there."""
TURN = 0.3
"""Seconds between two looks whether it is the job's turn."""
CANCEL = signal.SIGUSR1
"""What tells a supervisor to end its job, as the file `stop` also says if the disk is not full."""
REFUSED, AGAIN = 2.0, 4
"""A node that refuses a connection within so many seconds may just be starting its sshd: it is
asked so many times again, with such a pause."""
GAVE_UP = re.compile(
    rb"A daemon failed to report back|PMIx server's listener thread failed to start"
)
"""What PRRTE's daemons, or mpirun itself, say on busy nodes now and then, before a rank starts."""
WORDS = re.compile(
    rb"Remote daemon: [^ ]+,\d+\] on node (?P<daemon>[^ ]+)"
    rb"|process rank (?P<rank>\d+) with PID \d+ on node [^ ]+ exited on +signal (?P<signal>\d+)"
    rb"|Process name: +[^ ]+,(?P<first>\d+)\] +Exit code: +(?P<code>\d+)"
    rb"|(Connection to|Connection reset by|Timeout, server|Read from remote host) (?P<ssh>[^ :]+)"
)
"""A daemon that mpirun has lost, the process that it blames, and what ssh says of a connection."""


class JobEvent(NamedTuple):
    """`kind`: "child" (the launcher program has ended, with `code`), "stop" (`word` says why),
    "ready" (what the attempt goes on from is on every node), "unready" (it could not be)."""

    kind: str
    word: str = ""
    code: int = 0
    attempt: int = 0


class Inbox:
    """Events from threads and signal handlers for the one thread that acts on them."""

    def __init__(self) -> None:
        self._events: Deque[JobEvent] = deque()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def put(self, event: JobEvent) -> None:
        """Also from a signal handler."""
        self._events.append(event)
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b".")

    def take(self, seconds: Optional[float] = None) -> Optional[JobEvent]:
        """The next one; None: there was none within the time."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            if self._events:
                return self._events.popleft()
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._reader], [], [], left)[0]:
                return None
            os.read(self._reader, 4096)


class State:
    """The file `state` in the job's folder: a line for each fact."""

    def __init__(self, job: str) -> None:
        self._path = os.path.join(job, "state")
        self._lock = threading.Lock()

    def note(self, *lines: Tuple[Any, ...]) -> None:
        """Each as `messages.write_line` takes it."""
        text = "".join(messages.write_line(*line) + "\n" for line in lines)
        with self._lock, contextlib.suppress(OSError), open(self._path, "a") as file:
            file.write(text)  # where the disk is full, nothing can be done
            file.flush()
            os.fsync(file.fileno())


class Ranks:
    """What the nodes have answered about the ranks of an attempt."""

    def __init__(self, answers: Dict[str, NodeAnswer], sent: Dict[int, Fact]) -> None:
        self.answers, self._sent = answers, sent

    def list_facts(self, word: str) -> List[Fact]:
        return [
            fact[1:] for answer in self.answers.values() for fact in answer.facts if fact[0] == word
        ]

    def list_exits(self) -> List[Fact]:
        """(rank, code, time, attempt). Those that nodes which do not answer have sent through
        mpirun are among them."""
        found = self.list_facts("exit")
        known = {fact[0] for fact in found}
        return found + [fact for rank, fact in self._sent.items() if rank not in known]

    def are_well(self, count: int, attempt: int) -> bool:
        """Whether all have ended with 0, none because it was told to end, as mpirun tells them, and
        says 0 itself, after MPI_Abort(comm, 0). The launcher's own code does not decide: it may be
        0 after a node was lost, and another one where only connections were lost."""
        good = sum(code == 0 and mine == attempt for _, code, _, mine in self.list_exits())
        return good >= count and not any(mine == attempt for _, mine in self.list_facts("told"))

    def list_silent(self) -> List[str]:
        return [name for name, answer in self.answers.items() if answer.code is not None]

    def list_left(self) -> Dict[str, int]:
        """By node that has answered: how many processes are left there."""
        return {
            name: fact[1]
            for name, answer in self.answers.items()
            for fact in answer.facts
            if fact[0] == "survivors"
        }


class Supervisor:
    """Of the job in the folder `job`."""

    _leads_session = True
    """Whether the launcher program is in a session of its own."""

    def __init__(self, job: str, plan: messages.JobPlan) -> None:
        self._job, self._plan = job, plan
        self._id = plan.id
        self._inbox, self._state = Inbox(), State(job)
        self._active = os.path.join(job, "..", "active")
        self._grace = plan.grace
        self._stop = ""
        self._attempt = 1
        self._code = 0
        self._before = 0
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._ranks = Ranks({}, {})
        self._waited = self._launched = False
        self._placed = ""
        """Where its ranks are after a loss."""
        self._lost: List[str] = []
        """Nodes whose outputs the others are to get before the next attempt."""
        self._transfers: List[subprocess.Popen[bytes]] = []
        self._marked = ""
        """What comes before commands for nodes: no use of a node has it."""
        self._over = threading.Event()
        """Set when nothing that watches beside is wanted any more."""
        self._know_nodes()

    def _know_nodes(self) -> None:
        self._nodes = {node.name: node for node in self._plan.nodes}
        self._links = {name: self._connect(name) for name in self._nodes}
        self._locks = {name: threading.Lock() for name in self._nodes}

    # ------------------------------------------------------------------------------ asking nodes

    def _connect(self, name: str) -> Any:
        node = self._nodes[name]
        if node.here:
            return attend.Here(node.folder, self._plan.tag)
        # A machine that was made anew has neither the agent nor processes of the job.
        script = shlex.quote(node.folder + "/agent.sh")
        nothing = messages.MARK + messages.pack(0, 0, [["survivors", 0]])
        command = (  # without `!`, for which clusterctl-ssh would start some programs
            f"if [ -e {script} ]; then exec /bin/sh {script} attend; fi;"
            f" while read -r _; do echo {shlex.quote(nothing.decode().strip())}; done"
        )
        return attend.There(self._wrap(name, command), self._environ, self._locate("mpirun.err"))

    @property
    def _environ(self) -> Dict[str, str]:
        return {**os.environ, "CLUSTERCTL_JOB": ""}

    def _wrap(self, name: str, command: str) -> List[str]:
        """What runs a command line on a node."""
        node = self._nodes[name]
        if node.here:
            return ["/bin/sh", "-c", command]
        agent = os.path.join(self._plan.root, "bin", "clusterctl-ssh")
        if self._marked:  # by the shell, which has to stay
            command = f"{self._marked}{command}; exit"
        return [agent, node.host, command]

    def _start_agent(self, name: str, *words: object, **streams: Any) -> "subprocess.Popen[bytes]":
        """The agent of a node."""
        script = self._nodes[name].folder + "/agent.sh"
        line = " ".join(shlex.quote(str(word)) for word in ("/bin/sh", script, *words))
        command = self._wrap(name, line if self._marked else f"exec {line}")
        return subprocess.Popen(command, env=self._environ, **streams)

    def _ask(
        self, verb: str, *args: float, enough: Callable[[NodeAnswer], bool] = lambda answer: False
    ) -> Ranks:
        """All nodes at once. None is waited for longer than its own limit, nor when one has said
        `enough`: it does not answer then."""
        limit = (
            self._plan.stacks_limit if verb == "stacks" else self._grace + self._plan.answer_limit
        )
        names = self._list_asked(verb)
        answers = {name: NodeAnswer(code=124, why="no answer") for name in names}
        said: queue.Queue[Tuple[str, NodeAnswer]] = queue.Queue()

        def ask(name: str) -> None:
            said.put((name, self._ask_node(name, limit, verb, *args)))

        for name in names:
            self._beside(functools.partial(ask, name))
        until = time.monotonic() + limit + LATE
        for _ in names:
            try:
                name, answer = said.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            answers[name] = answer
            if enough(answer):
                break
        # An mpirun that has failed has lost some of them, and their files, though they ended well.
        return Ranks(answers, {} if self._code else self._read_sent("exit"))

    def _list_asked(self, verb: str) -> Sequence[str]:
        """The nodes that have an answer to that."""
        return list(self._nodes)

    def _ask_node(self, name: str, limit: float, verb: str, *args: object) -> NodeAnswer:
        """Over its connection, or another one while that waits for an answer."""
        lock = self._locks[name]
        if lock.acquire(timeout=PATIENCE):
            try:
                found: NodeAnswer = self._links[name].ask(limit, verb, *args)
                return found
            finally:
                lock.release()
        link = self._connect(name)
        try:
            found = link.ask(limit, verb, *args)
            return found
        finally:
            link.close()

    def _meet(self, name: str) -> None:
        self._ask_node(name, self._plan.answer_limit, "meet")

    def _read_sent(self, word: str) -> Dict[int, Fact]:
        """What ranks have said through mpirun, of the present attempt: it outlives their nodes. By
        rank."""
        found: Dict[int, Fact] = {}
        said = processes.read(self._locate("mpirun.out")).decode(errors="replace")
        for line in said.splitlines():
            mark, *words = line.split() or [""]
            if mark == "clusterctl:" and words[:1] == [word]:
                with contextlib.suppress(ValueError):
                    _, rank, *rest = messages.read_fact(words, messages.SENT)
                    if rest[-1] == self._attempt:
                        found.setdefault(rank, (rank, *rest))
        return found

    # ------------------------------------------------------------------------------ its turn

    def run(self) -> None:
        with open(self._locate("alive"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another supervisor has this job
            self._see_through()

    def _see_through(self) -> None:
        self._write("supervisor.pid", f"{os.getpid()}\n")
        self._write("boot", processes.read_boot())
        os.makedirs(self._active, exist_ok=True)
        self._write(os.path.join(self._active, str(self._id)), "")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._inbox.put(JobEvent("stop", "signal")))
        signal.signal(CANCEL, lambda *_: self._inbox.put(JobEvent("stop", "cancelled")))
        if not self._wait_turn():
            self._heed(self._stop)
            self._state.note(("ended", None))
            processes.remove(os.path.join(self._active, str(self._id)))
            return
        self._watch_beside()
        self._finish(self._make_attempts())

    def _wait_turn(self) -> bool:
        """False where it was cancelled meanwhile, also before it was handed in."""
        waited, due = False, 0.0
        while not self._read_stop() and not self._is_admitted():
            if not waited:
                self._state.note(("queued", None))
                waited = True
            if time.monotonic() >= due:
                due = time.monotonic() + self._plan.clean_poll
                threading.Thread(target=self._clean_up_behind_others, daemon=True).start()
            event = self._inbox.take(TURN)
            if event:
                self._heed(event.word)
                return False
        self._waited = waited
        if not waited:
            threading.Thread(target=self._clean_up_behind_others, daemon=True).start()
        return not self._read_stop()

    def _is_admitted(self) -> bool:
        with open(self._locate("../queue.lock"), "w") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            if not self._plan.now and not self._fits():
                return False
            self._state.note(("running", None, 1))
            return True

    def _fits(self) -> bool:
        """Whether no earlier job waits, and its ranks fit beside those of the jobs that run."""
        used: Dict[str, int] = {}
        running = False
        for name in os.listdir(self._active):
            folder = self._locate("..", name)
            if int(name) == self._id or not os.path.exists(os.path.join(folder, "state")):
                continue
            if is_alive(folder):
                said = processes.read(os.path.join(folder, "state")).decode()
                last = said.rstrip("\n").rpartition("\n")[2]
                if last.startswith("queued"):
                    if int(name) < self._id:
                        return False
                    continue
                if last.startswith("ended"):
                    continue  # all its ranks have ended well: it only looks for what they left
            # Until a look has said otherwise, the ranks of one without a supervisor are there too.
            running = True
            for line in processes.read(os.path.join(folder, "alloc")).decode().splitlines():
                node, count, _ = line.split()
                used[node] = used.get(node, 0) + int(count)
        if not running:
            return True
        mine = (
            line.split() for line in processes.read(self._locate("alloc")).decode().splitlines()
        )
        return all(used.get(node, 0) + int(count) <= int(slots) for node, count, slots in mine)

    def _clean_up_behind_others(self) -> None:
        """Jobs whose supervisors are dead, or that a node did not answer."""
        for name in os.listdir(self._active):
            folder = self._locate("..", name)
            if int(name) == self._id or is_alive(folder):
                continue
            # By the agent that it was started with; before there was one, by a script.
            for words in (_CLEAN, ["/bin/sh", "./clean.sh"]):
                if os.path.exists(os.path.join(folder, words[1])):
                    start_aside(folder, words).wait()
                    break
            else:
                processes.remove(os.path.join(self._active, name))

    # ------------------------------------------------------------------------------ attempts

    def _make_attempts(self) -> bool:
        """Until one goes well, the job is to stop, or no retry is left; whether it went well."""
        more, again = self._plan.retries, False
        while True:
            plan = self._plan
            self._before = self._count_said()
            self._start()
            self._await_child()
            if not self._stop and not again and self._has_daemon_given_up():
                again = True  # once: no program has seen anything of it, so it is no attempt
                continue
            self._state.note(("launcher", None, self._code))
            ranks = self._ranks = self._look()
            well = self._are_well(ranks)
            if not well:
                self._note_words()
            if self._stop or well or not (more or plan.shrinks):
                return well
            ranks = self._ask("again", self._grace)
            if plan.shrinks:
                ranks = self._ask_refused_again(ranks, "again")
            self._ranks = ranks
            self._note_ranks(ranks)
            self._note_nodes(ranks)
            if self._are_well(ranks):
                return True
            # The next attempt needs every node, with the secrets that a restart removes; one that
            # could start no rank would not help.
            lost = self._list_lost(ranks)
            if not ranks.list_facts("started") or not (
                self._shrink(lost) if lost and plan.shrinks else more and not lost
            ):
                return False
            event = self._inbox.take(0)
            if event and event.kind == "stop":
                self._heed(event.word)
                return False
            more, self._attempt = more - (not lost), self._attempt + 1

    def _list_lost(self, ranks: Ranks) -> List[str]:
        """The nodes that do not answer or have restarted; for who can go on without them, also
        those that are about to be taken away."""
        events = ["restarted", "spot"] if self._plan.shrinks else ["restarted"]
        silent = ranks.list_silent()
        return [
            name
            for name, answer in ranks.answers.items()
            if name in silent
            or any(fact[0] == "node" and fact[1] in events for fact in answer.facts)
        ]

    def _shrink(self, lost: Sequence[str]) -> bool:
        """Whether the job can go on without these nodes. The others get what is here of their
        outputs; what is left of the job there is for `clean` to end."""
        left, first = [], 0
        for holder in self._plan.holders:
            if holder.name not in lost:
                left.append(holder._replace(first=first))
                first += holder.ranks
        if not left or self._plan.launcher in lost:
            return False
        try:
            if not self._write_launch(left, first, lost):
                return False
        except OSError:  # the disk is full
            return False
        nodes = [node for node in self._plan.nodes if node.name not in lost]
        self._plan = self._plan._replace(nodes=nodes, holders=left, ranks=first)
        for name in lost:
            self._nodes.pop(name)
            self._links.pop(name).close()
        self._lost += lost
        self._placed = "".join(f"{holder.name}:{holder.ranks}," for holder in left)
        return True

    def _write_launch(
        self, left: Sequence[messages.Holder], ranks: int, lost: Sequence[str]
    ) -> bool:
        """The same mpirun for the nodes that are left: their lines of the hostfile are in the order
        of ranks. False where it cannot be: it starts no ranks, but what starts them."""
        script = processes.read(self._locate("launch.sh")).decode(errors="surrogateescape")
        hosts = processes.read(self._locate("hostfile")).decode().splitlines()
        head, _, line = script.rstrip("\n").rpartition("\n")
        words = shlex.split(line)
        if len(hosts) != len(self._plan.holders) or not {"-np", "/bin/sh"} <= set(words):
            return False
        start = words.index("/bin/sh")
        if words[start - 1].startswith("CLUSTERCTL_MASTER="):
            start -= 2  # the second loss
        folders = [shlex.quote(self._nodes[holder.name].folder) for holder in left]
        cases = [
            "|".join(str(holder.first + number) for number in range(holder.ranks))
            + f") set -- {folder};;"
            for holder, folder in zip(left, folders)
        ]
        command = f'case $OMPI_COMM_WORLD_RANK in {" ".join(cases)} esac; exec /bin/sh "$1/rank.sh"'
        words[words.index("-np") + 1] = str(ranks)
        master = f"CLUSTERCTL_MASTER={left[0].address}"
        words[start:] = ["-x", master, "/bin/sh", "-c", command]
        late = [f"{name}=${name}" for name in ("MASTER_PORT", "CLUSTERCTL_ATTEMPT")]
        line = " ".join(f'"{word}"' if word in late else shlex.quote(word) for word in words)
        kept = [host for host, holder in zip(hosts, self._plan.holders) if holder.name not in lost]
        self._write("hostfile", "".join(host + "\n" for host in kept))
        self._write("launch.sh", head + "\n" + line + "\n")
        return True

    def _hand_over(self, lost: str) -> None:
        """Gives the nodes that are left the copies of that one's outputs."""
        copies = self._locate("mirror", lost)
        if not os.path.isdir(copies):
            return
        from . import outputs

        paths = [entry.path for entry in outputs.walk(copies)]

        def give(holder: messages.Holder) -> None:
            process = self._transfer(holder.name, "inherit", stdin=subprocess.PIPE)
            assert process.stdin
            with contextlib.suppress(OSError), process.stdin:
                outputs.pack(copies, paths, process.stdin)
            self._await_transfers([process])

        _do_each(give, self._plan.holders)

    def _are_well(self, ranks: Ranks) -> bool:
        return ranks.are_well(self._plan.ranks, self._attempt)

    def _start(self) -> None:
        self._note_start()
        processes.remove(self._locate("over"))
        self._child = None
        if not self._needs_preparation():
            self._launch()
            return
        attempt = self._attempt

        def prepare() -> None:
            ready = False
            try:
                ready = self._prepare()
            finally:
                self._inbox.put(JobEvent("ready" if ready else "unready", attempt=attempt))

        self._beside(prepare)

    def _note_start(self) -> None:
        if self._attempt > 1:  # the first one was noted when it was admitted
            placed = [("placed", None, self._placed)] if self._placed else []
            self._state.note(("running", None, self._attempt), *placed)

    def _launch(self) -> None:
        if not self._launched:
            self._launched = True
            self._later(self._plan.start_limit, self._check_start)
        environ = {
            **os.environ,
            "MASTER_PORT": self._choose_port(),
            "CLUSTERCTL_ATTEMPT": str(self._attempt),
        }
        with open(self._locate("mpirun.out"), "ab") as out, open(
            self._locate("mpirun.err"), "ab"
        ) as err:
            self._child = subprocess.Popen(
                ["/bin/sh", "./launch.sh"],
                cwd=self._job,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environ,
                start_new_session=self._leads_session,
            )
        # Over connections that are there, the end of a job is noticed sooner. Not while its ranks
        # are started: a short one needs none.
        for name in self._links:
            self._later(SETTLED, functools.partial(self._meet, name))
        attempt = self._attempt
        child = self._child

        def wait() -> None:
            code = child.wait()
            self._inbox.put(JobEvent("child", "", code if code >= 0 else 128 - code, attempt))

        threading.Thread(target=wait, daemon=True).start()

    def _choose_port(self) -> str:
        """On the first worker, where rank 0 will listen: anew when some time has passed."""
        port = processes.read(self._locate("port")).decode().strip()
        if self._waited or self._attempt > 1 or not port:
            answer = self._ask_node(self._plan.holders[0].name, self._plan.answer_limit, "port")
            port = str(answer.facts[0][1]) if answer.count("port") else ""
        return port

    def _await_child(self) -> None:
        """Until the launcher program has ended, with `_code`. Told to stop, it has the ranks saved
        first."""
        while True:
            event = self._inbox.take()
            assert event
            if event.kind == "stop":
                if self._stop_attempt(event.word):
                    return
            elif event.attempt != self._attempt:
                continue
            elif event.kind == "ready":
                self._launch()
            elif event.kind == "unready":
                self._code = 1
                return
            else:
                self._code = event.code
                over = processes.read(self._locate("over")).decode().strip()
                if over:
                    self._code = int(over)
                return

    def _stop_attempt(self, word: str) -> bool:
        """Whether there is nothing to wait for."""
        if self._stop:
            return False  # being told twice changes nothing
        self._heed(word)
        if self._child is None:
            self._code = 128 + signal.SIGKILL
            self._end_transfers()
            return True
        self._ask("ask", self._grace)
        self._grace = 0
        # mpirun may be starting ranks this very moment, which the last look finds: it goes first,
        # also from a container.
        self._ask_node(self._plan.launcher, self._plan.answer_limit, "end", 0)
        self._end_launcher()
        return False

    def _end_launcher(self) -> None:
        """It leads a session of its own, so its group can be ended without a search."""
        assert self._child
        for pid in (-self._child.pid, self._child.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _has_daemon_given_up(self) -> bool:
        said = self._read_said() + processes.read(self._locate("mpirun.out"))
        if not self._code or not GAVE_UP.search(said):
            return False
        # It says the same of a node that was lost later: the others know.

        def has_started(answer: NodeAnswer) -> bool:
            return any(fact[0] == "started" for fact in answer.facts)

        if self._read_sent("start"):
            return False
        return not self._ask("look", enough=has_started).list_facts("started")

    def _look(self) -> Ranks:
        """What mpirun has brought says already that all has gone well, as a rule."""
        ranks = Ranks({}, {} if self._code else self._read_sent("exit"))
        return ranks if self._code or self._are_well(ranks) else self._ask("look")

    def _finish(self, well: bool) -> None:
        self._over.set()
        if well and not self._stop:
            # From here on its slots are free. Who follows it waits for no node.
            self._note_ranks(self._ranks, ("ended", None))
            ranks = self._ask("close")
            if list(ranks.list_left().values()) != [0] * len(self._links):
                ranks = self._ask("end", self._grace)  # what the program may have left behind
            self._note_nodes(ranks)
            release(self._job, self._id, ranks)
        else:
            self._code = self._code or 1  # mpirun may say 0 after it has lost a node
            ranks = self._ask("end", self._grace)
            if not self._stop:
                ranks = self._ask_refused_again(ranks)
            self._note_ranks(ranks)
            self._note_nodes(ranks)
            release(self._job, self._id, ranks)
            self._state.note(("ended", None))
        self._mirror_last()

    def _ask_refused_again(self, ranks: Ranks, verb: str = "end") -> Ranks:
        """For up to 8 seconds: who follows the job is to hear soon what has become of a node."""
        for _ in range(AGAIN):
            self._note_away(ranks)
            answers = ranks.answers.values()
            if not any(a.code == 255 and a.heard - a.asked < REFUSED for a in answers):
                break
            time.sleep(REFUSED)
            ranks = self._ask(verb, 0)
        return ranks

    # ------------------------------------------------------------------------------ beside it

    def _watch_beside(self) -> None:
        plan = self._plan
        if plan.timeout:
            self._later(plan.timeout, lambda: self._tell_stop("timeout"))
        self._beside(self._watch_folder)
        self._beside(self._watch_launcher)
        if plan.hang_timeout:
            self._beside(self._watch_output)
        if plan.mirrored:
            self._beside(self._keep_mirror)

    def _beside(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, daemon=True).start()

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        self._beside(lambda: None if self._over.wait(seconds) else work())

    def _tell_stop(self, word: str) -> None:
        with contextlib.suppress(OSError):  # the disk may be full: the job has to end all the same
            self._write("stop", word)
        self._inbox.put(JobEvent("stop", word))

    def _check_start(self) -> None:
        """A launch that never gets to a rank would wait for ever."""
        if self._read_sent("start"):
            return
        ranks = self._ask("look")
        if not ranks.list_silent() and not ranks.list_facts("started"):
            self._tell_stop("no-rank")

    def _watch_launcher(self) -> None:
        """Ends one that has not noticed that all of its ranks have ended: PRRTE 3.0 misses it in
        one of some hundred short jobs, and waits for ever."""
        while not self._over.wait(self._plan.end_poll):
            child = self._child
            if child is None or child.poll() is not None:
                continue
            ranks = self._ask("tend", self._plan.output, self._plan.least_output)
            self._note_away(ranks)
            ended = [fact for fact in ranks.list_exits() if fact[3] == self._attempt]
            if len(ended) < self._plan.ranks or self._over.wait(self._plan.confirm):
                continue
            if child is self._child and child.poll() is None:
                # Its own code would say that it was killed: what counts is how the ranks ended.
                self._write("over", "0" if self._are_well(ranks) else "1")
                self._end_launcher()

    def _watch_folder(self) -> None:
        """Where somebody has removed it, nobody can ask after the job: it ends, and we with it."""
        before = os.stat(self._job)

        def is_there() -> bool:
            try:
                return os.path.samestat(os.stat(self._job), before)
            except OSError as error:  # a network file system may have its moments
                return not isinstance(error, FileNotFoundError)

        while is_there():
            time.sleep(FOLDER)
        if self._child:
            self._end_launcher()
        self._ask("end", 0)
        os._exit(1)

    def _watch_output(self) -> None:
        """Ends an attempt whose ranks have written nothing on any node for so long. A node that
        does not answer has nothing new. A look that takes far longer than it may says that this
        machine was asleep, and ranks may have been, too: that is no silence of theirs."""
        plan = self._plan
        known: Dict[str, Fact] = {}
        ended: List[str] = []
        looked = since = time.monotonic()

        def pass_time(allowed: float) -> None:
            nonlocal looked, since
            before, looked = looked, time.monotonic()
            if looked - before > allowed + plan.hang_slack:
                since += looked - before

        def read_output() -> None:
            nonlocal since
            ranks = self._ask("written")
            pass_time(self._grace + plan.answer_limit)
            for name, answer in ranks.answers.items():
                for fact in answer.facts:
                    if fact[0] == "written" and known.get(name) != fact:
                        known[name], since = fact, looked

        while not self._over.wait(plan.hang_poll):
            pass_time(plan.hang_poll)
            read_output()
            starts = sorted(fact[2] for fact in known.values())
            if not known or starts == ended or looked - since < plan.hang_timeout:
                continue  # its ranks have not started yet, or were ended before
            attempt = self._attempt
            stacks = self._ask("stacks")
            pass_time(plan.stacks_limit)
            read_output()
            if looked - since < plan.hang_timeout:
                continue  # a rank has written meanwhile: none hangs
            if attempt == self._attempt and self._child and self._child.poll() is None:
                notes = [
                    ("stack", None, *fact) for fact in stacks.list_facts("stack") if len(fact) == 2
                ]
                self._state.note(("hung", None, f"{plan.hang_timeout:g}"), *notes)
                self._ask("again", self._grace)
            ended = starts

    # -------------------------------------------------------------------- what an attempt goes on

    def _needs_preparation(self) -> bool:
        plan = self._plan
        again = self._attempt > 1
        snapshot = plan.resume and (again or plan.resume.resumes)
        return bool(snapshot or self._lost or (plan.restores and (again or plan.rerun_of)))

    def _prepare(self) -> bool:
        """Whether the ranks may start: all of them have to begin with the same."""
        resume = self._plan.resume
        while self._lost:
            self._hand_over(self._lost.pop())
        if self._plan.restores:
            self._restore_copies()
        if not resume or (self._attempt == 1 and not resume.resumes):
            return True
        return self._send_snapshot(resume)

    def _restore_copies(self) -> None:
        """Gives nodes back what was cut short there in the last attempt, or in the job that goes
        on, as by a kill while a program overwrote it, where the copy here is whole."""
        earlier = str(self._plan.rerun_of or "none")
        copies = self._locate("..", earlier, "mirror")
        if self._attempt > 1:
            copies = self._locate("mirror")
        if not os.path.isdir(copies):
            return
        from . import outputs, resume

        def restore(holder: messages.Holder) -> None:
            name = holder.name
            for (path,) in self._list_facts(name, "cut", self._plan.kept):
                copy = resume.find_copy(copies, name, path)
                if copy:
                    process = self._transfer(name, "restore", holder.first, stdin=subprocess.PIPE)
                    assert process.stdin
                    with contextlib.suppress(OSError), process.stdin:
                        outputs.pack(copy, [path], process.stdin)
                    self._await_transfers([process])

        _do_each(restore, self._plan.holders)

    def _send_snapshot(self, resume: messages.ResumePlan) -> bool:
        """The newest one of rank 0's node, to the others."""
        first, *others = self._plan.holders
        kept = self._plan.kept
        own: Dict[str, List[str]] = {}

        def list_own(holder: messages.Holder) -> None:
            facts = self._list_facts(holder.name, "own", kept, holder.first, holder.ranks)
            own[holder.name] = [path for (path,) in facts]

        _do_each(list_own, others)
        others_own = [path for paths in own.values() for path in paths]
        wish = messages.SnapshotWish(kept, self._plan.ranks, first.ranks, others_own, resume)
        facts = self._list_facts(first.name, "choice", self._attempt, wish)
        kind, *reason = facts[0] if facts else ("", "its node does not answer")
        if kind == "none":
            return True
        if kind != "found":
            self._complain(reason[0])
            return False
        unsent: List[str] = []

        def send(holder: messages.Holder) -> None:
            words = self._attempt, "yes" if resume.folders else ""
            sender = self._transfer(first.name, "hand", *words, stdout=subprocess.PIPE)
            receiver = self._transfer(holder.name, "receive", self._attempt, stdin=sender.stdout)
            assert sender.stdout
            sender.stdout.close()
            if not self._await_transfers([receiver, sender]):
                unsent.append(holder.name)

        _do_each(send, others)
        if unsent:  # ranks that begin with different ones would wait for each other, or worse
            names = " ".join(sorted(unsent))
            self._complain(f"the snapshot could not be copied to {names}")
        return not unsent

    def _list_facts(self, name: str, verb: str, *args: object) -> List[Fact]:
        answer = self._ask_node(name, self._plan.resume_limit, verb, *args)
        return [fact[1:] for fact in answer.facts if fact[0] == verb]

    def _transfer(self, name: str, *words: object, **streams: Any) -> "subprocess.Popen[bytes]":
        streams.setdefault("stdin", subprocess.DEVNULL)
        with open(self._locate("mpirun.err"), "ab") as log:
            process = self._start_agent(name, *words, stderr=log, **streams)
        self._transfers.append(process)
        if self._stop:
            process.kill()
        return process

    def _await_transfers(self, started: "List[subprocess.Popen[bytes]]") -> bool:
        """Whether they went well."""
        until = time.monotonic() + self._plan.resume_limit
        for process in started:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        return [process.wait() for process in started] == [0] * len(started)

    def _end_transfers(self) -> None:
        for process in self._transfers:
            process.kill()

    def _complain(self, text: str) -> None:
        with open(self._locate("mpirun.err"), "a") as file:
            file.write(f"clusterctl: {text}\n")

    # ------------------------------------------------------------------------------ copies

    def _mirror(self) -> None:
        """Every node at once, each for itself: one that does not answer keeps no other waiting."""
        folder = self._locate("mirror")
        os.makedirs(folder, exist_ok=True)
        status = os.statvfs(folder)
        names = self._list_holders()
        room = (status.f_bavail * status.f_frsize - self._plan.mirror.reserve) // len(names)
        if room > 0:
            _do_each(lambda name: self._mirror_node(name, room), names)

    def _mirror_node(
        self, name: str, room: int, largest: Optional[int] = None
    ) -> Optional[messages.MirrorNote]:
        """What the node has sent; None: nothing, since nothing is new, or it was cut off."""
        from . import mirror

        plan = self._plan.mirror
        kept, notes = self._locate("mirror", name), self._locate_note(name)
        with open(self._locate("mirror", "." + name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # an earlier look may still be at it
            when = time.time()
            before = self._read_note(name)
            asks = largest is None
            largest = plan.largest if largest is None else largest
            wish = messages.MirrorWish(
                before.files, room, largest, self._plan.kept, plan.reserve, before.left
            )
            # Over the connection that is there: a look that finds nothing new starts nothing.
            if asks and self._ask_node(name, plan.interval, "mirrored", wish).count("mirrored"):
                self._write(notes, json.dumps(messages.spell_out(before._replace(time=when))))
                return None
            with open(self._locate("mirror.log"), "ab") as log:
                process = self._start_agent(
                    name, "send", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
                )
            assert process.stdin
            assert process.stdout
            try:
                process.stdin.write(messages.pack(*wish))
                process.stdin.close()
                note = mirror.receive(
                    process.stdout, kept, self._locate("mirror", "." + name + ".part")
                )
                said = messages.CopiesNote(when, note.files, note.left)
                self._write(notes, json.dumps(messages.spell_out(said)))
                return note
            except (EOFError, OSError) as error:  # the next look brings it
                with open(self._locate("mirror.log"), "a") as log_file:
                    log_file.write(f"{name}: {error}\n")
                return None
            finally:
                process.stdout.close()
                process.wait()

    def _locate_note(self, name: str) -> str:
        return self._locate("mirror", "." + name + ".json")

    def _read_note(self, name: str) -> messages.CopiesNote:
        """What there is of the outputs of a node."""
        return read_copies_note(self._job, name) or messages.CopiesNote(0, {})

    def _list_holders(self) -> List[str]:
        return [holder.name for holder in self._plan.holders]

    def _keep_mirror(self) -> None:
        """A look takes at most half of the time."""
        plan, nap = self._plan.mirror, self._plan.mirror.interval
        while not self._over.wait(nap):
            began = time.monotonic()
            self._mirror()
            nap = min(max(time.monotonic() - began, plan.interval), plan.longest)

    def _mirror_last(self) -> None:
        """What they have saved at the end. A job that ended before the first look has less to lose
        than that, unless a node of it is about to end."""
        if not self._plan.mirrored:
            return
        ending = re.search(r"^node .* (spot|deadline)$", self._read_state(), re.MULTILINE)
        if self._plan.mirror.always or ending or os.path.isdir(self._locate("mirror")):
            self._mirror()

    # ------------------------------------------------------------------------------ notes

    def _heed(self, word: str = "") -> None:
        """Notes why the job is to stop: the file `stop` says more than a signal."""
        word = self._read_stop() or word
        if word != self._stop:
            self._state.note(("stop", None, word))
        self._stop = word

    def _note_away(self, ranks: Ranks) -> None:
        """Nodes that do not answer now: if mpirun gives up later, that is why."""
        self._state.note(*[("away", None, name) for name in ranks.list_silent()])

    def _note_ranks(self, ranks: Ranks, *more: Tuple[Any, ...]) -> None:
        exits = ranks.list_exits()
        lines: List[Tuple[Any, ...]] = []
        lines += [("exit", when, rank, code, attempt) for rank, code, when, attempt in exits]
        for word in ("oom", "told", "alone"):
            lines += [(word, None, *fact) for fact in ranks.list_facts(word)]
        lines += [("alone", None, *fact[:2]) for fact in self._read_sent("alone").values()]
        started = max(len(ranks.list_facts("started")), len(self._read_sent("start")))
        lines.append(("started", None, started))
        if any(
            code != 0 for _, code, _, _ in exits
        ):  # only then does it matter whose clock is how late
            for name, answer in ranks.answers.items():
                if answer.code is None and answer.began:
                    ahead = (answer.began - answer.asked + answer.ended - answer.heard) / 2
                    doubt = (answer.heard - answer.asked - answer.ended + answer.began) / 2
                    lines.append(("clock", None, name, f"{ahead:.6f}", f"{doubt:.6f}"))
        self._state.note(*lines, *more)

    def _note_nodes(self, ranks: Ranks) -> None:
        """What is left on each; `?` where one has not answered, and what ssh ended with and
        said."""
        left = ranks.list_left()
        lines: List[Tuple[Any, ...]] = []
        for name, answer in ranks.answers.items():
            lines += [("node", None, name, *fact[1:]) for fact in answer.facts if fact[0] == "node"]
            if answer.count("full"):
                lines.append(("full", None, name))
            if name in left:
                lines.append(("survivors", None, name, left[name]))
            else:
                lines.append(("survivors", None, name, "?", answer.code, answer.why[:200]))
        self._state.note(*lines)

    def _note_words(self) -> None:
        """Of mpirun and ssh on its end: a daemon that it has lost, and the process that it
        blames."""
        for found in WORDS.finditer(self._read_said().replace(b"\0", b" ").replace(b"\n", b" ")):
            said = {
                name: part.decode(errors="replace")
                for name, part in found.groupdict().items()
                if part
            }
            if "daemon" in said:
                self._state.note(("daemon", None, self._name_host(said["daemon"])))
            elif "ssh" in said and self._code == 255:  # with that it ends, and mpirun with it
                self._state.note(("daemon", None, self._name_host(said["ssh"])))
            elif "rank" in said:
                self._state.note(("first", None, said["rank"], int(said["signal"]) + 128))
            elif "first" in said:
                self._state.note(("first", None, said["first"], said["code"]))

    def _name_host(self, host: str) -> str:
        """Mpirun and ssh call a node by the name that it has for itself, or its address."""
        for node in self._plan.nodes:
            if host in (node.name, *node.aliases):
                return str(node.name)
        return host

    # ------------------------------------------------------------------------ points of a sweep

    def run_points(self) -> bool:
        """In a process of the job. Whether all have ended well."""
        from . import points

        sweep = points.Sweep(self._job, self._start_slot, self._state.note)
        return sweep.run(
            [
                (holder.name, self._nodes[holder.name].folder, slot)
                for holder in self._plan.holders
                for slot in range(holder.ranks)
            ]
        )

    def _start_slot(self, name: str, command: str, **streams: Any) -> "subprocess.Popen[bytes]":
        environ = dict(os.environ) if self._nodes[name].here else self._environ
        return subprocess.Popen(self._wrap(name, command), env=environ, **streams)

    # ------------------------------------------------------------------------ before nodes end

    def save(self, names: Sequence[str]) -> List[str]:
        """Copies all logs and outputs from these nodes here, beside what is here already; returns
        the nodes whose files are not all here then. Runs before unused nodes are ended."""
        self._marked = ": clusterctl-idle; "
        os.makedirs(self._locate("mirror"), exist_ok=True)
        os.makedirs(self._locate("saved"), exist_ok=True)
        mine = [name for name in names if name in self._list_holders()]
        return [name for name in mine if not self._save_node(name)]

    def _save_node(self, name: str) -> bool:
        import shutil

        from . import mirror, outputs

        folder = shlex.quote(self._nodes[name].folder)
        question = f"if [ -d {folder} ]; then echo there; else echo none; fi"
        log = os.open(self._locate("save.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        streams: Dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        streams["stderr"] = log
        asked = subprocess.run(
            self._wrap(name, question), env=self._environ, check=False, **streams
        )
        said = asked.stdout.decode(errors="replace").strip().rpartition("\n")[2]
        if said != "there":
            return bool(said == "none")  # the machine was replaced
        status = os.statvfs(self._locate("mirror"))
        room = max(0, status.f_bavail * status.f_frsize - self._plan.mirror.reserve)
        copied = self._mirror_node(name, room, largest=mirror.EVERYTHING)
        if not copied or not copied.whole:
            return False
        # Beside what is here: a node that is just ending must not take a whole copy with it.
        fresh, last = self._locate("saved", ".new-" + name), self._locate("saved", name)
        process = self._start_agent(name, "send_output", **streams)
        assert process.stdout
        with process, contextlib.suppress(EOFError, OSError):
            outputs.unpack(process.stdout, fresh)
        if process.returncode:
            return False
        with open(os.path.join(fresh, ".done"), "w"):
            pass
        shutil.rmtree(last, ignore_errors=True)
        os.replace(fresh, last)
        return True

    # -------------------------------------------------------------------------- behind a dead one

    def clean(self) -> None:
        """Where the job's supervisor is dead or a node did not answer it: ends what is left of the
        job on every node, forgets its secrets, frees its slots."""
        import glob
        import shutil

        with open(self._locate("alive"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # its supervisor lives, or another one cleans up
            self._write("supervisor.pid", f"{os.getpid()}\n")
            for part in glob.glob(glob.escape(self._locate("mirror")) + "/.*.part"):
                if not processes.is_locked(part[: -len("part")] + "lock"):
                    shutil.rmtree(part, ignore_errors=True)
            ranks = self._ask("end", self._grace)
            self._note_nodes(ranks)
            if not re.search("^(ended|dead) ", self._read_state(), re.MULTILINE):
                if self._read_stop():
                    self._heed()
                boot = processes.read(self._locate("boot")).decode()
                if boot and boot != processes.read_boot():
                    self._state.note(("node", None, self._plan.launcher, "restarted"))
                self._state.note(("dead", None))
            release(self._job, self._id, ranks)

    # ------------------------------------------------------------------------------ files

    def _locate(self, *parts: str) -> str:
        return os.path.join(self._job, *parts)

    def _write(self, name: str, text: str) -> None:
        processes.write(self._locate(name), text)

    def _read_state(self) -> str:
        return processes.read(self._locate("state")).decode(errors="replace")

    def _read_stop(self) -> str:
        return processes.read(self._locate("stop")).decode(errors="replace").strip()

    def _count_said(self) -> int:
        return len(processes.read(self._locate("mpirun.err")))

    def _read_said(self) -> bytes:
        """What mpirun has written to its stderr since the attempt began."""
        return processes.read(self._locate("mpirun.err"))[self._before :]


def load(job: str) -> Supervisor:
    with open(os.path.join(job, "plan.json")) as file:
        plan = messages.read(messages.JobPlan, json.load(file))
    if plan.version != messages.VERSION:
        raise ValueError(f"plan.json has version {plan.version}, not {messages.VERSION}")
    return Supervisor(job, plan)


def is_alive(job: str) -> bool:
    """Whether the supervisor of the job lives: the kernel drops a dead one's lock."""
    return processes.is_locked(os.path.join(job, "alive"))


def release(job: str, number: int, ranks: Ranks) -> None:
    """The slots of nodes that have said that nothing is left; others wait for the next look."""
    free = {name for name, left in ranks.list_left().items() if not left}
    path = os.path.join(job, "alloc")
    lines = [
        line for line in processes.read(path).decode().splitlines() if line.split()[0] not in free
    ]
    with contextlib.suppress(OSError):  # the disk is full: the next look frees them
        processes.write(path, "".join(line + "\n" for line in lines))
    if not lines:
        processes.remove(os.path.join(job, "..", "active", str(number)))


# -------------------------------------------------------------------------------------------------
# What a client asks on the launcher.


_CLEAN = ["/bin/sh", "./agent.sh", "clean"]


def start_aside(job: str, command: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Starts what outlives this program, in the job's folder."""
    with open(os.path.join(job, "clean.log"), "ab") as file:
        return subprocess.Popen(
            command,
            cwd=job,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def submit(job: str, limit: float = 1.0) -> str:
    """Starts the supervisor, which outlives this program; returns what it notes first."""
    if not os.fork():
        _become_supervisor(job)
    until = time.monotonic() + limit
    path = os.path.join(job, "state")
    while not processes.read(path) and time.monotonic() < until:
        time.sleep(0.005)
    return processes.read(path).decode()


def _become_supervisor(job: str) -> None:
    """Does not return. A Python that has started already is quicker than another one."""
    code = 1
    try:
        os.setsid()
        os.chdir(job)
        log = os.open("supervise.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for number, source in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(source, number)
        load(job).run()
        code = 0
    except Exception:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def tell_status(job: str, limit: float) -> str:
    """The state of the job; `absent` if it was never handed in. A supervisor that died has not
    written `ended`: the clean-up behind it is waited for so many seconds. The lock is looked at
    first: the supervisor may end, and say so, between the two."""
    path, dead = os.path.join(job, "state"), ""
    if not is_alive(job):
        said = processes.read(path).decode(errors="replace")
        if not said:
            stop = processes.read(os.path.join(job, "stop")).decode().strip()
            lines = [f"stop {time.time():.0f} {stop}"] if stop else []
            return "\n".join([*lines, f"absent {time.time():.0f}"]) + "\n"
        if not re.search("^(ended|dead) ", said, re.MULTILINE):
            cleaner = start_aside(job, _CLEAN)
            with contextlib.suppress(subprocess.TimeoutExpired):
                cleaner.wait(limit)
            dead = "" if is_alive(job) else f"dead {time.time():.0f}\n"
    return processes.read(path).decode(errors="replace") + dead


def cancel(job: str) -> None:
    """Leaves word for the supervisor, also for one that is about to start, and returns. Where it is
    dead, another process ends the job."""
    with contextlib.suppress(OSError), open(os.path.join(job, "stop"), "w") as file:
        file.write("cancelled\n")  # unless the disk is full
    if is_alive(job):
        pid = processes.read(os.path.join(job, "supervisor.pid")).strip()
        processes.send(int(pid) if pid.isdigit() else 0, CANCEL)
    elif processes.read(os.path.join(job, "state")):
        start_aside(job, _CLEAN)


def _do_each(work: Callable[[Any], Any], items: Sequence[Any]) -> None:
    """All at once."""
    threads = [threading.Thread(target=work, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_copies_note(job: str, name: str) -> Optional[messages.CopiesNote]:
    """None where the launcher has no copies of that node's outputs."""
    note = processes.read(os.path.join(job, "mirror", "." + name + ".json"))
    return messages.read(messages.CopiesNote, json.loads(note.decode())) if note else None


def list_copies(job: str, out: IO[bytes], *names: str) -> None:
    """Writes, as JSON, what there are copies of: by node of these, `when` all that it had was among
    them, how many more outputs were `left_out` and their bytes, and of the `files` each path, size
    and modification time."""
    from . import outputs

    found = {}
    for name in names:
        note = read_copies_note(job, name)
        if note:
            there = outputs.walk(os.path.join(job, "mirror", name))
            files = [(entry.path, entry.size, entry.modified / 1e9) for entry in there]
            found[name] = {"when": note.time, "left_out": note.left, "files": files}
    out.write(json.dumps(found).encode())
