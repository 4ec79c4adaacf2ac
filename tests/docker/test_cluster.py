"""`up --provider docker`, through the command line, on a real engine with the real images."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.sim.engine import Engine
from tests.warm.client import shared

pytestmark = [pytest.mark.sshd, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
Clusterctl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def clusterctl(engine: Engine, node_images: dict[str, str], home: Path) -> Iterator[Clusterctl]:
    """The command, with a state home for the whole module; its cluster is down at the end."""

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = shared().run(
            ["-m", "clusterctl", *words],
            env={**os.environ, **engine.environment, "CLUSTERCTL_HOME": str(home)},
            cwd=home.parent,
            timeout=300,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    yield run
    run("down", "--force")


@pytest.fixture(scope="module")
def cluster(clusterctl: Clusterctl, node_images: dict[str, str], home: Path) -> str:
    """The id of a cluster of three containers, the workers of a Dockerfile of the user's own."""
    mine = home.parent / "lab" / "Dockerfile"
    mine.parent.mkdir()
    mine.write_text(f"FROM {node_images['cpu']}\nCOPY mine /etc/mine\n")
    (mine.parent / "mine").write_text("made here\n")
    built = json.loads(clusterctl("image", "build", str(mine), "--json").stdout)
    assert built["reference"] == "clusterctl/lab:1"
    setup = home.parent / "setup.sh"
    setup.write_text("id -un >>/etc/setup-ran\n")
    words = ("up", "--provider", "docker", "--shared", "--setup", str(setup), "--json")
    words = (*words, "--image", f"cpu={built['reference']}")
    found = json.loads(clusterctl(*words).stdout)
    assert [node["name"] for node in found["nodes"]] == ["launcher", "worker-1", "worker-2"]
    return str(found["id"])


def labelled(engine: Engine, id: str) -> list[str]:
    label = f"label=clusterctl.cluster={id}"
    return [
        *engine("ps", "-aq", "--filter", label).split(),
        *engine("network", "ls", "-q", "--filter", label).split(),
        *engine("volume", "ls", "-q", "--filter", label).split(),
    ]


def test_it_trains(clusterctl: Clusterctl, cluster: str) -> None:
    assert (
        "ok: 2 ranks on 2 hosts, each holds 1"
        in clusterctl("run", "reduce_all.py", "--no-table").stdout
    )
    said = clusterctl("run", "--backend", "gloo", "multinode_ddp_mpi.py", "3", "1").stdout
    assert "[0] [Rank0] Epoch 2 |" in said
    assert "[1] [Rank1] Epoch 2 |" in said
    assert "Test accuracy: 0.9" in said


def test_what_the_engine_shows_of_a_node(engine: Engine, cluster: str) -> None:
    (row,) = json.loads(engine("inspect", f"{cluster}-worker-1"))
    assert row["HostConfig"]["Init"] is True
    assert row["HostConfig"]["Privileged"] is False
    assert row["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert row["HostConfig"]["ShmSize"] == 8 << 30
    assert "PRIVATE" not in json.dumps(row)
    assert engine("exec", f"{cluster}-worker-1", "ps", "-o", "comm=", "-p", "1").strip() in (
        "docker-init",
        "tini",
    )


def test_up_again_keeps_nodes_and_revives_what_stands_still(
    clusterctl: Clusterctl, engine: Engine, cluster: str
) -> None:
    names = [f"{cluster}-{node}" for node in ("launcher", "worker-1", "worker-2")]
    before = [engine("inspect", "-f", "{{.Id}}", name) for name in names]
    clusterctl("ssh", "worker-2", "--", "sh", "-c", "echo kept | tee /root/mark >/shared/mark")
    engine("stop", "-t", "0", names[2])
    assert "exited: exit code" in clusterctl("status", "--live").stdout
    looked = clusterctl("doctor", "-c", "default").stdout
    assert re.search(r"worker-2: exited: .+\n  the end of its console:\n    .+", looked), looked
    engine("rm", "-f", names[1])
    assert "gone: no such container" in clusterctl("status", "--live").stdout
    said = clusterctl("up").stderr
    assert "1 container started" in said
    assert "2 already running" in said
    after = [engine("inspect", "-f", "{{.Id}}", name) for name in names]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]
    assert clusterctl("ssh", "worker-2", "--", "cat", "/root/mark").stdout == "kept\n"
    assert clusterctl("ssh", "worker-1", "--", "cat", "/shared/mark").stdout == "kept\n", "shared"


def test_workers_come_and_go(clusterctl: Clusterctl, engine: Engine, cluster: str) -> None:
    found = json.loads(clusterctl("up", "--workers", "1", "--json").stdout)
    assert [node["name"] for node in found["nodes"]] == ["launcher", "worker-1"]
    assert len(labelled(engine, cluster)) == 4  # with the network and the shared folder
    clusterctl("up", "--workers", "2")
    for name in ("launcher", "worker-2"):  # one that stayed, and one that is new
        assert engine("exec", f"{cluster}-{name}", "cat", "/etc/setup-ran") == "root"


