"""Finds the processes of a local cluster in /proc, and ends them.

A process belongs to cluster ID if

- its environment has `CLUSTERCTL_NODE=ID/…` (a node's own, and whatever a session starts
  through sshd's SetEnv) or `CLUSTERCTL_JOB=ID/…` (ranks and daemons of jobs), or
- its standard error is the sshd.log of one of the cluster's nodes: sshd writes its title over its
  environment, but all its processes keep that descriptor.

Nothing else is ever signalled, and no file has to exist for a process to be found.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct

from clusterctl import process as process_module
from clusterctl.core.clock import Deadline
from clusterctl.machines import deadlines
from clusterctl.machines.local.layout import REAPER, Site
from clusterctl.state.files import write_atomic

PROCESS_PATIENCE = 30.0
"""Seconds that killed processes have to be gone: a busy machine needs some, one of them that waits
for a disk may never be."""
_LOOK = 1.0
"""Seconds until we look again for what a dying process may have started."""

_PROC = Path("/proc")


class Process(Struct, frozen=True):
    """`start` (clock ticks since boot) tells it from a later process with the same pid."""

    pid: int
    start: int
    command: str
    node: str
    """The node's name, `switch`, `starter`, or nothing for a process of a job."""


def read_start(pid: int) -> int | None:
    """When a process started; None if it is gone, or a zombie, which waits only for its parent."""
    with suppress(OSError):
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    return None


def is_alive(pid: int, start: int) -> bool:
    return read_start(pid) == start


def find_network(pid: int | str = "self") -> int:
    """The inode of a process's network namespace; 0 if it is gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "ns" / "net").stat().st_ino
    return 0


def list_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())


def _find_node(site: Site, pid: int) -> str | None:
    """The node that a process belongs to; None: it is not of this cluster."""
    folder = _PROC / str(pid)
    with suppress(OSError):
        environment = b"\0" + (folder / "environ").read_bytes()
        mark = b"\0CLUSTERCTL_NODE=" + os.fsencode(site.make_tag(""))
        if mark in environment:
            return os.fsdecode(environment.partition(mark)[2].partition(b"\0")[0])
        if b"\0CLUSTERCTL_JOB=" + os.fsencode(site.make_tag("")) in environment:
            return ""
        target = os.readlink(folder / "fd" / "2").removesuffix(" (deleted)")
        name, _, file = target.removeprefix(f"{site.nodes}/").partition("/")
        if target.startswith(f"{site.nodes}/") and file == "sshd.log":
            return name
    return None


def scan(site: Site) -> list[Process]:
    """Every process of the cluster but our own."""
    found = []
    for pid in list_pids():
        node = None if pid == os.getpid() else _find_node(site, pid)
        start = None if node is None else read_start(pid)
        if node is None or start is None:
            continue
        with suppress(OSError):
            command = (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
            found.append(Process(pid, start, command, node))
    return found


def find_ids(folder: Path) -> set[str]:
    """The ids of the clusters that have a process writing to a log below `folder`/nodes, for when
    no record says it. A log begins with the node's tag, and can be read here though it is deleted.
    """
    logs = f"{folder.resolve() / 'nodes'}/"
    found: set[str] = set()
    for pid in list_pids():
        with suppress(OSError):
            log = _PROC / str(pid) / "fd" / "2"
            if os.readlink(log).startswith(logs):
                with log.open("rb") as file:
                    id, slash, _ = file.readline(200).partition(b"/")
                if slash:
                    found.add(os.fsdecode(id))
    return found


def end(
    site: Site, doomed: Callable[[Process], bool], *, seconds: float = PROCESS_PATIENCE
) -> list[Process]:
    """Kills until no doomed process is found; returns those that are still there in the end.

    Looks again each time, since what is killed may have started another. A node's PID 1 counts as
    gone only when the kernel has ended all that lived under it.
    """
    deadline = Deadline(seconds)
    dying: set[Process] = set()
    while True:
        found = [process for process in scan(site) if doomed(process)]
        for process in found:
            if is_alive(process.pid, process.start):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
        dying.update(found)
        dying = {process for process in dying if is_alive(process.pid, process.start)}
        if not dying or deadline.passed:
            return sorted(dying, key=lambda process: process.pid)
        _await_ends(dying, deadline.limit(_LOOK))


def _await_ends(dying: set[Process], deadline: Deadline) -> None:
    """Returns when all of these processes have ended, or at the deadline. The kernel says when, so
    that a busy machine has the time that it takes."""
    with ExitStack() as files:
        ends = select.poll()
        pending: set[int] = set()
        for process in dying:
            with suppress(ProcessLookupError):
                file = os.pidfd_open(process.pid)
                files.callback(os.close, file)
                if is_alive(process.pid, process.start):  # not a later process of that number
                    ends.register(file, select.POLLIN)
                    pending.add(file)
        while pending and not deadline.passed:
            for file, _ in ends.poll(deadline.left * 1000):
                ends.unregister(file)
                pending.remove(file)


# -------------------------------------------------------------------------------------------------
# Takes a local cluster down at its deadline: a process of this machine, tagged like the nodes.
#
# What ends the cluster's processes ends it too: `down` leaves none behind, `up` starts it anew.


REAPER_PATIENCE = 120.0
"""Seconds after the deadline in which a cluster is gone, as a rule: half of it is for saving."""


def set_deadline(site: Site, name: str, deadline: float, life: float = 0.0) -> None:
    """Sets the deadline, in seconds since the epoch, for a cluster that is to live `life` seconds,
    and sees to it that somebody minds it."""
    path = site.folder / "deadline"
    write_atomic(path, deadlines.render_file(deadline, life).encode())
    if is_running(site):
        return
    # It ends all that carries the cluster's tag, this agent too.
    down = shlex.join(process_module.build_own_command("down", name, "--yes", "--discard"))
    script = deadlines.render_agent(
        root=str(site.nodes),
        below="/*/root",
        end=f"env -u CLUSTERCTL_NODE {down} </dev/null",
        file=str(path),
    )
    home = site.folder.parent.parent
    # A shell that is gone at once starts it: it is nobody's child, and no zombie when it ends.
    process_module.spawn(
        ["/bin/sh", "-c", '/bin/sh -c "$1" &', "reaper", script],
        log=locate_log(site),
        cwd=Path("/"),
        # Without settings, which are for what a person types, and may be wrong by then.
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("CLUSTERCTL_")},
            "CLUSTERCTL_NODE": site.make_tag(REAPER),
            "CLUSTERCTL_HOME": str(home),
            "XDG_CONFIG_HOME": str(site.folder),
        },
    ).wait()


def locate_log(site: Site) -> Path:
    return site.folder / "reaper.log"


def is_running(site: Site) -> bool:
    """Whether the process that waits for the deadline is there."""
    return any(found.node == REAPER for found in scan(site))
