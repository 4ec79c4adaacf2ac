"""Writes the report in docs/performance.md: runs the commands that it lists on a local cluster.

    python scripts/performance.py

Takes some minutes; needs the extra `workloads`. The cluster is removed at the end.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- report -->\n", "<!-- /report -->"
COMMANDS = (
    "up --workers 2",
    "verify",
    "bench allreduce --max-size 2MB",
    "bench scaling --ranks 1,2 multinode_ddp_mpi.py 4 4 --dataset digits --metrics",
)
LIMIT = 1800.0


def main() -> None:
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {date.today().isoformat()}"
    parts = [f"{machine}, load average before: {os.getloadavg()[0]:.1f}:"]
    parts.append("\n".join(f"    clusterctl {command}" for command in COMMANDS))
    with tempfile.TemporaryDirectory(prefix="performance-") as folder:
        env = {**os.environ, "CLUSTERCTL_HOME": f"{folder}/state", "PYTHONPATH": str(ROOT)}
        try:
            for command in COMMANDS:
                text = run(shlex.split(command), folder, env)
                text = "\n".join(f"    {line}".rstrip() for line in text.rstrip().splitlines())
                if command != COMMANDS[0]:
                    parts.append(f"`clusterctl {command}` prints:\n\n{text}")
        finally:
            run(["down", "--discard", "--yes"], folder, env)
    document = DOCUMENT.read_text()
    before, _, rest = document.partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(before + BEGIN + "\n\n".join(parts) + "\n\n" + END + after)


def run(words: list[str], folder: str, env: dict[str, str]) -> str:
    """What it prints. `verify` may find something below its limit, which belongs in the report."""
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode not in (0, 8):
        raise SystemExit(f"clusterctl {shlex.join(words)}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
