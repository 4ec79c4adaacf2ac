"""What nodes show of a job, as plain data: read from what the agent prints on each node
(clusterctl/agent/views.py and stacks.py). Pure."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address

import msgspec
from msgspec import Struct, field

from clusterctl.core.stacks import LOCK, OWN_LOCK, Stack, Wait, explain_kernel, parse_stacks

# -------------------------------------------------------------------------------------------------

LONGEST = 120
"""Characters of a line of output that are told."""


class RankProcess(Struct, frozen=True):
    """One of a rank's. `state` is the letter of ps(1)."""

    pid: int
    parent: int
    state: str
    started: int
    """Ticks after the node's start."""
    command: str

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


class Silence(Struct, frozen=True):
    """A connection on which a rank has sent again and again, and got no answer."""

    address: str
    port: int
    made: bool
    """Whether there was an answer before."""


class Disk(Struct, frozen=True):
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


class KernelLine(Struct, frozen=True):
    """`when` by the node's clock, seconds since the epoch."""

    when: float
    text: str


class Rank(Struct):
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
    def living(self) -> list[RankProcess]:
        """The oldest first."""
        there = (process for process in self.processes if process.alive)
        return sorted(there, key=lambda process: (process.started, process.pid))

    @property
    def alive(self) -> bool:
        return bool(self.living)

    @property
    def stopped(self) -> bool:
        main = self.main
        return main is not None and main.state in "Tt"

    @property
    def main(self) -> RankProcess | None:
        """The process whose stack counts: the first Python, else the first."""
        order = self.living
        python = (process for process in order if process.command.startswith("python"))
        return next(python, order[0] if order else None)

    @property
    def children(self) -> tuple[RankProcess, ...]:
        """Those that its main process has started."""
        main = self.main
        return tuple(p for p in self.living if main and p.parent == main.pid)

    @property
    def descendants(self) -> tuple[RankProcess, ...]:
        """Those that its main process, or one of these, has started."""
        main = self.main
        found: list[RankProcess] = [main] if main else []
        for parent in found:  # which grows
            found += (p for p in self.processes if p.parent == parent.pid and p not in found)
        return tuple(process for process in found[1:] if process.alive)

    @property
    def others(self) -> tuple[RankProcess, ...]:
        """Its Python processes beside the main one."""
        main = self.main
        return tuple(p for p in self.living if p != main and p.command.startswith("python"))


class NodeView(Struct):
    """One node. `offset`: seconds that its clock is ahead of this machine's, known to within
    `uncertainty`. `error`: why it could not be asked; `late`: it has not answered in time."""

    name: str
    error: str = ""
    late: bool = False
    bare: bool = False
    """It lacks our agent: an older clusterctl has made it ready."""
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
    peers: dict[str, str] = field(default_factory=dict)
    """Other nodes that it was to reach: `ok`, or why it could not."""
    spot: str = ""
    spy: str = ""
    user: int = 0
    ptrace_scope: int = 0
    launcher_said: str = ""
    locks: dict[int, int] = field(default_factory=dict)
    """Locks on files: the process that waits for one, and the process that holds it."""
    ranks: dict[int, Rank] = field(default_factory=dict)


_FLAGS = {"absent": "absent", "processes": "listed", "done": "whole"}


def read_look(name: str, text: str) -> NodeView:
    """What `show` printed. Lines that mean nothing, such as a login shell's, are left out."""
    view = NodeView(name)
    waits: dict[int, str] = {}
    boot = 0.0
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        with suppress(ValueError, LookupError, msgspec.DecodeError):
            if word == "uptime":
                up, now = rest.split()
                boot, view.clock = float(now) - float(up), float(now)
            elif word == "waits":
                pid, _, where = rest.partition(" ")
                waits[int(pid)] = "" if where.strip() == "0" else where.strip()
            else:
                _add(view, word, rest, boot)
    for rank in view.ranks.values():
        rank.waits = waits.get(rank.main.pid, "") if rank.main else ""
    return view


