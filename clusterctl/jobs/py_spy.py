"""py-spy, which reads the stacks of Python programs, for nodes that may not have it."""

from __future__ import annotations

import gzip
import platform
import sys
from collections.abc import Collection
from pathlib import Path
from shutil import which

FILE = "py-spy.gz"
"""What it is called in a job's folder."""


def explain_missing(archs: Collection[str]) -> str:
    """Why nodes of these processors cannot use that of this machine; "" where they can."""
    if not _locate():
        return "py-spy is missing on this machine: pip install py-spy"
    if sys.platform != "linux" or set(archs) - {platform.machine()}:
        return "the nodes run a different system: pip install py-spy there"
    return ""


def compress() -> bytes:
    """That of this machine, compressed by gzip."""
    return gzip.compress(Path(_locate()).read_bytes(), 1, mtime=0)


def _locate() -> str:
    path = Path(sys.executable).with_name("py-spy")
    return str(path) if path.is_file() else which("py-spy") or ""
