"""The options of OAR (see `example_scheduler`)."""

from __future__ import annotations

from typing import Any

from clusterctl.options.batch import BatchOptions
from clusterctl.options.table import Group, Option, text


def pass_on(group: Group) -> tuple[Option[Any], ...]:
    """Grid Engine has a --queue, too."""
    return (text("--property", group), text("--queue", group))


OPTIONS = BatchOptions(
    title="OAR",
    emits="oarsub",
    passed=pass_on,
    dash_q="--queue",
    short={"-r": "--time"},
    instead={"--constraint": "--property EXPRESSION"},
)
