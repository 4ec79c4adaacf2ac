"""Real batch systems, attached once; hosts of all kinds."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.core import keys
from tests.conftest import Need, require_namespaces
from tests.e2e.cli import Cli
from tests.scheduling import seldom
from tests.sim.batch import Batch
from tests.sim.machines import Machine
from tests.sim.sge import Sge
from tests.sim.slurm import Slurm
from tests.warm.client import Warm, clusterctl


@dataclass
class Site:
    """A batch system with the cluster `site` attached to it, driven from its login node."""

    system: str
    lab: Batch
    home: Path
    python: str
    warm: Warm

    @property
    def login(self) -> Machine:
        return self.lab.login

    def size(self, ranks: int) -> list[str]:
        """Options for so many ranks on the two nodes."""
        if self.system == "sge":
            return ["-pe", "mpi", str(ranks)]
        return ["--nodes", "2", "--ntasks-per-node", str(ranks // 2)]

    def all_slots(self) -> list[str]:
        return self.size(8)

    def cli(self, folder: Path) -> Cli:
        folder.mkdir(exist_ok=True)
        env = {"HOME": str(self.home.parent)}
        return Cli(self.home, folder, env=env, python=self.python, warm=self.warm)


def on_host(machine: Machine, folder: Path) -> str:
    """A program that runs Python on the host, where a test runs it here."""
    path = folder / "python"
    enter = shlex.join(machine.argv()[:-2])
    path.write_text(f'#!/bin/sh\nexec {enter} --wd="$PWD" -- {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def _site(system: str, kind: type[Batch], folder: Path) -> Iterator[Site]:
    require_namespaces()
    lab = kind.start(folder)
    python = on_host(lab.login, folder)
    warm = clusterctl(python)
    try:
        site = Site(system, lab, folder / "person" / "state", python, warm)
        site.home.parent.mkdir()
        site.cli(folder / "first")("attach", "site", f"--{system}")
        yield site
    finally:
        warm.close()
        lab.stop()


@pytest.fixture(scope="session")
def slurm(need: Need, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from _site("slurm", Slurm, tmp_path_factory.mktemp("slurm"))


@pytest.fixture(scope="session")
def sge(need: Need, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from _site("sge", Sge, tmp_path_factory.mktemp("sge"))


SITES = [
    pytest.param("slurm", marks=pytest.mark.slurm),
    pytest.param("sge", marks=pytest.mark.sge),
]
ONE_SITE = pytest.mark.parametrize("site", [SITES[0], seldom(SITES[1])], indirect=True)
"""For what happens in code that batch systems share: on Grid Engine only with --all."""


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def cli(site: Site, tmp_path: Path) -> Iterator[Cli]:
    """clusterctl for the site, in an empty folder. No other job or cluster outlives the test."""
    made = site.cli(tmp_path / "project")
    yield made
    made.end()
    left = made.unfinished()
    # Those that wait first, or each would start as the one before it ends.
    for state in ("queued", "running"):
        for number in (number for number, found in left.items() if found == state):
            made("cancel", number, code=None)
    for cluster in made.clusters():
        if cluster != "site":
            made("detach", "--discard", cluster, code=None)


@pytest.fixture
def remote(site: Site, tmp_path: Path) -> Iterator[Cli]:
    """A person elsewhere, with a key that the login node lets in."""
    person = tmp_path / "person"
    (person / ".ssh").mkdir(parents=True, mode=0o700)
    public = keys.ensure(person / ".ssh" / "id_ed25519")
    there = site.lab.folder / "root" / ".ssh"
    there.mkdir(exist_ok=True, mode=0o700)
    (there / "authorized_keys").write_text(public + "\n")
    if not (site.login.folder / "sshd_config").exists():
        site.lab.machines.sshd("login")
    known = person / ".ssh" / "known_hosts"
    known.write_text(f"{site.login.address} {site.login.public_key}\n")
    config = person / ".ssh" / "config"
    key = f"IdentityFile {person}/.ssh/id_ed25519"  # OpenSSH does not look at HOME
    config.write_text(f"Host cluster\n  HostName {site.login.address}\n  User root\n  {key}\n")
    (tmp_path / "project").mkdir()
    cli = Cli(person / "state", tmp_path / "project", env={"HOME": str(person)})
    yield cli
    cli.end()
    for cluster in cli.json("list")["clusters"]:
        cli("detach", "--force", cluster["cluster"])
    assert list((site.lab.folder / "root").glob(".clusterctl/*")) == []


Program = Callable[[str, str], str]


@pytest.fixture
def program(cli: Cli) -> Program:
    """Writes an executable script for ranks; its name."""

    def write(name: str, text: str) -> str:
        path = cli.script(name, f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return name

    return write
