"""Ends the machines of an unused cluster. Every node measures how long it has been idle. When that
is the limit on all nodes, the launcher copies the logs and outputs of all jobs to its disk, and
ends the workers. Then it ends, too, unless it has files that nobody has fetched.

In the folder `idle` of the node's root: `seen` has UP LAST, the times of the last look and of the
last use, in seconds since boot. `end` requests a worker to end; it does so if its own measurement
says idle, too. On the launcher, by its clock: `report` with lines `ended NODE TIME`, `kept NODE
TIME`, `holds JOB TIME` (or `shared`: the shared folder), and `told NODE TIME` of workers that were
just requested to end.

A client notes in `fetched` of a job's folder there what it has (`logs`, or `all`), and after how
many starts of the job: one that was continued has more to fetch.
"""

import contextlib
import glob
import os
import re
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set

from . import messages, outputs, processes

SETTINGS = "settings.json"
"""In that folder: IdleSettings."""
LOOK = 10.0
"""Seconds between two looks."""
AGAIN, LATER = 30, 600
"""Seconds after which the launcher asks its workers again; where that is of no use soon."""
STALE = 60
"""Seconds after which a measurement says that its agent is dead."""
ENDING = 300
"""Seconds for which a worker that was requested to end is left alone."""
AT_ONCE = 16
"""Workers that are asked at a time."""
OURS = "clusterctl-idle"
"""In the command line of the shell of each session that is ours."""
ALWAYS = re.compile(
    r"sshd|sshd-session|sshd-auth|systemd|[(]sd-pam[)]?|dbus-daemon|ssh-agent|gpg-agent"
)
"""What runs for a person who does nothing."""
RESERVED = range(60000, 65536)
"""Users of systemd."""


class IdleSettings(NamedTuple):
    """`limit`: seconds; `containers`: how many of ours run here; `end`: sh that ends the machine;
    `workers`: the root of each, of a launcher; `shared`: its shared folder, or ""."""

    limit: float
    containers: int
    end: str
    workers: Dict[str, str]
    shared: str


