"""Copies that go on after their connection was lost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from clusterctl.errors import ClusterctlError
from clusterctl.model import NodeResult, Reporter
from clusterctl.timeouts import Deadline
from clusterctl.transport import Transport, shell
from clusterctl.transport.ssh import CONNECT_LIMIT

ATTEMPTS = 5
"""Connections that one copy may use up."""
LIST_TIMEOUT = 60.0
WAIT, PAUSE = 300.0, 3.0
"""Seconds that a node which was lost has to answer again; seconds between two looks."""


def persist(
    transport: Transport,
    attempt: Callable[[int], NodeResult],
    report: Reporter = lambda line: None,
) -> NodeResult:
    """Calls `attempt` with its number, from 0, and again when the node answers after a loss of the
    connection: it copies what is missing by then. The result of the last one. `report` hears of
    each loss."""
    number = 0
    while True:
        result = attempt(number)
        number += 1
        if not result.cut or number == ATTEMPTS:
            return result
        report(
            f"lost the connection to {result.node}: {result.error};"
            f" continuing if it answers within {WAIT / 60:g} minutes"
        )
        if not _connect(transport):
            return result


def _connect(transport: Transport) -> bool:
    limit = Deadline(WAIT)
    while True:
        try:
            transport.connect(min(CONNECT_LIMIT, limit.left))
            return True
        except (ClusterctlError, OSError):
            if limit.left < PAUSE:
                return False
            time.sleep(PAUSE)


def put_folder(
    transport: Transport,
    source: Path,
    target: str,
    *,
    timeout: float,
    report: Reporter = lambda line: None,
) -> NodeResult:
    """As `Transport.put`; after a loss of the connection, the files that came whole are not sent
    again."""

    def attempt(number: int) -> NodeResult:
        there = _list_whole(transport, source, target) if number else ()
        return transport.put(source, target, timeout=timeout, without=there)

    return persist(transport, attempt, report)


def _list_whole(transport: Transport, source: Path, target: str) -> Sequence[str]:
    """The files of a folder that have their size and time there, too. A file gets its time when it
    is complete."""
    command = f"cd {shell.quote_path(target)} && find . -type f -printf '%s %T@ %P\\0'"
    found = []
    for item in transport.run(command, timeout=LIST_TIMEOUT).stdout.split(b"\0")[:-1]:
        size, modified, path = os.fsdecode(item).split(" ", 2)
        with suppress(OSError, ValueError):
            here = os.lstat(source / path)
            if (int(size), int(float(modified))) == (here.st_size, int(here.st_mtime)):
                found.append(path)
    return found
