"""Damage to a person's state folder, disk, clock and keys, and to the memory and disks of nodes;
and what `nodes.py` does to nodes that run a job.

    python -m tests.chaos.attacks --seeds 5
    python -m tests.chaos.attacks --attacks record,clock --seeds 20

It needs what local nodes in namespaces need, and the right to mount. Prints a row for each attack,
and a line for each miss: a crash, a message that does not say why, an exit code that stands for
something else, a line of output that is lost, a record that was readable and no longer is, and
whatever is left on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos import nodes
from tests.chaos.kills import LINES
from tests.chaos.site import Site
from tests.e2e.cli import Cli, tagged

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


def records(home: Path) -> list[Path]:
    """One file of each kind that is a record of ours, not a node's own."""
    patterns = (
        *("clusters/lab/cluster.json", "clusters/lab/events.jsonl", "clusters/lab/ssh/*"),
        *("jobs/*/job.json", "jobs/*/fetched.json", "jobs/last-id", "jobs/*/out/.*"),
        *("jobs/*/out/*/*", "stages/*", "locks/*", "past/*/*", "fetched/*", "clusterctl.log"),
    )
    found = (sorted(path for path in home.glob(each) if path.is_file()) for each in patterns)
    return [path for paths in found for path in paths]


def damage(path: Path, how: str, chance: random.Random) -> None:
    data = path.read_bytes()
    if how == "delete":
        path.unlink()
    elif how == "truncate":
        path.write_bytes(data[: chance.randrange(len(data) + 1)])
    elif how == "corrupt":
        path.write_bytes(bytes(chance.randrange(256) for _ in data) or b"\xff")
    else:
        path.write_bytes(bytes(len(data)))


LOOKS = (("list",), ("jobs",), ("status", "lab"), ("logs", 1), ("ssh", "-c", "lab", "worker-1"))


def attack_record(site: Site) -> None:
    """Each kind of record in turn: what reads it works or says why, and others are as they were."""
    cli, codes = site.cli, (0, 2, 3, 4, 7)
    site.make()
    cli("run", "-c", "lab", "program/program.py")
    cli("fetch", 1)
    for path in records(cli.home):
        how = site.chance.choice(("delete", "truncate", "corrupt", "zeros"))
        mode, before = path.stat().st_mode, path.read_bytes()
        damage(path, how, site.chance)
        place = path.relative_to(cli.home)
        many = len(site.misses)
        for words in LOOKS:
            more = ("--", "true") if words[0] == "ssh" else ()
            site.expect(cli(*words, *more, code=None), codes)
        if path.name != "job.json" and "1" not in [row.name for row in path.parents]:
            known = json.loads((cli.home / "jobs/1/job.json").read_text())
            if known["state"] != "succeeded":
                site.misses.append("the record of job 1 has changed")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(before)
        path.chmod(mode)
        site.misses[many:] = [f"{place}, {how}: {item}" for item in site.misses[many:]]
    site.expect_lines(1)
    victim = site.chance.choice([path for path in records(cli.home) if "lab" in str(path)])
    damage(victim, site.chance.choice(("delete", "truncate", "corrupt")), site.chance)
    site.expect_end()


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
        for words in (("up", "other"), ("run", "-c", "lab", "program/program.py")):
            site.expect(cli(*words, code=None), (2, 3), "Read-only file system")
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


def attack_disk_there(site: Site) -> None:
    """A job fills the disk of its nodes; the client's own records are on another."""
    cli = site.cli
    cli.home.mkdir()
    with mounted(cli.home, "6m"):
        (cli.home / "jobs").mkdir()
        with mounted(cli.home / "jobs", "6m"):
            site.make(1)
            before = (
                f"for number in range({site.chance.randrange(1, 300)}): print('line', number)\n"
            )
            cli.script("fills/fills.py", f"{before}open('all', 'wb').write(bytes(8_000_000))\n")
            done = cli("run", "-c", "lab", "--once", "fills/fills.py", code=None)
            if not re.search("disk full on .*worker-1", done.err) or done.code in (0, 1):
                site.misses.append(f"the reason is not said: {done}")
            if cli.job(1)["state"] != "failed":
                site.misses.append(f"job 1 is {cli.job(1)['state']}")
            site.expect_end()


