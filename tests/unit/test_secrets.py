"""Where the secrets of a job lie on its nodes: in memory, where a restart removes them safely."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.core import assets
from clusterctl.core.job import JobState
from clusterctl.core.model import Role
from clusterctl.errors import LaunchError
from clusterctl.jobs import control
from clusterctl.jobs.submit import keep_in_memory, make_node_files, put, remove_secrets
from clusterctl.launch import launcher
from clusterctl.project import tree as project_tree
from clusterctl.transport.pool import Pool
from tests.unit.making import cluster, job, node, request
from tests.unit.scripts import processes
from tests.unit.staged import Staged, lab

ENV = "export TOKEN='it'\"'\"'s ü\n$x'\n"
NOBODY = 65534


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory of a user who is not root, as far as there is another."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="clusterctl-test-"))
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def keep(memory: Path, *, lingers: bool = True, user: int = NOBODY) -> str:
    """Keeps ENV as a node does it, in its job's folder `memory`/job; returns the rest of stdin."""
    user = user if os.getuid() == 0 else os.getuid()
    linger = memory / "linger"
    linger.mkdir(exist_ok=True)
    names = ["root", "nobody", subprocess.check_output(["id", "-un"], text=True).strip()]
    for name in names if lingers else ():
        (linger / name).touch()
    scripts = str(assets.find_folder("templates") / "job")
    where = {"memory": str(memory), "linger": str(linger)}
    script = keep_in_memory(scripts, ENV.encode(), "lab-1a2b-7", **where)
    done = subprocess.run(
        ["/bin/sh", "-c", f"umask 077; mkdir -p job && cd job || exit\n{script}\ncat"],
        input=f"{ENV}what follows",
        capture_output=True,
        text=True,
        cwd=memory,
        user=user if os.getuid() == 0 else None,
        env={"PATH": os.environ["PATH"]},
    )
    assert (done.returncode, done.stderr) == (0, "")
    env = memory / "job" / "env"
    assert env.read_text() == ENV
    assert env.stat().st_mode & 0o777 == 0o600
    return done.stdout


def test_a_user_who_lingers_keeps_secrets_in_memory(memory: Path) -> None:
    assert keep(memory) == "what follows"
    kept = (memory / "job/env").resolve()
    own = kept.parent
    assert own.parent == memory
    assert kept.name == "lab-1a2b-7"
    assert own.stat().st_mode & 0o777 == 0o700


def test_of_a_user_who_logs_out_they_are_on_disk(memory: Path) -> None:
    """systemd-logind empties /dev/shm then, and the job is to go on."""
    assert keep(memory, lingers=False) == "what follows"
    assert not (memory / "job/env").is_symlink()
    assert not list(memory.glob("clusterctl-*"))


@pytest.mark.parametrize("trap", ["link", "open", "file"])
def test_a_folder_that_is_not_ours_alone_is_not_used(trap: str, memory: Path) -> None:
    user = NOBODY if os.getuid() == 0 else os.getuid()
    own = memory / f"clusterctl-{user}"
    theirs = memory / "theirs"
    theirs.mkdir(mode=0o700)
    if trap == "link":
        own.symlink_to(theirs)
    elif trap == "open":
        own.mkdir()
        own.chmod(0o777)
    else:
        own.touch()
    if os.getuid() == 0:
        for path in (theirs, own):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    assert keep(memory) == "what follows"
    assert not (memory / "job/env").is_symlink()
    assert not list(theirs.iterdir())


def test_a_folder_of_another_user_is_not_used(memory: Path, need_root: None) -> None:
    (memory / f"clusterctl-{NOBODY}").mkdir(mode=0o700)  # root's
    keep(memory)
    assert not (memory / "job/env").is_symlink()


@pytest.fixture
def here(tmp_path: Path) -> Staged:
    return lab(tmp_path / "nodes")


