"""clusterctl, or what runs on its nodes, stands still at seeded moments; connections are cut, or go
silent.

    python -m bench.stalls --moments 10 --seed 0
    python -m bench.stalls --verbs run,fetch --harms stop,silence --moments 5

Each command has to end as if nothing had happened: with exit code 0, with all output once, and
without a word about nodes that are lost. It needs what local nodes in namespaces need: root, sshd
and MPI. Prints a row for each verb and harm, and a line for each miss.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import kills
from tests.chaos.kills import LINES, MADE, Site
from tests.e2e.cli import Done, Running, Traces, of_job

SLOW = """
import time
for number in range(400):
    print("line", number, flush=True)
    time.sleep(0.015)
"""
"""A rank that takes six seconds."""
LAB = ("-c", "lab")
ESTABLISHED = "01"
"""How /proc/net/tcp writes it."""
FALSE = re.compile(
    r"lost|timed out|dead|frozen|not reachable|unreachable|did not (end|start|answer)"
    r"|ha(?:s|ve) not answered|no answer|incomplete|could not|cannot",
    re.IGNORECASE,
)
"""What nobody may say of a cluster whose nodes are well."""

TRUE = dict.fromkeys(("outage", "node"), "reconnected to|ha(?:s|ve) not answered for")
"""What may be said of a harm all the same: by default that a connection was made again."""


def check_lines(site: Site, done: Done) -> list[str]:
    """Both ranks' lines, once and in order, and the job's end on record."""
    misses = [
        f"rank {rank}: {len(done.of(rank))} of {len(LINES)} lines"
        for rank in range(2)
        if done.of(rank) != LINES
    ]
    job = site.cli.job(site.find_newest())
    if job["state"] != "succeeded":
        misses.append(f"job {job['id']} is {job['state']}: {job['reason']}")
    if left := of_job(site.cli.status("lab")["id"], job["id"]):
        misses.append(f"left behind: {left}")
    return misses


def check_files(site: Site, _: Done) -> list[str]:
    folder = site.cli.folder / f"fetched-{site.count}"
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("made-*")
        if path.is_file()
    }
    return [] if found == MADE else [f"fetched {sorted(found)}: not what the job wrote"]


def check_live(_: Site, done: Done) -> list[str]:
    return [] if done.out.count("running") >= 3 else [f"not all nodes run: {done}"]


def check_victim(site: Site, _: Done) -> list[str]:
    live = site.cli("status", "victim", "--live", code=None)
    traces = Traces.of(site.cli, "victim")
    down = site.cli("down", "victim", "--discard", code=None)
    misses = [f"left behind: {item}" for item in traces.left()]
    return misses + [str(item) for item in (live, down) if item.code]


def check_gone(site: Site, _: Done) -> list[str]:
    assert site.traces is not None
    said = site.cli("logs", site.newest, code=None)
    misses = [f"left behind: {item}" for item in site.traces.left()]
    return misses + [
        f"job {site.newest}, rank {rank}: {len(said.of(rank))} of {len(LINES)} lines"
        for rank in range(2)
        if said.of(rank) != LINES
    ]


def check_launched(site: Site, done: Done) -> list[str]:
    misses = [
        f"rank {rank}: {len(done.of(rank))} of {len(LINES)} lines"
        for rank in range(2)
        if done.of(rank) != LINES
    ]
    return misses + [f"still there: {name}" for name in site.cli.clusters() if name != "lab"]


def nothing(_: Site, __: Done) -> list[str]:
    return []


def detach(site: Site) -> None:
    site.cli.detach(*LAB, "slow/slow.py")


@dataclass(frozen=True)
class Verb:
    words: Callable[[Site], Sequence[object]]
    check: Callable[[Site, Done], list[str]] = nothing
    before: Callable[[Site], None] = lambda site: None


VERBS: Mapping[str, Verb] = {
    "run": Verb(lambda site: ("run", *LAB, "slow/slow.py"), check_lines),
    "logs": Verb(lambda site: ("logs", "-f"), check_lines, detach),
    "fetch": Verb(
        lambda site: ("fetch", site.ended, "--to", site.cli.folder / f"fetched-{site.count}"),
        check_files,
    ),
    "push": Verb(
        lambda site: ("data", "push", *LAB, "./set", "--name", f"set-{site.count}"),
        lambda site, _: kills.check_pushed(site),
    ),
    "ssh": Verb(
        lambda site: ("ssh", *LAB, "worker-1", "--", "sleep 2; echo done"),
        lambda site, done: [] if done.out == "done\n" else [str(done)],
    ),
    "status": Verb(lambda site: ("status", "lab", "--live"), check_live),
    "top": Verb(lambda site: ("top", "--once"), nothing, detach),
    "doctor": Verb(lambda site: ("doctor",), nothing, detach),
    "up": Verb(lambda site: ("up", "victim", "--workers", 1), check_victim),
    "down": Verb(lambda site: ("down", "victim", "--discard"), check_gone, kills.make_victim),
    "launch": Verb(lambda site: ("launch", "slow/slow.py", "--ranks", 2), check_launched),
}


# ------------------------------------------------------------------------------------------- harms


def stop(running: Running, seconds: float) -> None:
    """Ctrl-Z, and later `fg`: its whole process group."""
    with suppress(ProcessLookupError):
        os.killpg(running.process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(running.process.pid, signal.SIGCONT)


def harm_stop(running: Running, chance: random.Random) -> None:
    stop(running, 0.3 * (20 / 0.3) ** chance.random())


def harm_burst(running: Running, chance: random.Random) -> None:
    for _ in range(chance.randrange(3, 8)):
        stop(running, chance.uniform(0.3, 3))
        time.sleep(chance.uniform(0.02, 0.5))


def harm_long(running: Running, chance: random.Random) -> None:
    stop(running, chance.uniform(65, 75))


def networks() -> dict[str, list[int]]:
    """The processes of each network but this machine's own."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.setdefault(os.readlink(entry / "ns/net"), []).append(int(entry.name))
    found.pop(os.readlink("/proc/self/ns/net"), None)
    return {network: sorted(pids) for network, pids in found.items()}  # those that last come first


