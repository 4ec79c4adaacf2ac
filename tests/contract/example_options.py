"""What OAR adds to the command line."""

from __future__ import annotations

from clusterctl.options.batch import NATIVE, BatchOptions
from clusterctl.options.table import text

OPTIONS = BatchOptions(
    title="OAR",
    emits="oarsub",
    passed=(text("--property", NATIVE), text("--queue", NATIVE)),  # Grid Engine has a --queue, too
    dash_q="--queue",
    short={"-r": "--time"},
    instead={"--constraint": "--property EXPRESSION"},
)
