"""Variables for the ranks, from --env and --env-file, and which of them are secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.input_files import read_input

SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
"""Names of variables whose values are nobody's business."""
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
OURS = ("CLUSTERCTL_JOB", "CLUSTERCTL_NODE", "CLUSTERCTL_RANK", "CLUSTERCTL_ATTEMPT")
"""Variables by which processes of a job and of a node are found again."""
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CLUSTERCTL_WORLD_SIZE")
"""Variables that say to each rank which one it is, and how many there are."""
STARTERS = (
    r"OMPI_COMM_WORLD_\w+|PMIX_(?!MCA_|DEBUG|PREFIX$|INSTALL_PREFIX$)\w+"
    r"|PMI_(RANK|SIZE|ID|FD|PORT|JOBID|LOCAL_RANK|LOCAL_SIZE)|MPI_LOCAL(RANKID|NRANKS)"
    r"|SLURM_(PROCID|LOCALID|NODEID)"
)
"""Variables by which mpirun and srun say the same. Others of theirs are settings: PMIX_MCA_gds."""
_NAMES = "names consist of letters, digits and _, and do not begin with a digit"


def read_variables(
    pairs: Iterable[str], files: Iterable[Path]
) -> tuple[dict[str, str], dict[str, str]]:
    """Variables and secrets: from a file, all are secrets; else the name decides."""
    variables: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for path in files:
        text = read_input(
            path,
            f"--env-file {path}",
            hint="check the path and its permissions; the file is text with NAME=VALUE lines",
        )
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip().removeprefix("export ")
            if line and not line.startswith("#"):
                name, sign, value = line.partition("=")
                if not sign or not re.fullmatch(NAME, name):
                    # The line may be the secret itself: it is not repeated.
                    raise UsageError(f"{path}, line {number} is not NAME=VALUE", hint=_NAMES)
                secrets[name] = _unquote(value)
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not re.fullmatch(NAME, name):
            raise UsageError(f"--env {name!r} is not NAME=VALUE", hint=_NAMES)
        if not sign:
            if name not in os.environ:
                raise UsageError(
                    f"--env {name}: the variable is not set here", hint=f"--env {name}=VALUE"
                )
            value = os.environ[name]
        secrets.pop(name, None)
        variables.pop(name, None)
        (secrets if SECRET.search(name) else variables)[name] = value
    for name, value in (*variables.items(), *secrets.items()):
        if not value.isascii() and value != value.encode(errors="replace").decode():
            raise UsageError(f"the value of {name} is not UTF-8", hint="pass it through a file")
        if name in OURS:
            raise UsageError(f"{name} is reserved by clusterctl", hint="choose another name")
        if name in RANKS or re.fullmatch(STARTERS, name):
            raise UsageError(
                f"{name} cannot be set: every rank gets its own",
                hint="leave it out; --ranks and --ranks-per-node choose how many ranks there are",
            )
    return variables, secrets


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
