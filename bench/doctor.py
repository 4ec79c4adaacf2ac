"""Broken jobs on a local cluster: does `doctor` name the planted cause, and in what time?

    python bench/doctor.py [--only stopped,partition] [--out bench/results/doctor.json]

Each job runs on two nodes and is broken in its own way. `doctor` is asked once, when the job hangs
or has failed; found means that its first finding is of the expected kind and names the planted rank
or node. `--table` writes the section of docs/internals/doctor.md from the results, and breaks
nothing. Needs root (network namespaces) and the extra `workloads`, and takes about 15 minutes. Exit
code 1: a cause was missed, or `doctor` took too long. With --only, results are printed and not
written.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import broken_programs as programs  # noqa: E402

DOCUMENT, BEGIN, END = (
    ROOT / "docs" / "internals" / "doctor.md",
    "<!-- broken -->\n",
    "<!-- /broken -->",
)
PATIENCE = 180.0
"""Seconds until a job has to be broken; a busy machine takes its time to start torch."""
SETTLE = 5.0
BOUND = 15.0
"""Seconds that `doctor` may take, from its first question to its answer."""


class Lab:
    """A cluster of its own, and clusterctl for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "CLUSTERCTL_HOME": str(folder / "state")}

    def __call__(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "clusterctl", *map(str, words)],
            cwd=self.folder,
            env={**self.env, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        if check and done.returncode:
            raise RuntimeError(f"clusterctl {words}: {done.stderr}")
        return done

    def node(self, name: str) -> dict[str, Any]:
        nodes = json.loads(self("status", "--json").stdout)["nodes"]
        return next(node for node in nodes if node["name"] == name)

    def address(self, name: str) -> str:
        return str(self.node(name)["private_address"])


Plant = Callable[[Lab], Any]


@contextmanager
def nothing(lab: Lab) -> Iterator[tuple[str, ...]]:
    yield ()


@contextmanager
def little_memory(lab: Lab) -> Iterator[tuple[str, ...]]:
    """A cgroup whose processes may have 400 MB, which rank 1 joins."""
    version_1 = Path("/sys/fs/cgroup/memory")
    tree = version_1 if version_1.is_dir() else version_1.parent
    group = tree / f"doctor-{os.getpid()}"
    group.mkdir()
    name = "memory.limit_in_bytes" if version_1.is_dir() else "memory.max"
    (group / name).write_text("400000000")
    try:
        yield (str(group),)
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.2)


@contextmanager
def full_disk(lab: Lab) -> Iterator[tuple[str, ...]]:
    """A disk of 4 MB on worker-2, for what the program saves."""
    path = f"{lab.node('worker-2')['root']}/checkpoints"
    lab("ssh", "worker-2", "--", f"mkdir -p {path} && mount -t tmpfs -o size=4m none {path}")
    try:
        yield (path,)
    finally:
        lab("ssh", "worker-2", "--", f"umount {path}", check=False)


@contextmanager
def partition(lab: Lab) -> Iterator[tuple[str, ...]]:
    yield ()
    lab("ssh", "worker-1", "--", f"ip route del blackhole {lab.address('worker-2')}", check=False)


def cut(lab: Lab) -> None:
    lab("ssh", "worker-1", "--", f"ip route add blackhole {lab.address('worker-2')}")


@dataclass(frozen=True)
class Broken:
    """A job: its program, what is wrong around it, and what `doctor` has to say first: one of the
    kinds, with one of the words. `then` is done once the ranks run; `ends`: it fails by itself."""

    cause: str
    program: str
    kinds: tuple[str, ...]
    words: tuple[str, ...] = ("rank 1",)
    options: tuple[str, ...] = ()
    around: Plant = nothing
    then: Callable[[Lab], None] | None = None
    ends: bool = False


JOBS = {
    "skips": Broken("a rank skips an all-reduce", programs.START + programs.SKIPS, ("missing",)),
    "straggler": Broken(
        "a rank is slower than the others", programs.START + programs.SLOW, ("straggler",)
    ),
    "stopped": Broken("SIGSTOP", programs.START + programs.STOPS, ("stopped",)),
    "memory": Broken(
        "out of memory in a cgroup",
        programs.START + programs.EATS,
        ("memory",),
        around=little_memory,
        ends=True,
    ),
    "exit": Broken(
        "a rank ends with code 0", programs.START + programs.LEAVES, ("left",), ends=True
    ),
    "interface": Broken(
        "a network interface that does not exist",
        programs.START + programs.LOOPS,
        ("message:gloo-interface",),
        ("nope0", "interface"),
        ("-e", "GLOO_SOCKET_IFNAME=nope0"),
        ends=True,
    ),
    "port": Broken(
        "a port that is taken", programs.START + programs.TAKEN, ("message:port-used",), ends=True
    ),
    "disk": Broken(
        "a full disk",
        programs.START + programs.WRITES,
        ("disk", "message:disk-full"),
        around=full_disk,
        ends=True,
    ),
    "partition": Broken(
        "nodes that cannot reach each other",
        programs.START + programs.LOOPS,
        ("network",),
        ("worker-1 cannot reach worker-2",),
        around=partition,
        then=cut,
    ),
    "shapes": Broken(
        "an all-reduce of different shapes",
        programs.START + programs.SHAPES,
        ("message:gloo-size", "mismatch"),
        ("size",),
        ends=True,
    ),
    "order": Broken("collectives in another order", programs.START + programs.ORDER, ("mismatch",)),
    "file-lock": Broken(
        "a rank keeps a lock on a file",
        programs.START + programs.FILE_LOCK,
        ("missing",),
        ("tokenize",),
    ),
    "threads": Broken(
        "two threads, two locks", programs.START + programs.THREADS, ("missing",), ("at save",)
    ),
    "loader": Broken(
        "a data loader's worker hangs",
        programs.START + programs.LOADER,
        ("missing",),
        ("decode",),
    ),
    "dead-thread": Broken(
        "a thread has died",
        programs.START + programs.DEAD_THREAD,
        ("missing",),
        ("cannot decode image 1",),
    ),
    "pipe": Broken(
        "a child's output is not read",
        programs.START + programs.PIPE,
        ("missing",),
        ("waiting for a child process",),
    ),
    "receives": Broken(
        "both ranks receive", programs.RECEIVES, ("receive",), ("MPI_Recv at receives.py",)
    ),
    "other-port": Broken("a rank with another MASTER_PORT", programs.OTHER_PORT, ("rendezvous",)),
    "no-binary": Broken(
        "a program that is not installed",
        programs.START + programs.NO_BINARY,
        ("message:no-file",),
        ends=True,
    ),
    "nan": Broken(
        "a rank stops for its loss",
        programs.START + programs.NAN,
        ("exit",),
        ("loss is nan",),
        ends=True,
    ),
}


