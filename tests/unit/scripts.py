"""What tests of the scripts share that run on nodes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clusterctl.agent.attend import Attendant
from clusterctl.core import assets
from clusterctl.jobs import submit

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


def write_program(path: Path, text: str) -> Path:
    """A script, of sh unless its first line says otherwise, in a folder that is made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def processes(folder: Path, tag: str, verb: str, *arguments: str) -> list[str]:
    """What the agent answers about a job there, as lines."""
    attendant = Attendant(str(folder), f"CLUSTERCTL_JOB={tag}")
    return [" ".join(map(str, fact)) for fact in attendant.answer(verb, *map(float, arguments))]


@cache
def _unpack_agent() -> tuple[TemporaryDirectory[str], Path]:
    scratch = TemporaryDirectory(prefix="agent-")
    script = assets.render_agent(sys.executable)
    subprocess.run(("/bin/sh", "-s"), cwd=scratch.name, input=script.encode(), check=True)
    return scratch, Path(scratch.name, "agent")


def place_agent(root: Path) -> None:
    """The agent of a node with that root, as bootstrap puts it there."""
    _, folder = _unpack_agent()
    (root / "agent").symlink_to(folder)


def write_agent(job: Path) -> None:
    """The agent of the node with that job's folder, and what asks it about the job."""
    root = job.parents[1]
    if not (root / "agent").exists():
        place_agent(root)
    (job / "agent.sh").write_text(submit.write_agent(str(job), str(root)))


def start_locally(name: str, command: str, **streams: Any) -> subprocess.Popen[bytes]:
    """A command line of a node of that name, here."""
    return subprocess.Popen(["/bin/sh", "-c", command], **streams)


def note_staged(job: Path) -> None:
    """As the client does, before the program runs."""
    script = assets.find_folder("templates") / "job" / "staged.sh"
    subprocess.run(["/bin/sh", script], cwd=job, check=True)
