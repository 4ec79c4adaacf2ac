"""What tests of the scripts share that run on nodes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.core import assets

WEIRD = ["plain", "two words", "it's", 'a "b" $HOME `id` \\', "-dash", "line\nbreak", "ü; exit 3"]
"""Arguments and names that a shell would read otherwise."""


PLAIN = (
    *("rank", "world", "local", "local_world", "job", "attempt", "code", "child", "out", "answer"),
    *("caught", "watcher", "told", "quarters", "agent", "device", "sleeper", "name", "value"),
    *("host", "node", "ranks", "reason", "timers", "CLUSTERCTL_DATA", "MASTER_PORT"),
)
HOSTILE = {
    **{name: f"the user's {name}" for name in PLAIN},
    "OMPI_COMM_WORLD_RANK": "16",
    "SLURM_PROCID": "16",
    "TORCHELASTIC_RUN_ID": "mine",
    "PATH": "/nowhere",
    "IFS": "0123456789/",
    "ENV": "/nowhere/env",
    "BASH_ENV": "/nowhere/env",
    "LC_ALL": "xx_YY.UTF-8",
    "LANG": "tlh",
    "POSIXLY_CORRECT": "1",
    "PWD": "/nowhere",
    "PPID": "1",
    "UID": "12",
    "OPTIND": "abc",
    "LINENO": "none",
    "RANDOM": "4",
    "SECONDS": "x",
    "SHELLOPTS": "xtrace:noexec",
    "PS4": "$(exit 9)",
    "HOME": "/nowhere",
    "CDPATH": "/",
    "TMPDIR": "/nowhere",
    "exec": "1",
    "sh": "2",
    "_": "underscore",
}
"""Names that the shell, a launcher or a script of ours could have a use for."""

OF_ANOTHER = {
    **dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "NODE_RANK"), "91"),
    **dict.fromkeys(("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "PRTE_LAUNCHED"), "92"),
    **dict.fromkeys(("MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "PALS_RANKID"), "93"),
    **dict.fromkeys(("PBS_NODENUM", "FLUX_TASK_RANK", "MPI_LOCALRANKID", "HYDI_CONTROL_FD"), "94"),
    **dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE"), "95"),
    **dict.fromkeys(("CLUSTERCTL_WORLD_SIZE", "CLUSTERCTL_POINT", "TORCHELASTIC_RUN_ID"), "96"),
}
"""What a job of another launcher program tells its ranks, one of which may start a job of ours."""

SEES = (sys.executable, "-c", "open('seen', 'wb').write(open('/proc/self/environ', 'rb').read())")
"""A program that notes the environment that it has."""


def seen_by_program(folder: Path) -> dict[str, str]:
    """What SEES noted in that folder."""
    rows = (folder / "seen").read_bytes().split(b"\0")
    return dict(row.decode().split("=", 1) for row in rows if row)


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def processes(folder: Path, tag: str, *arguments: str) -> list[str]:
    values = {"id": 7, "node": "worker-1", "tag": tag, "output": 1 << 32, "least": 1 << 24}
    text = assets.render("job/processes.sh.j2", folder=folder, **values)
    done = subprocess.run(
        ["/bin/sh", "-s", *arguments], input=text, capture_output=True, text=True, timeout=30
    )
    assert done.stderr == ""
    return done.stdout.splitlines()
