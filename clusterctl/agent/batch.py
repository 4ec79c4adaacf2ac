"""Sees a job of Slurm or Grid Engine through, on the first of its nodes: as on a launcher, but that
the nodes share a disk and are known only now, that the batch system reaches and warns them, and
that it says what has become of a job which it has ended itself.
"""

import contextlib
import glob
import os
import shlex
import signal
import socket
import time
from typing import Any, Callable, List, Sequence, Tuple

from . import attend, granted, messages, processes, queues, tasks
from .attend import NodeAnswer
from .supervise import Ranks, State, Supervisor

CAUGHT = "trap '' TERM INT HUP USR1 USR2"
"""The batch system may signal all processes of a job, also those that ask."""
AGAIN = 0.25
"""Seconds between two looks for notes that a shared disk may show late."""
MOMENT = 2.0
"""Seconds in which a batch system says that it is ending a job, after the end of its ranks."""
OF_OTHERS = {"survivors": messages.FACTS["survivors"], "stack": messages.STATE["stack"]}
"""What other nodes know that this one does not see on the disk."""
NOTES = ("exit", "pid", "oom", "alone", "met")
OF_ATTEMPT = ("stopping", "notice-*", *map("out/rank-*.{}".format, NOTES))
"""What an attempt leaves that is not the next one's."""


class AttemptState(State):
    """Takes no notes of an attempt after which another one `has_followed`."""

    def __init__(self, job: str, has_followed: Callable[[], bool]) -> None:
        super().__init__(job)
        self._has_followed = has_followed

    def note(self, *lines: Tuple[Any, ...]) -> None:
        if not self._has_followed():
            super().note(*lines)


