"""clusterctl beside the tools that people use today, in one run: start-up, the first hour, fan-out,
copies, ranks, all-reduces.

    python -m bench.peers [--peers FOLDER] [--only SECTION …] [--out bench/results/peers.json]
    python -m bench.peers --only all-reduce --osu osu-micro-benchmarks-7.4

`--osu`: the sources of OSU's benchmarks (7.4 was tried), which are compiled below FOLDER; without
them the all-reduces are compared with gloo and mpi4py alone.

Each peer is installed from its registry into an environment of its own below FOLDER, once. All take
turns, at least five times; the median counts, with the smallest and the largest. `start-up` and
`fan-out` are measured again beside a process that computes without a pause. Needs root, Debian's
pdsh and rsync, and the extra `workloads`; about an hour. Exit code 1: a ratio is over its
limit. With --only, results replace those of these sections in the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.core import keys
from clusterctl.state.home import find_home
from clusterctl.state.store import Store
from tests.sim.sge import Sge
from tests.sim.slurm import Slurm

HERE = Path(__file__).resolve().parent
OUT = HERE / "results" / "peers.json"
PYTHON = sys.executable
CTL = (PYTHON, "-m", "clusterctl")
PACKAGES = {
    "aws": "awscli",
    "ray": "ray",
    "sky": "skypilot",
    "pcluster": "aws-parallelcluster",
    "dstack": "dstack",
    "clush": "ClusterShell",
    "parallel-ssh": "parallel-ssh",
    "asyncssh": "asyncssh",
    "ansible": "ansible-core",
    "pyinfra": "pyinfra",
}
OURS = "clusterctl"
BEST = "the fastest other"
ROUNDS = 5
LIMIT = 600.0
"""Seconds that one command may take."""
BIG, SMALL = (10, 10_000_000), (1_000, 10_000)
"""Files of the two trees that are copied, and bytes of each."""
UPLINKS = {"200 Mbit/s": "200mbit", "1 Gbit/s": "1gbit"}
SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 23, 1 << 26)
"""Bytes of the all-reduces."""
OSU_PROGRAM = "c/mpi/collective/blocking/osu_allreduce"

BARE_TYPER = """
import typer
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
@app.command()
def one(name: str = "x"): ...
@app.command()
def two(name: str = "x"): ...
app()
"""
BARRIER = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
ASYNCSSH = """
import asyncio, sys, time
import asyncssh
async def main(names):
    async def connect(name):
        return await asyncssh.connect(name, config=["config"])
    links = await asyncio.gather(*map(connect, names))
    async def run(link):
        assert (await link.run("true")).exit_status == 0
    await asyncio.gather(*map(run, links))
    began = time.perf_counter()
    await asyncio.gather(*map(run, links))
    print(time.perf_counter() - began)
    for link in links:
        link.close()
asyncio.run(main(sys.argv[1:]))
"""
FAN_OUT = """
import time
from clusterctl.actions import common
store = common.open_store()
cluster = store.read_cluster("default")
names = [worker.name for worker in cluster.workers]
with common.open_pool(store, cluster) as pool:
    for last in (False, True):
        began = time.perf_counter()
        assert all(result.ok for result in pool.run("true", names, timeout=60))
        if last:
            print(time.perf_counter() - began)
"""
RAY_HELLO = """
import ray
@ray.remote
def hello():
    return "hello"
ray.init(include_dashboard=False)
print(ray.get(hello.remote()), flush=True)
"""
PARALLEL_SSH = """
import sys, time
from pssh.clients import ParallelSSHClient
key, *hosts = sys.argv[1:]
client = ParallelSSHClient(hosts, user="root", pkey=key, pool_size=len(hosts))
def run():
    out = client.run_command("true")
    client.join(out)
    assert [o.exit_code for o in out] == [0] * len(hosts)
