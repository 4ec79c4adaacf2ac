"""What is attacked: a state home with a cluster, and what has to hold after each attack."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.chaos.kills import LINES, PROGRAM
from tests.e2e.cli import Cli, Done, Traces, of_job

TALKS = """
import time
for number in range(400):
    print("line", number, flush=True)
    time.sleep(0.01)
"""
"""What takes four seconds, so that something can happen meanwhile."""


@contextmanager
def taking_down(cli: Cli) -> Iterator[None]:
    """At the end, its clusters go, whatever has become of them."""
    try:
        yield
    finally:
        cli.end()
        for name in cli.clusters():
            cli("down", "--force", name, code=None, timeout=120)


@dataclass
class Site:
    """A state home with the cluster `lab`, and an ended job (1) whose output is here."""

    cli: Cli
    chance: random.Random
    traces: Traces | None = None
    misses: list[str] = field(default_factory=list)

    def make(self, workers: int = 2) -> None:
        self.cli("up", "lab", "--workers", workers)
        self.traces = Traces.of(self.cli, "lab")
        self.cli.script("program/program.py", PROGRAM)
        self.cli.script("talks/talks.py", TALKS)

    def expect(self, done: Done, codes: tuple[int, ...], says: str = "") -> Done:
        """One line says what is wrong, with the right exit code."""
        ours = [line for line in done.err.splitlines() if line.startswith("clusterctl: ")]
        if done.code not in codes or (done.code and len(ours) != 1) or "bug" in done.err:
            self.misses.append(f"expected {codes}: {done}")
        elif says not in done.err + done.out:
            self.misses.append(f"{says!r} is not said: {done}")
        return done

    def expect_lines(self, number: int, ranks: int = 2) -> None:
        said = self.cli("logs", number, "-f", code=None)
        for rank in range(ranks):
            if said.of(rank) != LINES:
                text = f"job {number}, rank {rank}: {len(said.of(rank))} of {len(LINES)} lines"
                self.misses.append(text)
        if left := of_job(self.cli.status("lab")["id"], number):
            self.misses.append(f"left behind: {left}")

    def list_left(self) -> list[str]:
        """What jobs have left on the nodes that answer, and stages that are half written."""
        found = [str(path) for path in (self.cli.home / "stages").glob(".*")]
        for node in ("launcher", "worker-1", "worker-2"):
            words = ("ssh", "-c", "lab", node, "--", "find", "/dev/shm", "-type", "f")
            said = self.cli(*words, code=None)
            found += [f"{node}: {line}" for line in said.out.splitlines() if said.code == 0]
        return found

    def expect_end(self, *words: object) -> None:
        """`down` works, and leaves nothing; jobs have left nothing before."""
        self.misses += [f"left behind: {item}" for item in self.list_left()]
        self.expect(self.cli("down", "lab", "--discard", *words, code=None), (0,))
        assert self.traces is not None
        self.misses += [f"left behind: {item}" for item in self.traces.left()]