SAVES = """#!/bin/sh
trap 'echo saved >saved; kill $!; exit 0' TERM
sleep 300 & wait
"""


@pytest.mark.all
def test_it_ends_itself_at_its_time(
    clusterctl: Clusterctl, engine: Engine, cluster: str, home: Path
) -> None:
    """No clusterctl runs then. Ranks get SIGTERM before, and what they saved is there again."""
    names = [f"{cluster}-{node}" for node in ("launcher", "worker-1", "worker-2")]

    def states() -> set[str]:
        form = "{{.State.Status}} {{.State.ExitCode}} {{.HostConfig.RestartPolicy.Name}}"
        return set(engine("inspect", "-f", form, *names).splitlines())

    program = home.parent / "save" / "saves.sh"
    program.parent.mkdir()
    program.write_text(SAVES)
    program.chmod(0o755)
    clusterctl("up", "--ttl", "1h")
    assert states() == {"running 0 on-failure"}
    clusterctl("run", "--detach", str(program))
    ended = time.time() + 30
    clusterctl("extend", "--ttl", "30s", "--yes")  # three seconds of them are for saving
    first = json.loads(clusterctl("status", "--live", "--json").stdout)
    assert {node["deadline"] for node in first["nodes"]} == {first["deadline"]}
    until = time.monotonic() + 200
    while states() != {"exited 0 on-failure"}:
        assert time.monotonic() < until, states()
        time.sleep(0.5)
    assert time.time() >= ended - 1
    said = clusterctl("status", "--live").stdout
    assert ", ended 2" in said
    assert said.count("has shut down at its deadline") == 3
    assert "all 3 containers already running" in clusterctl("up").stderr  # for another hour
    assert states() == {"running 0 on-failure"}
    assert json.loads(clusterctl("status", "--json").stdout)["deadline"] > time.time() + 3000
    for worker in ("worker-1", "worker-2"):
        saved = clusterctl("ssh", worker, "--", "find", "/root", "-name", "saved").stdout
        assert saved.strip().endswith("saved")


def test_a_lost_record_is_found_by_its_labels(
    clusterctl: Clusterctl, engine: Engine, cluster: str, home: Path
) -> None:
    """Also where the whole folder is gone."""
    assert labelled(engine, cluster)
    shutil.rmtree(home / "clusters" / "default")
    said = clusterctl("down").stderr
    assert f"found {cluster} by its tags" in said
    assert labelled(engine, cluster) == []


@pytest.fixture
def bare(engine: Engine, node_images: dict[str, str]) -> Iterator[None]:
    """The engine without our images, but with the one that they are built on. Their layers stay."""
    pinned = json.loads((ROOT / "docker" / "downloads.json").read_text())["base"]["image"]
    had = engine.has(pinned)
    pinned = pinned.partition("@")[0]
    if not had:
        engine("tag", engine.base(require), pinned)
    for reference in node_images.values():
        engine("tag", reference, f"{reference}-kept")
        engine("rmi", reference)
    yield
    for reference in node_images.values():
        engine("tag", f"{reference}-kept", reference)
        engine("rmi", f"{reference}-kept")
    if not had:
        engine("rmi", pinned)


@pytest.mark.all
def test_the_lines_of_the_guide(clusterctl: Clusterctl, bare: None) -> None:
    """As they stand in docs/docker.md, with fewer epochs, on an engine that has nothing of ours."""
    guide = (ROOT / "docs" / "docker.md").read_text()
    lines = [line.strip() for line in guide.splitlines() if line.startswith("    clusterctl ")]
    parts = [part for line in lines for part in line.split("&&")]
    commands = [shlex.split(part, comments=True)[1:] for part in parts]
    assert commands[0] == ["up", "--provider", "docker"]
    assert commands[-1] == ["down", "--fetch"]
    said = [
        clusterctl(*("3" if word == "1000" else word for word in words)).stderr
        for words in commands
    ]
    assert "building the image" in said[0]  # all of them, but for tests beside this one


def test_down_proves_that_nothing_is_left(clusterctl: Clusterctl, engine: Engine) -> None:
    """A stranger's container in our network keeps it: exit 9 with its name, then down works."""
    up = clusterctl("up", "--provider", "docker", "--workers", "1", "--json")
    id = json.loads(up.stdout)["id"]
    engine("volume", "create", "--label", f"clusterctl.cluster={id}", f"{id}-more")
    stranger = engine(
        *("run", "-d", "--network", id, "--entrypoint", "/bin/sleep", "clusterctl/cpu:1", "600")
    )
    try:
        assert f"network {id}" in clusterctl("down", code=9).stderr
    finally:
        engine("rm", "-f", stranger)
    assert f"has the label clusterctl.cluster={id}" in clusterctl("down").stderr
    assert labelled(engine, id) == []