run()
began = time.perf_counter()
run()
print(time.perf_counter() - began)
"""


@dataclass
class Comparison:
    """`seconds`: of each tool, one for each round. `limits`: how many times those of a peer ours
    may be, or those of BEST."""

    section: str
    what: str
    seconds: dict[str, list[float]]
    limits: dict[str, float] = field(default_factory=dict)
    note: str = ""
    unit: str = "s"

    def list_misses(self) -> list[str]:
        medians = {name: statistics.median(values) for name, values in self.seconds.items()}
        ours = medians.pop(OURS)
        found = []
        for peer, limit in self.limits.items():
            theirs = min(medians.values()) if peer == BEST else medians[peer]
            if ours > limit * theirs:
                found.append(f"{ours / theirs:.3g} × {peer}, limit {limit:g}")
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache" / "clusterctl-peers")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", action="append", choices=SECTIONS, default=[])
    parser.add_argument("--osu", type=Path, help="sources of OSU's benchmarks")
    options = parser.parse_args()
    out, peers = options.out.absolute(), options.peers.absolute()
    if options.osu:
        compile_osu(options.osu.absolute(), peers)
    chosen = options.only or list(SECTIONS)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        os.environ["CLUSTERCTL_HOME"] = f"{scratch}/state"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # installed programs have their bytecode
        os.chdir(scratch)
        found = []
        for name in chosen:
            print(f"{name} …", file=sys.stderr, flush=True)
            found += SECTIONS[name](peers, options.rounds)
    kept = json.loads(out.read_text())["rows"] if options.only and out.exists() else []
    rows = [row for row in kept if row["section"] not in chosen]
    when = {"date": time.strftime("%Y-%m-%d"), "load_before": round(load, 1)}
    rows += [{**asdict(row), "misses": row.list_misses(), **when} for row in found]
    rows.sort(key=lambda row: list(SECTIONS).index(row["section"]))
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}",
        "rows": rows,
    }
    out.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    for row in found:
        for name, values in row.seconds.items():
            low, high = min(values), max(values)
            print(
                f"{row.section:<10} {row.what:<40} {name:<14}"
                f" {statistics.median(values):8.3f} {row.unit} ({low:.3f}-{high:.3f})"
            )
        for miss in row.list_misses():
            print(f"OVER       {row.what}: {miss}")
    return 1 if any(row.list_misses() for row in found) else 0


# -------------------------------------------------------------------------------------------------
# The sections.


def start_up(peers: Path, rounds: int) -> list[Comparison]:
    Path("bare.py").write_text(BARE_TYPER)
    quiet([*CTL, "up", "--quiet"])
    commands = {verb: [*CTL, verb] for verb in ("--help", "status")}
    commands["barest Typer app"] = [PYTHON, "bare.py", "--help"]
    for name in ("aws", "ray", "sky", "pcluster", "dstack"):
        word = "--version" if name == "aws" else "--help"  # `aws help` opens a pager
        commands[name] = [find_peer(peers, name), word]
    found = []
    try:
        for beside in ("", ", beside a busy process"):
            with busy() if beside else contextlib.nullcontext():
                seconds = alternate(commands, rounds=rounds)
            verbs = {verb: seconds.pop(verb) for verb in ("--help", "status")}
            for verb, limit in (("--help", 1.2), ("status", 1.6)):
                limits = {"barest Typer app": limit, "aws": 1 / 3}
                limits |= dict.fromkeys(("ray", "sky", "pcluster", "dstack"), 1 / 10)
                both = {OURS: verbs[verb], **seconds}
                found.append(Comparison("start-up", verb + beside, both, limits))
    finally:
        take_down()
    return found


def fan_out(peers: Path, rounds: int) -> list[Comparison]:
    """`true` on all nodes: cold as whole processes, warm over open connections."""
    texts = {OURS: FAN_OUT, "asyncssh": ASYNCSSH, "parallel-ssh": PARALLEL_SSH}
    scripts = {name: str(Path(f"{name}.script").absolute()) for name in texts}
    for name, text in texts.items():
        Path(scripts[name]).write_text(text)
    found = []
    for count in (8, 64):
        quiet([*CTL, "up", "--workers", str(count), "--quiet"])
        try:
            store = Store(find_home())
            folder = store.locate_folder("default") / "ssh"
            workers = store.read_cluster("default").workers
            names, hosts = [w.name for w in workers], [w.address for w in workers]
            key = next(
                str(path.with_suffix("")) for path in folder.glob("*.pub") if path.stem != "mesh"
            )
            inventory = folder / "inventory.ini"
            inventory.write_text("".join(f"{name}\n" for name in names))
            known = folder / "pyinfra_known_hosts"
            known.touch()
            login = {"ssh_user": "root", "ssh_key": key, "ssh_known_hosts_file": str(known)}
            python = folder / "inventory.py"
            python.write_text(f"nodes = ({hosts!r}, {login!r})\n")
            joined, many = ",".join(names), str(count)
            ssh = "-F config -o ControlMaster=no"
            cold: dict[str, Sequence[str]] = {
                OURS: [PYTHON, scripts[OURS]],
                "asyncssh": [find_peer(peers, "asyncssh", "python"), scripts["asyncssh"], *names],
                "parallel-ssh": [
                    find_peer(peers, "parallel-ssh", "python"),
                    scripts["parallel-ssh"],
                    key,
                    *hosts,
                ],
                "clush": [
                    find_peer(peers, "clush"),
                    "-S",
                    "-f",
                    many,
                    "-o",
                    ssh,
                    "-w",
                    joined,
                    "true",
                ],
                "pdsh": ["pdsh", "-R", "ssh", "-f", many, "-w", joined, "true"],
                "ansible": [
                    *(find_peer(peers, "ansible"), "all", "-i", str(inventory), "-f", many),
                    *("-m", "raw", "-a", "true", "--ssh-common-args", ssh),
                ],
                "pyinfra": [find_peer(peers, "pyinfra"), "-y", str(python), "exec", "--", "true"],
            }
            environ = {
                **os.environ,
                "PDSH_SSH_ARGS_APPEND": ssh,
                "PYTHONPATH": str(HERE.parent),
            }
            for beside in ("", ", beside a busy process")[: 2 if count == 8 else 1]:
                with busy() if beside else contextlib.nullcontext():
                    warm: dict[str, list[float]] = {}
                    seconds = alternate(cold, rounds=rounds, warm=warm, cwd=folder, env=environ)
                what = f"{count} nodes, {{}}{beside}"
                found.append(Comparison("fan-out", what.format("cold"), seconds, {BEST: 1.05}))
                found.append(Comparison("fan-out", what.format("warm"), warm, {BEST: 1.05}))
        finally:
            take_down()
    return found


def copies(peers: Path, rounds: int) -> list[Comparison]:
    """Trees for eight nodes, and one changed file, over loopback and over a slow uplink."""
    quiet([*CTL, "up", "--workers", "8", "--quiet"])
    try:
        store = Store(find_home())
        ssh = store.locate_folder("default") / "ssh"
        names = [worker.name for worker in store.read_cluster("default").workers]
        device = json.loads(
            subprocess.check_output(
                ["ip", "-j", "route", "get", store.read_cluster("default").workers[0].address]
            )
        )[0]["dev"]
        found = []
        for what, (count, size), rate in (
            ("100 MB in 10 files", BIG, ""),
            ("1,000 files of 10 kB", SMALL, ""),
            *((f"100 MB over an uplink of {name}", BIG, rate) for name, rate in UPLINKS.items()),
        ):
            first: dict[str, list[float]] = {}
            again: dict[str, list[float]] = {}
            with slow_uplink(device, rate) if rate else contextlib.nullcontext():
                for _ in range(rounds):
                    for name in (OURS, "scp", "rsync", "clush"):
                        tree = Path(f"set-{name}")
                        make_tree(tree, count, size)
                        command = copy_command(name, tree.absolute(), names, peers)
                        where = Path.cwd() if name == OURS else ssh
                        for taken in (first, again):
                            began = time.monotonic()
                            quiet(command, cwd=where)
                            taken.setdefault(name, []).append(time.monotonic() - began)
                            (tree / "0.bin").write_bytes(os.urandom(size))
                        quiet([*CTL, "ssh", "worker-1", "--", "true"])
            best = 1 / 4 if rate else 1.1
            found.append(Comparison("copies", what, first, {BEST: best}, "to 8 nodes"))
            if not rate:
                limits = {"rsync": 0.3}
                found.append(
                    Comparison("copies", f"{what}, one changed", again, limits, "to 8 nodes")
                )
        return found
    finally:
        take_down()


def copy_command(name: str, tree: Path, names: Sequence[str], peers: Path) -> Sequence[str]:
    """Copies the tree to all nodes, as one would type it. Each of `names` has a root of its own,
    and a folder there."""
    if name == OURS:
        return [*CTL, "data", "push", "--quiet", f"./{tree.name}"]
    target = tempfile.mkdtemp(dir=Path.cwd())  # local nodes share the disk
    if name == "clush":
        joined = ",".join(names)
        return [
            *(find_peer(peers, "clush"), "-S", "-f", "64", "-o", "-F config", "-w", joined),
            *("--copy", str(tree), "--dest", f"{target}/"),
        ]
    copy = {
        "scp": f"scp -q -r -F config {shlex.quote(str(tree))} NODE:{target}/NODE",
        "rsync": f"rsync -a -e 'ssh -F config' {shlex.quote(str(tree))}/ NODE:{target}/NODE/",
    }[name]
    return ["sh", "-c", "".join(f"{copy.replace('NODE', node)} & " for node in names) + "wait"]


def ranks(peers: Path, rounds: int) -> list[Comparison]:
    """To the first barrier of torch on two nodes."""
    Path("barrier.py").write_text(BARRIER)
    quiet([*CTL, "up", "--quiet"])
    try:
        store = Store(find_home())
        folder = store.locate_folder("default") / "ssh"
        cluster = store.read_cluster("default")
        program = shlex.quote(str(Path("barrier.py").absolute()))
        by_hand = "".join(
            f"ssh -F config {worker.name} {PYTHON} -m torch.distributed.run --nnodes 2"
            f" --nproc-per-node 1 --node-rank {rank} --master-addr"
            f" {cluster.workers[0].private_address} --master-port 29500 {program} & "
            for rank, worker in enumerate(cluster.workers)
        )
        commands = {
            OURS: ["sh", "-c", f"cd {Path.cwd()} && {shlex.join(CTL)} run --quiet barrier.py"],
            "torchrun over ssh": ["sh", "-c", f"{by_hand} wait"],
        }
        seconds = alternate(commands, rounds=rounds, cwd=folder)
        limits = {"torchrun over ssh": 1 / 1.8}
        return [Comparison("ranks", "to the first barrier of torch", seconds, limits, "2 nodes")]
    finally:
        take_down()


def all_reduce(peers: Path, rounds: int) -> list[Comparison]:
    """The bundled programs' all-reduce of two ranks: microseconds of the first decile, measured as
    OSU's program does, which takes turns with them."""
    names = {"ours": OURS, "gloo": "gloo", "bare": "mpi4py"}
    program, osu = HERE / "allreduce.py", peers / "osu" / OSU_PROGRAM
    if osu.exists():
        shutil.copy(osu, "osu_allreduce")
    quiet([*CTL, "up", "--quiet"])
    found = []
    try:
        for where, flags in (
            ("one host", ("--nodes", "1", "--ranks-per-node", "2")),
            ("two nodes", ("--nodes", "2", "--ranks-per-node", "1")),
        ):
            took: dict[int, dict[str, list[float]]] = {size: {} for size in SIZES}
            run = [*CTL, "run", "--quiet", *flags]
            for _ in range(rounds):
                each = ["--like-osu", "--rounds", "6", "--sizes", *map(str, SIZES)]
                text = quiet([*run, str(program), *each], accept=(0, 1))
                rows = json.loads("\n".join(strip_tags(text)))["sizes"]
                for row in rows:
                    for name, us in row["us"].items():
                        took[row["bytes"]].setdefault(names[name], []).append(us)
                for sizes, calls in ((SIZES[:3], 2000), (SIZES[3:], 30)) if osu.exists() else ():
                    for size, us in run_osu(run, sizes, calls).items():
                        took[size].setdefault("OSU", []).append(us)
            for size, us in took.items():
                limits = {"gloo": 0.1} if size <= 1 << 16 else {"mpi4py": 1 / 0.95}
                if size > 1 << 16 and "OSU" in us:
                    limits["OSU"] = 1 / 0.95
                found.append(
                    Comparison("all-reduce", f"{size:,} bytes", us, limits, f"{where}, µs")
                )
        return found
    finally:
        take_down()


