"""The command line as its user meets it: processes with deadlines, and what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.warm.client import Warm, shared

ROOT = Path(__file__).resolve().parents[2]

BUSY = 3
"""So many times as long as on an idle machine things may take before they count as failed."""

UNFINISHED = ("queued", "running", "lost")

STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if sys.argv[1:] != ["child"]:
    subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
    if os.environ["RANK"] == os.environ.get("FAILS"):
        time.sleep(0.5)
        sys.exit(3)
    print("ready", flush=True)
time.sleep(300)
"""
"""A rank that ignores every polite signal and has a child, as deaf, in a session of its own."""


@dataclass(frozen=True)
class Done:
    """How one command ended, and what it wrote."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def job(self) -> int:
        """The number of the job that this `run` announced."""
        found = re.search(r"\bjob (\d+):", self.err)
        assert found, f"no job was announced: {self.err}"
        return int(found[1])

    def of(self, rank: int, stream: str = "out") -> list[str]:
        """What that rank wrote to its stdout (`out`) or stderr (`err`), without the tag."""
        tag = f"[{rank}] "
        lines = getattr(self, stream).splitlines()
        return [line.removeprefix(tag) for line in lines if line.startswith(tag)]

    def document(self) -> dict[str, Any]:
        """stdout as the one JSON document that it has to be."""
        document = json.loads(self.out)
        assert document["schema"] == 1
        assert isinstance(document, dict)
        return document

    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def __str__(self) -> str:
        return f"{self.argv} ended with {self.code}\n{self.out[-3000:]}\n{self.err[-3000:]}"


@dataclass
class Running:
    """A command that goes on while the test looks at it. Its output lies in files."""

    process: subprocess.Popen[bytes]
    argv: tuple[str, ...]
    stdout: Path
    stderr: Path

    @property
    def out(self) -> str:
        return self.stdout.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.stderr.read_text(errors="replace")

    def now(self) -> Done:
        return Done(self.argv, -999, self.out, self.err)

    def until(self, text: str, *, times: int = 1, seconds: float = 30) -> None:
        """Waits for `text` on stdout or stderr, while the command runs."""

        def there() -> bool:
            return (self.out + self.err).count(text) >= times

        deadline = time.monotonic() + seconds * BUSY
        while not there():
            assert self.process.poll() is None or there(), f"it ended without {text!r}: {self}"
            assert time.monotonic() < deadline, f"no {text!r} in {seconds} s: {self}"
            time.sleep(0.02)

    def wait(self, seconds: float = 60) -> Done:
        try:
            code = self.process.wait(seconds * BUSY)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not ended after {seconds} s: {self}") from None
        return Done(self.argv, code, self.out, self.err)

    def interrupt(self) -> None:
        """Ctrl-C: the whole process group hears it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """`kill -9` of the command alone; whatever it has started stays."""
        self.process.kill()
        self.process.wait(10)

    def __str__(self) -> str:
        return str(self.now())


