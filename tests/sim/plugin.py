"""Fixtures of the simulators, for every test folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sim import engine as engines

if TYPE_CHECKING:
    from tests.conftest import Need
    from tests.sim.ec2.client import Ec2
    from tests.sim.engine import Engine
    from tests.sim.lab import Lab


@pytest.fixture(scope="session")
def ec2(need: Need, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2]:
    """A simulated EC2 with light hosts, one for all tests of the run.

    Tests are to leave nothing: `ec2.left() == []`. After one that failed, `ec2.reset()`.
    """
    from importlib.util import find_spec

    from tests.conftest import require_namespaces, require_sshd
    from tests.sim.ec2.client import Ec2

    require_namespaces()
    require_sshd()
    for program in ("sudo", "setpriv", "nsenter", "iptables-restore"):
        need(program)
    for module in ("moto", "boto3", "grpc"):
        need(bool(find_spec(module)), f"needs {module}: install the extra `dev` (CONTRIBUTING.md)")
    simulator = Ec2(tmp_path_factory.mktemp("ec2"))
    try:
        yield simulator
    finally:
        simulator.close()


@pytest.fixture(scope="session")
def initialised(ec2: Ec2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `terraform init` leaves in a state home; nothing without Terraform."""
    from tests.sim.ec2.client import initialise

    return initialise(ec2, tmp_path_factory.mktemp("initialised"))


@pytest.fixture
def many_cpus(ec2: Ec2) -> None:
    """AWS has raised the quotas for machines without GPUs: those of a new account hold a launcher
    and one small worker."""
    ec2.grant_cpus()


@pytest.fixture
def lab(ec2: Ec2, tmp_path: Path) -> Iterator[Lab]:
    """A network in the simulated EC2; nothing may be left when the test's own things are gone."""
    from tests.sim.lab import Lab

    ec2.grant_cpus()
    lab = Lab(ec2, tmp_path)
    try:
        yield lab
        ec2.clear()
        lab.remove()
        assert ec2.left() == []
    finally:
        ec2.policy(None)
        ec2.reset()


@pytest.fixture(scope="session")
def engine(need: Need) -> Iterator[Engine]:
    """A Docker engine, running: the machine's, else one of the tests' own."""
    with engines.running(need) as found:
        yield found


@pytest.fixture(scope="session")
def node_images(engine: Engine, need: Need) -> dict[str, str]:
    """The images of `docker/`, built by `clusterctl image build`: name → reference."""
    from tests.sim.images import build_all

    return build_all(engine, need)
