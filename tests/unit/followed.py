"""A job that is followed: its nodes are folders here."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core import assets
from clusterctl.core.job import Job
from clusterctl.core.model import Cluster, Reporter
from clusterctl.jobs.follow import FindDead, Follower, Interrupts
from clusterctl.jobs.records import Piece
from clusterctl.transport.pool import Pool
from tests.unit import making

RUNNING = "running 10.0 1\n"
ENDED = "exit 11 0 0 1\nexit 11 1 0 1\nlauncher 12 0\nstarted 12 2\nended 12.0\n"


@dataclass
class Site:
    """A job of two ranks on two nodes, and the state home's folder for it."""

    cluster: Cluster
    job: Job
    home: Path
    supervisor: TextIOWrapper
    """Alive as long as this file is open."""

    def folder(self, node: str) -> Path:
        return Path(self.cluster.node(node).root) / "jobs" / str(self.job.id)

    def write(self, node: str, name: str, data: bytes) -> Path:
        path = self.folder(node) / "out" / name
        with path.open("ab") as file:
            file.write(data)
        return path

    def state(self, text: str) -> None:
        with (self.folder("launcher") / "state").open("a") as file:
            file.write(text)

    def copy(self, node: str, name: str) -> Path:
        return self.home / "out" / node / name

    @contextmanager
    def open(
        self,
        pool: type[Pool] = Pool,
        report: Reporter = lambda text: None,
        find_dead: FindDead | None = None,
    ) -> Iterator[Follower]:
        with (
            pool(self.cluster.nodes, identity=None, known_hosts=self.home / "none") as nodes,
            Interrupts() as interrupts,
            Follower(
                *(self.job, self.cluster, nodes, self.home, interrupts, report),
                find_dead,
            ) as follower,
        ):
            yield follower

    def follow(
        self,
        pool: type[Pool] = Pool,
        report: Reporter = lambda text: None,
        find_dead: FindDead | None = None,
        **options: Any,
    ) -> tuple[Follower, list[Piece]]:
        """All that comes; raises what the follower raises."""
        with self.open(pool, report, find_dead) as follower:
            batches = follower.read_batches(**options)
            return follower, [piece for pieces in batches for piece in pieces]


def text(pieces: list[Piece], rank: int, stream: str = "stdout") -> bytes:
    return b"".join(p.data for p in pieces if (p.rank, p.stream) == (rank, stream))


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `agent` of a node's root."""
    root = tmp_path_factory.mktemp("root")
    script = assets.render_agent().encode()  # more than one argument may have
    subprocess.run(["/bin/sh", "-es"], input=script, cwd=root, check=True)
    return root / "agent"


@pytest.fixture
def site(tmp_path: Path, agent: Path) -> Iterator[Site]:
    names = ("launcher", "worker-1", "worker-2")
    nodes = [making.node(name, "", root=str(tmp_path / name), slots=1) for name in names]
    cluster = making.cluster(*nodes)
    job = making.job(cluster, making.spec(ranks=2))
    for name in names:
        folder = tmp_path / name / "jobs" / str(job.id)
        (folder / "out").mkdir(parents=True)
        (tmp_path / name / "agent").symlink_to(agent)
        run = assets.locate_agent(str(tmp_path / name))
        (folder / "agent.sh").write_text(
            f'verb=$1; shift; exec /bin/sh {run} "$verb" {folder} "$@"\n'
        )
    with (tmp_path / "launcher" / "jobs" / str(job.id) / "alive").open("w") as supervisor:
        fcntl.flock(supervisor, fcntl.LOCK_EX)
        made = Site(cluster, job, tmp_path / "home", supervisor)
        made.state(RUNNING)
        yield made