class BatchSupervisor(Supervisor):
    """`batch`: what is told of the batch system, beside the plan of other jobs."""

    _leads_session = False  # a batch system may end a process group, and nothing else

    def __init__(self, job: str, batch: messages.BatchPlan, plan: messages.JobPlan) -> None:
        super().__init__(job, plan)
        self._batch, self._system = batch, queues.SYSTEMS[batch.system]
        self._attempt = self._read_attempt() + 1
        self._state = AttemptState(job, self._has_followed)
        self._notices = 0
        self._launched = True  # how long a start may take is known to the batch system alone

    def see_through(self, early: Sequence[str]) -> int:
        """The exit code of the job's script, whose process this is. `early`: signals that have come
        before, and FAILED where the job could not be made ready."""
        os.chdir(self._job)
        meaning = {name: rest for name, *rest in self._batch.signals}
        processes.catch(list(meaning), lambda name: self._warn(*meaning[name]))
        for name in meaning.keys() & early:
            self._warn(*meaning[name])
        self._watch_beside()
        if tasks.FAILED in early or not self._find_nodes():
            self._know([])
            self._end()
            return tasks.UNREADY
        self._make_attempts()
        self._over.set()
        if self._stop == "stopped":  # by the batch system, which knows whether it will run again
            self._state.note(("stop", None, "stopped"))
        elif self._stop == "checkpoint" and self._batch.requeues:
            self._ask("again", self._grace)
            self._state.note(("queued", None))
            code = self._system.requeue()
            if code is not None:
                return int(code)
            self._end()
        else:
            if self._are_well(self._end()) and not self._stop:
                return 0
            if self._stop == "cancelled":  # so that its accounting says so
                processes.call(self._system.END, os.environ[self._system.NUMBER])
        return tasks.choose_code(self._code or 1)

    # ------------------------------------------------------------------------------ its nodes

    def _find_nodes(self) -> bool:
        if not tasks.compile_program(self._job, self._batch):
            return False
        found: List[messages.Holder] = []
        with contextlib.suppress(OSError):  # the disk is full
            found = granted.find_nodes(self._job, self._batch)
        self._know(found)
        return bool(found)

    def _know(self, holders: List[messages.Holder]) -> None:
        """This node before others."""
        holders = holders or [messages.Holder(socket.gethostname(), 0, 0)]
        self._plan = self._plan._replace(
            launcher=holders[0].name,
            nodes=[
                messages.PlannedNode(one.name, (), self._job, here=one is holders[0])
                for one in holders
            ],
            holders=holders,
            ranks=sum(one.ranks for one in holders),
        )
        self._know_nodes()

    def _list_asked(self, verb: str) -> Sequence[str]:
        """On a shared disk, the first one sees how all ranks have ended."""
        return list(self._nodes)[: None if verb in ("again", "end", "stacks") else 1]

    def _ask_node(self, name: str, limit: float, verb: str, *args: object) -> NodeAnswer:
        """The batch system ends what is left on other nodes too, but does not say so."""
        if self._nodes[name].here:
            return super()._ask_node(name, limit, verb, *args)
        words = ("exec", "/bin/sh", self._locate("agent.sh"), verb, *args)
        command = " ".join(shlex.quote(str(word)) for word in words)
        script = f'{CAUGHT}; exec ./clusterctl-agent "$@"'
        said = processes.call("/bin/sh", "-c", script, "sh", name, command, limit=limit)
        facts = []
        for line in said.out.splitlines():  # a login shell may say something, too
            with contextlib.suppress(LookupError, ValueError):
                facts.append(messages.read_fact(line.split(), OF_OTHERS))
        return NodeAnswer(facts, code=None if facts or not said.code else said.code)

    def _meet(self, name: str) -> None:
        """Nobody keeps a connection to other nodes."""

    # ------------------------------------------------------------------------------ attempts

    def _note_start(self) -> None:
        self._notices = 0
        for pattern in OF_ATTEMPT:
            for path in glob.glob(pattern):
                processes.remove(path)
        self._write("attempt", f"{self._attempt}\n")
        placed = "".join(f"{holder.name}:{holder.ranks}," for holder in self._plan.holders)
        self._state.note(("running", None, self._attempt), ("placed", None, placed))

    def _needs_preparation(self) -> bool:
        return True

    def _choose_launcher(self) -> bool:
        hosts = {holder.name: holder.ranks for holder in self._plan.holders}
        try:
            command, environ = granted.choose_starter(self._job, self._batch.start, hosts)
        except granted.UnfitError as error:
            self._complain(str(error))
            return False
        name, _, value = self._plan.tag.partition("=")
        self._command = command, {**environ, name: value}
        return True

    def _choose_port(self) -> str:
        return str(attend.find_port())

    def _send_snapshot(self, how: messages.ResumePlan) -> bool:
        from . import resume

        plan, ranks = self._plan, self._plan.ranks
        wish = messages.SnapshotWish(plan.kept, ranks, ranks, (), how)
        [(kind, *reason)] = resume.choose(self._job, self._attempt, wish)
        if kind == resume.REFUSED:
            self._complain(reason[0])
        return bool(kind != resume.REFUSED)

    def _end_launcher(self) -> None:
        self._ask("again", 0)

    def _write(self, name: str, text: str) -> None:
        """Where the disk is full, the job has to end all the same."""
        with contextlib.suppress(OSError):
            super()._write(name, text)

    def _look(self) -> Ranks:
        """The last rank's note may take a while to be seen on a shared disk."""
        until = time.monotonic() + self._plan.confirm
        ranks = self._ask("look")
        while not self._code and not self._are_well(ranks) and time.monotonic() < until:
            time.sleep(AGAIN)
            ranks = self._ask("look")
        if not self._are_well(ranks):
            # Where no rank has failed by itself, the batch system may be about to say why.
            failed = {code for _, code, *_ in ranks.list_exits()} - {0, 143}
            kind, word = self._inbox.take(0 if failed else MOMENT)
            if kind == "stop":
                self._heed(word)
        return ranks

    def _end(self) -> Ranks:
        ranks = self._ask("end", self._grace)
        self._note_ranks(ranks)
        self._note_nodes(ranks)
        self._state.note(("ended", None))
        return ranks

    # ------------------------------------------------------------------------------ being told

    def _watch_beside(self) -> None:
        super()._watch_beside()
        self._beside(self._watch_stop)
        if self._batch.warn_after:
            self._later(self._batch.warn_after, os.kill, os.getpid(), signal.SIGUSR1)

    def _watch_stop(self) -> None:
        """`clusterctl cancel` leaves a file: a signal from the batch system would reach the ranks
        too, and leave no time for them to save, nor for us to count what is left on the nodes."""
        while not self._over.wait(1):
            if self._read_stop():
                self._inbox.put("stop", "")
                return

    def _read_attempt(self) -> int:
        return int(processes.read_text(self._locate("attempt")) or 0)

    def _has_followed(self) -> bool:
        """Whether the next attempt has begun: Grid Engine reschedules a job, and then ends it."""
        return self._read_attempt() > self._attempt

    def _warn(self, word: str, passed: str) -> None:
        """By a signal. With `passed`, ranks get that; the batch system ends the job in time."""
        if self._has_followed():  # what is written now would be for that one
            mine = processes.list_living(f"\0CLUSTERCTL_ATTEMPT={self._attempt}\0")
            for pid in {*mine} & {*processes.list_living(self._plan.tag)}:
                processes.send(pid, signal.SIGKILL)
            os._exit(1)
        if not passed:
            self._inbox.put("stop", word)
            return
        self._notices += 1
        self._write(f"notice-{self._notices}", passed + "\n")
        if word == "stopped":
            self._stop = word

    def _stop_attempt(self, word: str) -> bool:
        """The ranks look for the file: a signal would end the launcher, and the ranks with it."""
        self._heed(word)
        if self._child is None:
            self._code = 128 + signal.SIGKILL
            return True
        notice = self._batch.notice
        if self._stop == "checkpoint":
            self._grace = notice
        elif self._stop == "stopped":
            self._grace = self._system.find_time_to_end(notice) or self._grace
        self._write("stopping", f"{self._grace:g}\n")
        return False
