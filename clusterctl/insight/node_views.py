"""What nodes show of a job, as plain data: read from what two scripts print on each node
(templates/insight/look.sh.j2 and stacks.sh.j2). Pure."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address

from clusterctl.core.stacks import LOCK, OWN_LOCK, Stack, Wait, explain_kernel

# -------------------------------------------------------------------------------------------------
# The collectives that PyTorch's flight recorder has noted of a rank, by process group. Pure.


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A collective in PyTorch's flight recorder: its number in its process group, from 1 on, and
    the sizes of what the rank brought. `done`: it was seen to end."""

    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...]
    done: bool

    def describe(self) -> str:
        """`all_reduce of [1000, 10]`."""
        sizes = ", ".join(str(list(size)) for size in self.sizes[:2])
        return f"{self.name} of {sizes}" if sizes else self.name


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A process group as a rank has recorded it: who belongs to it, and its latest calls."""

    title: str
    ranks: tuple[int, ...]
    calls: tuple[RecordedCall, ...]

    def find_call(self, number: int) -> RecordedCall | None:
        """None for one that it has not made, or made too long ago."""
        return next((call for call in self.calls if call.number == number), None)


def read_groups(text: str) -> dict[str, RecordedGroup]:
    """What templates/insight/flight.py prints; ValueError, LookupError."""
    found = {}
    try:
        for name, group in json.loads(text).items():
            calls = (
                RecordedCall(int(number), str(what), tuple(map(tuple, sizes)), bool(done))
                for number, what, sizes, done in group["calls"]
            )
            ranks = tuple(map(int, group["ranks"]))
            found[name] = RecordedGroup(str(group["title"] or name), ranks, tuple(calls))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no record of calls: {error}") from error
    return found


# -------------------------------------------------------------------------------------------------

KERNEL = (
    r"Out of memory: Kill|[Mm]emory cgroup out of memory|NVRM: Xid|amdgpu.*(GPU reset|timeout)"
    r"|I/O error|EXT4-fs error|XFS .*error|NETDEV WATCHDOG|nf_conntrack: table full"
    r"|Machine check|Hardware Error"
)
"""Lines of the kernel's log that say that something failed."""
LONGEST = 120
"""Characters of a line of output that are told."""
TICKS = 100.0
"""Per second, of the times in /proc/PID/stat (USER_HZ, the same on all Linux)."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One of a rank's. `state` is the letter of ps(1); `ticks` is its use of the processor."""

    pid: int
    parent: int
    command: str
    state: str
    ticks: int
    started: int
    """Ticks after the node's start."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A connection on which a rank has sent again and again, and got no answer."""

    address: str
    port: int
    made: bool
    """Whether there was an answer before."""


@dataclass(frozen=True, slots=True)
class Disk:
    """KiB, or inodes."""

    free: int
    size: int
    mount: str
    inodes: bool = False
    elsewhere: bool = False
    """Neither the job's folder nor a temporary one is on it: the program may still write there."""

    @property
    def full(self) -> bool:
        return self.size > 0 and self.free < (64 if self.inodes else 1024)


@dataclass(frozen=True, slots=True)
class KernelLine:
    """`when` by the node's clock, seconds since the epoch."""

    when: float
    text: str