def nodes_of() -> dict[str, list[int]]:
    """Address → the node's processes, of each local cluster that is up."""
    found = {}
    for pids in networks().values():
        said = inside(pids[0], "ip", "-4", "-o", "addr", "show", "scope", "global", check=False)
        found |= dict.fromkeys(re.findall(r"inet ([0-9.]+)/", said), pids)
    return found


def connections(running: Running) -> list[tuple[str, int, str]]:
    """Address and port here, and address there, of the connections of the command and of what it
    has started."""
    pids, sockets, found = [str(running.process.pid)], set(), []
    for pid in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += (task / "children").read_text().split()
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    sockets.add(os.readlink(file))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" in sockets and fields[3] == ESTABLISHED:
            ends = [end.split(":") for end in fields[1:3]]
            here, there = (socket.inet_ntoa(bytes.fromhex(end[0])[::-1]) for end in ends)
            found.append((here, int(ends[0][1], 16), there))
    return found


def inside(pid: int, *words: str, check: bool = True) -> str:
    """What the program says in that process's network."""
    argv = ("nsenter", "-t", str(pid), "-n", *words)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout


def harm_cut(running: Running, _: random.Random) -> None:
    """The node's end of each connection dies: its sshd session, by number."""
    nodes = nodes_of()
    for _, port, there in connections(running):
        if there in nodes:
            said = inside(nodes[there][0], "ss", "-Htnp", f"dport = :{port}", check=False)
            for pid in set(re.findall(r"pid=(\d+)", said)):
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def harm_silence(running: Running, _: random.Random) -> None:
    """This machine gets another address: connections that are open never hear anything again."""
    nodes = nodes_of()
    for _, port, there in connections(running):
        if there in nodes:
            for rule in (f"INPUT -p tcp --sport {port}", f"OUTPUT -p tcp --dport {port}"):
                inside(nodes[there][0], "iptables", "-I", *rule.split(), "-j", "DROP")


