"""What a node and the launcher send when a large output of a job changes a little.

    python -m bench.copied_bytes --megabytes 200

It needs what local nodes in namespaces need: root, sshd and MPI. Prints a row for each change: the
bytes that left the worker, and the launcher, until `--sync` had brought the file here, by the
counters of their network interfaces, so with all else that they have sent meanwhile.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from tests.e2e.cli import Cli

PROGRAM = """
import os, sys, time
size = int(sys.argv[1]) * 1_000_000

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.1)

def save(name, data):
    with open("new", "wb") as file:
        file.write(data)
    os.replace("new", name)

data = bytearray(os.urandom(size))
wait_for("first")
save("snapshot.pt", data)
wait_for("part")
data[size // 2 : size // 2 + size // 100] = os.urandom(size // 100)
save("snapshot.pt", data)
wait_for("pieces")
for piece in range(10):
    at = piece * size // 10 + 4711
    data[at : at + size // 1000] = os.urandom(size // 1000)
save("snapshot.pt", data)
wait_for("all")
save("snapshot.pt", os.urandom(size))
wait_for("log")
with open("log", "wb") as file:
    file.write(os.urandom(size // 10))
wait_for("grows")
with open("log", "ab") as file:
    file.write(os.urandom(size // 1000))
wait_for("end")
"""
STEPS = {
    "first": ("snapshot.pt", "a new file"),
    "part": ("snapshot.pt", "1 % of it has changed, in one place"),
    "pieces": ("snapshot.pt", "1 % of it has changed, in ten places"),
    "all": ("snapshot.pt", "all of it has changed"),
    "log": ("log", "another new file, a tenth as large"),
    "grows": ("log", "that has grown by 1 %"),
}


class Lab:
    def __init__(self, cli: Cli) -> None:
        self._cli = cli
        nodes = cli.status("lab")["nodes"]
        self.root = next(node["root"] for node in nodes if node["name"] == "worker-1")

    def ask(self, node: str, command: str) -> str:
        words = ["ssh", "-c", "lab", "--json", node, "--", command]
        text: str = self._cli(*words).document()["stdout"]
        return text

    def count(self, node: str) -> int:
        """Bytes that the node has sent."""
        lines = self.ask(node, "cat /proc/net/dev").splitlines()[2:]
        rows = [line.replace(":", " ").split() for line in lines]
        return sum(int(row[9]) for row in rows if row[0] != "lo")

    def step(self, name: str, file: str) -> tuple[int, int]:
        """Has the program go on; what the worker and the launcher send until the file is here."""
        before = self.count("worker-1"), self.count("launcher")
        work = shlex.quote(f"{self.root}/jobs/1/work")
        here = self._cli.folder / "here" / "job-1" / "worker-1" / file
        known = digest(here)
        self.ask("worker-1", f"cd {work} && touch {name}")
        while known == digest(here):
            time.sleep(0.5)
        assert self.ask("worker-1", f"sha256sum <{work}/{file}").startswith(digest(here))
        after = self.count("worker-1"), self.count("launcher")
        return after[0] - before[0], after[1] - before[1]


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    size = parser.parse_args().megabytes
    folder = Path(tempfile.mkdtemp(prefix="copied-bytes-"))
    cli = Cli(folder / "state", folder)
    running = None
    try:
        cli("up", "lab", "--workers", 1, "--ttl", "1h", timeout=300)
        cli.script("program/program.py", PROGRAM)
        words = ["run", "-c", "lab", "--sync", "here", "program/program.py", str(size)]
        running = subprocess.Popen(
            [sys.executable, "-m", "clusterctl", *words],
            cwd=folder,
            env=cli.environment(None),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        lab = Lab(cli)
        time.sleep(5)
        for name, (file, what) in STEPS.items():
            worker, launcher = lab.step(name, file)
            print(f"| {what} | {worker / 1e6:.1f} | {launcher / 1e6:.1f} |", flush=True)
        lab.ask("worker-1", f"touch {shlex.quote(lab.root)}/jobs/1/work/end")
        running.wait(120)
    finally:
        if running:
            running.terminate()
        cli.end()
        for name in cli.clusters():
            cli("down", "--force", name, code=None, timeout=120)


if __name__ == "__main__":
    main()