@dataclass(slots=True)
class Rank:
    """What its node shows of a rank. Times are by that node's clock."""

    number: int
    node: str
    processes: tuple[RankProcess, ...] = ()
    exit_code: int | None = None
    ended: float = 0.0
    written: float = 0.0
    """When it last wrote something."""
    out: str = ""
    err: str = ""
    waits: str = ""
    """The function of the kernel that its program waits in."""
    stack: Stack | None = None
    no_stack: str = ""
    """Why there is none."""
    helpers: Mapping[str, Stack] = field(default_factory=dict)
    """Other Python processes of it, such as those of a data loader, by name and number."""
    usage: float | None = None
    """Processors that it uses; None where that was not measured."""
    throttled: float = 0.0
    """Share of the time in which a limit of its cgroup kept it from running."""
    running: bool = False
    """It has used or wanted a processor each time it was looked at."""
    moved: bool | None = None
    """Whether it went on while it was watched: None where it was not."""
    looks: tuple[Stack, ...] = ()
    """Its stacks, read again while it was watched."""
    silent: tuple[Silence, ...] = ()
    recorded: Mapping[str, RecordedGroup] = field(default_factory=dict)
    """By process group: what PyTorch's flight recorder has written of it, if it is on."""

    @property
    def last_line(self) -> str:
        """Of its output; "" if there is none."""
        lines = (line.strip() for line in reversed(self.out.split("\n")))
        return next((line[:LONGEST] for line in lines if line), "")

    @property
    def wait(self) -> Wait:
        """What it waits for: by its stack, where that is clear, else by the kernel."""
        inside = explain_kernel(self.waits)
        if self.main and self.main.state == "D":
            return inside or Wait("waiting for a disk or a network file system")
        stack = self.stack
        clear, guess = (stack.wait, stack.unclear_wait) if stack else (None, None)
        if clear is LOCK and stack and not (self.descendants or any(t.own for t in stack.others)):
            return OWN_LOCK
        return clear or inside or guess or Wait("blocked")

    @property
    def alive(self) -> bool:
        return any(process.state not in "ZX" for process in self.processes)

    @property
    def stopped(self) -> bool:
        main = self.main
        return main is not None and main.state in "Tt"

    @property
    def main(self) -> RankProcess | None:
        """The process whose stack counts: the first Python, else the first."""
        order = sorted(
            (p for p in self.processes if p.state not in "ZX"), key=lambda p: (p.started, p.pid)
        )
        python = (process for process in order if process.command.startswith("python"))
        return next(python, order[0] if order else None)

    @property
    def children(self) -> tuple[RankProcess, ...]:
        """Those that its main process has started."""
        main = self.main
        living = (p for p in self.processes if p.state not in "ZX")
        return tuple(p for p in living if main and p.parent == main.pid)

    @property
    def descendants(self) -> tuple[RankProcess, ...]:
        """Those that its main process, or one of these, has started."""
        main = self.main
        found: list[RankProcess] = [main] if main else []
        for parent in found:  # which grows
            found += (p for p in self.processes if p.parent == parent.pid and p not in found)
        return tuple(process for process in found[1:] if process.state not in "ZX")

    @property
    def others(self) -> tuple[RankProcess, ...]:
        """Its Python processes beside the main one."""
        main = self.main
        return tuple(
            p
            for p in self.processes
            if p != main and p.state not in "ZX" and p.command.startswith("python")
        )


@dataclass(slots=True)
class NodeView:
    """One node. `offset`: seconds that its clock is ahead of this machine's, known to within
    `uncertainty`. `error`: why it could not be asked; `late`: it has not answered in time."""

    name: str
    error: str = ""
    late: bool = False
    listed: bool = False
    """Whether it had the time to list the processes of the job, and for all the rest."""
    whole: bool = False
    clock: float = 0.0
    """Its time when it began to answer."""
    address: str = ""
    offset: float = 0.0
    uncertainty: float = 0.0
    absent: bool = False
    """It has no folder of the job."""
    disks: tuple[Disk, ...] = ()
    memory_total: int = 0
    memory_free: int = 0
    kernel: tuple[KernelLine, ...] = ()
    peers: Mapping[str, str] = field(default_factory=dict)
    """Other nodes that it was to reach: `ok`, or why it could not."""
    spot: str = ""
    spy: str = ""
    user: int = 0
    ptrace_scope: int = 0
    launcher_said: str = ""
    locks: Mapping[int, int] = field(default_factory=dict)
    """Locks on files: the process that waits for one, and the process that holds it."""
    ranks: dict[int, Rank] = field(default_factory=dict)


