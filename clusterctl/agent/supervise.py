"""Sees a job through on the launcher, whether or not anybody is watching: waits for its turn,
starts it, stops it when told to or when its time is up, ends what is left of it on every node, and
notes how it went in `state`. It notes facts, and decides only when to stop waiting and whether to
try again: clusterctl judges.
"""

import contextlib
import fcntl
import glob
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
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

from . import attend, messages, processes
from .attend import NodeAnswer
from .messages import Fact, Holder

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
OVER = re.compile("^(ended|dead) ", re.MULTILINE)
"""In `state`."""
SAID = ("mpirun.err", "mpirun.out")
"""What mpirun writes; `mpirun.out` has what the wrappers of ranks say through it, too."""
GAVE_UP = re.compile(
    r"A daemon failed to report back|PMIx server's listener thread failed to start"
    r"|clusterctl: the MPI daemon on [^ ]+ was killed"
)
"""What PRRTE's daemons, mpirun itself, or our ssh for them say now and then on busy nodes, before a
rank starts."""
WORDS = re.compile(
    r"(Remote daemon: [^ ]+,\d+\] on node|A daemon failed to report back.{,600}? Remote host:"
    r"|clusterctl: the MPI daemon on) +(?P<daemon>[^ ]+)"
    r"|process rank (?P<rank>\d+) with PID \d+ on node [^ ]+ exited on +signal (?P<signal>\d+)"
    r"|Process name: +[^ ]+,(?P<first>\d+)\] +Exit code: +(?P<code>\d+)"
    r"|(Connection to|Connection reset by|Timeout, server|Read from remote host|connect to host)"
    r" (?P<ssh>[^ :]+)"
)
"""A daemon that mpirun has lost, the process that it blames, and what ssh says of a connection."""


class Inbox:
    """Events from threads and signal handlers for the one thread that acts on them: `stop` and why,
    `child` and the exit code of the launcher program, `ready` and whether what the attempt goes on
    from is on every node."""

    def __init__(self) -> None:
        self._events: Deque[Tuple[str, Any]] = deque()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def put(self, kind: str, value: Any) -> None:
        """Also from a signal handler."""
        self._events.append((kind, value))
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b".")

    def take(self, seconds: float) -> Tuple[str, Any]:
        """The next one; ("", ""): there was none within the time."""
        until = time.monotonic() + seconds
        while not self._events:
            if not select.select([self._reader], [], [], max(0.0, until - time.monotonic()))[0]:
                return "", ""
            os.read(self._reader, 4096)
        return self._events.popleft()


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
        return [fact for answer in self.answers.values() for fact in answer.list_facts(word)]

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
        found = {name: answer.list_facts("survivors") for name, answer in self.answers.items()}
        return {name: facts[0][0] for name, facts in found.items() if facts}