def harm_outage(running: Running, chance: random.Random) -> None:
    """No packet between this machine and the command's nodes, for 5 to 25 seconds."""
    ours = {here for here, _, _ in connections(running)}
    rules = [
        (pids[0], ("INPUT", "!", "-i", "lo", "-s", here, "-j", "DROP"))
        for there, pids in nodes_of().items()
        for here in ours
        if there.rpartition(".")[0] == here.rpartition(".")[0]
    ]
    for pid, rule in rules:
        inside(pid, "iptables", "-I", *rule)
    time.sleep(chance.uniform(5, 25))
    for pid, rule in rules:
        inside(pid, "iptables", "-D", *rule, check=False)


def harm_node(running: Running, chance: random.Random) -> None:
    """Some processes of a node stand still for up to seven seconds: sshd, its sessions, a job's
    supervisor, its agents, its ranks."""
    subnets = {there.rpartition(".")[0] for _, _, there in connections(running)}
    nodes = [pids for there, pids in nodes_of().items() if there.rpartition(".")[0] in subnets]
    if not nodes:
        return
    pids = chance.choice(nodes)
    chosen = chance.sample(pids, chance.randrange(1, len(pids) + 1))
    try:
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(chance.uniform(0.3, 7))
    finally:
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


HARMS: Mapping[str, Callable[[Running, random.Random], None]] = {
    "stop": harm_stop,
    "burst": harm_burst,
    "long": harm_long,
    "cut": harm_cut,
    "silence": harm_silence,
    "outage": harm_outage,
    "node": harm_node,
}


@dataclass(frozen=True)
class Moment:
    """`struck`: whether the command still ran then."""

    verb: str
    harm: str
    at: float
    struck: bool
    misses: tuple[str, ...]


def strike(
    site: Site, name: str, harm: str = "", at: float = 0.0, chance: random.Random | None = None
) -> Moment:
    """Does that to the verb after so many seconds, and looks. Without `harm`: leaves it alone."""
    verb = VERBS[name]
    site.count += 1
    site.newest = site.find_newest()
    verb.before(site)
    began = time.monotonic()
    running = site.cli.start(*verb.words(site))
    struck = False
    if harm and chance:
        with suppress(subprocess.TimeoutExpired):
            running.process.wait(at)
        struck = running.process.poll() is None
        if struck:
            HARMS[harm](running, chance)
    done = running.wait(100)
    misses = [f"exit code {done.code}: {done}"] if done.code else []
    true = TRUE.get(harm, "reconnected to")
    said = [s for s in done.err.splitlines() if FALSE.search(s) and not re.search(true, s)]
    misses += [f"it says {line!r}" for line in said]
    misses += verb.check(site, done)
    misses += kills.check_records(site)
    took = time.monotonic() - began
    return Moment(name, harm, at if harm else took, struck, tuple(misses))


def attack(site: Site, name: str, harm: str, moments: int, seed: int) -> Iterator[Moment]:
    chance = random.Random(f"{seed} {name} {harm}")
    undisturbed = strike(site, name)
    yield undisturbed
    for _ in range(moments):
        at = 0.2 + chance.random() * max(0.1, undisturbed.at - 0.2)
        yield strike(site, name, harm, at, chance)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--harms", default=",".join(HARMS))
    parser.add_argument("--moments", type=int, default=3, help="of each verb with each harm")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    missed = 0
    print("| verb | harm | struck | with misses |\n|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as folder,
        kills.site_in(Path(folder)) as site,
    ):
        site.cli.script("slow/slow.py", SLOW)
        for name in given.verbs.split(","):
            for harm in given.harms.split(","):
                found = []
                for moment in attack(site, name, harm, given.moments, given.seed):
                    found.append(moment)
                    for item in moment.misses:
                        print(f"miss: {name}, {harm or 'undisturbed'} at {moment.at:.2f} s: {item}")
                bad = sum(bool(moment.misses) for moment in found)
                struck = sum(moment.struck for moment in found)
                print(f"| `{name}` | {harm} | {struck} | {bad} |", flush=True)
                missed += bad
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
