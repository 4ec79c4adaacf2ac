"""The folder that all nodes of a cluster share (`up --shared`): what is in it before it goes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from msgspec import Struct

from clusterctl.actions.common import Connected
from clusterctl.core.model import Cluster, NodeResult, Phase
from clusterctl.core.text import count, format_bytes
from clusterctl.errors import NodeUnreachable, ProviderError
from clusterctl.state.store import Store

LOOK_TIMEOUT = 60.0
SLOWEST = 2e6
"""Bytes per second that a copy has to reach, beside an hour."""

_COUNT = """cd {folder} && find . \\( ! -type d -o ! -perm -500 \\) -exec stat -c %s {{}} + |
awk '{{ bytes += $1 }} END {{ printf "{mark} %.0f %.0f\\n", NR, bytes }}'"""
"""Counts files, and folders that cannot be looked into."""
_MARK = "clusterctl-shared"
_ANSWER = re.compile(rf"^{_MARK} (\d+) (\d+)$", re.MULTILINE)


class Contents(Struct, frozen=True):
    """What was found in the folder: `text` for people, "" where it is empty. `files` is None where
    that is not known; the size is in bytes."""

    text: str
    files: int | None = None
    size: int = 0


class BroughtFolder(Struct, frozen=True):
    """A copy of the folder here."""

    folder: Path
    files: int
    left_out: tuple[str, ...] = ()
    """Links that lead out of it, and what is no file."""


def was_usable(store: Store, cluster: Cluster) -> bool:
    """Whether anybody can have put a file into it: no `up` of a new cluster that broke off."""
    if not cluster.shared:
        return False
    if cluster.phase in (Phase.READY, Phase.STOPPED):
        return True
    past = store.read_events(cluster)
    return any(event.get("event") in ("ready", "adopted") for event in past)


def look(at: Connected, limit: float) -> Contents:
    """Counts what is in it, on the launcher; within `limit` seconds."""
    cluster, away = at.cluster, at.away
    launcher, why = cluster.launcher.name, "there was no time to look"
    what = f"the shared folder {cluster.shared}"
    if launcher in away:
        why = f"{launcher} does not answer: {away[launcher]}"
    elif limit > 0:
        command = _COUNT.format(folder=shlex.quote(cluster.shared), mark=_MARK)
        [result] = at.pool.run(command, [launcher], timeout=min(LOOK_TIMEOUT, limit))
        if found := _ANSWER.search(result.text):
            files, size = int(found[1]), int(found[2])
            text = f"{what} has {count(files, 'file')}: {format_bytes(size)}" if files else ""
            return Contents(text, files, size)
        why = f"it cannot be read on {launcher}: {result.why}"
    return Contents(f"{what} may have files: {why}")


def bring(at: Connected, base: Path) -> BroughtFolder | None:
    """Copies all of it into a new folder `shared-NAME` below `base`; None if there is nothing.

    Raises NodeUnreachable, ProviderError where not all of it has come.
    """
    cluster, report = at.cluster, at.report
    there = look(at, LOOK_TIMEOUT)
    if there.files is None:
        raise NodeUnreachable(
            there.text,
            hint="repeat the command; with --discard, the folder is deleted even without a copy",
            transient=True,
        )
    if not there.files:
        return None
    target = _find_free_folder(base, cluster.name)
    report(f"fetching the shared folder: {count(there.files, 'file')}, {format_bytes(there.size)}")
    limit = 3600 + there.size / SLOWEST

    def copy(node: str) -> NodeResult:
        return at.pool.find_transport(node).get(cluster.shared, target, timeout=limit)

    [result] = at.pool.call_each(copy, [cluster.launcher.name])
    if result.error:
        raise ProviderError(
            f"the shared folder {cluster.shared} could not be copied: {result.error}",
            hint="repeat the command; with --discard, the folder is deleted even without a copy",
        )
    left_out = [line for line in result.complaints.splitlines() if line.startswith("left out ")]
    report(f"shared folder: {count(there.files, 'file')} in {target}")
    for line in left_out:
        report(f"shared folder: {line}")
    return BroughtFolder(target, there.files, tuple(left_out))


def _find_free_folder(base: Path, name: str) -> Path:
    """One that is not there yet: an earlier copy is kept as it is."""
    target, number = base / f"shared-{name}", 2
    while target.exists() or target.is_symlink():
        target, number = base / f"shared-{name}-{number}", number + 1
    return target
