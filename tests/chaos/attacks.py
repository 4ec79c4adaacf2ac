"""Damage to a person's state folder, disk and clock, and what `nodes.py` does to nodes that run a
job.

    python -m tests.chaos.attacks --seeds 5
    python -m tests.chaos.attacks --attacks sshd,clock --seeds 20

It needs what local nodes in namespaces need, and the right to mount. Prints a row for each attack,
and a line for each miss: a crash, a message that does not say why, an exit code that stands for
something else, a line of output that is lost, a record that was readable and no longer is, and
whatever is left on the machine.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos import nodes
from tests.chaos.site import Site, taking_down
from tests.e2e.cli import Cli

CLOCK = """
import os, time
real = time.time
def stepped():
    try:
        with open(os.environ["STEP"]) as file:
            return real() + float(file.read() or 0)
    except OSError:
        return real()
time.time = stepped
"""
"""The client's clock is ahead by the number in the file $STEP."""


def attack_read_only(site: Site) -> None:
    """The state folder: what only reads works, what has to write says so and changes nothing."""
    cli = site.cli
    site.make()
    cli("run", "-c", "lab", "program/program.py")
    number = cli.detach("-c", "lab", "program/program.py")
    home = str(cli.home)
    subprocess.run(["mount", "--bind", home, home], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", home], check=True)
        for words in (("list",), ("jobs",), ("status", "lab"), ("logs", 1)):
            site.expect(cli(*words, code=None), (0,))
        for more in (("up", "other"), ("run", "-c", "lab", "program/program.py")):
            site.expect(cli(*more, code=None), (2, 3), "Read-only file system")
        site.expect(cli("down", "lab", "--discard", code=None), (2, 3), "Read-only file system")
    finally:
        subprocess.run(["umount", "-l", home], check=True)
    site.expect_lines(1)
    site.expect_lines(number)
    site.expect_end()


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """A small file system at a folder."""
    words = ("mount", "-t", "tmpfs", "-o", f"size={size}", "none")
    subprocess.run([*words, str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def attack_disk_here(site: Site) -> None:
    """No space where the client keeps the output of jobs, while it follows one."""
    cli = site.cli
    site.make()
    folder = cli.home / "jobs"
    folder.mkdir(exist_ok=True)
    with mounted(folder, "2m"):
        running = cli.start("run", "-c", "lab", "talks/talks.py")
        running.until(f"line {site.chance.randrange(1, 300)}\n")
        filler = folder / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        done = running.wait(60)
        site.expect(done, (0, 2, 3))
        if done.code and "No space left on device" not in done.err:
            site.misses.append(f"the reason is not said: {done}")
        filler.unlink(missing_ok=True)
        site.expect_lines(1)
        site.expect_end()


def attack_clock(site: Site) -> None:
    """The client's clock jumps while it follows a job."""
    cli = site.cli
    site.make()
    patches = cli.folder / "patches"
    patches.mkdir()
    (patches / "sitecustomize.py").write_text(CLOCK)
    path = f"{patches}:{cli.environment(None)['PYTHONPATH']}"
    step = site.chance.choice((-86400, -3600, -30, 30, 3600, 86400))
    wanted = cli.folder / "step"
    running = cli.start(
        *("run", "-c", "lab", "talks/talks.py"), env={"PYTHONPATH": path, "STEP": str(wanted)}
    )
    running.until(f"line {site.chance.randrange(1, 300)}\n")
    (cli.folder / "new").write_text(str(step))
    (cli.folder / "new").replace(wanted)
    site.expect(running.wait(60), (0,))
    site.expect_lines(1)
    job = cli.job(1)
    took = (job["finished"] or 0) - (job["started"] or 0)
    if not 0 < took < 600:
        site.misses.append(f"with the clock {step} s ahead, the job took {took} s")
    site.expect_end()


ATTACKS: Mapping[str, Callable[[Site], None]] = {
    "read-only": attack_read_only,
    "disk-here": attack_disk_here,
    "clock": attack_clock,
    **nodes.ATTACKS,
}


@contextmanager
def site_in(folder: Path, seed: str) -> Iterator[Site]:
    cli = Cli(folder / "state", folder)
    with taking_down(cli):
        yield Site(cli, random.Random(seed))


def attack(folder: Path, name: str, seed: int) -> list[str]:
    """What was not as it should be."""
    with site_in(folder, f"{name} {seed}") as site:
        try:
            ATTACKS[name](site)
        except AssertionError as error:
            site.misses.append(str(error))
    return site.misses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    print("| attack | times | seconds each | with misses |\n|---|---|---|---|")
    missed = []
    for name in given.attacks.split(","):
        began, bad = time.monotonic(), 0
        for seed in range(given.first, given.first + given.seeds):
            folder = Path(tempfile.mkdtemp(prefix="chaos-"))
            found = attack(folder, name, seed)
            shutil.rmtree(folder, ignore_errors=True)
            bad += bool(found)
            missed += [f"miss: {name}, seed {seed}: {item}" for item in found]
        each = (time.monotonic() - began) / given.seeds
        print(f"| `{name}` | {given.seeds} | {each:.0f} | {bad} |", flush=True)
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
