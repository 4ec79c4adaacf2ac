"""Where the state lies, and whose it is."""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from clusterctl.errors import UsageError, make_write_error
from clusterctl.state.files import make_private

KEPT_JOBS = 100
"""The last jobs, of which more is kept than the records."""
FETCHED_MARK = ".clusterctl-fetched"
"""Lies in a folder that `fetch` or --sync made: what a job has made is no part of the next one's
program."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Home:
    """The state home. Made with mode 0700 when something is first written to it.

    Raises UsageError for one that is no folder or cannot be read, which must not look like one
    without records, and for one that another user made: its records name the commands and keys that
    we would use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clusters = path / "clusters"
        self.jobs = path / "jobs"
        self.stages = path / "stages"
        self.fetched = path / "fetched"
        self.packages = path / "packages"
        self.past = path / "past"
        self.locks = path / "locks"
        self.log = path / "clusterctl.log"
        for place in (self.path, self.clusters, self.jobs, self.stages, self.past):
            for status in _list_statuses(place):
                if status.st_uid not in (0, os.geteuid()):
                    raise UsageError(
                        f"{place} belongs to user {_name_user(status.st_uid)}, so its records are"
                        " not trusted",
                        hint="run clusterctl as that user, or set CLUSTERCTL_HOME to a folder of"
                        " yours",
                    )
            if reason := _explain_unreadable(place):
                raise UsageError(
                    f"cannot read the state home {place}: {reason}",
                    hint="set CLUSTERCTL_HOME to a folder that you can read and write",
                )

    def make(self, folder: Path) -> Path:
        """Makes `folder` (inside the home) and what is above it, private to the user; closes those
        inside the home that are open. A home that was there may be readable for others; only one
        with the sticky bit stays writable for them."""
        try:
            make_private(folder)
            for place in (folder, *folder.parents):
                mode = place.stat().st_mode
                if place == self.path:
                    if mode & _OTHERS_WRITE and not mode & stat.S_ISVTX:
                        place.chmod(stat.S_IMODE(mode) & ~_OTHERS_WRITE)
                    break
                if mode & 0o077:
                    place.chmod(0o700)
        except OSError as error:
            raise make_write_error(
                f"the state home {self.path}",
                error,
                "set CLUSTERCTL_HOME to a writable folder",
            ) from error
        return folder


def find_home() -> Home:
    """`$CLUSTERCTL_HOME`, else `$XDG_STATE_HOME/clusterctl`, else `~/.local/state/clusterctl`."""
    chosen = os.environ.get("CLUSTERCTL_HOME")
    if chosen:
        return Home(Path(chosen).expanduser().absolute())
    base = os.environ.get("XDG_STATE_HOME")
    try:
        root = Path(base) if base else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise UsageError(
            "no home folder to keep records in", hint="set CLUSTERCTL_HOME to a folder"
        ) from error
    return Home(root.absolute() / "clusterctl")


def _list_statuses(place: Path) -> Iterator[os.stat_result]:
    """Of what is there: of a link, and of what it leads to."""
    for follow in (False, True):
        with suppress(OSError):
            yield place.stat(follow_symlinks=follow)


def _explain_unreadable(place: Path) -> str:
    """Why this folder cannot be read; empty also where it can still be made."""
    try:
        with os.scandir(place):
            return ""
    except FileNotFoundError:
        there = next(path for path in (place, *place.parents) if os.path.lexists(path))
        return "" if there.is_dir() else f"{there} is a link to nothing"
    except OSError as error:
        return error.strerror or str(error)


def _name_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def name_client() -> str:
    """Who runs this on which machine, `ana@laptop`, in characters that a tag in a cloud takes."""
    return re.sub(r"[^\w +=.:/@-]", "_", f"{_name_user(os.geteuid())}@{os.uname().nodename}")[:256]
