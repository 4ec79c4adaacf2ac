"""A supervisor with a program instead of mpirun: nodes are folders of this host, and everything is
real but the network: the files are those that a job is shipped with."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.batch.direct import Direct
from clusterctl.core import assets
from clusterctl.core.job import Job, ProgramKind
from clusterctl.core.model import Cluster
from clusterctl.jobs.submit import make_node_files
from clusterctl.launch import launcher as launch_launcher
from tests.e2e.cli import wait_for
from tests.unit.making import cluster, node, program, request, spec
from tests.unit.scripts import place_agent


@dataclass
class Site:
    """A launcher and two workers with roots of their own on this host."""

    where: Cluster
    change: Callable[[str], str] = str
    """What the test changes in every file that is shipped."""
    planned: dict[str, Any] = field(default_factory=dict)
    """What the test changes in the supervisor's plan: numbers, or what it is told of copies."""

    def submit(
        self,
        number: int,
        script: str,
        launcher: str,
        before_launch: str = ":",
        port: str = "4711",
        **changes: Any,
    ) -> Job:
        """A job whose ranks run `script`; `launcher` is sh that starts them: `rank N` starts one
        and waits for it."""
        shell = program("-c", script, kind=ProgramKind.BINARY, target="/bin/sh")
        what = spec(program=shell, **{"grace": 1.0, **changes})
        asked = request(self.where, what, number)
        plan = launch_launcher.plan_launch("mpirun", asked)
        start = plan.argv[plan.argv.index("/bin/sh") :]
        stand_in = (
            "rank() { OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE=2"
            f" OMPI_COMM_WORLD_LOCAL_SIZE=1 MASTER_PORT=$MASTER_PORT {shlex.join(start)}; }}"
            "; export OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE"
            f" OMPI_COMM_WORLD_LOCAL_SIZE; {launcher}"
        )
        plan = replace(plan, argv=("/bin/sh", "-c", stand_in))
        job = Job(
            id=number,
            cluster="lab",
            cluster_id=self.where.id,
            spec=what,
            scheduler="direct",
            placement=asked.placement,
            stage="",
            created=time.time(),
        )
        for name, files in make_node_files(job, self.where, plan, {"SECRET": "hunter2"}).items():
            folder = self.folder(name, number)
            for sub in ("out", "work"):
                (folder / sub).mkdir(parents=True, exist_ok=True)
            (folder / ".staged").touch()
            for path, (text, mode) in files.items():
                (folder / path).parent.mkdir(exist_ok=True)
                if path == "plan.json":
                    text = json.dumps(self.change_plan(json.loads(text)))
                (folder / path).write_text(self.change(text))
                (folder / path).chmod(mode)
        (self.folder("launcher", number) / "port").write_text(port)
        start_script = self.folder("launcher", number) / "launch.sh"
        start_script.write_text(f"{before_launch}\n{start_script.read_text()}")
        return Direct().parse_status(job, self.on_launcher(job, Direct().submit_argv(job)))

    def change_plan(self, plan: dict[str, Any]) -> dict[str, Any]:
        mirror = {**plan["mirror"], **self.planned.get("mirror", {})}
        return {**plan, **self.planned, "mirror": mirror}

    def alter(self, code: str, *names: str) -> None:
        """What the agent of these nodes, or of all, runs first: a slow disk, a wrong clock."""
        for name in names or [one.name for one in self.where.nodes]:
            place = Path(self.where.node(name).root) / "agent"
            shared = place.resolve()
            place.unlink()
            shutil.copytree(shared, place)
            [main] = place.glob("*/__main__.py")
            last = "from agent.verbs import main"
            main.write_text(main.read_text().replace(last, f"{code}\n{last}"))

    def connect(self, script: str = 'eval "$2"') -> None:
        """Each node is a host of its own from now on; what connects to one does that."""
        self.where = replace(self.where, one_host=False)
        agent = Path(self.where.launcher.root) / "bin" / "clusterctl-ssh"
        agent.write_text(f"#!/bin/sh\n{script}\n")
        agent.chmod(0o755)

    def folder(self, name: str, number: int) -> Path:
        return Path(self.where.node(name).root) / "jobs" / str(number)

    def on_launcher(self, job: Job, argv: tuple[str, ...], path: str = "") -> str:
        folder = self.folder("launcher", job.id)
        env = {**os.environ, "PATH": f"{path}{os.environ['PATH']}"}
        return subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=30, env=env
        ).stdout

    def status(self, job: Job) -> Job:
        return Direct().parse_status(job, self.on_launcher(job, Direct().status_argv()))

    def until(self, job: Job, done: Callable[[Job], bool], seconds: float = 17) -> Job:
        found = job

        def there() -> bool:
            nonlocal found
            found = self.status(found)
            return done(found)

        wait_for(there, seconds, lambda: self.story(job))
        return found

    def until_started(self, job: Job) -> None:
        """Until its second rank runs."""
        self.until(job, lambda _: (self.folder("worker-2", job.id) / "out/rank-1.pid").exists())

    def ended(self, job: Job) -> Job:
        return self.until(job, lambda job: job.state.ended)

    def cancel(self, job: Job) -> None:
        self.on_launcher(job, Direct().cancel_argv(job))

    def story(self, job: Job) -> str:
        folder = self.folder("launcher", job.id)
        names = ("state", "supervise.log", "mpirun.err", "mpirun.out")
        return "\n".join((folder / name).read_text() for name in names if (folder / name).exists())

    def living(self, number: int) -> list[int]:
        """Processes that carry the job's tag."""
        tag = f"CLUSTERCTL_JOB={self.where.id}/{number};".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and tag in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def site(need: Callable[[str], str], tmp_path: Path) -> Iterator[Site]:
    for tool in ("flock", "setsid", "awk"):
        need(tool)
    nodes = []
    for name in ("launcher", "worker-1", "worker-2"):
        root = tmp_path / "it's here" / name
        (root / "bin").mkdir(parents=True)
        (root / "data").mkdir()
        (root / "bin" / "free-port").write_text(assets.render("bootstrap/free-port.sh.j2"))
        place_agent(root)
        facts = {"hostname": os.uname().nodename, "boot_id": "one"}
        nodes.append(node(name, root=str(root), slots=1, **facts))
    where = cluster(*nodes, id=f"lab-{os.getpid()}-{time.time_ns()}", provider="local")
    made = Site(replace(where, one_host=True))
    yield made
    for folder in (Path(made.where.launcher.root) / "jobs").iterdir():
        if folder.name.isdigit():
            for pid in made.living(int(folder.name)):
                os.kill(pid, 9)
            pid_file = folder / "supervisor.pid"
            if pid_file.exists() and made_by(pid := int(pid_file.read_text()), folder):
                os.kill(pid, 9)


def made_by(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
    except OSError:
        return False


BOTH = "rank 0 & a=$!; rank 1 & b=$!; wait $a; x=$?; wait $b; y=$?; [ $x = 0 ] && exit $y; exit $x"


def until(condition: Callable[[], bool]) -> None:
    wait_for(condition, 17, "it")