def find_inside(pids: set[str]) -> list[str]:
    """The processes of the node to which these belong: sshd hides its environment."""
    outside, found = os.readlink("/proc/self/ns/net"), {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[entry.name] = os.readlink(entry / "ns/net")
    networks = {found[pid] for pid in pids if pid in found} - {outside}
    return [pid for pid, network in found.items() if network in networks]


def attack_memory(site: Site) -> None:
    """A rank needs more memory than its node has (a control group): the kernel kills it."""
    cli = site.cli
    site.make()
    group = Path("/sys/fs/cgroup/memory", f"clusterctl-chaos-{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(300 << 20))
        mark = f"CLUSTERCTL_NODE={cli.status('lab')['id']}/worker-2"
        for pid in find_inside({line.split()[0] for line in tagged(mark)}):
            (group / "cgroup.procs").write_text(pid)
        size = site.chance.randrange(600, 2000)
        cli.script(
            "eats/eats.py",
            f"import os\nprint('begins', flush=True)\n"
            f"if os.environ['RANK'] == '1': x = bytearray(b'x') * ({size} << 20)\n",
        )
        done = cli("run", "-c", "lab", "eats/eats.py", code=None)
        if "worker-2 ran out of memory" not in done.err or done.code in (0, 1):
            site.misses.append(f"the reason is not said: {done}")
        if done.of(1) != ["begins"]:
            site.misses.append(f"lines were lost: {done}")
        site.expect_end()
    finally:
        for line in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(line)
        group.rmdir()


def attack_name(site: Site) -> None:
    """State folders with what configuration files, shells and Python's formats read specially: they
    work, or are refused before anything is made."""
    for name in ("com,ma", "new\nline", "per%cent %s %d", " blank ", os.fsdecode(b"not-\xff-utf8")):
        cli = Cli(site.cli.folder / f"home {name}", site.cli.folder)
        inner = Site(cli, site.chance)
        try:
            if name in (" blank ", "per%cent %s %d"):
                inner.make()
                done = inner.expect(cli("run", "-c", "lab", "program/program.py", code=None), (0,))
                if done.of(1) != LINES:
                    inner.misses.append(f"{len(done.of(1))} of {len(LINES)} lines")
                target = cli.folder / f"got-{site.chance.random()}"
                inner.expect(cli("fetch", 1, "--to", target, code=None), (0,))
                inner.expect_end()
            else:
                inner.expect(cli("up", "lab", code=None), (2,), "set CLUSTERCTL_HOME")
                if left := cli.clusters():
                    inner.misses.append(f"there are {left}")
        except AssertionError as error:
            inner.misses.append(str(error))
            cli("down", "lab", "--force", code=None)
        site.misses += [f"{name!r}: {item}" for item in inner.misses]


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


def attack_host_key(site: Site) -> None:
    """A node has another host key than before."""
    cli = site.cli
    site.make()
    node = site.chance.choice(("launcher", "worker-1", "worker-2"))
    known = cli.home / "clusters/lab/ssh/known_hosts"
    key = cli.folder / "key"
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", str(key)], check=True)
    fresh = " ".join(key.with_suffix(".pub").read_text().split()[:2])
    address = next(n for n in cli.status("lab")["nodes"] if n["name"] == node)["address"]
    before = known.read_text()
    lines = [
        f"{line.split()[0]} {fresh}" if address in line.split()[0] else line
        for line in before.splitlines()
    ]
    known.write_text("\n".join([*lines, ""]))
    if known.read_text() == before:
        site.misses.append(f"no key of {node} at {address} in {before}")
    site.expect(cli("run", "-c", "lab", "program/program.py", code=None), (4,), "SHA256:")
    site.expect(cli("up", "lab", code=None), (0,), "new host key")
    done = site.expect(cli("run", "-c", "lab", "program/program.py", code=None), (0,))
    if done.code == 0:
        site.expect_lines(done.job)
    site.expect_end()


ATTACKS: Mapping[str, Callable[[Site], None]] = {
    "record": attack_record,
    "read-only": attack_read_only,
    "disk-here": attack_disk_here,
    "disk-there": attack_disk_there,
    "memory": attack_memory,
    "name": attack_name,
    "clock": attack_clock,
    "host-key": attack_host_key,
    **nodes.ATTACKS,
}


@contextmanager
def site_in(folder: Path, seed: str) -> Iterator[Site]:
    site = Site(Cli(folder / "state", folder), random.Random(seed))
    try:
        yield site
    finally:
        site.cli.end()
        for name in site.cli.clusters():
            site.cli("down", "--force", name, code=None, timeout=120)


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
