"""What clusterctl adds on a local cluster: start-up, `up`, `run`; and the bundled training step.

    python bench/local.py [--out bench/results/local.json]

Everything is compared within one run, on one machine: variants take turns, the median counts.
Rows hold what was measured, what it was measured against, and the limit that we set ourselves; the
exit code is 1 if one is over its limit. Needs the extras `workloads`, root, strace, pdsh, and clush
(in Debian's clustershell); about eight minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clusterctl.actions import common, run
from clusterctl.actions.run import follow_to_end
from clusterctl.core.job import JobSpec
from clusterctl.options.verbs import Run
from clusterctl.state.home import find_home
from clusterctl.state.store import Store

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
PYTHON = sys.executable
CTL = [PYTHON, "-m", "clusterctl"]
FILES, SIZE = 200, 500_000
"""Of a tree and of a data set, in bytes."""
BARE_TYPER = """
import typer
app = typer.Typer(
    name="bare",
    help="The settings of clusterctl's own application.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@app.command()
def one(name: str = "x"): ...
@app.command()
def two(name: str = "x"): ...
app()
"""


LINES = 50_000
"""That each of eight ranks prints."""
FOLLOWED = 40.0
"""Seconds of a training that is followed: outputs are looked for every 30."""


@dataclass(frozen=True)
class Row:
    """`value` in `unit`, `limit` the same; `against` says what it is compared with."""

    what: str
    value: float
    unit: str
    limit: float
    against: str

    @property
    def ok(self) -> bool:
        return self.value <= self.limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "local.json")
    out: Path = parser.parse_args().out.absolute()  # before the folder changes
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        os.environ["CLUSTERCTL_HOME"] = f"{scratch}/state"
        # Installed programs have their bytecode.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        Path(scratch, "work").mkdir()
        os.chdir(f"{scratch}/work")
        Path("trivial.py").write_text("print('hello')\n")
        Path("last.py").write_text("import time\nprint(time.time(), flush=True)\n")
        Path("lines.py").write_text(f"for n in range({LINES}):\n    print(f'line {{n:>40}}')\n")
        Path("bare.py").write_text(BARE_TYPER)
        shutil.copy(HERE / "steady.py", "steady.py")
        start, rows = start_up()
        try:
            rows += two_nodes(start)
            quiet([*CTL, "down", "--force", "--quiet"])
            rows += [*eight_nodes(start), *trees_and_data(), many_nodes()]
        finally:
            subprocess.run([*CTL, "down", "--force", "--quiet"], check=True)
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
        "rows": [{**asdict(row), "ok": row.ok} for row in rows],
    }
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    for row in rows:
        mark = "ok  " if row.ok else "OVER"
        limit = f"{row.value:8.3f} {row.unit}  (limit {row.limit:g})"
        print(f"{mark} {row.what:<48} {limit}  {row.against}")
    return 0 if all(row.ok for row in rows) else 1


def start_up() -> tuple[float, list[Row]]:
    """Seconds that a bare Typer app takes, which other rows are compared with, and our own rows."""
    times = alternate(
        {
            "help": lambda: quiet([*CTL, "--help"]),
            "version": lambda: quiet([*CTL, "--version"]),
            "bare": lambda: quiet([PYTHON, "bare.py", "--help"]),
        },
        rounds=21,
    )
    against = "÷ --help of a Typer app with the same settings and two commands"
    return times["bare"], [
        Row("clusterctl --help", times["help"] / times["bare"], "x", 1.2, against),
        Row("clusterctl --version", times["version"] / times["bare"], "x", 1.2, against),
    ]


def in_starts(what: str, seconds: float, start: float, limit: float, beside: str = "") -> Row:
    """A time in the machine's own measure, so that the limit holds on another machine, too."""
    against = f"{seconds * 1000:.0f} ms ÷ start of a bare Typer app{beside}"
    return Row(what, seconds / start, "x", limit, against)


def eight_nodes(start: float) -> list[Row]:
    """`up --workers 8`: the whole, and the part that starts nodes."""
    phases: dict[str, list[float]] = {"create": [], "all": []}
    output: list[Row] = []
    for again in (True, True, False):
        began = time.monotonic()
        made = json.loads(
            subprocess.run(
                [*CTL, "up", "--workers", "8", "--json", "--quiet"],
                check=True,
                stdout=subprocess.PIPE,
            ).stdout
        )
        phases["all"].append(time.monotonic() - began)
        phases["create"].append(made["seconds"]["create"])
        if not again:
            output = [much_output()]
        quiet([*CTL, "down", "--force", "--quiet"])
    create, whole = (statistics.median(phases[name]) for name in ("create", "all"))
    return [
        in_starts("9 nodes started", create, start, 10, ", 8 workers"),
        in_starts("up complete, mesh checked", whole, start, 45, ", 8 workers"),
        *output,
    ]


def much_output() -> Row:
    """The ranks' output as `run` shows it, against pdsh with the same program."""
    store = Store(find_home())
    ssh = store.locate_folder("default") / "ssh"
    workers = [node.name for node in store.read_cluster("default").workers]
    program = Path("lines.py").absolute()
    pdsh = ["pdsh", "-R", "ssh", "-w", ",".join(workers), PYTHON, str(program)]
    environ = {**os.environ, "PDSH_SSH_ARGS_APPEND": "-F config"}
    times = alternate(
        {
            "run": lambda: quiet([*CTL, "run", "--quiet", "lines.py"]),
            "trivial": lambda: quiet([*CTL, "run", "--quiet", "trivial.py"]),
            "pdsh": lambda: quiet(pdsh, cwd=ssh, env=environ),
        },
        rounds=3,
    )
    against = f"{times['run']:.1f} s ÷ pdsh and `run` of a trivial program"
    beside = times["pdsh"] + times["trivial"]
    return Row(f"8 × {LINES:,} lines", times["run"] / beside, "x", 1.0, against)


def many_nodes() -> Row:
    began = time.monotonic()
    quiet([*CTL, "up", "--workers", "64", "--quiet"])
    seconds = time.monotonic() - began
    quiet([*CTL, "down", "--quiet"])
    return Row("up of 64 workers", seconds, "s", 6, "mesh checked")


def trees_and_data() -> list[Row]:
    """100 MB for eight nodes: seconds, and bytes that leave this machine."""
    quiet([*CTL, "up", "--workers", "8", "--quiet"])
    home, names = find_home().path, ("empty", "tree", "set", "copied")
    empty, tree, data, copied = folders = [Path(name).absolute() for name in names]
    address = Store(find_home()).read_cluster("default").workers[0].address
    route = json.loads(subprocess.check_output(["ip", "-j", "route", "get", address]))
    device = Path("/sys/class/net", route[0]["dev"], "statistics/tx_bytes")
    copy = ["clush", "-f", "64", "-o", "-F config", "-w", "worker-[1-8]", "--copy", str(data)]
    taken: dict[str, list[float]] = {}
    sent: dict[str, list[int]] = {}

    def measure(what: str, folder: Path, *argv: str) -> None:
        before, began = int(device.read_text()), time.monotonic()
        subprocess.run(argv, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        taken.setdefault(what, []).append(time.monotonic() - began)
        sent.setdefault(what, []).append(int(device.read_text()) - before)

    for number in range(3):
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for file in range(FILES):
            for folder in (tree, data):
                (folder / f"{file}.bin").write_bytes(os.urandom(SIZE))
        for folder in (empty, tree):
            (folder / "hi.py").write_text(f"print('hi', {number})\n")
        run = [*CTL, "run", "--quiet", "hi.py"]
        measure("empty", empty, *run)
        measure("first", tree, *run)
        (tree / "hi.py").write_text(f"print('hi again', {number})\n")
        measure("changed", tree, *run)
        measure("push", data.parent, *CTL, "data", "push", "--quiet", "./set")
        measure("push again", data.parent, *CTL, "data", "push", "--quiet", "./set")
        measure("clush", home / "clusters/default/ssh", *copy, "--dest", f"{copied}/")
    quiet([*CTL, "down", "--discard", "--yes", "--force", "--quiet"])
    seconds = {what: statistics.median(values) for what, values in taken.items()}
    extra = statistics.median(sent["changed"]) - statistics.median(sent["empty"])
    first, changed = (seconds[what] - seconds["empty"] for what in ("first", "changed"))
    clush = seconds["clush"]
    against = f"÷ clush --copy, {clush:.1f} s"
    small = "beyond the same of an empty tree"
    return [
        Row("first run of a tree of 100 MB, added", first / clush, "x", 1.5, against),
        Row("run with one of its files changed, added", changed, "s", 0.3, small),
        Row("sent then", extra / 1000, "kB", 200, small),
        Row("first push of 100 MB", seconds["push"] / clush, "x", 1.1, against),
        Row("sent then", statistics.median(sent["push"]) / FILES / SIZE, "x", 1.05, "÷ its size"),
        Row("push of what is there", seconds["push again"], "s", 0.6, "8 workers, 100 MB"),
    ]


def two_nodes(start: float) -> list[Row]:
    quiet([*CTL, "up", "--quiet"])
    status = alternate({"status": lambda: quiet([*CTL, "status"])}, rounds=11)["status"]
    store = Store(find_home())
    cluster = store.read_cluster("default")
    prepared = prepare(store)
    flags = prepared.plan.argv[: prepared.plan.argv.index("/bin/sh")]
    hosts = prepared.plan.files["hostfile"]
    hostfile = f"{cluster.launcher.root}/bench-hostfile"
    words = [hostfile if word == "hostfile" else word for word in flags]
    # The same flags over the same nodes, but mpirun starts the program itself.
    bare = (
        f"PATH={shlex.quote(cluster.launcher.root)}/bin:$PATH MASTER_PORT=1 CLUSTERCTL_ATTEMPT=1;"
        " export PATH MASTER_PORT CLUSTERCTL_ATTEMPT;"
        f" printf %s {shlex.quote(hosts)} >{shlex.quote(hostfile)};"
        f" a=$(date +%s%N); {shlex.join(words)} {PYTHON} -c 'print(1)' </dev/null >/dev/null"
        ' && echo "$(($(date +%s%N) - a))"'
    )
    with common.open_pool(store, cluster) as pool:
        launcher = pool.find_transport(cluster.launcher.name)
        launcher.connect(20)
        nanoseconds: list[float] = []

        def mpirun() -> None:
            nanoseconds.append(float(launcher.run(bare, timeout=60).text))

        times = alternate(
            {"run": lambda: quiet([*CTL, "run", "--quiet", "trivial.py"]), "mpirun": mpirun},
            rounds=9,
        )
        to_start = [connected_to_start(store) for _ in range(7)]
    added = times["run"] - statistics.median(nanoseconds) / 1e9
    training = ["1000", "1000"]
    whole = alternate(
        {
            "run": lambda: quiet([*CTL, "run", "--quiet", "multinode_ddp_mpi.py", *training]),
            "alone": lambda: quiet([PYTHON, str(WORKLOADS / "multinode_ddp_mpi.py"), *training]),
        },
        rounds=1,
    )
    return [
        in_starts("status, from the record", status, start, 3),
        in_starts("run of a trivial program, added", added, start, 6.5, ", without bare mpirun"),
        in_starts("last rank's end → run returns", returning(), start, 2.5),
        *following(),
        in_starts("connected → mpirun starts", statistics.median(to_start), start, 3),
        Row(
            "run multinode_ddp_mpi.py 1000 1000",
            whole["run"] / whole["alone"],
            "x",
            2.5,
            f"{whole['run']:.1f} s, 2 workers ÷ the program by itself, one rank",
        ),
        *training_step(),
    ]


def returning() -> float:
    """Seconds from the last line of the last rank to the end of `run`."""
    seconds = []
    for _ in range(9):
        out = subprocess.run(
            [*CTL, "run", "--quiet", "last.py"], check=True, stdout=subprocess.PIPE
        ).stdout.decode()
        ended = max(float(line.rpartition(" ")[2]) for line in out.splitlines())
        seconds.append(time.time() - ended)
    return statistics.median(seconds)


def following() -> list[Row]:
    """What a job costs its nodes, and what it costs them that it is followed."""
    with Forks() as forks:
        quiet([*CTL, "run", "--quiet", "trivial.py"])
    with Forks() as followed, training() as job:
        time.sleep(5)
        before = followed.count()
        time.sleep(FOLLOWED)
        more = followed.count() - before
        assert job.poll() is None
    with training() as job:
        time.sleep(2)
        began = read_follower_time()
        time.sleep(FOLLOWED)
        spent = max(read_follower_time()[name] - began[name] for name in began) / FOLLOWED
        assert job.poll() is None
    steps = compare_steps()
    return [
        Row("forks of a two-rank job, all nodes", forks.total, "", 120, "2 workers"),
        Row("forks while a training is followed", more, "", 0, f"in {FOLLOWED:g} s, all nodes"),
        Row("processor time of following", spent * 100, "%", 0.5, "of a core, 10 lines a second"),
        Row("step of a training that is followed", steps, "x", 1.01, "÷ one that is detached"),
    ]


@contextmanager
def training() -> Iterator[subprocess.Popen[bytes]]:
    """A job that somebody follows, from its first line on; it is cancelled."""
    shown = Path("shown")
    command = [*CTL, "run", "--quiet", "steady.py", "3600"]
    with shown.open("wb") as out, subprocess.Popen(command, stdout=out) as job:
        try:
            while not shown.stat().st_size and job.poll() is None:
                time.sleep(0.1)
            yield job
        finally:
            capture("cancel", "--quiet")  # not SIGINT: a shell's background commands ignore it


def compare_steps() -> float:
    """A training's median step while its output is followed ÷ that of the same one without."""
    command = ["steady.py", "10"]
    steps: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(3):
        for followed, kept in steps.items():
            out = capture("run", "--quiet", *([] if followed else ["--detach"]), *command)
            if not followed:
                time.sleep(13)
                out = capture("logs", "--quiet")
            last = [line for line in out.splitlines() if "step" not in line]
            kept += [float(line.rpartition(" ")[2]) for line in last]
    return statistics.median(steps[True]) / statistics.median(steps[False])


def capture(*words: str) -> str:
    return subprocess.run([*CTL, *words], check=True, stdout=subprocess.PIPE).stdout.decode()


def list_daemons() -> dict[str, int]:
    """The sshd of each node, by its name."""
    found = {}
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        named = re.search(rf"{re.escape(str(find_home().path))}/\S*/nodes/([^/]+)/etc/sshd", text)
        if named and "[listener]" in text:
            found[named[1]] = int(place.parent.name)
    return found


def list_below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in list_below(int(child)))]