def run_osu(run: Sequence[str], sizes: Sequence[int], calls: int) -> dict[int, float]:
    """Microseconds by size: of the same calls, in place and of floats, and their first decile."""
    words = ["-m", f"{sizes[0]}:{sizes[-1]}", "-i", str(calls), "-T", "mpi_float", "-l", "-z10"]
    rows = [line.split() for line in strip_tags(quiet([*run, "./osu_allreduce", *words]))]
    table = {int(row[0]): float(row[-1]) for row in rows if row and row[0].isdigit()}
    return {size: table[size] for size in sizes}


def strip_tags(text: str) -> list[str]:
    """The lines of rank 0."""
    return [line.partition("[0] ")[2] for line in text.splitlines() if line.startswith("[0]")]


def compile_osu(sources: Path, peers: Path) -> None:
    """Its all-reduce, with the Open MPI of this Python, or else of this machine."""
    made = peers / "osu"
    if (made / OSU_PROGRAM).exists():
        return
    shutil.copytree(sources, made, dirs_exist_ok=True)
    bins = f"{Path(PYTHON).parent}:{os.environ['PATH']}"
    steps = "sh configure CC=mpicc CXX=mpicc && make -C {} {}"
    script = steps.format(*(shlex.quote(str(part)) for part in os.path.split(OSU_PROGRAM)))
    quiet(["sh", "-c", script], cwd=made, env={**os.environ, "PATH": bins})


