"""Training steps on a machine that does something else, too: busy processes × ranks × backend.

    python bench/busy.py [--out bench/results/busy.json]

Starts a local cluster of two nodes, and on it `bench/busy_steps.py` with 2, 4 and 8 ranks, beside
no, one and two processes that compute without a pause. `scripts/readme.py` writes the table of
docs/internals/programs.md from the result, with the machine's load before the start: other work
than the bench's own. Needs the extras `workloads`; two to four minutes. The exit code is
1 if a ratio is over its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CTL = [sys.executable, "-m", "clusterctl"]

CASES = (
    ("--ranks", "2", "--nodes", "1"),
    ("--ranks", "2"),
    ("--ranks", "4"),
    ("--ranks", "8"),
)

#: A step over MPI ÷ one over gloo, in each row; and beside one busy process ÷ without one.
LIMITS = {"mpi_to_gloo": 1.0, "one_to_idle": 2.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "busy.json")
    out: Path = parser.parse_args().out.absolute()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        os.environ["CLUSTERCTL_HOME"] = f"{scratch}/state"
        subprocess.run([*CTL, "up", "--quiet"], check=True, cwd=scratch)
        try:
            cases = [measure(case, scratch) for case in CASES]
        finally:
            subprocess.run([*CTL, "down", "--force", "--quiet"], check=True, cwd=scratch)
    rows = [row for case in cases for row in compare(case)]
    report = {
        "schema": 1,
        "benchmark": "busy",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
        "limits": LIMITS,
        "load_before": round(load, 1),
        "rows": rows,
    }
    out.write_text(json.dumps(report, indent=2) + "\n")
    for row in rows:
        mark = "ok  " if row["ok"] else "OVER"
        print(
            f"{mark} {row['ranks']} ranks on {row['hosts']} nodes, busy: {row['busy']:8}"
            f" gloo {row['ms']['gloo']:8.3f} ms  mpi {row['ms']['mpi']:8.3f} ms"
            f"  mpi ÷ gloo {row['mpi_to_gloo']:.2f}  mpi ÷ idle {row['mpi_to_idle']:.2f}"
        )
    return 0 if all(row["ok"] for row in rows) else 1


def measure(case: tuple[str, ...], folder: str) -> dict[str, Any]:
    """What rank 0 of busy_steps.py prints."""
    argv = [*CTL, "run", "--quiet", "--json", *case, str(HERE / "busy_steps.py")]
    out = subprocess.run(argv, check=True, cwd=folder, stdout=subprocess.PIPE).stdout.decode()
    lines = [json.loads(line) for line in out.splitlines()]
    text = next(line["line"] for line in lines if line.get("line", "").startswith("{"))
    report: dict[str, Any] = json.loads(text)
    return report


def compare(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each load, with its ratios and whether they keep the limits."""
    idle = case["ms_per_step"]["idle"]["mpi"]
    rows = []
    for busy, ms in case["ms_per_step"].items():
        to_gloo, to_idle = ms["mpi"] / ms["gloo"], ms["mpi"] / idle
        ok = to_gloo <= LIMITS["mpi_to_gloo"]
        if busy.startswith("1"):
            ok = ok and to_idle <= LIMITS["one_to_idle"]
        rows.append(
            {
                "ranks": case["ranks"],
                "hosts": case["hosts"],
                "busy": busy,
                "ms": ms,
                "mpi_to_gloo": round(to_gloo, 3),
                "mpi_to_idle": round(to_idle, 3),
                "ok": ok,
            }
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
