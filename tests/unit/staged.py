"""A job that was staged on nodes which are folders of this machine: no SSH, no launch."""

from __future__ import annotations

import fcntl
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.core.job import Job, JobSpec, JobState
from clusterctl.core.model import Cluster
from clusterctl.jobs.submit import Carry, make_node_files, put, remove_secrets
from clusterctl.launch import launcher
from clusterctl.project import tree as project_tree
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool
from tests.unit.making import cluster, job, node, request


class Staged(Struct, frozen=True):
    """A cluster of a launcher and workers on record, whose roots lie below `folder`."""

    folder: Path
    where: Cluster

    @property
    def store(self) -> Store:
        return open_store()

    @contextmanager
    def pool(self) -> Iterator[Pool]:
        known_hosts = self.folder / "known_hosts"
        with Pool(self.where.nodes, identity=None, known_hosts=known_hosts) as pool:
            yield pool

    def work(self, name: str = "worker-1", number: int = 7) -> Path:
        return Path(self.where.node(name).root) / "jobs" / str(number) / "work"

    def job(
        self,
        tree: Path,
        number: int = 7,
        carry: Carry | None = None,
        what: JobSpec | None = None,
    ) -> Job:
        """A job with the files of `tree` on its workers, on record as succeeded."""
        asked = request(self.where, what, number=number)
        plan = launcher.plan_launch("mpirun", asked)
        made = job(self.where, what, id=number, started=2.0, finished=3.0, state=JobState.SUCCEEDED)
        made = replace(
            made, stage=project_tree.write_archive(project_tree.find_tree(tree), self.store.home)
        )
        files = make_node_files(made, self.where, plan, {})
        with self.pool() as pool:
            put(made, self.where, files, pool, self.store.home, carry=carry)
            remove_secrets(made, self.where, pool)  # as its end has done
        self.store.save_job(made)
        return made

    def lose_supervisor(self, number: int) -> Path:
        """The job's folder on the launcher, as a supervisor that is gone has left it."""
        folder = self.work("launcher", number).parent
        (folder / "state").write_text("running 2.0 1\n")
        (folder / "supervisor.pid").write_text("none\n")
        return folder

    @contextmanager
    def running(self, job: Job) -> Iterator[Job]:
        """The job as one whose supervisor is alive and ends nothing."""
        running = replace(job, state=JobState.RUNNING, finished=None)
        self.store.save_job(running)
        folder = self.lose_supervisor(job.id)
        with (folder / "alive").open("w") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)
            yield running


def note_copies(
    mirror: Path, name: str, when: float = 1_800_000_000, left: Sequence[int] = (0, 0)
) -> None:
    """What a supervisor notes beside its copies of a node's outputs, in the folder `mirror`."""
    said = {"time": when, "files": {}, "left": left}
    (mirror / f".{name}.json").write_text(json.dumps(said))


WORKERS = ("worker-1", "worker-2")


def lab(
    folder: Path,
    provider: str = "local",
    name: str = "lab",
    workers: Sequence[str] = WORKERS,
    **changes: Any,
) -> Staged:
    nodes = []
    for number, host in enumerate(("launcher", *workers)):
        root = folder / host
        (root / "bin").mkdir(parents=True)
        (root / "bin" / "free-port").write_text("echo 4000\n")
        nodes.append(
            node(
                host,
                address="",
                root=str(root),
                private_address=f"10.0.0.{number}",
                interfaces=[f"eth0 10.0.0.{number}/24"],
            )
        )
    # Its own, for the processes of its jobs are found by it on the whole machine.
    own = f"{name}-{secrets.token_hex(8)}"
    where = cluster(*nodes, provider=provider, name=name, id=own, **changes)
    open_store().save(where)
    return Staged(folder, where)