def first_hour(peers: Path, rounds: int) -> list[Comparison]:
    """From `git clone`, or `pip install`, to the first line of a rank or worker on this machine,
    as far as each tool goes without a cloud. pip's cache is warm: downloads are not compared."""
    source, folder = HERE.parent, Path("first-hour").absolute()
    pip = "env/bin/pip install --quiet"
    installs = {
        OURS: f"git clone --quiet {shlex.quote(str(source))} clone && {pip} './clone[workloads]'",
        "ray": f"{pip} ray",
        "sky": f"{pip} 'skypilot[kubernetes]'",
        "dstack": f"{pip} 'dstack[all]'",
    }
    firsts = {
        OURS: "../env/bin/clusterctl up --quiet && ../env/bin/clusterctl run --quiet hello.py",
        "ray": "../env/bin/python ray_hello.py",
    }
    installed: dict[str, list[float]] = {}
    lines: dict[str, list[float]] = {}
    for number in range(min(rounds, 3) + 1):
        for name, install in installs.items():
            shutil.rmtree(folder, ignore_errors=True)
            mine = folder / "mine"
            mine.mkdir(parents=True)
            (mine / "hello.py").write_text("print('hello')\n")
            (mine / "ray_hello.py").write_text(RAY_HELLO)
            began = time.monotonic()
            quiet(["sh", "-c", f"{shlex.quote(PYTHON)} -m venv env && {install}"], cwd=folder)
            took = time.monotonic() - began
            if number:  # the first round fills pip's cache
                installed.setdefault(name, []).append(took)
            if first := firsts.get(name):
                assert "hello" in quiet(["sh", "-c", first], cwd=mine)
                if number:
                    lines.setdefault(name, []).append(time.monotonic() - began)
            if name == OURS:
                take_down()
    note = "packages in pip's cache"
    return [
        Comparison("first hour", "until it is installed", installed, {}, note),
        Comparison("first hour", "until the first line of a rank", lines, {BEST: 1.0}, note),
    ]


