"""A rank that prints gigabytes: what is kept of it, where, and at which speed it comes.

    python -m bench.long_output --gigabytes 2

It needs what local nodes in namespaces need: root, sshd and MPI. Prints a line for each fact, and a
line for each miss: a first or last line that is not there, more on a disk than the rule says, and
whatever is left on the machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterctl.batch.direct import LEAST_OUTPUT, OUTPUT
from tests.e2e.cli import Cli, Traces

LINE = 100
"""Bytes of a line, which begins with its number."""
PROGRAM = """
import os, sys
lines = int(sys.argv[1])
if os.environ["RANK"] == "0":
    for first in range(0, lines, 10000):
        numbers = range(first, min(first + 10000, lines))
        sys.stdout.write("".join(f"{number:0>99}\\n" for number in numbers))
    sys.stdout.flush()
"""


def used(path: Path) -> float:
    """Gigabytes that a file takes on its disk."""
    return path.stat().st_blocks * 512 / 1e9


def call(cli: Cli, out: Path, *words: str) -> int:
    """The exit code of clusterctl, with its output in a file."""
    with out.open("wb") as shown:
        return subprocess.run(
            [sys.executable, "-m", "clusterctl", *words],
            cwd=cli.folder,
            env=cli.environment(None),
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=subprocess.DEVNULL,
            timeout=3600,
            check=False,
        ).returncode


def check(cli: Cli, lines: int) -> list[str]:
    misses = []
    began = time.monotonic()
    out = cli.folder / "shown"
    code = call(cli, out, "run", "-c", "lab", "program/program.py", str(lines))
    took = time.monotonic() - began
    size = lines * LINE / 1e9
    print(
        f"{size:g} GB printed by one rank of two: followed to the end in {took:.0f} s", flush=True
    )
    if code:
        misses.append(f"run ended with {code}")
    node = next(node for node in cli.status("lab")["nodes"] if node["name"] == "worker-1")
    files = 2  # of that node: the two streams of rank 0
    most = max(OUTPUT // files, LEAST_OUTPUT) * 1.25 / 1e9
    here = cli.home / "jobs" / "1" / "out" / "worker-1" / "rank-0.out"
    there = Path(node["root"]) / "jobs" / "1" / "out" / "rank-0.out"
    inside = ["ssh", "-c", "lab", "--json", "worker-1", "--", f"stat -c '%b %s' {there}"]
    blocks, length = map(int, cli(*inside).document()["stdout"].split())
    for place, taken, whole in (
        ("on the node", blocks * 512 / 1e9, length),
        ("here", used(here), here.stat().st_size),
    ):
        print(f"{place}: {taken:.2f} GB on the disk, at most {most:.2f} GB", flush=True)
        if taken > most:
            misses.append(f"{place}: {taken:.2f} GB are kept, more than {most:.2f} GB")
        if whole != lines * LINE:
            misses.append(f"{place}: {whole} bytes long, not {lines * LINE}")
    began = time.monotonic()
    call(cli, out, "logs", "1")
    print(f"`logs` shows what is kept in {time.monotonic() - began:.0f} s", flush=True)
    with out.open("rb") as shown:
        first = shown.read(LINE + 4)
        shown.seek(-(LINE + 4), 2)
        last = shown.read()
    if first != f"[0] {0:0>99}\n".encode() or last != f"[0] {lines - 1:0>99}\n".encode():
        misses.append(f"`logs` begins with {first!r} and ends with {last!r}")
    return misses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="long-output-"))
    cli = Cli(folder / "state", folder)
    try:
        cli("up", "lab", "--workers", 2, "--ttl", "3h", timeout=300)
        traces = Traces.of(cli, "lab")
        cli.script("program/program.py", PROGRAM)
        misses = check(cli, int(given.gigabytes * 1e9) // LINE)
        cli("down", "lab", "--discard")
        misses += [f"left behind: {item}" for item in traces.left()]
    finally:
        cli.end()
        for name in cli.clusters():
            cli("down", "--force", name, code=None, timeout=120)
    print(f"misses: {len(misses)}", *misses, sep="\n")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
