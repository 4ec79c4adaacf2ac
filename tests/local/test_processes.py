"""Processes of a cluster that are killed, and take their time to be gone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.machines.local import processes
from clusterctl.machines.local.layout import Site, make_site
from clusterctl.machines.local.processes import Process

pytestmark = pytest.mark.netns


@contextmanager
def slow_to_die(place: Site) -> Iterator[subprocess.Popen[bytes]]:
    """A node whose PID 1 the kernel cannot end, whatever kills it, before the process is over that
    this yields: the parent, outside, of an ended process of the node that nobody has waited for."""
    outside = {name: value for name, value in os.environ.items() if name != "CLUSTERCTL_NODE"}
    inside = {**outside, "CLUSTERCTL_NODE": place.make_tag("worker-1")}
    starter = subprocess.Popen(
        ["unshare", "--pid", "--fork", "sh", "-c", "echo; exec sleep 300"],
        env=inside,
        stdout=subprocess.PIPE,
    )
    assert starter.stdout
    starter.stdout.readline()
    children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
    parent = subprocess.Popen(
        [
            *("nsenter", "--no-fork", f"--pid=/proc/{children[0]}/ns/pid"),
            *("sh", "-c", "sleep 300 </dev/null >/dev/null & echo; exec cat >/dev/null"),
        ],
        env=outside,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout
    parent.stdout.readline()
    try:
        yield parent
    finally:
        if parent.poll() is None:
            parent.communicate()
        starter.kill()
        starter.communicate()


def test_what_dies_slowly_is_waited_for(need_root: None, tmp_path: Path) -> None:
    """A busy machine is given its time before a process is called left over."""
    place = make_site("lab-1a2b", tmp_path)
    looks = 0
    with (
        slow_to_die(place) as parent,
        subprocess.Popen(
            ["cat"],
            env={**os.environ, "CLUSTERCTL_NODE": place.make_tag("worker-2")},
            stdin=subprocess.PIPE,
        ) as other,
    ):

        def doomed(process: Process) -> bool:
            """Called of worker-2 at every look; worker-1 has been killed after the first."""
            nonlocal looks
            looks += process.pid == other.pid
            if looks == 2:
                parent.communicate()
            return process.node == "worker-1"

        assert processes.end(place, doomed) == []
        assert looks >= 2
        assert [process.pid for process in processes.scan(place)] == [other.pid]
        other.communicate()


def test_what_does_not_die_is_named(need_root: None, tmp_path: Path) -> None:
    place = make_site("lab-1a2b", tmp_path)
    with slow_to_die(place):
        # Who has started it dies at once, but a busy machine has its time for that, too.
        [left] = processes.end(place, lambda process: process.command != "unshare", seconds=0.1)
        assert left.node == "worker-1"
        assert processes.is_alive(left.pid, left.start)
        # A later process may have that number: it is another one.
        assert not processes.is_alive(left.pid, left.start - 1)
