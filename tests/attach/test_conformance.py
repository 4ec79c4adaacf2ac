"""The same jobs on every kind of cluster end in the same record.

Where clusterctl creates the machines, `launch` does so for the project of `tests/project`, and
keeps the cluster for the other tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import wheels
from tests.attach.conftest import Site
from tests.attach.lab import Hosts
from tests.conftest import require_namespaces
from tests.e2e.cli import Cli, Done
from tests.ec2.conftest import OUTSIDE
from tests.scheduling import seldom
from tests.sim.ec2.client import Ec2
from tests.sim.engine import Engine


@dataclass
class Place:
    """Somewhere to run two ranks on two nodes."""

    cli: Cli
    size: list[str]
    name: str
    launched: Done | None = None
    """How `launch` of the project ended, where it has created the cluster."""


PROJECT = Path(__file__).resolve().parents[1] / "project"


def _launch(cli: Cli, name: str, *options: str, timeout: float = 120) -> Done:
    """`launch train.py` of a project with a lock file, a package layout, a config file, a data set,
    and packages that no node can download."""
    folder = cli.folder / "wave"
    shutil.copytree(PROJECT, folder)
    index = cli.folder / "index"
    wheels.make(index, "demo", "2.0", "helper")
    wheels.make_sources(index, "helper", "1.0")
    wheels.make(index, "torch", "2.13.0")  # what the lock names; the nodes have their own
    env = wheels.settings(index)
    uv = str(Path(sys.executable).parent / "uv")
    subprocess.run([uv, "lock", "-q"], cwd=folder, env=cli.environment(env), check=True, timeout=60)
    words = ("launch", "-c", name, *options, "train.py")
    return cli(*words, cwd=folder, env=env, timeout=timeout)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("local")
    cli = Cli(folder / "state", folder)
    launched = _launch(cli, "here", "--keep")
    yield Place(cli, [], "here", launched)
    cli("down", "here", "--discard")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    require_namespaces()
    lab = Hosts.start(tmp_path_factory.mktemp("conforming"), ["alpha", "beta"], {})
    try:
        cli = lab.cli(tmp_path_factory.mktemp("project"))
        with_torch = f"python={sys.executable}"
        file = lab.file(cli, f"{{alpha}} {with_torch}", f"{{beta}} {with_torch}")
        cli("attach", "lab", "--hosts", file)
        yield Place(cli, [], "lab")
        cli("detach", "lab")
    finally:
        lab.machines.stop()


@pytest.fixture(scope="module")
def slurm_place(slurm: Site, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(slurm.cli(tmp_path_factory.mktemp("conforming")), slurm.size(2), "site")


@pytest.fixture(scope="module")
def sge_place(sge: Site, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(sge.cli(tmp_path_factory.mktemp("conforming")), sge.size(2), "site")


@pytest.fixture(scope="module")
def containers(
    engine: Engine, node_images: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("containers")
    cli = Cli(folder / "state", folder, env=engine.environment)
    launched = _launch(cli, "boxes", "--provider", "docker", "--keep", timeout=300)
    yield Place(cli, [], "boxes", launched)
    cli("down", "boxes", "--discard", timeout=120)


@pytest.fixture(scope="module")
def instances(ec2: Ec2, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("instances")
    ec2.grant_cpus()
    env = {**ec2.quick_env, "HOME": str(folder)}
    (folder / "project").mkdir()
    (folder / "project" / "clusterctl.toml").write_text(f'[up]\nssh_cidr = "{OUTSIDE}"\n')
    cli = Cli(folder / "state", folder / "project", env=env)
    size = ["--nodes", "2", "--ranks-per-node", "1"]
    machines = ("--cpu", "t3.xlarge:2", "--runtime", "host", "--yes")
    launched = _launch(cli, "cloud", *machines, *size, "--keep", timeout=400)
    yield Place(cli, size, "cloud", launched)
    cli("down", "cloud", "--discard", timeout=180)
    assert ec2.left() == []
    ec2.reset()  # its bill is of no other test


PLACES = [
    pytest.param("local", marks=[pytest.mark.mpi, pytest.mark.netns]),
    pytest.param("hosts", marks=[pytest.mark.mpi, pytest.mark.netns, pytest.mark.sshd]),
    pytest.param("containers", marks=[pytest.mark.all, pytest.mark.sshd, pytest.mark.timeout(900)]),
    pytest.param(
        "instances",
        marks=[pytest.mark.all, pytest.mark.terraform, pytest.mark.timeout(600)],
        id="ec2",
    ),
    pytest.param("slurm_place", marks=pytest.mark.slurm, id="slurm"),
    pytest.param("sge_place", marks=[pytest.mark.mpi, pytest.mark.sge], id="sge"),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


SELDOM_ON_SGE = pytest.mark.parametrize(
    "place", [seldom(row) if row.id == "sge" else row for row in PLACES], indirect=True
)
"""For what tests/attach/test_sites.py tells of it in scenes of its own."""

PROGRAMS = {
    "good": 'echo "rank $RANK of $WORLD_SIZE$(cat)"; echo made >"out-$RANK"',
    "bad": '[ "$RANK" = 1 ] && exit 7; exec sleep 300',
    "late": "exec sleep 300",
}

SAME = {
    "args": ["a b"],
    "ranks": 2,
    "reason": "",
    "rerun_of": None,
    "env": {"MINE": "x"},
    "secrets": {"MY_TOKEN": "***"},
}

Expected = dict[str, Any]
CASES: dict[str, tuple[list[str], int, Expected]] = {
    "good": (
        [],
        0,
        {"state": "succeeded", "program_exit_code": 0, "failure": None, "attempt": 1},
    ),
    "bad": (
        ["--retries", "1"],
        7,
        {"state": "failed", "program_exit_code": 7, "attempt": 2},
    ),
    "late": (
        ["--timeout", "2s"],
        124,
        {"state": "timeout", "program_exit_code": None, "failure": None, "attempt": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_record_is_the_same(place: Place, name: str) -> None:
    options, code, expected = CASES[name]
    path = place.cli.script(name, f"#!/bin/sh\n{PROGRAMS[name]}\n")
    path.chmod(0o755)
    words = ["-e", "MINE=x", "-e", "MY_TOKEN=y", *options, *place.size, name, "a b"]
    with place.cli.script("given", " was given this\n").open() as stdin:
        done = place.cli.start("run", "--json", *words, stdin=stdin.fileno()).wait(90)
    assert done.code == code, done
    *lines, result = done.documents()
    assert {key: result[key] for key in SAME} == SAME
    assert {key: result[key] for key in expected} == expected
    assert (result["exit_code"], result["program"]) == (code, f"./{name}")
    assert result["created"] <= result["finished"]
    assert result["started"] <= result["finished"]
    assert result["seconds"] > 0
    assert len(result["placement"]) == 2
    assert sorted(result["placement"].values()) == [[0], [1]]
    assert not any(result["survivors"].values())
    if name == "bad":
        failure = result["failure"]
        assert (failure["rank"], failure["exit_code"]) == (1, 7)
        assert result["placement"][failure["node"]] == [1]
    if name == "good":
        assert sorted(line["line"] for line in lines) == [
            "rank 0 of 2 was given this",
            "rank 1 of 2",
        ]
        _outputs_come_back(place, result["id"])


def _outputs_come_back(place: Place, number: int) -> None:
    got = place.cli.json("fetch", number)
    assert sorted(Path(item["path"]).name for item in got["files"]) == ["out-0", "out-1"]


@SELDOM_ON_SGE
def test_a_cancelled_record_is_the_same(place: Place) -> None:
    place.cli.script("long", "#!/bin/sh\nexec sleep 300\n").chmod(0o755)
    number = place.cli.detach(*place.size, "long")
    place.cli.until_state(number, "running")
    place.cli("cancel", number)
    job = place.cli.job(number)
    assert (job["state"], job["program_exit_code"], job["failure"]) == ("cancelled", None, None)
    assert job["started"] <= job["finished"]
    assert not any(job["survivors"].values())


@SELDOM_ON_SGE
def test_a_sweep_is_the_same(place: Place) -> None:
    script = (
        '#!/bin/sh\ncat\necho "$CLUSTERCTL_ARRAY_INDEX" | tee made\n'
        '[ "$CLUSTERCTL_ARRAY_INDEX" != 5 ]\n'
    )
    place.cli.script("point", script).chmod(0o755)
    with place.cli.script("given", "each\n").open() as stdin:
        done = place.cli.start("run", "--array", "3-5", "point", stdin=stdin.fileno()).wait(120)
    assert done.code == 1, done
    assert [done.of(number) for number in (3, 4, 5)] == [["each", str(n)] for n in (3, 4, 5)]
    job = place.cli.job(done.job)
    assert job["points"] == {"total": 3, "ended": 3, "failed": [5]}
    assert job["failure"]["rank"] == 5
    found = [Path(item["path"]) for item in place.cli.json("fetch", done.job)["files"]]
    assert sorted(map(str, found)) == [f"points/{number}/made" for number in (3, 4, 5)]


@pytest.mark.parametrize(
    "place",
    [row if row.values[0] in ("local", "slurm_place") else seldom(row) for row in PLACES],
    indirect=True,
)
def test_a_project_with_a_lock_file_is_launched_as_it_is(place: Place) -> None:
    """On machines that exist already nothing is created or removed, and its files come too."""
    done = place.launched or _launch(place.cli, place.name, *place.size)
    for rank in range(2):
        [line] = done.of(rank)
        assert line.startswith(f"demo 2.0, rank {rank} of 2: loss 0.")
    if place.launched:  # --keep leaves the files where they are, too
        place.cli("fetch", done.job, "--to", f"wave/job-{done.job}")
    [written] = (place.cli.folder / "wave" / f"job-{done.job}").rglob("*.json")
    assert written.name == "model.json"
    assert place.cli.json("status", place.name)["phase"] == "ready"
