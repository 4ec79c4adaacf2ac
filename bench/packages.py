"""What a job's own packages cost when its nodes have them already, from the second run on.

    python bench/packages.py [--pairs 15] [--out bench/results/packages.json]

A local cluster of two workers; a script that prints one line, in a project with a requirements.txt
whose packages are made here. It runs by turns with them and with `--requirements none`, so that a
change of the machine's load meets both. Reported are the medians, their ratio, and the median of
the differences within a pair; then the parts that a run with packages has in addition, measured
one by one: reading what the project asks for (`find`), asking the nodes whether they have it
(`ask`), and starting the Python of the environment instead of the nodes' own (`start`). The exit
code is 1 if the parts together take more than LIMIT.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from clusterctl.actions.common import open_pool, open_store  # noqa: E402
from clusterctl.jobs import install  # noqa: E402
from clusterctl.project import packages as project_packages  # noqa: E402
from clusterctl.project.program import resolve_program  # noqa: E402
from tests import wheels  # noqa: E402

LIMIT = 50.0
"""Milliseconds."""
CLUSTERCTL = (sys.executable, "-m", "clusterctl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "packages.json")
    options = parser.parse_args()
    out = options.out.absolute()  # before the folder changes
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        prepare(Path(name))
        call("up", "--workers", "2")
        try:
            found = measure(options.pairs)
        finally:
            call("down", "--discard")
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0 if found["parts_ms"]["together"] <= LIMIT else 1


def prepare(folder: Path) -> None:
    """The project, and a state home of its own."""
    index, project = folder / "index", folder / "project"
    wheels.make(index, "demo", "1.0", "helper")
    wheels.make(index, "helper", "1.0")
    os.environ |= {
        **wheels.settings(index),
        "CLUSTERCTL_HOME": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }
    project.mkdir()
    (project / "train.py").write_text("print('trained')\n")
    (project / "requirements.txt").write_text("demo\n")
    os.chdir(project)


def call(*words: str) -> float:
    """Seconds that the command takes."""
    begun = perf_counter()
    subprocess.run((*CLUSTERCTL, *words, "-q"), stdout=subprocess.DEVNULL, check=True, timeout=300)
    return perf_counter() - begun


def run(*words: str) -> float:
    begun = perf_counter()
    argv = (*CLUSTERCTL, "run", "-q", *words, "train.py")
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True, timeout=300)
    return perf_counter() - begun


def measure(pairs: int) -> dict[str, Any]:
    load = os.getloadavg()[0]
    run(), run("--requirements", "none")
    having, bare = [], []
    for number in range(pairs):
        for packed in (True, False) if number % 2 else (False, True):
            (having if packed else bare).append(
                run(*([] if packed else ["--requirements", "none"]))
            )
    ways = {"with": statistics.median(having), "without": statistics.median(bare)}
    apart = statistics.median(a - b for a, b in zip(having, bare, strict=True))
    return {
        "machine": {
            "cores": os.cpu_count(),
            "date": date.today().isoformat(),
            "load": round(load, 1),
            "python": platform.python_version(),
        },
        "pairs": pairs,
        **{f"{way}_s": round(seconds, 3) for way, seconds in ways.items()},
        "ratio": round(ways["with"] / ways["without"], 3),
        "within_a_pair_ms": round(1000 * apart, 1),
        "parts_ms": parts(pairs),
    }


def parts(repeats: int) -> dict[str, float]:
    store = open_store()
    cluster = store.read_cluster("default")
    resolved = resolve_program("train.py", ())
    found = project_packages.find_package_files(resolved, "")
    assert found is not None
    wanted, _ = project_packages.resolve_packages(found, resolved.tree, cluster.workers)
    assert wanted is not None
    worker = cluster.workers[0]
    own = worker.python
    python = f"{project_packages.locate_packages(worker, wanted.digest)}/bin/python"

    def find() -> None:
        found = project_packages.find_package_files(resolved, "", "")
        assert found is not None
        assert project_packages.resolve_packages(found, resolved.tree, cluster.workers)[0]

    def start(executable: str) -> float:
        return timed(lambda: subprocess.run((executable, "-c", "pass"), check=True, timeout=60))

    with open_pool(store, cluster) as pool:

        def ask() -> None:
            by = install.Delivery(pool, store.home, print, cluster.id)
            install.install(wanted.digest, cluster.workers, by)

        ask()  # connects
        asked = statistics.median(timed(ask) for _ in range(repeats))
    spent = {
        "find": statistics.median(timed(find) for _ in range(repeats)),
        "ask": asked,
        "start": statistics.median(start(python) - start(own) for _ in range(repeats)),
    }
    return {
        name: round(value, 1) for name, value in {**spent, "together": sum(spent.values())}.items()
    }


def timed(what: Callable[[], object]) -> float:
    """Milliseconds."""
    begun = perf_counter()
    what()
    return 1000 * (perf_counter() - begun)


if __name__ == "__main__":
    sys.exit(main())
