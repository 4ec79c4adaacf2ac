"""What OAR adds to the command line."""

from __future__ import annotations

from clusterctl.options.batch import BatchOptions
from clusterctl.options.kinds import text

OPTIONS = BatchOptions(
    title="OAR",
    emits="oarsub",
    passed={"--property": text, "--queue": text},  # Grid Engine has a --queue, too
    short={"-r": "--time"},
)
