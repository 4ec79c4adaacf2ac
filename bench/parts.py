"""`kill -9` of what a job consists of, at seeded moments: of its supervisor, mpirun, its daemons,
ranks, the agent, sshd and its sessions, whole nodes, and the client that follows it.

    python -m bench.parts --moments 100 --seed 0
    python -m bench.parts --parts supervisor,sessions --moments 20

It needs what local nodes in namespaces need: root, sshd and MPI. The program saves a snapshot at
each step. It has to come to the end of an undisturbed run, to the last bit, by itself or by `rerun
--resume`; all lines that its ranks have written are there once, and nothing is left of it on any
node. Prints a row for each part, and a line for each miss.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.site import taking_down
from tests.e2e.cli import Cli, Done, Running, Traces, kill_node, of_job, tagged, wait_for
from tests.e2e.test_dead_worker import TRAINS, undisturbed

STEPS = 60
PROGRAM = TRAINS.replace("< 50", f"< {STEPS}").replace("sleep(0.1)", "sleep(0.05)")
assert str(STEPS) in PROGRAM
LAUNCHER, WORKERS = ("launcher",), ("worker-1", "worker-2")
ALL = (*LAUNCHER, *WORKERS)


@dataclass(frozen=True)
class Part:
    """`nodes`: on one of which it is; `words`: what its command line has; `every`: all such
    processes there are killed, else one; `codes`: what `run` may end with then; `reason`: what the
    record of a job that ends with another code than 0 says, and `tried`: whether `--retries` starts
    it again."""

    nodes: tuple[str, ...] = ()
    words: str = ""
    every: bool = False
    codes: tuple[int, ...] = (0,)
    reason: str = "^$"
    tried: bool = False


PARTS: Mapping[str, Part] = {
    "supervisor": Part(LAUNCHER, r"__main__\.py submit", False, (6,), "supervisor"),
    "mpirun": Part(LAUNCHER, r"/(prterun|mpirun) ", False, (6, 137), "mpirun", tried=True),
    "daemon": Part(WORKERS, r"/(prted|orted) ", False, (0, 4, 6), "daemon", tried=True),
    "rank": Part(WORKERS, r"/python\S* (\S+/)?trains\.py", False, (137,), "", tried=True),
    "wrapper": Part(WORKERS, r"/rank\.sh", False, (4, 6, 14, 137), "", tried=True),
    "attendant": Part(WORKERS, r"__main__\.py attend"),
    "follower": Part(ALL, r"__main__\.py follow"),
    "mesh": Part(LAUNCHER, r"^ssh .*config ", False, (0, 4, 6), "", tried=True),
    "session": Part(ALL, r"^sshd(-session)?: (?!.*listener)", False, (0, 4, 6), "", tried=True),
    "sessions": Part(ALL, r"^sshd(-session)?: (?!.*listener)", True, (0, 4, 6), "", tried=True),
    "worker": Part(WORKERS),
    "launcher": Part(LAUNCHER, codes=(4,), reason=""),
    "client": Part(),
    "ctrl-c": Part(codes=(130,), reason=""),
    "ctrl-c twice": Part(codes=(130,), reason=""),
}


@dataclass(frozen=True)
class Kill:
    """`code`: that of `run`."""

    part: str
    options: tuple[str, ...]
    node: str
    step: int
    code: int
    took: float
    misses: tuple[str, ...]


def list_inside(cluster: str, node: str) -> dict[int, str]:
    """The processes of a node, and their command lines: sshd hides its environment."""
    outside = os.readlink("/proc/self/ns/net")
    inside = set()
    for line in tagged(f"CLUSTERCTL_NODE={cluster}/{node}"):
        with suppress(OSError):
            inside.add(os.readlink(f"/proc/{line.split()[0]}/ns/net"))
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(entry / "ns/net") in inside - {outside}:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = words.decode(errors="replace")
    return found


class Site:
    """A person's machine with the cluster `lab`."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        cli("up", "lab")
        cli.script("program/trains.py", PROGRAM)
        self.id = str(cli.status("lab")["id"])
        self.roots = {node["name"]: Path(node["root"]) for node in cli.status("lab")["nodes"]}
        self.expected = undisturbed(STEPS)

    def read_written(self, number: int) -> dict[int, list[str]]:
        """What the ranks of a job have written, as it lies on their nodes."""
        found = {}
        for root in self.roots.values():
            for path in (root / "jobs" / str(number) / "out").glob("rank-*.out"):
                found[int(path.stem.partition("-")[2])] = path.read_text().splitlines()
        return found

    def kill(self, part: Part, name: str, chance: random.Random, running: Running) -> str:
        """Returns the node."""
        if name == "client":
            running.kill()
            return ""
        if name.startswith("ctrl-c"):
            running.interrupt()
            if "twice" in name:
                time.sleep(chance.random())
                with suppress(ProcessLookupError):
                    running.interrupt()
            return ""
        node = chance.choice(part.nodes)
        if not part.words:
            kill_node(self.cli, node, "lab")
            return node
        inside = list_inside(self.id, node)
        found = sorted(pid for pid, line in inside.items() if re.search(part.words, line))
        assert found, f"no {name} on {node}: {inside}"
        for pid in found if part.every else [chance.choice(found)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return node

    def check_lines(self, said: Done, numbers: Sequence[int], few: bool = False) -> Iterator[str]:
        """What `run` has printed, and what `logs` says, is what the ranks have written. `few`: it
        may have printed less, for it was interrupted, or the last lines went with their node."""
        total: dict[int, list[str]] = {0: [], 1: []}
        for number in numbers:
            logs = self.cli("logs", number, code=None)
            written = self.read_written(number)
            for rank in total:
                lines = written.get(rank, [])
                total[rank] += lines
                if logs.of(rank) != lines:
                    yield f"logs {number}, rank {rank}: {len(logs.of(rank))} of {len(lines)} lines"
                yield from check_order(f"job {number}, rank {rank}", lines)
        for rank, lines in total.items():
            rest, printed = iter(lines), said.of(rank)
            good = all(line in rest for line in printed) if few else printed == lines
            if said.code >= 0 and not good:
                yield f"run {numbers}, rank {rank}: {len(said.of(rank))} of {len(lines)} lines"

    def check_end(self, said: Done) -> Iterator[str]:
        for rank in range(2):
            if [*said.of(rank), ""][-2 if said.of(rank) else -1] != self.expected:
                yield f"another end than that of an undisturbed run: {said}"

    def strike(self, name: str, chance: random.Random) -> Kill:
        cli, part, misses = self.cli, PARTS[name], []
        step = chance.randrange(1, STEPS - 10)
        options = ("--retries", "1") if part.tried and chance.random() < 0.5 else ()
        before = max(cli.jobs(), default=0)
        running = cli.start("run", "-c", "lab", *options, "program/trains.py")
        running.until(f"step {step}\n", seconds=60)
        node = self.kill(part, name, chance, running)
        began = time.monotonic()
        done = running.wait(90)
        took = time.monotonic() - began
        mine = sorted(number for number in cli.jobs() if number > before)
        for number in mine:
            if done.code > 0 and (left := of_job(self.id, number)) and name not in LAUNCHER:
                misses.append(f"left when run ended with {done.code}: {left}")
        if name == "client":
            cli("logs", mine[-1], "-f")
        elif done.code not in ((0,) if options else part.codes):
            misses.append(f"the exit code is {done.code}: {done}")
        if done.code not in (0, -signal.SIGKILL):
            reason = cli.job(mine[-1])["reason"]
            if not re.search(part.reason, reason):
                misses.append(f"the reason is {reason!r}: {done}")
        if node and not part.words:
            cli("up", "lab", timeout=90)
        with suppress(AssertionError):
            wait_for(lambda: not any(of_job(self.id, number) for number in mine), 5, "")
        for number in mine:
            misses += [f"left behind: {left}" for left in of_job(self.id, number)]
        misses += self.check_lines(done, mine, few=not part.words)
        if done.code == 0:
            misses += self.check_end(done)
        elif name != "client":
            again = cli("rerun", mine[-1], "--resume", code=None, timeout=90)
            if again.code:
                misses.append(f"rerun: {again}")
            else:
                misses += self.check_end(again)
                begun = int(again.of(0)[0].split()[1])
                if begun < step - 1:
                    misses.append(f"begun again at {begun}, killed at {step}")
            misses += self.check_lines(again, [max(cli.jobs())])
        return Kill(name, options, node, step, done.code, took, tuple(misses))


def check_order(what: str, lines: Sequence[str]) -> Iterator[str]:
    """Each attempt goes on from a snapshot, step by step."""
    last = -1
    for line in lines:
        word, _, number = line.partition(" ")
        if word == "from":
            last = int(number)
        elif word == "step":
            if int(number) != last + 1:
                yield f"{what}: step {number} follows {last}"
            last = int(number)


@contextmanager
def site_in(folder: Path) -> Iterator[Site]:
    cli = Cli(folder / "state", folder)
    with taking_down(cli):
        yield Site(cli)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--moments", type=int, default=100, help="of all parts together")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = given.parts.split(",")
    kills: list[Kill] = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, site_in(Path(folder)) as site:
        traces = Traces.of(site.cli, "lab")
        for place, name in enumerate(names):
            chance = random.Random(f"{given.seed} {name}")
            for _ in range((given.moments + place) // len(names)):
                kill = site.strike(name, chance)
                kills.append(kill)
                words = " ".join(kill.options), kill.node, f"step {kill.step}", f"-> {kill.code}"
                print(name, *words, f"{kill.took:.1f} s", flush=True)
                for miss in kill.misses:
                    print(f"  {miss}", flush=True)
        site.cli("down", "lab", "--discard")
        left = traces.left()
    print("| killed | times | `run` ended with | longest, s | misses |\n|---|---|---|---|---|")
    for name in names:
        mine = [kill for kill in kills if kill.part == name]
        codes = sorted({kill.code for kill in mine})
        bad = sum(bool(kill.misses) for kill in mine)
        longest = max((kill.took for kill in mine), default=0.0)
        print(f"| {name} | {len(mine)} | {codes} | {longest:.1f} | {bad} |")
    print(*(f"left behind: {item}" for item in left), sep="\n")
    return 1 if left or any(kill.misses for kill in kills) else 0


if __name__ == "__main__":
    sys.exit(main())