def submissions(peers: Path, rounds: int) -> list[Comparison]:
    """A job of one file, from this machine to the number that the queue gives it."""
    small = Path("small").absolute()
    small.mkdir()
    (small / "hi.py").write_text("print('hi')\n")
    found = []
    for kind, bare in ((Slurm, "sbatch --parsable --wrap true"), (Sge, "echo true | qsub -terse")):
        system = kind.__name__.lower()
        folder = Path(system).absolute()
        ssh = folder / "person" / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        lab = kind.start(folder)
        try:
            allowed = folder / "root" / ".ssh" / "authorized_keys"
            allowed.parent.mkdir(mode=0o700)
            allowed.write_text(keys.ensure(ssh / "id_ed25519") + "\n")
            lab.machines.sshd("login")
            (ssh / "known_hosts").write_text(f"{lab.login.address} {lab.login.public_key}\n")
            files = f"IdentityFile {ssh}/id_ed25519\nUserKnownHostsFile {ssh}/known_hosts\n"
            (ssh / "config").write_text(
                f"Host cluster\nHostName {lab.login.address}\nUser root\n{files}"
            )
            person = {"HOME": str(ssh.parent), "CLUSTERCTL_HOME": str(folder / "state")}
            where: dict[str, Any] = {"env": {**os.environ, **person}, "cwd": small}
            where["env"]["PYTHONPATH"] = str(HERE.parent)
            quiet([*CTL, "attach", "site", f"--{system}", "cluster"], **where)
            commands = {
                OURS: [*CTL, "run", "--detach", "--quiet", "hi.py"],
                "ssh": ["ssh", "-F", str(ssh / "config"), "cluster", bare],
            }
            seconds = alternate(commands, rounds, **where)
            what = f"a job for {system}, until it has its number"
            found.append(Comparison("submissions", what, seconds, {"ssh": 4}, bare))
        finally:
            lab.stop()
    return found