def read_look(name: str, text: str) -> NodeView:
    """What look.sh printed. Lines that mean nothing, such as a login shell's, are left out."""
    view = NodeView(name)
    waits: dict[int, str] = {}
    pythons: set[int] = set()
    lines = [line.partition(" ")[::2] for line in text.splitlines()]
    boot = 0.0
    for word, rest in lines:
        with suppress(ValueError, LookupError):
            if word == "uptime":
                up, now = rest.split()
                boot, view.clock = float(now) - float(up), float(now)
            elif word == "waits":
                pid, _, where = rest.partition(" ")
                waits[int(pid)] = "" if where.strip() == "0" else where.strip()
            elif word == "exe" and re.search(r"/python[\d.]*$", rest.partition(" ")[2]):
                pythons.add(int(rest.partition(" ")[0]))
            else:
                _add(view, word, rest, boot)
    for rank in view.ranks.values():
        # A program may call itself as it likes: what it runs counts.
        rank.processes = tuple(
            RankProcess(p.pid, p.parent, "python", p.state, p.ticks, p.started)
            if p.pid in pythons
            else p
            for p in rank.processes
        )
        if main := rank.main:
            rank.waits = waits.get(main.pid, "")
    return view


def _add(view: NodeView, word: str, rest: str, boot: float) -> None:
    if word == "absent":
        view.absent = True
    elif word == "processes":
        view.listed = True
    elif word == "done":
        view.whole = True
    elif word in ("disk", "inodes", "elsewhere"):
        free, size, mount = rest.split(maxsplit=2)
        disk = Disk(int(free), int(size), mount, word == "inodes", word == "elsewhere")
        if disk.mount not in [other.mount for other in view.disks if other.inodes == disk.inodes]:
            view.disks += (disk,)
    elif word == "memory":
        kind, kibibytes = rest.split()
        if kind == "MemTotal:":
            view.memory_total = int(kibibytes)
        else:
            view.memory_free = int(kibibytes)
    elif word == "ptrace":
        numbers = [int(number) for number in rest.split()]
        view.user, view.ptrace_scope = (*numbers, 0)[:2]
    elif word == "spy":
        view.spy = view.spy or rest
    elif word == "spot":
        view.spot = rest.strip()
    elif word == "peer":
        peer, _, how = rest.partition(" ")
        view.peers = {**view.peers, peer: how}
    elif word == "lock":
        waiter, holder = map(int, rest.split())
        view.locks = {**view.locks, waiter: holder}
    elif word == "kernel":
        if found := re.search(r"\[\s*(\d+\.\d+)\]\s*(.*)", rest):
            view.kernel += (KernelLine(boot + float(found[1]), found[2]),)
    elif word == "launcher":
        view.launcher_said = _decode(rest)
    elif word in ("rank", "exit", "written", "out", "err", "process", "silent", "flight"):
        number, _, value = rest.partition(" ")
        rank = view.ranks.setdefault(int(number), Rank(int(number), view.name))
        _add_to_rank(rank, word, value)


def _add_to_rank(rank: Rank, word: str, value: str) -> None:
    if word == "exit":
        code, when, _ = value.split()
        rank.exit_code, rank.ended = int(code), float(when)
    elif word == "written":
        rank.written = float(value)
    elif word == "out":
        rank.out = _decode(value)
    elif word == "err":
        rank.err = _decode(value)
    elif word == "process":
        rank.processes += (_read_process(value),)
    elif word == "silent":
        rank.silent += (_read_silence(value),)
    elif word == "flight":
        rank.recorded = read_groups(_decode(value))


def _read_silence(text: str) -> Silence:
    """An address and a state of /proc/net/tcp: words of four bytes in the order of the processor,
    which is that of x86 and ARM. IPv4 in IPv6 is IPv4."""
    remote, state, _ = text.split()
    words, _, port = remote.partition(":")
    data = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    address = ip_address(data[12:] if data[:12] == bytes(10) + b"\xff\xff" else data)
    return Silence(str(address), int(port, 16), made=state == "01")