@dataclass
class Cli:
    """clusterctl for one state home, called from `folder`. Commands that the test only waits for
    begin in `warm`, if there is one; those that it starts and watches, in a fresh `python`."""

    home: Path
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    warm: Warm | None = field(default_factory=shared)
    running: list[Running] = field(default_factory=list)

    def environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CLUSTERCTL_HOME": str(self.home),
            **self.env,
            **(env or {}),
        }

    def __call__(
        self,
        *words: object,
        code: int | None = 0,
        timeout: float = 60,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """Runs one command to its end; `code` is what it has to end with (None: anything)."""
        argv = tuple(map(str, words))
        run = self.warm.run if self.warm else self._run_afresh
        done = run(
            ["-m", "clusterctl", *argv],
            cwd=cwd or self.folder,
            env=self.environment(env),
            timeout=timeout * BUSY,
        )
        result = Done(argv, done.returncode, done.stdout, done.stderr)
        assert code is None or result.code == code, f"expected {code}: {result}"
        ours = [line for line in result.err.splitlines() if not line.startswith("[")]
        assert not any("Traceback" in line for line in ours), f"a traceback of ours: {result}"
        return result

    def _run_afresh(self, argv: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            **how,
        )

    def json(self, *words: object, code: int = 0, **options: Any) -> dict[str, Any]:
        """One command with --json; its document."""
        verbs = 2 if words[0] in ("data", "image") else 1
        return self(*words[:verbs], "--json", *words[verbs:], code=code, **options).document()

    def start(
        self,
        *words: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> Running:
        """Starts one command in a process group of its own."""
        argv = tuple(map(str, words))
        number = len(self.running)
        stdout, stderr = (self.folder / f".{number}.{end}" for end in ("out", "err"))
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                [*prefix, self.python, "-m", "clusterctl", *argv],
                cwd=cwd or self.folder,
                env=self.environment(env),
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=not prefix,
            )
        self.running.append(Running(process, argv, stdout, stderr))
        return self.running[-1]

    def end(self) -> None:
        """Ends what a failed test has left running."""
        for item in self.running:
            if item.process.poll() is None:
                item.kill()

    def unfinished(self) -> dict[int, str]:
        """Jobs that are not known to have ended, and their states, as they are on record here."""
        records = [json.loads(path.read_text()) for path in self.home.glob("jobs/*/job.json")]
        found = {int(record["id"]): str(record["state"]) for record in records}
        return {id: state for id, state in found.items() if state in UNFINISHED}

    def clusters(self) -> list[str]:
        """Names of the clusters that are on record here."""
        return sorted(path.name for path in self.home.glob("clusters/*"))

    def script(self, name: str, text: str) -> Path:
        """A program in this folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def status(self, *words: object) -> dict[str, Any]:
        return self.json("status", *words)

    def jobs(self) -> dict[int, dict[str, Any]]:
        return {job["id"]: job for job in self.json("jobs")["jobs"]}

    def job(self, number: int) -> dict[str, Any]:
        return self.jobs()[number]

    def detach(self, *words: object, **options: Any) -> int:
        """Starts a job and leaves it; its number."""
        return int(self.json("run", "--detach", *words, **options)["id"])

    def until_state(self, number: int, *states: str, seconds: float = 30) -> dict[str, Any]:
        """Waits until the job is in one of these states; its row of `jobs`."""
        row: dict[str, Any] = {}

        def there() -> bool:
            row.update(self.job(number))
            return row["state"] in states

        wait_for(there, seconds, lambda: f"job {number} to be {states}: {row}")
        return row


def wait_for(happened: Callable[[], object], seconds: float, what: str | Callable[[], str]) -> None:
    """Looks less and less often, and rests for as long as two looks take: a look may start a
    program, and others want to work too."""
    deadline = time.monotonic() + seconds * BUSY
    pause = 0.02
    while True:
        began = time.monotonic()
        if happened():
            return
        ended = time.monotonic()
        assert ended < deadline, what if isinstance(what, str) else what()
        time.sleep(max(pause, min(2 * (ended - began), 2.0)))
        pause = min(1.2 * pause, 0.5)


def tagged(mark: str) -> list[str]:
    """Living processes of the whole machine with this text in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"{entry.name} {line.decode(errors='replace')}")
        except OSError:
            continue
    return found


def kill_node(cli: Cli, node: str, cluster: str = "default") -> None:
    """The machine is gone, with all that ran there. Its disk stays."""
    mark = f"CLUSTERCTL_NODE={cli.status(cluster)['id']}/{node}"
    while found := tagged(mark):
        for line in found:
            with suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)


def of_job(cluster: str, job: int) -> list[str]:
    """Processes of a job, on all nodes: ranks, their children, daemons."""
    return tagged(f"CLUSTERCTL_JOB={cluster}/{job};")


@dataclass(frozen=True)
class Traces:
    """Where a cluster could leave something. Taken while it is up."""

    id: str
    scratch: str
    folders: tuple[Path, ...]

    @classmethod
    def of(cls, cli: Cli, *words: object) -> Traces:
        status = cli.status(*words)
        chosen = ("-c", status["cluster"])
        scratch = cli("ssh", *chosen, "launcher", "--", "echo $TMPDIR").out.strip()
        assert scratch.startswith("/tmp/cctl-")
        folders = tuple(Path(node["root"]).parent for node in status["nodes"])
        return cls(status["id"], scratch.rpartition("-")[0], folders)

    def left(self) -> list[str]:
        """Whatever the machine still has of it."""
        left = tagged(f"CLUSTERCTL_NODE={self.id}/") + tagged(f"CLUSTERCTL_JOB={self.id}/")
        left += map(str, Path("/tmp").glob(f"{Path(self.scratch).name}-*"))
        short = Path(self.scratch).name
        left += [name for _, name in socket.if_nameindex() if short in name]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        left += [line for line in mounts if short in line or self.id in line]
        left += [str(folder) for folder in self.folders if folder.exists()]
        return left
