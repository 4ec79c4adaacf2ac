"""Starting the bundled programs for real: alone, under mpirun and under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.insight.metrics import parse_metrics
from tests.e2e.cli import BUSY

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"

#: What launchers leave behind, and would mislead a program started by a test.
_FOREIGN = ("OMPI_", "PMIX_", "PRTE_", "SLURM_", "TORCHELASTIC_", "CLUSTERCTL_", "MASTER_")
_FOREIGN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONUNBUFFERED")


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it and its launcher wrote."""

    code: int
    out: str
    err: str

    @property
    def metrics(self) -> list[dict[str, float]]:
        """What `--metrics` printed, as `clusterctl logs --metrics` finds it."""
        found = (parse_metrics(line.encode()) for line in self.out.splitlines())
        return [values for values in found if values]

    def lines(self, word: str) -> list[str]:
        """The lines of stdout with this word in them, sorted, since ranks write side by side."""
        return sorted(line for line in self.out.splitlines() if word in line)


@dataclass
class Programs:
    """Starts programs in one folder, with an environment that no launcher has touched.

    `python` is what runs them: a fresh Python, or one that has torch already.
    """

    folder: Path
    need: Any
    python: Sequence[object] = (sys.executable,)
    extra: dict[str, str] = field(default_factory=dict)
    seconds: float = 60

    def environment(self) -> dict[str, str]:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES
        }
        path = str(Path(sys.prefix) / "bin") + os.pathsep + env.get("PATH", "")
        return {**env, "PATH": path, "OMP_NUM_THREADS": "1", **self.extra}

    def script(self, name: str, text: str) -> Path:
        """A script of one's own, which can import the shared modules."""
        path = self.folder / name
        path.write_text(text)
        self.extra = {**self.extra, "PYTHONPATH": str(WORKLOADS)}
        return path

    def alone(self, script: str | Path, *arguments: object) -> Ended:
        return self.run([*self.python, WORKLOADS / script, *arguments])

    def mpirun(self, ranks: int, script: str | Path, *arguments: object) -> Ended:
        return self.run([*self.mpirun_argv(ranks), *self.python, WORKLOADS / script, *arguments])

    def mpirun_argv(self, ranks: int) -> list[str]:
        argv = [self.need("mpirun"), "-np", str(ranks), "--bind-to", "none"]
        argv += ["--map-by", ":OVERSUBSCRIBE"]
        # The OFI transport looks for hardware for a whole second in every MPI_Init.
        argv += ["--mca", "btl", "self,sm,tcp"]
        return [*argv, "--allow-run-as-root"] if os.geteuid() == 0 else argv

    def torchrun(self, ranks: int, script: str | Path, *arguments: object) -> Ended:
        argv = [*self.python, "-m", "torch.distributed.run", "--standalone"]
        program = ["--no-python", *self.python, WORKLOADS / script, *arguments]
        return self.run([*argv, f"--nproc-per-node={ranks}", *program])

    def start(self, argv: Sequence[object], **options: Any) -> subprocess.Popen[bytes]:
        """In the background: `wait_for` looks at what it writes."""
        with open(self.folder / "out.txt", "wb") as stream:
            return subprocess.Popen(
                [str(part) for part in argv],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                **options,
            )

    def wait_for(self, text: str) -> None:
        """Until that is written by what was started."""
        deadline = time.monotonic() + 50
        while text not in self.written and time.monotonic() < deadline:
            time.sleep(0.02)

    @property
    def written(self) -> str:
        return (self.folder / "out.txt").read_text()

    def run(self, argv: Sequence[object]) -> Ended:
        # Files: mpirun 5.0.11 loses lines of ranks when its own stdout is a pipe.
        out, err = self.folder / "stdout.txt", self.folder / "stderr.txt"
        with open(out, "w") as stdout, open(err, "w") as stderr:
            done = subprocess.run(
                [str(part) for part in argv],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                timeout=self.seconds * BUSY,
                check=False,
            )
        return Ended(done.returncode, out.read_text(), err.read_text())
