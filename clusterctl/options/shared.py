"""Options that several verbs have."""

from __future__ import annotations

from clusterctl.options.checks import integer
from clusterctl.options.table import ARGUMENTS, GENERAL, Group, Option, cluster_option, flag

JOBS = "Jobs"
"""The heading of the verbs in `run` and `jobs`."""

OPTIONS = Group("Options")
YES = flag("-y --yes", GENERAL, "Do not ask for confirmation")
JSON_LINES = flag("--json", GENERAL, "Print one JSON object per line")
LAST_JOB = Option[int | None](
    "",
    ARGUMENTS,
    "Number of the job (default: the last one)",
    "[JOB]",
    empty=None,
    check=integer(0),
)
OF_JOB = cluster_option(help="Cluster of the job (default: any)")