class Supervisor:
    """Of the job in the folder `job`."""

    _leads_session = True
    """Whether the launcher program is in a session of its own."""

    def __init__(self, job: str, plan: messages.JobPlan) -> None:
        self._job, self._plan = job, plan
        self._inbox, self._state = Inbox(), State(job)
        self._active = os.path.join(job, "..", "active")
        self._grace = plan.grace
        self._stop = ""
        self._attempt = 1
        self._code = 0
        self._before: Dict[str, int] = {}
        """Bytes that mpirun had written to its stderr when the attempt began."""
        self._command = ["/bin/sh", "./launch.sh"], dict(os.environ)
        """What becomes the launcher program, and its environment."""
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._ranks = Ranks({}, {})
        self._waited = self._launched = False
        self._ahead: List[int] = []
        """Jobs for which it waits: those that run, or the first one that waits, too."""
        self._placed = ""
        """Where its ranks are after a loss."""
        self._lost: List[str] = []
        """Nodes whose outputs the others are to get before the next attempt."""
        self._transfers: List[Any] = []
        self._marked = ""
        """What comes before commands for nodes: no use of a node has it."""
        self._over = threading.Event()
        """Set when nothing that watches beside is wanted any more."""
        self._know_nodes()

    @property
    def launcher(self) -> str:
        return self._plan.launcher

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
        if self._marked:  # by the shell, which has to stay
            command = f"{self._marked}{command}; exit"
        return [os.path.join(self._plan.root, "bin", "clusterctl-ssh"), name, command]

    def _start_agent(self, name: str, *words: object, **streams: Any) -> Any:
        """The agent of a node, as Popen."""
        script = self._nodes[name].folder + "/agent.sh"
        line = " ".join(shlex.quote(str(word)) for word in ("/bin/sh", script, *words))
        command = self._wrap(name, line if self._marked else f"exec {line}")
        return subprocess.Popen(command, env=self._environ, **streams)

    def _ask(self, verb: str, *args: float, enough: str = "") -> Ranks:
        """All nodes at once. None is waited for longer than its own limit, nor when one has said
        the fact `enough`: it does not answer then."""
        plan = self._plan
        limit = plan.stacks_limit if verb == "stacks" else self._grace + plan.answer_limit
        names = self._list_asked(verb)
        answers = {name: NodeAnswer(code=124, why="no answer") for name in names}
        said: queue.Queue[Tuple[str, NodeAnswer]] = queue.Queue()

        def ask(name: str) -> None:
            said.put((name, self._ask_node(name, limit, verb, *args)))

        for name in names:
            self._beside(ask, name)
        until = time.monotonic() + limit + LATE
        with contextlib.suppress(queue.Empty):
            for _ in names:
                name, answer = said.get(timeout=max(0.0, until - time.monotonic()))
                answers[name] = answer
                if answer.list_facts(enough):
                    break
        # An mpirun that has failed has lost some of them, and their files, though they ended well.
        return Ranks(answers, {} if self._code else self._read_sent("exit"))

    def _list_asked(self, verb: str) -> Sequence[str]:
        """The nodes that have an answer to that."""
        return list(self._nodes)

    def _ask_node(self, name: str, limit: float, verb: str, *args: object) -> NodeAnswer:
        """Over its connection, or another one while that waits for an answer."""
        link, lock = self._links[name], self._locks[name]
        is_free = lock.acquire(timeout=PATIENCE)
        if not is_free:
            link = self._connect(name)
        try:
            found: NodeAnswer = link.ask(limit, verb, *args)
            return found
        finally:
            if is_free:
                lock.release()
            else:
                link.close()

    def _meet(self, name: str) -> None:
        self._ask_node(name, self._plan.answer_limit, "meet")

    def _read_sent(self, word: str) -> Dict[int, Fact]:
        """What ranks have said through mpirun, of the present attempt: it outlives their nodes. By
        rank."""
        found: Dict[int, Fact] = {}
        for line in processes.read_text(self._locate("mpirun.out")).splitlines():
            words = line.split()
            if words[:2] == ["clusterctl:", word]:
                with contextlib.suppress(ValueError):
                    _, rank, *rest = messages.read_fact(words[1:], messages.SENT)
                    if rest[-1] == self._attempt:
                        found.setdefault(rank, (rank, *rest))
        return found

    # ------------------------------------------------------------------------------ its turn

    @contextlib.contextmanager
    def _hold(self) -> Iterator[bool]:
        """False: another supervisor has this job, or one cleans up behind a dead one."""
        with open(self._locate("alive"), "w") as lock:
            is_ours = processes.lock(lock)
            if is_ours:
                self._write("supervisor.pid", f"{os.getpid()}\n")
            yield is_ours

    def run(self) -> None:
        with self._hold() as is_ours:
            if is_ours:
                self._see_through()

    def _see_through(self) -> None:
        self._write("boot", processes.read_boot())
        os.makedirs(self._active, exist_ok=True)
        mine = os.path.join(self._active, str(self._plan.id))
        self._write(mine, "")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._inbox.put("stop", "signal"))
        signal.signal(CANCEL, lambda *_: self._inbox.put("stop", "cancelled"))
        if not self._wait_turn():
            self._heed(self._stop)
            self._state.note(("ended", None))
            processes.remove(mine)
            self._ask("end", 0)  # removes its secrets: nobody else may be there to do so
            return
        self._watch_beside()
        self._finish(self._make_attempts())

    def _wait_turn(self) -> bool:
        """False where it was cancelled meanwhile, also before it was handed in."""
        due = 0.0
        while not self._read_stop() and not self._is_admitted():
            if not self._waited:
                ahead = ",".join(map(str, sorted(self._ahead)))
                self._state.note(("queued", None, *([ahead] if ahead else [])))
                self._waited = True
            if time.monotonic() >= due:
                due = time.monotonic() + self._plan.clean_poll
                self._beside(self._clean_up_behind_others)
            kind, word = self._inbox.take(TURN)
            if kind:
                self._heed(word)
                return False
        if not self._waited:
            self._beside(self._clean_up_behind_others)
        return not self._read_stop()

    def _is_admitted(self) -> bool:
        with open(self._locate("../queue.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._plan.now and not self._fits():
                return False
            self._state.note(("running", None, 1))
            return True

    def _fits(self) -> bool:
        """Whether no earlier job waits, and its ranks fit beside those of the jobs that run."""
        used: Dict[str, int] = {}
        self._ahead = []
        for number in map(int, os.listdir(self._active)):
            folder = self._locate("..", str(number))
            if number == self._plan.id or not os.path.exists(os.path.join(folder, "state")):
                continue
            if is_alive(folder):
                last = processes.read_text(os.path.join(folder, "state")).rpartition("\n")[2]
                if last.startswith("queued") and number < self._plan.id:
                    self._ahead = [number]
                    return False
                # One that has ended has no rank any more: it only looks for what they left.
                if last.startswith(("queued", "ended")):
                    continue
            # Until a look has said otherwise, the ranks of one without a supervisor are there too.
            self._ahead.append(number)
            for node, count, _ in read_slots(folder):
                used[node] = used.get(node, 0) + int(count)
        return not self._ahead or all(
            used.get(node, 0) + int(count) <= int(slots)
            for node, count, slots in read_slots(self._job)
        )

    def _clean_up_behind_others(self) -> None:
        """Jobs whose supervisors are dead, or that a node did not answer."""
        for name in os.listdir(self._active):
            folder = self._locate("..", name)
            if int(name) == self._plan.id or is_alive(folder):
                continue
            if os.path.exists(os.path.join(folder, "agent.sh")):
                start_cleaner(folder).wait()
            else:
                processes.remove(os.path.join(self._active, name))

    # ------------------------------------------------------------------------------ attempts

    def _make_attempts(self) -> bool:
        """Until one goes well, the job is to stop, or no retry is left; whether it went well."""
        more, again = self._plan.retries, False
        while True:
            plan = self._plan
            self._before = {name: len(processes.read(self._locate(name))) for name in SAID}
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
                self._note_away(ranks)
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
            # The next attempt needs every node, with the secrets that a restart removes. After one
            # that has started no rank, it helps only where a node or a daemon was lost.
            lost = self._list_lost(ranks)
            goes_on = self._shrink(lost) if lost and plan.shrinks else more and not lost
            started = ranks.list_facts("started")
            if not goes_on or not (started or lost or GAVE_UP.search(self._read_said())):
                return False
            kind, word = self._inbox.take(0)
            if kind == "stop":
                self._heed(word)
                return False
            more, self._attempt = more - (not lost), self._attempt + 1

    def _list_lost(self, ranks: Ranks) -> List[str]:
        """The nodes that do not answer or have restarted; for who can go on without them, also
        those that are about to be taken away."""
        events = {("restarted",), ("spot",)} if self._plan.shrinks else {("restarted",)}
        return [
            name
            for name, answer in ranks.answers.items()
            if answer.code is not None or events & set(answer.list_facts("node"))
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
            if not self._write_launch(left, first):
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

    def _write_launch(self, left: Sequence[Holder], ranks: int) -> bool:
        """The same mpirun for the nodes that are left: their lines of the hostfile are in the order
        of ranks. False where it cannot be: it starts no ranks, but what starts them."""
        script = processes.read(self._locate("launch.sh")).decode(errors="surrogateescape")
        hosts = processes.read_text(self._locate("hostfile")).splitlines()
        head, _, line = script.rstrip("\n").rpartition("\n")
        # The ranks' command comes last, behind words of the user's that may be like it.
        by_rank = line.endswith('exec /bin/sh "$1/rank.sh"\'')
        words, shell, _ = line.rpartition(" /bin/sh -c 'case " if by_rank else " /bin/sh ")
        words, count = re.subn(r"(?<= -np )\d+\b", str(ranks), words)
        words = re.sub(r" -x CLUSTERCTL_MASTER=\S*$", "", words)  # the second loss
        if len(hosts) != len(self._plan.holders) or not shell or count != 1:
            return False
        cases = ""
        for holder in left:
            numbers = map(str, range(holder.first, holder.first + holder.ranks))
            cases += f"{'|'.join(numbers)}) set -- {shlex.quote(self._nodes[holder.name].folder)};;"
        command = f'case $OMPI_COMM_WORLD_RANK in {cases} esac; exec /bin/sh "$1/rank.sh"'
        words += f" -x CLUSTERCTL_MASTER={left[0].address} /bin/sh -c {shlex.quote(command)}"
        names = [holder.name for holder in left]
        rows = zip(hosts, self._plan.holders)
        self._write("hostfile", "".join(row + "\n" for row, of in rows if of.name in names))
        self._write("launch.sh", f"{head}\n{words}\n")
        return True

    def _are_well(self, ranks: Ranks) -> bool:
        return ranks.are_well(self._plan.ranks, self._attempt)

    def _start(self) -> None:
        self._note_start()
        processes.remove(self._locate("over"))
        self._child = None
        if self._needs_preparation():
            self._beside(self._prepare)
        else:
            self._launch()

    def _note_start(self) -> None:
        if self._attempt > 1:  # the first one was noted when it was admitted
            placed = [("placed", None, self._placed)] if self._placed else []
            self._state.note(("running", None, self._attempt), *placed)

    def _launch(self) -> None:
        if not self._launched:
            self._launched = True
            self._later(self._plan.start_limit, self._check_start)
        command, environ = self._command
        late = {"MASTER_PORT": self._choose_port(), "CLUSTERCTL_ATTEMPT": str(self._attempt)}
        with open(self._locate("mpirun.out"), "ab") as out, open(
            self._locate("mpirun.err"), "ab"
        ) as err:
            child = self._child = subprocess.Popen(
                command,
                cwd=self._job,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**environ, **late},
                start_new_session=self._leads_session,
            )
        # Over connections that are there, the end of a job is noticed sooner. Not while its ranks
        # are started: a short one needs none.
        for name in self._links:
            self._later(SETTLED, self._meet, name)

        def wait() -> None:
            code = child.wait()
            self._inbox.put("child", code if code >= 0 else 128 - code)

        self._beside(wait)

    def _choose_port(self) -> str:
        """On the first worker, where rank 0 will listen: anew when some time has passed."""
        port = processes.read_text(self._locate("port"))
        if self._waited or self._attempt > 1 or not port:
            answer = self._ask_node(self._plan.holders[0].name, self._plan.answer_limit, "port")
            port = "".join(str(fact[0]) for fact in answer.list_facts("port"))
        return port

    def _await_child(self) -> None:
        """Until the launcher program has ended, with `_code`. Told to stop, it has the ranks saved
        first."""
        while True:
            kind, said = self._inbox.take(3600)
            if kind == "stop" and self._stop_attempt(said):
                return
            if kind == "ready" and said:
                self._launch()
            elif kind in ("ready", "child"):
                over = processes.read_text(self._locate("over"))
                self._code = 1 if kind == "ready" else int(over or said)
                self._clean_up_behind_launcher()
                return

    def _clean_up_behind_launcher(self) -> None:
        """An mpirun that was killed leaves a temporary folder, of Open MPI 5 or 4."""
        if self._child and (self._code or self._stop):
            import shutil

            top, pid = os.environ.get("TMPDIR", "/tmp"), self._child.pid
            for name in (f"ompi.{pid}", f"ompi.{os.uname().nodename}.{os.getuid()}/pid.{pid}"):
                shutil.rmtree(os.path.join(top, name), ignore_errors=True)

    def _stop_attempt(self, word: str) -> bool:
        """Whether there is nothing to wait for."""
        if self._stop:
            return False  # being told twice changes nothing
        self._heed(word)
        if self._child is None:
            self._code = 128 + signal.SIGKILL
            for process in self._transfers:
                process.kill()
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
        if not self._code or not GAVE_UP.search(self._read_said()) or self._read_sent("start"):
            return False
        # It says the same of a node that was lost later: the others know.
        return not self._ask("look", enough="started").list_facts("started")

    def _look(self) -> Ranks:
        """What mpirun has brought says already that all has gone well, as a rule."""
        ranks = Ranks({}, {} if self._code else self._read_sent("exit"))
        return ranks if self._code or self._are_well(ranks) else self._ask("look")

    def _finish(self, well: bool) -> None:
        self._over.set()
        well = well and not self._stop
        if well:
            # From here on its slots are free. Who follows it waits for no node.
            self._note_ranks(self._ranks, ("ended", None))
            ranks = self._ask("close")
            if list(ranks.list_left().values()) != [0] * len(self._links):
                ranks = self._ask("end", self._grace)  # what the program may have left behind
        else:
            self._code = self._code or 1  # mpirun may say 0 after it has lost a node
            ranks = self._ask("end", self._grace)
            if not self._stop:
                ranks = self._ask_refused_again(ranks)
            self._note_ranks(ranks)
        self._note_nodes(ranks)
        release(self._job, self._plan.id, ranks)
        if not well:
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
            self._later(plan.timeout, self._tell_stop, "timeout")
        self._beside(self._watch_folder)
        self._beside(self._watch_launcher)
        if plan.hang_timeout:
            self._beside(self._watch_output)
        if plan.mirrored:
            self._beside(self._keep_mirror)

    def _beside(self, work: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()

    def _later(self, seconds: float, work: Callable[..., None], *args: Any) -> None:
        self._beside(lambda: None if self._over.wait(seconds) else work(*args))

    def _tell_stop(self, word: str) -> None:
        with contextlib.suppress(OSError):  # the disk may be full: the job has to end all the same
            self._write("stop", word)
        self._inbox.put("stop", word)

    def _check_start(self) -> None:
        """A launch that never gets to a rank would wait for ever."""
        if self._read_sent("start"):
            return
        ranks = self._ask("look")
        if ranks.list_silent():
            self._later(self._plan.start_limit, self._check_start)
        elif not ranks.list_facts("started"):
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

        def is_silent() -> bool:
            nonlocal since
            ranks = self._ask("written")
            pass_time(self._grace + plan.answer_limit)
            for name, answer in ranks.answers.items():
                for fact in answer.list_facts("written"):
                    if known.get(name) != fact:
                        known[name], since = fact, looked
            return looked - since >= plan.hang_timeout

        while not self._over.wait(plan.hang_poll):
            pass_time(plan.hang_poll)
            silent, starts = is_silent(), sorted(start for _, start in known.values())
            if not silent or not known or starts == ended:
                continue  # its ranks have not started yet, or were ended before
            attempt = self._attempt
            stacks = self._ask("stacks")
            pass_time(plan.stacks_limit)
            if not is_silent():
                continue  # a rank has written meanwhile: none hangs
            if attempt == self._attempt and self._child and self._child.poll() is None:
                notes = [("stack", None, *fact) for fact in stacks.list_facts("stack")]
                self._state.note(("hung", None, f"{plan.hang_timeout:g}"), *notes)
                self._ask("again", self._grace)
            ended = starts

    # -------------------------------------------------------------------- what an attempt goes on

    def _needs_preparation(self) -> bool:
        plan, again = self._plan, self._attempt > 1
        snapshot = plan.resume and (again or plan.resume.resumes)
        return bool(snapshot or self._lost or (plan.restores and (again or plan.rerun_of)))

    def _prepare(self) -> None:
        """All ranks have to begin with the same: else none may start."""
        ready, resume = False, self._plan.resume
        try:
            while self._lost:
                self._hand_over(self._lost.pop())
            if self._plan.restores:
                self._restore_copies()
            is_new = self._attempt == 1
            ready = not resume or (is_new and not resume.resumes) or self._send_snapshot(resume)
            ready = ready and self._choose_launcher()
        finally:
            self._inbox.put("ready", ready)

    def _choose_launcher(self) -> bool:
        """Whether there is a program here that can start the ranks."""
        return True

    def _hand_over(self, lost: str) -> None:
        """Gives the nodes that are left the copies of that one's outputs."""
        from . import outputs

        copies = self._locate("mirror", lost)
        if os.path.isdir(copies):
            paths = [entry.path for entry in outputs.walk(copies)]
            processes.do_each(
                lambda holder: self._give(holder.name, copies, paths, "inherit"),
                self._plan.holders,
            )

    def _restore_copies(self) -> None:
        """Gives nodes back what was cut short there in the last attempt, or in the job that goes
        on, as by a kill while a program overwrote it, where the copy here is whole."""
        from . import resume

        copies = self._locate("..", str(self._plan.rerun_of or "none"), "mirror")
        if self._attempt > 1:
            copies = self._locate("mirror")

        def restore(holder: Holder) -> None:
            for (path,) in self._list_facts(holder.name, "cut", self._plan.kept):
                copy = resume.find_copy(copies, holder.name, path)
                if copy:
                    self._give(holder.name, copy, [path], "restore", holder.first)

        if os.path.isdir(copies):
            processes.do_each(restore, self._plan.holders)

    def _send_snapshot(self, how: messages.ResumePlan) -> bool:
        """The newest one of rank 0's node, to the others."""
        plan = self._plan
        first, *others = plan.holders
        own: List[str] = []

        def list_own(holder: Holder) -> None:
            facts = self._list_facts(holder.name, "own", plan.kept, holder.first, holder.ranks)
            own.extend(path for (path,) in facts)

        processes.do_each(list_own, others)
        wish = messages.SnapshotWish(plan.kept, plan.ranks, first.ranks, own, how)
        facts = self._list_facts(first.name, "choice", self._attempt, wish)
        kind, *reason = facts[0] if facts else ("", "its node does not answer")
        if kind not in ("none", "found"):
            self._complain(reason[0])
        if kind != "found":
            return bool(kind == "none")
        unsent: List[str] = []

        def send(holder: Holder) -> None:
            words = self._attempt, "yes" if how.folders else ""
            sender = self._transfer(first.name, "hand", *words, stdout=subprocess.PIPE)
            receiver = self._transfer(holder.name, "receive", self._attempt, stdin=sender.stdout)
            sender.stdout.close()
            if not self._await_transfers(receiver, sender):
                unsent.append(holder.name)

        processes.do_each(send, others)
        if unsent:  # ranks that begin with different ones would wait for each other, or worse
            names = " ".join(sorted(unsent))
            self._complain(f"the snapshot could not be copied to {names}")
        return not unsent

    def _list_facts(self, name: str, verb: str, *args: object) -> List[Fact]:
        return self._ask_node(name, self._plan.resume_limit, verb, *args).list_facts(verb)

    def _give(self, name: str, folder: str, paths: Sequence[str], *words: object) -> None:
        """Sends these files of a folder here to the agent of a node."""
        from . import outputs

        process = self._transfer(name, *words, stdin=subprocess.PIPE)
        with contextlib.suppress(OSError), process.stdin:
            outputs.pack(folder, paths, process.stdin)
        self._await_transfers(process)

    def _transfer(self, name: str, *words: object, **streams: Any) -> Any:
        streams.setdefault("stdin", subprocess.DEVNULL)
        with open(self._locate("mpirun.err"), "ab") as log:
            process = self._start_agent(name, *words, stderr=log, **streams)
        self._transfers.append(process)
        if self._stop:
            process.kill()
        return process

    def _await_transfers(self, *started: Any) -> bool:
        """Whether they went well."""
        until = time.monotonic() + self._plan.resume_limit
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            process.kill()
        return [process.wait() for process in started] == [0] * len(started)

    def _complain(self, text: str) -> None:
        with open(self._locate("mpirun.err"), "a") as file:
            file.write(f"clusterctl: {text}\n")

    # ------------------------------------------------------------------------------ copies

    def _mirror(self) -> None:
        """Every node at once, each for itself: one that does not answer keeps no other waiting."""
        folder = self._locate("mirror")
        os.makedirs(folder, exist_ok=True)
        room = self._measure_room() // len(self._plan.holders)
        if room > 0:
            processes.do_each(
                lambda holder: self._mirror_node(holder.name, room, self._plan.mirror.largest),
                self._plan.holders,
            )

    def _measure_room(self) -> int:
        status = os.statvfs(self._locate("mirror"))
        return status.f_bavail * status.f_frsize - self._plan.mirror.reserve

    def _mirror_node(self, name: str, room: int, largest: int) -> bool:
        """Whether all that the node has is here then."""
        from . import mirror

        plan = self._plan.mirror
        place = self._locate("mirror", "." + name)
        with open(place + ".lock", "w") as lock, open(self._locate("mirror.log"), "a") as log:
            fcntl.flock(lock, fcntl.LOCK_EX)  # an earlier look may still be at it
            when = time.time()
            before = read_copies_note(self._job, name) or messages.CopiesNote(0, {})
            wish = messages.MirrorWish(
                before.files, room, largest, self._plan.kept, plan.reserve, before.left
            )
            # Over the connection that is there: a look that finds nothing new starts nothing.
            asks = largest != mirror.EVERYTHING
            answer = asks and self._ask_node(name, plan.interval, "mirrored", wish)
            if answer and answer.list_facts("mirrored"):
                processes.write(place + ".json", messages.dump(before._replace(time=when)))
                return False
            pipe = subprocess.PIPE
            process = self._start_agent(name, "send", stdin=pipe, stdout=pipe, stderr=log)
            try:
                process.stdin.write(messages.pack(*wish))
                process.stdin.close()
                note = mirror.receive(process.stdout, self._locate("mirror", name), place + ".part")
                said = messages.CopiesNote(when, note.files, note.left)
                processes.write(place + ".json", messages.dump(said))
                return note.whole
            except (EOFError, OSError) as error:  # the next look brings it
                log.write(f"{name}: {error}\n")
                return False
            finally:
                process.stdout.close()
                process.wait()

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
        if self._plan.mirrored:
            state = processes.read_text(self._locate("state"))
            ending = re.search(r"^node .* (spot|deadline)$", state, re.MULTILINE)
            if self._plan.mirror.always or ending or os.path.isdir(self._locate("mirror")):
                self._mirror()

    # ------------------------------------------------------------------------------ notes

    def _heed(self, word: str) -> None:
        """Notes why the job is to stop: the file `stop` says more than a signal."""
        word = self._read_stop() or word
        if word != self._stop:
            self._state.note(("stop", None, word))
        self._stop = word

    def _note_away(self, ranks: Ranks) -> None:
        """Nodes that do not answer, or did not a moment ago: if mpirun gives up, that is why."""
        away = {*ranks.list_silent(), *(n for n, link in self._links.items() if link.was_away())}
        self._state.note(*[("away", None, name) for name in sorted(away)])

    def _note_ranks(self, ranks: Ranks, *more: Tuple[Any, ...]) -> None:
        exits = ranks.list_exits()
        lines: List[Tuple[Any, ...]] = []
        lines += [("exit", when, rank, code, attempt) for rank, code, when, attempt in exits]
        for word in ("oom", "told", "alone"):
            lines += [(word, None, *fact) for fact in ranks.list_facts(word)]
        lines += [("alone", None, *fact[:2]) for fact in self._read_sent("alone").values()]
        started = max(len(ranks.list_facts("started")), len(self._read_sent("start")))
        lines.append(("started", None, started))
        if any(code for _, code, *_ in exits):  # only then does it matter whose clock is how late
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
            lines += [("node", None, name, *fact) for fact in answer.list_facts("node")]
            lines += [("full", None, name) for _ in answer.list_facts("full")]
            said = (left[name],) if name in left else ("?", answer.code, answer.why[:200])
            lines.append(("survivors", None, name, *said))
        self._state.note(*lines)

    def _note_words(self) -> None:
        """Of mpirun and ssh on its end: a daemon that it has lost, and the process that it
        blames."""
        for found in WORDS.finditer(self._read_said().replace("\0", " ").replace("\n", " ")):
            said = found.groupdict()
            # With 255 ssh ends, and mpirun with it.
            host = said["daemon"] or (said["ssh"] if self._code == 255 else "")
            if host:  # by the name that the node has for itself, or its address
                known = (n.name for n in self._plan.nodes if host in (n.name, *n.aliases))
                self._state.note(("daemon", None, next(known, host)))
            elif said["rank"]:
                self._state.note(("first", None, said["rank"], int(said["signal"]) + 128))
            elif said["first"]:
                self._state.note(("first", None, said["first"], said["code"]))

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
        for folder in ("mirror", "saved"):
            os.makedirs(self._locate(folder), exist_ok=True)
        mine = [holder.name for holder in self._plan.holders if holder.name in names]
        return [name for name in mine if not self._save_node(name)]

    def _save_node(self, name: str) -> bool:
        import shutil

        from . import mirror, outputs

        folder = shlex.quote(self._nodes[name].folder)
        question = self._wrap(name, f"if [ -d {folder} ]; then echo there; else echo none; fi")
        asked = processes.call(*question, limit=None, variables={"CLUSTERCTL_JOB": ""})
        said = asked.out.strip().rpartition("\n")[2]
        if said != "there":
            return said == "none"  # the machine was replaced
        if not self._mirror_node(name, max(0, self._measure_room()), mirror.EVERYTHING):
            return False
        # Beside what is here: a node that is just ending must not take a whole copy with it.
        fresh, last = self._locate("saved", ".new-" + name), self._locate("saved", name)
        with open(self._locate("save.log"), "ab") as log:
            null, pipe = subprocess.DEVNULL, subprocess.PIPE
            process = self._start_agent(name, "send_output", stdin=null, stdout=pipe, stderr=log)
        with process, contextlib.suppress(EOFError, OSError):
            outputs.unpack(process.stdout, fresh)
        if process.returncode:
            return False
        processes.write(os.path.join(fresh, ".done"), "")
        shutil.rmtree(last, ignore_errors=True)
        os.replace(fresh, last)
        return True

    # -------------------------------------------------------------------------- behind a dead one

    def clean(self) -> None:
        """Where the job's supervisor is dead or a node did not answer it: ends what is left of the
        job on every node, forgets its secrets, frees its slots."""
        import shutil

        with self._hold() as is_ours:
            if not is_ours:
                return
            for part in glob.glob(glob.escape(self._locate("mirror")) + "/.*.part"):
                if not processes.is_locked(part[: -len("part")] + "lock"):
                    shutil.rmtree(part, ignore_errors=True)
            ranks = self._ask("end", self._grace)
            self._note_nodes(ranks)
            if not OVER.search(processes.read_text(self._locate("state"))):
                if self._read_stop():
                    self._heed("")
                boot = processes.read_text(self._locate("boot"))
                if boot and boot != processes.read_boot():
                    self._state.note(("node", None, self._plan.launcher, "restarted"))
                self._state.note(("dead", None))
            release(self._job, self._plan.id, ranks)

    # ------------------------------------------------------------------------------ files

    def _locate(self, *parts: str) -> str:
        return os.path.join(self._job, *parts)

    def _write(self, name: str, text: str) -> None:
        processes.write(self._locate(name), text)

    def _read_stop(self) -> str:
        return processes.read_text(self._locate("stop"))

    def _read_said(self) -> str:
        """What mpirun has written since the attempt began."""
        parts = (processes.read(self._locate(name))[at:] for name, at in self._before.items())
        return processes.decode(b"\n".join(parts))


# -------------------------------------------------------------------------------------------------
# What a client asks on the launcher.


def load(job: str) -> Supervisor:
    plan = messages.load(messages.JobPlan, os.path.join(job, "plan.json"))
    if plan.version != messages.VERSION:
        raise ValueError(f"plan.json has version {plan.version}, not {messages.VERSION}")
    return Supervisor(job, plan)


def is_alive(job: str) -> bool:
    """Whether the supervisor of the job lives: the kernel drops a dead one's lock."""
    return processes.is_locked(os.path.join(job, "alive"))


def read_slots(job: str) -> List[List[str]]:
    """Of each node that the job has slots on: its name, how many, and how many there are."""
    return [line.split() for line in processes.read_text(os.path.join(job, "alloc")).splitlines()]


def release(job: str, number: int, ranks: Ranks) -> None:
    """The slots of nodes that have said that nothing is left; others wait for the next look."""
    left = ranks.list_left()
    rows = [row for row in read_slots(job) if left.get(row[0], 1)]
    with contextlib.suppress(OSError):  # the disk is full: the next look frees them
        text = "".join(" ".join(row) + "\n" for row in rows)
        processes.write(os.path.join(job, "alloc"), text)
    if not rows:
        processes.remove(os.path.join(job, "..", "active", str(number)))


def start_cleaner(job: str) -> "subprocess.Popen[bytes]":
    """Ends what is left of a job whose supervisor is dead, and outlives this program."""
    with open(os.path.join(job, "clean.log"), "ab") as file:
        return subprocess.Popen(
            ["/bin/sh", "./agent.sh", "clean"],  # by the agent that it was started with
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
    return processes.read_text(path)


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
        said = processes.read_text(path)
        if not said:
            stop = processes.read_text(os.path.join(job, "stop"))
            lines = [f"stop {time.time():.0f} {stop}"] if stop else []
            boot = processes.parse_boot(processes.read(os.path.join(job, "out", "boot")))
            if boot and boot != processes.read_boot():
                lines.append(messages.write_line("node", None, load(job).launcher, "restarted"))
            return "\n".join([*lines, f"absent {time.time():.0f}"])
        if not OVER.search(said):
            with contextlib.suppress(subprocess.TimeoutExpired):
                start_cleaner(job).wait(limit)
            dead = "" if is_alive(job) else f"\ndead {time.time():.0f}"
    return processes.read_text(path) + dead


def cancel(job: str) -> None:
    """Leaves word for the supervisor, also for one that is about to start, and returns. Where it is
    dead, another process ends the job."""
    with contextlib.suppress(OSError), open(os.path.join(job, "stop"), "w") as file:
        file.write("cancelled\n")  # unless the disk is full
    if is_alive(job):
        pid = processes.read_text(os.path.join(job, "supervisor.pid"))
        processes.send(int(pid or 0), CANCEL)
    elif processes.read(os.path.join(job, "state")):
        start_cleaner(job)


def read_copies_note(job: str, name: str) -> Optional[messages.CopiesNote]:
    """None where the launcher has no copies of that node's outputs."""
    try:
        return messages.load(messages.CopiesNote, os.path.join(job, "mirror", f".{name}.json"))
    except FileNotFoundError:
        return None


def list_copies(job: str, *names: str) -> str:
    """As JSON, what there are copies of: by node of these, `when` all that it had was among them,
    how many more outputs were `left_out` and their bytes, and of the `files` each path, size and
    modification time."""
    from . import outputs

    found = {}
    for name in names:
        note = read_copies_note(job, name)
        if note:
            there = outputs.walk(os.path.join(job, "mirror", name))
            files = [(entry.path, entry.size, entry.modified / 1e9) for entry in there]
            found[name] = {"when": note.time, "left_out": note.left, "files": files}
    return json.dumps(found)