@dataclass(frozen=True)
class Result:
    """`seconds`: what `doctor` took, without the start of Python."""

    name: str
    cause: str
    found: bool
    kind: str
    said: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "doctor.json")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        write(json.loads(options.out.read_text()))
        return 0
    results, load = [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="doctor-") as name:
        lab = Lab(Path(name))
        lab("up")
        try:
            for word in options.only.split(","):
                results.append(try_one(lab, word))
                print(json.dumps(asdict(results[-1])), flush=True)
        finally:
            lab("down", "--force", check=False)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, local cluster"
    machine += f", load average before: {load:.1f}"
    jobs = [asdict(result) for result in results]
    document = {"date": date.today().isoformat(), "machine": machine, "jobs": jobs}
    if set(options.only.split(",")) == set(JOBS):
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(result.found and result.seconds <= BOUND for result in results) else 1


def try_one(lab: Lab, name: str) -> Result:
    """A job that could not be judged counts as missed, with the reason: the others are tried."""
    try:
        return judge(lab, name)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Result(name, JOBS[name].cause, False, "", f"not judged: {error}"[:500], 0.0)


def judge(lab: Lab, name: str) -> Result:
    broken = JOBS[name]
    (lab.folder / f"{name}.py").write_text(broken.program)
    with broken.around(lab) as arguments:
        started = lab("run", "--detach", "--json", *broken.options, f"{name}.py", *arguments)
        job = json.loads(started.stdout)["id"]
        try:
            wait_until_broken(lab, job, broken)
            document = json.loads(lab("doctor", job, "--json").stdout)
        finally:
            lab("cancel", job, check=False)
    first = next(iter(document["findings"]), None)
    first = first or {"kind": "", "text": document["summary"], "lines": []}
    said = " ".join((first["text"], *first["lines"]))
    right = first["kind"] in broken.kinds and any(word in said for word in broken.words)
    return Result(
        name, broken.cause, right, first["kind"], first["text"], round(document["seconds"], 1)
    )


def wait_until_broken(lab: Lab, job: int, broken: Broken) -> None:
    deadline = time.monotonic() + PATIENCE
    planted = False
    while time.monotonic() < deadline:
        state = next(
            item["state"]
            for item in json.loads(lab("jobs", "--json").stdout)["jobs"]
            if item["id"] == job
        )
        if state not in ("queued", "running"):
            return
        if not broken.ends and lab("logs", job).stdout.count("on") >= 2:
            if broken.then and not planted:
                broken.then(lab)
            time.sleep(SETTLE)
            return
        time.sleep(1)
    raise RuntimeError(f"job {job} ({broken.cause}) was not broken in {PATIENCE:g} s")


def render(document: dict[str, Any]) -> str:
    """Where and how it was measured, what came out, and the table. Results that were not made by
    one run have `notes`, which say so instead of figures over all of them."""
    results = document["jobs"]
    found = sum(result["found"] for result in results)
    slowest = max(result["seconds"] for result in results)
    lines = [f"{document['date']}, {document['machine']}:", ""]
    summary = f"{found} of {len(results)} found; `doctor` took {slowest:.1f} s at most."
    lines += [text for note in document.get("notes", [summary]) for text in (note, "")]
    lines += ["| planted | found | `doctor` said | seconds |", "|---|---|---|---|"]
    for result in results:
        said = f"`{result['kind']}`: {result['said']}" if result["kind"] else result["said"]
        said = " ".join(said.split()).replace("|", "\\|")
        answer = "yes" if result["found"] else "**no**"
        lines.append(f"| {result['cause']} | {answer} | {said} | {result['seconds']:.1f} |")
    return "\n".join(lines) + "\n"


def write(document: dict[str, Any]) -> None:
    """The section, between its marks."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(before + BEGIN + render(document) + END + after)


if __name__ == "__main__":
    raise SystemExit(main())
