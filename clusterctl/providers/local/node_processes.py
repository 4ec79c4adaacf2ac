"""Starts the processes that make up a cluster, such that none of them outlives a starter that died.

A node process waits for one line on a pipe whose other end only we have. It gets that line when all
is ready for it; if we are killed before, it reads end of file and leaves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clusterctl import assets, process
from clusterctl.errors import ProviderError
from clusterctl.providers.local.layout import STARTER, SWITCH, Place, Site
from clusterctl.providers.local.processes import is_alive, read_start
from clusterctl.providers.local.sshd import SEARCH
from clusterctl.timeouts import Deadline

_PATIENCE = 10.0
"""Seconds for any one step of a start; a healthy machine needs milliseconds."""


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """The process that a node (or the switch) hangs on. `start` is 0 if it was gone at once."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        return is_alive(self.pid, self.start)


def locate_script(name: str) -> str:
    """The path of a shell script among the templates; those without variables are run in place."""
    return str(assets.find_folder("templates") / "local" / name)


def locate_log(site: Site, name: str) -> Path:
    return site.nodes / "switch.log" if name == SWITCH else site.locate(name).log


@contextmanager
def start_waiting(
    site: Site, commands: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, NodeProcess]]:
    """Starts each command, all waiting for our word; they get it when the block ends well."""
    theirs, word = os.pipe()
    try:
        try:
            pids = _start(site, commands, theirs)
        finally:
            os.close(theirs)
        yield {
            name: NodeProcess(pid, read_start(pid) or 0)
            for name, pid in zip(commands, pids, strict=True)
        }
        os.write(word, b"\n" * len(commands))
    finally:
        os.close(word)


def _start(site: Site, commands: Mapping[str, Sequence[str]], stdin: int) -> list[int]:
    """The pids, in the order of the commands. One shell starts them all and is gone when we return:
    so they are nobody's children, and no zombie of ours when they end.
    """
    ours, report = site.nodes / "start.sh", site.nodes / "start.log"
    ours.write_text(
        assets.render(
            "local/start.sh.j2",
            processes=[
                {"tag": site.make_tag(name), "argv": argv, "log": locate_log(site, name)}
                for name, argv in commands.items()
            ],
        )
    )
    report.unlink(missing_ok=True)
    starter = process.spawn(
        ["sh", "-eu", str(ours)],
        log=report,
        stdin=stdin,
        cwd=Path("/"),
        env={"PATH": SEARCH, "CLUSTERCTL_NODE": site.make_tag(STARTER)},
    )
    deadline = Deadline(_PATIENCE)
    try:
        while starter.poll() is None and not deadline.passed:
            time.sleep(0.001)
    finally:
        if starter.poll() is None:
            process.kill_group(starter.pid)
            starter.wait()
    said = report.read_text(errors="replace").split()
    if starter.returncode or not all(word.isdigit() for word in said):
        raise ProviderError(
            f"the nodes could not be started: {' '.join(said)[-300:] or 'this machine is stuck'}"
        )
    return [int(word) for word in said]


def wait_until_listening(
    places: Mapping[str, Place], started: Mapping[str, NodeProcess]
) -> dict[str, str]:
    """Waits until every node's sshd listens; returns what is wrong with those where it does not."""
    deadline = Deadline(_PATIENCE)
    troubles: dict[str, str] = {}
    pending = set(places)
    while pending:
        for name in sorted(pending):
            if places[name].pid_file.exists():
                pending.remove(name)
            elif not started[name].alive:
                troubles[name] = read_last_words(places[name].log)
            elif deadline.passed:
                troubles[name] = f"its sshd does not listen after {_PATIENCE:g} s"
        pending -= set(troubles)
        if pending:
            time.sleep(0.002)
    return troubles


def read_last_words(log: Path) -> str:
    """The last line that a node process wrote, which usually says why it ended."""
    with suppress(OSError, ValueError):
        _, *lines = log.read_text(errors="replace").strip().splitlines()  # the first is its tag
        if lines:
            return lines[-1]
    return "it ended without a message"