class Forks(AbstractContextManager["Forks"]):
    """What the nodes' sshd, and all that they start, fork meanwhile. Threads are none."""

    def __enter__(self) -> Forks:
        words = ["strace", "-f", "-qq", "-e", "trace=fork,vfork,clone,clone3", "-e", "signal=none"]
        attached = [f"-p{pid}" for top in list_daemons().values() for pid in list_below(top)]
        self._log = Path("forks")
        self._log.unlink(missing_ok=True)
        command = [*words, "-o", str(self._log), *attached]
        self._tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(1)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(2)
        self.total = self.count()
        self._tracer.terminate()
        self._tracer.wait()

    def count(self) -> int:
        made = re.compile(r"(fork|clone3?)(\(| resumed).*= \d+$")
        lines = self._log.read_text(errors="replace").splitlines()
        return sum(bool(made.search(line)) and "CLONE_THREAD" not in line for line in lines)


def read_follower_time() -> dict[str, float]:
    """Seconds of processor time that what answers the follower on each worker has taken, and the
    sshd that carries it."""
    found = {}
    for name, top in list_daemons().items():
        for pid in list_below(top):
            if name != "launcher" and b"\0follow\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                found[name] = sum(map(read_time, (pid, parent)))
    return found


def read_time(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def connected_to_start(store: Store) -> float:
    """Seconds from open connections to the moment that the supervisor starts mpirun."""
    prepared = prepare(store)
    cluster = prepared.cluster
    with common.open_pool(store, cluster) as pool:
        pool.connect(timeout=20)
        connected = time.time()
        at = common.Connected(store, cluster, pool, lambda text: None)
        job = follow_to_end(at, run.submit(at, prepared), lambda pieces: None)
    return (job.started or time.time()) - connected


def prepare(store: Store) -> run.Prepared:
    """A job for trivial.py, decided but not shipped."""
    resolved = run.resolve_run(Run({"command": ("trivial.py",)}))
    spec = JobSpec(program=resolved.program)
    return run.prepare(
        store.read_cluster("default"), spec, resolved, {}, number=store.reserve_job_id()
    )


def training_step() -> list[Row]:
    """The shipped model's step: the MPI hook against gloo, over the cluster's network and between
    two ranks of one host."""
    nodes = step_times("step_time_nodes.json")
    host = step_times("step_time.json", "--nodes", "1", "--ranks-per-node", "2")
    limits = {30010: 0.15, 500035: 0.35, 2000035: 0.35}
    return [
        *(
            Row(
                f"step over MPI, {model['parameters']:,} parameters",
                model["mpi_to_gloo"],
                "x",
                limit,
                "÷ over gloo, 2 workers",
            )
            for model, limit in ((nodes[0], 0.3), (nodes[-1], 0.8))
        ),
        *(
            Row(
                f"added by MPI, {model['parameters']:,} parameters",
                model["mpi_added_to_gloo_added"],
                "x",
                limits[model["parameters"]],
                "÷ added by gloo, one host",
            )
            for model in host
            if model["parameters"] in limits
        ),
    ]


def step_times(name: str, *where: str) -> list[dict[str, Any]]:
    """The models of step_time.py's report, which is kept under that name. That it keeps its own
    limit is told by the exit code; those of this file are other ones."""
    out = subprocess.run(
        [*CTL, "run", "--quiet", "--json", *where, str(HERE / "step_time.py")],
        check=False,
        stdout=subprocess.PIPE,
    ).stdout.decode()
    lines = [json.loads(line) for line in out.splitlines()]
    text = "\n".join(line["line"] for line in lines if line.get("rank") == 0)
    report: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    (HERE / "results" / name).write_text(json.dumps(report, indent=2) + "\n")
    models: list[dict[str, Any]] = report["models"]
    return models


def alternate(actions_by_name: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in actions_by_name}
    for _ in range(rounds):
        for name, action in actions_by_name.items():
            began = time.monotonic()
            action()
            seconds[name].append(time.monotonic() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def quiet(argv: list[str], **where: Any) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, **where)


if __name__ == "__main__":
    sys.exit(main())
