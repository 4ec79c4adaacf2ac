"""`kill -9` of clusterctl at seeded moments of its verbs, and what the next command makes of it.

    python -m tests.chaos.kills --moments 200 --seed 0
    python -m tests.chaos.kills --verbs fetch,push --moments 20

It needs what local nodes in namespaces need: root, sshd and MPI. Prints a row for each verb, and a
line for each miss.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusterctl.state.home import FETCHED_MARK
from tests.e2e.cli import Cli, Traces, of_job

LINES = [f"line {number}" for number in range(400)]
PROGRAM = f"""
import hashlib, os, pathlib, time
rank = os.environ["RANK"]
pathlib.Path("made-" + rank).write_bytes(hashlib.sha256(rank.encode()).digest() * 20000)
for number in range({len(LINES)}):
    print("line", number, flush=True)
    time.sleep(0.002)
"""
MADE = {
    f"worker-{rank + 1}/made-{rank}": hashlib.sha256(str(rank).encode()).digest() * 20000
    for rank in range(2)
}
"""What the program writes, as `fetch` names it."""
DATA = {f"{number}.bin": bytes([number]) * 200_000 for number in range(10)}


@dataclass
class Site:
    """A person's machine with the cluster `lab`, on which most verbs are killed, and with `victim`,
    which comes and goes."""

    cli: Cli
    ended: int = 0
    """A job on `lab` that has written MADE."""
    newest: int = 0
    """The last job before the moment."""
    count: int = 0
    """Of the moments: what is made for one alone is called by it."""
    traces: Traces | None = None
    """Of the present `victim`."""

    def make(self) -> None:
        self.cli("up", "lab")
        self.cli.script("program/program.py", PROGRAM)
        folder = self.cli.folder / "set"
        folder.mkdir()
        for name, data in DATA.items():
            (folder / name).write_bytes(data)
        self.ended = self.cli("run", "-c", "lab", "program/program.py").job

    def find_newest(self) -> int:
        return max(self.cli.jobs(), default=0)


Check = Callable[[Site], list[str]]
"""What is wrong after the next command."""


@dataclass(frozen=True)
class Verb:
    """`words`: the command that is killed. `before`: makes what it needs."""

    words: Callable[[Site], Sequence[object]]
    after: Check
    before: Callable[[Site], None] = lambda site: None


def check_job(site: Site, number: int) -> list[str]:
    """The job runs to its end and all its lines are there; or it never began."""
    misses = []
    said = site.cli("logs", number, "-f", code=None, timeout=120)
    job = site.cli.job(number)
    if job["state"] == "lost" and job["started"] is None:
        expected: list[str] = []
    else:
        expected = LINES
        if job["state"] != "succeeded":
            misses.append(f"job {number} is {job['state']}: {job['reason']}")
    for rank in range(2):
        lines = said.of(rank)
        if lines != expected:
            misses.append(f"job {number}, rank {rank}: {len(lines)} of {len(expected)} lines")
    if left := of_job(site.cli.status("lab")["id"], number):
        misses.append(f"left behind: {left}")
    return misses


def check_new_job(site: Site) -> list[str]:
    newest = site.find_newest()
    return check_job(site, newest) if newest > site.newest else []


def check_fetched(site: Site) -> list[str]:
    folder = site.cli.folder / f"fetched-{site.count}"
    again = site.cli("fetch", site.ended, "--to", folder, code=None)
    misses = [] if again.code == 0 else [f"fetch again: {again}"]
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != FETCHED_MARK
    }
    if found != MADE:
        misses.append(f"fetched {sorted(found)}: not what the job wrote")
    return misses


def check_pushed(site: Site) -> list[str]:
    name = f"set-{site.count}"
    again = site.cli("data", "push", "-c", "lab", "./set", "--name", name, code=None)
    misses = [] if again.code == 0 else [f"push again: {again}"]
    expected = hashlib.sha256(b"".join(DATA[key] for key in sorted(DATA))).hexdigest()
    for node in site.cli.status("lab")["nodes"]:
        if node["role"] == "worker":
            look = f"cd {node['root']}/data && ls -A && cat {name}/* | sha256sum"
            said = site.cli("ssh", "-c", "lab", node["name"], "--", look).out.split()
            if expected not in said:
                misses.append(f"{node['name']}: the copy differs")
            misses += [f"{node['name']}: left {item}" for item in said if ".part" in item]
    return misses


def check_up(site: Site) -> list[str]:
    again = site.cli("up", "victim", "--workers", 1, code=None)
    if again.code:
        return [f"up again: {again}"]
    traces = Traces.of(site.cli, "victim")
    site.cli("down", "victim")
    return [f"left behind: {item}" for item in traces.left()]


def make_victim(site: Site) -> None:
    """With a job that has ended, whose output nobody has read yet."""
    site.cli("up", "victim", "--workers", 2)
    site.traces = Traces.of(site.cli, "victim")
    number = site.cli.detach("-c", "victim", "program/program.py")
    site.cli.until_state(number, "succeeded")
    site.newest = number


def check_down(site: Site) -> list[str]:
    assert site.traces is not None
    again = site.cli("down", "victim", "--discard", code=None)
    gone = "no cluster named 'victim'" in again.err  # it was killed after its work
    misses = [] if again.code == 0 or gone else [f"down again: {again}"]
    misses += [f"left behind: {item}" for item in site.traces.left()]
    said = site.cli("logs", site.newest, code=None)
    misses += [
        f"job {site.newest}, rank {rank}: {len(said.of(rank))} of {len(LINES)} lines"
        for rank in range(2)
        if said.of(rank) != LINES
    ]
    return misses


LAB = ("-c", "lab")
VERBS: Mapping[str, Verb] = {
    "up": Verb(lambda site: ("up", "victim", "--workers", 1), check_up),
    "run": Verb(lambda site: ("run", *LAB, "program/program.py"), check_new_job),
    "fetch": Verb(
        lambda site: ("fetch", site.ended, "--to", site.cli.folder / f"fetched-{site.count}"),
        check_fetched,
    ),
    "push": Verb(
        lambda site: ("data", "push", *LAB, "./set", "--name", f"set-{site.count}"), check_pushed
    ),
    "rerun": Verb(lambda site: ("rerun", site.ended, "--resume"), check_new_job),
    "down": Verb(lambda site: ("down", "victim", "--discard"), check_down, make_victim),
}


@dataclass(frozen=True)
class Moment:
    """`took`: seconds until the command ended or was killed."""

    verb: str
    took: float
    killed: bool
    misses: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """`took`: seconds that the command takes undisturbed."""

    verb: str
    took: float
    moments: tuple[Moment, ...]


def check_records(site: Site) -> list[str]:
    """Records that cannot be read, and files that a write has left half-way."""
    misses = [f"damaged: {line}" for line in site.cli.json("list")["damage"]]
    misses += [line for line in site.cli("jobs").err.splitlines() if "cannot be read" in line]
    home = site.cli.home
    staged = {json.loads(path.read_text())["stage"] for path in home.glob("jobs/*/job.json")}
    misses += [
        f"stages: {path.name}"
        for path in home.glob("stages/*")
        if path.name not in staged and path.name.startswith(".")
    ]
    return misses


def strike(site: Site, name: str, after: float | None = None) -> Moment:
    """Kills the verb after so many seconds (None: lets it end), and looks."""
    verb = VERBS[name]
    site.count += 1
    site.newest = site.find_newest()
    verb.before(site)
    began = time.monotonic()
    running = site.cli.start(*verb.words(site))
    try:
        running.process.wait(180 if after is None else after)
    except subprocess.TimeoutExpired:
        running.kill()
    took, code = time.monotonic() - began, running.process.returncode
    misses = [f"it failed: {running}"] if code > 0 or (after is None and code) else []
    misses += verb.after(site)
    misses += check_records(site)
    return Moment(name, took, code < 0, tuple(misses))


def attack(site: Site, name: str, moments: int, seed: int) -> Row:
    """A verb that is killed at so many moments: the same parts of its time for the same seed."""
    chance = random.Random(f"{seed} {name}")
    undisturbed = strike(site, name)
    struck = [strike(site, name, chance.random() * undisturbed.took) for _ in range(moments)]
    return Row(name, undisturbed.took, (undisturbed, *struck))


@contextmanager
def site_in(folder: Path) -> Iterator[Site]:
    site = Site(Cli(folder / "state", folder))
    site.make()
    try:
        yield site
    finally:
        site.cli.end()
        for name in site.cli.clusters():
            site.cli("down", "--force", name, timeout=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--moments", type=int, default=200, help="of all verbs together")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = given.verbs.split(",")
    print("| verb | takes | moments | killed before its end | misses |\n|---|---|---|---|---|")
    missed = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, site_in(Path(folder)) as site:
        for place, name in enumerate(names):
            share = (given.moments + place) // len(names)
            row = attack(site, name, share, given.seed)
            killed = sum(item.killed for item in row.moments)
            bad = [item for item in row.moments if item.misses]
            missed += bad
            print(f"| `{name}` | {row.took:.1f} s | {share} | {killed} | {len(bad)} |", flush=True)
    for item in missed:
        print(f"miss: {item.verb} at {item.took:.2f} s: {'; '.join(item.misses)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