def staged(site: Staged, tmp_path: Path) -> list[Path]:
    """Stages job 7 and returns the workers' files with its secrets."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").touch()
    asked = request(site.where, number=7)
    made = job(
        site.where,
        id=7,
        stage=project_tree.write_archive(project_tree.find_tree(tree), site.store.home),
    )
    files = make_node_files(
        made, site.where, launcher.plan_launch("mpirun", asked), {"TOKEN": "hunter2"}
    )
    with site.pool() as pool:
        put(made, site.where, files, pool, site.store.home)
    kept = [site.work(name).parent / "env" for name in ("worker-1", "worker-2")]
    assert all("hunter2" in path.read_text() for path in kept)
    return kept


def test_staging_on_a_machine_notes_no_boot_of_the_container_that_ranks_run_in(
    here: Staged, tmp_path: Path
) -> None:
    """It has a first process of its own: each job would look as if its node had restarted."""
    kept = [path.parent / "out" for path in staged(here, tmp_path)]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    for out in kept:
        assert (out / "boot").read_text().startswith(boot)
        (out / "boot").unlink()
    nodes = [replace(one, machine="i-1", job_port=one.ssh_port + 1) for one in here.where.nodes]
    inside = replace(here.where, nodes=tuple(nodes))
    shutil.rmtree(tmp_path / "tree")
    staged(Staged(here.folder, inside), tmp_path)
    assert not any((out / "boot").exists() for out in kept)


def test_secrets_of_root_are_not_on_disk(here: Staged, tmp_path: Path, need_root: None) -> None:
    """A restart leaves nothing of them: local nodes, containers and attached machines."""
    kept = staged(here, tmp_path)
    where = {path.resolve() for path in kept}
    try:
        assert len(where) == 2
        assert all(path.is_relative_to("/dev/shm") for path in where)
        search = ["grep", "-rl", "hunter2", tmp_path]
        assert subprocess.run(search, capture_output=True, text=True).stdout == ""
    finally:
        for path in where:
            path.unlink()


def test_secrets_that_are_forgotten_are_gone_from_memory_too(here: Staged, tmp_path: Path) -> None:
    kept = staged(here, tmp_path)
    where = [path.resolve() for path in kept]
    processes(kept[0].parent, "lab-none/7;", "end", "0")
    assert not kept[0].is_symlink()
    assert not where[0].exists()
    with here.pool() as pool:
        remove_secrets(job(here.where, id=7), here.where, pool)
    assert not kept[1].is_symlink()
    assert not where[1].exists()


def test_staging_that_comes_late_keeps_no_secrets_of_a_job_that_will_not_start(
    here: Staged, tmp_path: Path
) -> None:
    """Ctrl-C cuts the connections: what was sent may arrive after the nodes were cleaned."""
    with here.pool() as pool:
        remove_secrets(job(here.where, id=7), here.where, pool)
    with pytest.raises(LaunchError, match="withdrawn"):
        staged(here, tmp_path)
    assert_forgotten(here)


def test_staging_that_is_cut_off_keeps_no_secrets(here: Staged, tmp_path: Path) -> None:
    put_tar = tmp_path / "bin" / "tar"
    put_tar.parent.mkdir()
    put_tar.write_text("#!/bin/sh\nexit 2\n")  # as where stdin ends too early
    put_tar.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{put_tar.parent}:{os.environ['PATH']}")
        with pytest.raises(LaunchError):
            staged(here, tmp_path)
    assert_forgotten(here)


def assert_forgotten(site: Staged) -> None:
    assert not any(path.name == "env" for path in site.folder.rglob("*"))
    assert not list(Path("/dev/shm").glob(f"clusterctl-*/{site.where.id}-*"))


def test_a_job_that_the_queue_never_had_leaves_no_secrets(tmp_path: Path) -> None:
    login = node("login", address="", root=str(tmp_path), role=Role.LOGIN)
    where = cluster(login, provider="slurm")
    env = tmp_path / "jobs" / "7" / "env"
    env.parent.mkdir(parents=True)
    env.write_text("TOKEN=secret")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "survey").write_text("echo @@job 7; echo unsubmitted 130\n")
    with Pool(where.nodes, identity=None, known_hosts=tmp_path / "known_hosts") as pool:
        found = control.refresh(replace(job(), scheduler="slurm"), where, pool)
    assert found.state is JobState.LOST
    assert not env.exists()