def _read_process(text: str) -> RankProcess:
    """A line of /proc/PID/stat: a command may hold blanks and parentheses."""
    pid, _, rest = text.partition(" (")
    command, _, numbers = rest.rpartition(") ")
    values = numbers.split()
    ticks = int(values[11]) + int(values[12])
    return RankProcess(int(pid), int(values[1]), command, values[0], ticks, int(values[19]))


def _decode(text: str) -> str:
    return b64decode(text).decode(errors="replace")


def compare_looks(rank: Rank, kind: str, moved: bool | None, looks: Sequence[Stack]) -> None:
    """Says whether a rank that was watched went on: `kind` is how it waits (`sleeps`, `polls`,
    `reads`, or `late` if it does not), `moved` what its counters say, and `looks` are its later
    stacks. What ranks in one machine's memory send each other is not counted: without looks, a
    counter that stands still says nothing of one that polls.

    A stack that was read while a rank polled may miss the call that it is in: if all later ones
    have one, they are right."""
    rank.looks = tuple(looks)
    if len(looks) > 1 and rank.stack and not rank.stack.collective:
        rank.stack = looks[-1] if all(look.collective for look in looks) else rank.stack
    if kind == "late":
        return
    seen = [stack for stack in (rank.stack, *looks) if stack]
    calls = [stack.collective for stack in seen if stack.collective]
    elsewhere = len(set(calls)) > 1 or len({stack.path for stack in seen}) > 1
    unknown = kind == "polls" and len(calls) < 2 and not moved
    rank.moved = None if unknown else elsewhere or moved


@dataclass(frozen=True, slots=True)
class Dumps:
    """By process: what py-spy printed, why it could not, and processors in use."""

    stacks: Mapping[int, str]
    failed: Mapping[int, str]
    usage: Mapping[int, float]
    running: frozenset[int]
    """Processes that had or wanted a processor both times."""
    throttled: Mapping[int, float]


def read_dumps(text: str) -> Dumps:
    """What stacks.sh printed."""
    stacks: dict[int, str] = {}
    failed: dict[int, str] = {}
    ticks: dict[str, dict[int, RankProcess]] = {"before": {}, "after": {}}
    times: dict[str, float] = {}
    periods: dict[int, list[tuple[int, int]]] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        first, _, value = rest.partition(" ")
        with suppress(ValueError, LookupError):
            if word == "stack":
                stacks[int(first)] = _decode(value)
            elif word == "failed":
                failed[int(first)] = value
            elif word == "time":
                times[first] = float(value)
            elif word in ("periods-before", "periods-after"):
                passed, stopped = value.split()
                periods.setdefault(int(first), []).append((int(passed), int(stopped)))
            elif word in ticks:
                ticks[word][int(first)] = _read_process(value)
    seconds = times.get("after", 0.0) - times.get("before", 0.0)
    after = ticks["after"]
    usage = {
        pid: (after[pid].ticks - process.ticks) / TICKS / seconds
        for pid, process in ticks["before"].items()
        if pid in after and seconds > 0
    }
    running = frozenset(
        pid
        for pid, process in ticks["before"].items()
        if pid in after and process.state == after[pid].state == "R"
    )
    throttled = {
        pid: (seen[-1][1] - seen[0][1]) / max(1, seen[-1][0] - seen[0][0])
        for pid, seen in periods.items()
    }
    return Dumps(stacks, failed, usage, running, throttled)


def read_moves(text: str) -> Mapping[int, bool]:
    """What moves.sh printed: of each process, whether its main thread has woken, or, of one that
    polls, has read or written."""
    moves: dict[int, bool] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        with suppress(ValueError):
            if word == "moved":
                pid, before, after = rest.split()
                moves[int(pid)] = before != after
    return moves


def read_looks(text: str) -> Mapping[int, tuple[str, ...]]:
    """What moves.sh printed of processes that poll: what py-spy saw of each, time after time."""
    looks: dict[int, tuple[str, ...]] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        with suppress(ValueError):
            if word == "again":
                pid, dump = rest.split()
                looks[int(pid)] = (*looks.get(int(pid), ()), _decode(dump))
    return looks
