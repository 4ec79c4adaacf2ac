"""The log file: what went wrong, for the day after."""

from __future__ import annotations

import contextlib
import os
import time

from clusterctl.errors import ClusterctlError
from clusterctl.state import find_home

LIMIT = 5_000_000
"""Bytes after which the log starts anew; the old one is kept once."""


def record(text: str) -> str:
    """Appends to the log; returns its path, or nothing where it cannot be written."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with contextlib.suppress(OSError, ValueError, ClusterctlError):
        place = find_home()
        place.make(place.path)
        if place.log.exists() and place.log.stat().st_size > LIMIT:
            place.log.replace(place.log.with_suffix(".log.1"))
        fd = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{stamp} {text}\n")
        return str(place.log)
    return ""
