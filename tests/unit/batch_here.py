"""A batch system on this machine, as far as the command line sees it: fakes on PATH that note how
they are called, and take jobs that never run, and that are gone when they are cancelled."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = {
    "slurm": ("sbatch", "squeue", "scancel", "scontrol", "salloc", "srun", "sinfo"),
    "sge": ("qsub", "qstat", "qdel", "qrsh", "qconf"),
}

FAKE = """\
#!/bin/sh
printf '%s\\n' "$(basename "$0") $*" >>{log}
case $(basename "$0") in
sbatch | qsub) [ "$1" = --version ] && echo slurm 23.02 || echo 41 ;;
scancel) echo >{log}.cancelled ;;
scontrol) [ ! -e {log}.cancelled ] || echo JobId=41 JobState=CANCELLED ExitCode=0:15 Reason=None ;;
squeue) [ -e {log}.cancelled ] || echo '41|PENDING|Priority' ;;
esac
"""


@dataclass(frozen=True)
class Queue:
    system: str
    folder: Path

    def calls(self) -> list[str]:
        """The commands that it was given, as they were typed."""
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def break_down(self, *complaints: str) -> None:
        """Its controller is gone: every command says so, on as many lines, and fails."""
        said = shlex.join(complaints)
        for name in PROGRAMS[self.system]:
            script = f"#!/bin/sh\nprintf '%s\\n' {said} >&2\nexit 1\n"
            (self.folder / "bin" / name).write_text(script)

    def forget(self) -> None:
        (self.folder / "log").unlink(missing_ok=True)


def install(system: str, folder: Path, patch: pytest.MonkeyPatch) -> Queue:
    (folder / "bin").mkdir(parents=True)
    for name in PROGRAMS[system]:
        path = folder / "bin" / name
        path.write_text(FAKE.format(log=folder / "log"))
        path.chmod(0o755)
    patch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return Queue(system, folder)