def _add(view: NodeView, word: str, rest: str, boot: float) -> None:
    first, _, value = rest.partition(" ")
    if word in _FLAGS:
        setattr(view, _FLAGS[word], True)
    elif word in ("disk", "inodes", "elsewhere"):
        free, size, mount = rest.split(maxsplit=2)
        disk = Disk(int(free), int(size), mount, word == "inodes", word == "elsewhere")
        if disk.mount not in [other.mount for other in view.disks if other.inodes == disk.inodes]:
            view.disks += (disk,)
    elif word == "memory":
        setattr(view, "memory_total" if first == "MemTotal:" else "memory_free", int(value))
    elif word == "ptrace":
        view.user, view.ptrace_scope = int(first), int(value or 0)
    elif word in ("spy", "spot"):
        setattr(view, word, getattr(view, word) or rest.strip())
    elif word == "peer":
        view.peers[first] = value
    elif word == "lock":
        view.locks[int(first)] = int(value)
    elif word == "kernel" and (found := re.search(r"\[\s*(\d+\.\d+)\]\s*(.*)", rest)):
        view.kernel += (KernelLine(boot + float(found[1]), found[2]),)
    elif word == "launcher":
        view.launcher_said = _decode(rest)
    elif word in ("rank", "exit", "written", "out", "err", "process", "silent"):
        rank = view.ranks.setdefault(int(first), Rank(int(first), view.name))
        _add_to_rank(rank, word, value)


def _add_to_rank(rank: Rank, word: str, value: str) -> None:
    if word == "exit":
        code, when, _ = value.split()
        rank.exit_code, rank.ended = int(code), float(when)
    elif word == "written":
        rank.written = float(value)
    elif word in ("out", "err"):
        setattr(rank, word, _decode(value))
    elif word == "process":
        pid, parent, state, started, command = value.split(" ", 4)
        rank.processes += (RankProcess(int(pid), int(parent), state, int(started), command),)
    elif word == "silent":
        rank.silent += (_read_silence(value),)


def _read_silence(text: str) -> Silence:
    """An address and a state of /proc/net/tcp: words of four bytes in the order of the processor,
    which is that of x86 and ARM. IPv4 in IPv6 is IPv4."""
    remote, state, _ = text.split()
    words, _, port = remote.partition(":")
    data = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    address = ip_address(data[12:] if data[:12] == bytes(10) + b"\xff\xff" else data)
    return Silence(str(address), int(port, 16), made=state == "01")


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


class Spied(Struct):
    """Of a process: its stack, or why there is none, and processors in use. `running`: it had or
    wanted a processor each time; `throttled`: share of the time slices in which a limit stopped it.
    Of one that was watched: whether its main thread has woken, or, of one that polls, has read or
    written (None: not known), and its later stacks."""

    stack: Stack | None = None
    failed: str = ""
    usage: float | None = None
    running: bool = False
    throttled: float = 0.0
    moved: bool | None = None
    looks: list[Stack] = field(default_factory=list)


def read_spied(text: str, folder: str = "") -> dict[int, Spied]:
    """What `show_stacks` and `show_moves` printed, by process; `folder`: in which ranks work."""
    found: dict[int, Spied] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        first, _, value = rest.partition(" ")
        with suppress(ValueError):
            if word not in ("stack", "failed", "use", "moved", "again"):
                continue
            seen = found.setdefault(int(first), Spied())
            if word == "use":
                usage, running, throttled = map(float, value.split())
                seen.usage, seen.running, seen.throttled = usage, running > 0, throttled
            elif word == "failed":
                seen.failed = value
            elif word == "moved":
                seen.moved = {"0": False, "1": True}.get(value)
            elif stack := parse_stacks(_decode(value), folder):
                if word == "stack":
                    seen.stack = stack
                else:
                    seen.looks.append(stack)
    return found