def records(peers: Path, rounds: int) -> list[Comparison]:
    """What 1,000 nodes and 10,000 jobs cost the verbs that only read the records."""
    Path("hi.py").write_text("print('hi')\n")
    quiet([*CTL, "up", "--quiet"])
    try:
        quiet([*CTL, "run", "--quiet", "hi.py"])
        verbs = {f"{OURS} {verb}": [*CTL, verb] for verb in ("status", "jobs")}
        few = alternate(verbs, rounds=rounds)
        home = Path(os.environ["CLUSTERCTL_HOME"])
        large = home.parent / "large"
        shutil.copytree(home / "clusters", large / "clusters", ignore=lambda *_: ["nodes"])
        record = large / "clusters" / "default" / "cluster.json"
        cluster = json.loads(record.read_text())
        workers = [node for node in cluster["nodes"] if node["role"] == "worker"]
        cluster["nodes"] = [node for node in cluster["nodes"] if node["role"] != "worker"] + [
            {**workers[0], "name": f"worker-{n + 1}", "private_address": f"10.0.{n >> 8}.{n & 255}"}
            for n in range(1000)
        ]
        record.write_text(json.dumps(cluster))
        job = json.loads((home / "jobs" / "1" / "job.json").read_text())
        for number in range(1, 10_001):
            folder = large / "jobs" / str(number)
            folder.mkdir(parents=True)
            (folder / "job.json").write_text(json.dumps({**job, "id": number}))
        environ = {**os.environ, "CLUSTERCTL_HOME": str(large)}
        many = alternate(verbs, rounds=rounds, env=environ)
    finally:
        take_down()
    return [
        Comparison(
            "records",
            f"{verb}, 1,000 nodes and 10,000 jobs",
            {OURS: many[f"{OURS} {verb}"], "3 nodes and one job": few[f"{OURS} {verb}"]},
            note=f"{measure_memory([*CTL, verb], environ):.0f} MB",
        )
        for verb in ("status", "jobs")
    ]


SECTIONS: Mapping[str, Callable[[Path, int], list[Comparison]]] = {
    "start-up": start_up,
    "fan-out": fan_out,
    "ranks": ranks,
    "all-reduce": all_reduce,
    "first hour": first_hour,
    "copies": copies,
    "records": records,
    "submissions": submissions,
}


# -------------------------------------------------------------------------------------------------
# What they share.


def find_peer(peers: Path, name: str, program: str = "") -> str:
    """A program of a peer's environment, which is made if it is not there."""
    place = peers / PACKAGES[name] / "bin"
    if not (place / (program or name)).exists():
        print(f"installing {PACKAGES[name]} …", file=sys.stderr, flush=True)
        quiet([PYTHON, "-m", "venv", str(place.parent)])
        quiet([str(place / "pip"), "install", "--quiet", PACKAGES[name]])
    return str(place / (program or name))


def make_tree(folder: Path, count: int, size: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.bin").write_bytes(os.urandom(size))


@contextlib.contextmanager
def slow_uplink(device: str, rate: str) -> Iterator[None]:
    """This machine's network to the nodes; theirs among each other stays as it is."""
    shape = ["tc", "qdisc", "replace", "dev", device, "root", "tbf"]
    quiet([*shape, "rate", rate, "burst", "1mb", "latency", "50ms"])
    try:
        yield
    finally:
        quiet(["tc", "qdisc", "del", "dev", device, "root"])


@contextlib.contextmanager
def busy() -> Iterator[None]:
    with subprocess.Popen([PYTHON, "-c", "while True: pass"]) as spinning:
        try:
            yield
        finally:
            spinning.kill()


def alternate(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    warm: dict[str, list[float]] | None = None,
    **where: Any,
) -> dict[str, list[float]]:
    """Seconds of each command, taken in turns after one round that does not count. `warm` gets
    those that a command prints alone on a line."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            began = time.monotonic()
            text = quiet(command, **where)
            if number:
                seconds[name].append(time.monotonic() - began)
                if warm is not None:
                    with contextlib.suppress(ValueError):
                        warm.setdefault(name, []).append(float(text))
    for name in [name for name, values in (warm or {}).items() if not values]:
        assert warm
        del warm[name]
    return seconds


def measure_memory(command: Sequence[str], environ: Mapping[str, str]) -> float:
    """The most that it has in memory, in MB."""
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as running:
        _, _, used = os.wait4(running.pid, 0)
        running.returncode = 0
    return used.ru_maxrss / 1000


def quiet(command: Sequence[str], accept: Sequence[int] = (0,), **where: Any) -> str:
    """What it prints on stdout. Raises CalledProcessError with what it said."""
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT, **where
    )
    if done.returncode not in accept:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    return done.stdout


def take_down() -> None:
    quiet([*CTL, "down", "--discard", "--yes", "--force", "--quiet"])


if __name__ == "__main__":
    sys.exit(main())