class IdleWatch:
    """Of the node with that root."""

    def __init__(
        self, root: str, proc: str = "/proc", clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._root, self._proc, self._folder = root, proc, os.path.join(root, "idle")
        self._last: Optional[int] = None
        self._changed = 0
        self._up = self._next = 0
        self._held = False
        words = ("ended", "kept", "holds", "told")
        self._report: Dict[str, Dict[str, float]] = {word: {} for word in words}
        for line in processes.read_text(self._locate("report")).splitlines():
            word, name, when = line.split()
            self._report[word][name] = float(when)

    def look(self, settings: IdleSettings) -> None:
        idle = self._measure(settings.containers)
        if settings.workers:
            if idle < settings.limit:
                self._next = 0
            elif self._up >= self._next or (self._held and not self._list_held(settings.shared)):
                self._lead(settings)
        elif os.path.exists(self._locate("end")):
            processes.remove(self._locate("end"))
            if idle >= settings.limit:
                self._end(settings)

    def _end(self, settings: IdleSettings) -> None:
        processes.call("/bin/sh", "-c", settings.end, limit=None)

    def _locate(self, name: str) -> str:
        return os.path.join(self._folder, name)

    # ------------------------------------------------------------------------------- each node

    def _measure(self, containers: int) -> int:
        """Seconds for which nobody has used it."""
        self._up = int(float(processes.read_text(os.path.join(self._proc, "uptime")).split()[0]))
        changed = os.stat(os.path.join(self._root, "jobs")).st_mtime_ns
        if self._last is None or changed != self._changed or self._is_used(containers):
            self._last, self._changed = self._up, changed
        processes.write(self._locate("seen"), f"{self._up} {self._last}\n")
        return self._up - self._last

    def _is_used(self, containers: int) -> bool:
        """Whether a user's program runs here: of a job, of a log-in, or one left running."""
        ours: Set[int] = {os.getsid(0)}
        pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        for pid in pids:
            if OURS.encode() in processes.read(os.path.join(self._proc, str(pid), "cmdline")):
                ours.add(pid)
        found = 0
        for pid in pids:
            place = os.path.join(self._proc, str(pid))
            head, _, rest = processes.read_text(os.path.join(place, "stat")).rpartition(")")
            name, words = head.partition("(")[2], rest.split()
            if not words or words[0] in "ZX":
                continue
            found += name.startswith("containerd-shim")
            status = processes.read_text(os.path.join(place, "status"))
            user = re.search(r"^Uid:\s*(\d+)", status, re.MULTILINE)
            # Services have what systemd reserves; people of a directory (LDAP, SSSD) are beyond it.
            theirs = user and int(user.group(1)) >= 1000 and int(user.group(1)) not in RESERVED
            if theirs and int(words[3]) not in ours and not ALWAYS.fullmatch(name):
                return True
        return found > containers

    # ---------------------------------------------------------------------------- the launcher

    def _lead(self, settings: IdleSettings) -> None:
        report, self._next, self._held = self._report, self._up + AGAIN, False
        with ThreadPoolExecutor(AT_ONCE) as pool:
            names, roots = zip(*settings.workers.items())
            answers = dict(zip(names, pool.map(self._ask, names, roots)))
        self._conclude(answers)
        silent = [name for name, idle in answers.items() if idle is None]
        if len(silent) == len(answers):
            self._next = self._up + LATER  # no worker is left to end
            if answers.keys() == report["ended"].keys():
                self._finish(settings)
        used = any(idle < settings.limit for idle in answers.values() if idle is not None)
        ready = sorted(answers.keys() - silent - report["told"].keys())
        if used or not ready:
            return
        kept = self._save(ready)
        if self._measure(settings.containers) < settings.limit:
            return
        report["kept"] = {name: self._clock() for name in ready if name in kept}
        if report["kept"]:
            self._next = self._up + LATER
        self._write()
        for name in [name for name in ready if name not in kept]:
            report["told"][name] = self._clock()
            self._write()
            self._run(name, f": >{shlex.quote(settings.workers[name])}/idle/end")

    def _conclude(self, answers: Dict[str, Optional[int]]) -> None:
        """Workers that were requested to end, and no longer answer, have ended. Those that still
        answer are about to end, or have found that they are in use."""
        report, now = self._report, self._clock()
        gone = [name for name, idle in answers.items() if idle is None]
        ended = {**report["ended"], **report["told"]}
        report["ended"] = {name: ended[name] for name in gone if name in ended}
        report["kept"] = {n: when for n, when in report["kept"].items() if n not in gone}
        # A time to come is of a clock that has been set back. One that was used since it was told,
        # or was made anew, as after a pause, does not end.
        report["told"] = {
            name: when
            for name, when in report["told"].items()
            if name not in gone
            and 0 <= now - when < ENDING
            and not 0 < (answers.get(name) or 0) < now - when
        }
        self._write()

    def _finish(self, settings: IdleSettings) -> None:
        """Ends the launcher as well, unless it has what nobody has fetched: then as soon as that
        was. A worker that is lost keeps it: that one may come back, and is reached through it."""
        names = self._list_held(settings.shared)
        self._report["holds"] = dict.fromkeys(names, self._clock())
        self._held = bool(names)
        self._write()
        if not names and self._measure(settings.containers) >= settings.limit:
            self._end(settings)

    def _list_held(self, shared: str) -> List[str]:
        """The jobs with files that nobody has fetched, and `shared` if that folder has any."""
        states = glob.glob(os.path.join(glob.escape(self._root), "jobs", "[0-9]*", "state"))
        held = [job for job in map(os.path.dirname, states) if not _is_fetched(job)]
        names = sorted(map(os.path.basename, held), key=int)
        if shared and any(files for _, _, files in os.walk(shared)):
            names.append("shared")
        return names

    def _ask(self, name: str, root: str) -> Optional[int]:
        """For how many seconds that worker has been idle, by its own measurement; 0: nobody has
        measured it. None: it does not answer."""
        words = self._run(name, f"cat {shlex.quote(root)}/idle/seen; cat /proc/uptime").split()
        with contextlib.suppress(ValueError):
            seen, last, up, _ = words
            if 0 <= float(up) - int(seen) <= STALE:  # before: an earlier boot's
                return int(float(up)) - int(last)
        return 0 if words else None

    def _run(self, name: str, command: str) -> str:
        agent = os.path.join(self._root, "bin", "clusterctl-ssh")
        return processes.call(agent, name, f": {OURS}; {command}; exit", limit=None).out

    def _write(self) -> None:
        lines = [
            f"{word} {name} {when:.0f}\n"
            for word, times in self._report.items()
            for name, when in sorted(times.items())
        ]
        processes.write(self._locate("report"), "".join(lines))

    def _save(self, names: Sequence[str]) -> List[str]:
        """Those whose files could not all be copied here."""
        kept: List[str] = []
        for plan in glob.glob(os.path.join(glob.escape(self._root), "jobs", "[0-9]*", "plan.json")):
            agent = os.path.join(os.path.dirname(plan), "agent.sh")
            said = processes.call("/bin/sh", agent, "save", *names, limit=None)
            kept += names if said.code else said.out.split()
        return kept


def _is_fetched(job: str) -> bool:
    """Whether nothing of that job would be lost with the launcher. Raises OSError."""
    state = processes.read_text(os.path.join(job, "state")).splitlines()
    starts = sum(line.startswith("running") for line in state)
    words = processes.read_text(os.path.join(job, "fetched")).split()
    if words == ["all", str(starts)]:
        return True
    if words != ["logs", str(starts)]:
        return False
    copies = glob.glob(os.path.join(glob.escape(job), "mirror", "*"))
    own = outputs.list_outputs(job) if os.path.exists(os.path.join(job, outputs.STAGED)) else []
    return not own and not any(any(outputs.walk(place)) for place in copies)


def watch(root: str) -> None:
    """For ever."""
    found = IdleWatch(root)
    folder = os.path.join(root, "idle")
    settings = messages.load(IdleSettings, os.path.join(folder, SETTINGS))
    processes.remove(os.path.join(folder, "end"))
    while True:
        with contextlib.suppress(OSError, ValueError, LookupError):  # the next look may do better
            found.look(settings)
        time.sleep(LOOK)
