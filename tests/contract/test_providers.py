"""What every provider promises, run against the real one.

One row per provider and mode in MODES; a provider that is not there runs once, with no mode and no
marker.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core import keys
from clusterctl.core.keys import name_host
from clusterctl.core.model import CloudSpec, Cluster, ClusterSpec, NodeGroup, Phase, Role, Runtime
from clusterctl.core.text import format_time
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.machines import providers
from clusterctl.machines.protocol import Created
from clusterctl.transport.diagnosis import Target
from clusterctl.transport.ssh import SshTransport
from tests.scheduling import seldom
from tests.sim.ec2.network import YOU

MODES: dict[str, list[Any]] = {
    "local": [
        pytest.param(("local", "namespaces"), marks=pytest.mark.netns, id="local-namespaces"),
        pytest.param(("local", "loopback"), marks=pytest.mark.sshd, id="local-loopback"),
    ],
    "docker": [pytest.param(("docker", ""), marks=[pytest.mark.timeout(900)], id="docker")],
    "ec2": [
        pytest.param(
            ("ec2", ""),
            marks=[
                pytest.mark.terraform,
                pytest.mark.netns,
                pytest.mark.sshd,
                pytest.mark.timeout(300),
            ],
            id="ec2",
        )
    ],
}
ROWS = [
    row
    for name in providers.PROVIDERS
    for row in MODES.get(name, [pytest.param((name, ""), id=name)])
]
WITH_MACHINES = [seldom(row) if row.id in ("docker", "ec2") else row for row in ROWS]
"""Docker and EC2 make machines for these tests with --all; their own folders have them always."""
make_machines = pytest.mark.parametrize("machines", WITH_MACHINES, indirect=True)


@dataclass
class Machines:
    """One cluster of a provider, driven as `up` and `down` drive it."""

    provider: str
    folder: Path
    mode: str
    id: str = field(default_factory=lambda: f"contract-{uuid.uuid4().hex[:8]}")
    said: list[str] = field(default_factory=list)

    def cluster(self, workers: int) -> Cluster:
        spec = ClusterSpec(
            name="contract",
            provider=self.provider,
            groups=(NodeGroup(count=workers, family="cpu" if self.provider == "ec2" else ""),),
            runtime=Runtime.HOST,
            cloud=CloudSpec(ssh_cidr=f"{YOU}/32"),
        )
        return Cluster(id=self.id, spec=spec, phase=Phase.CREATING, created=1.0, mode=self.mode)

    def create(self, workers: int) -> tuple[Cluster, Created]:
        where = self.cluster(workers)
        made = providers.load_provider(self.provider).create(where, self.folder, self.said.append)
        if made.pool:
            made.pool.close()
        return replace(where, nodes=made.nodes), made

    def describe(self, where: Cluster) -> dict[str, str]:
        return providers.load_provider(self.provider).describe(where, self.folder)

    def list_dead(self, where: Cluster, otherwise: set[str]) -> set[str]:
        """The names; `otherwise` of a provider that does not know."""
        provider = providers.load_provider(self.provider)
        return set(provider.list_dead(where, self.folder)) or otherwise

    def destroy(self, where: Cluster) -> None:
        providers.load_provider(self.provider).destroy(where, self.folder, self.said.append)

    def transport(self, where: Cluster, made: Created, name: str) -> SshTransport:
        """As the pool connects: the cluster's key alone, and the host keys that `create` told."""
        node = where.node(name)
        known = self.folder / "ssh" / "known_hosts"
        known.write_text(
            "".join(
                f"{name_host(item.address, item.ssh_port)} {made.host_keys[item.name]}\n"
                for item in made.nodes
            )
        )
        gateway = self.transport(where, made, node.via) if node.via else None
        return SshTransport(Target(node, self.folder / "ssh" / "user", known), gateway)

    def ask(self, where: Cluster, made: Created, name: str, command: str) -> str:
        transport = self.transport(where, made, name)
        try:
            result = transport.run(command, timeout=20)
        finally:
            transport.close()
        assert result.ok, result
        return result.text

    def hostname(self, where: Cluster, made: Created, name: str) -> str:
        return self.ask(where, made, name, "uname -n; id -un; umask").split()[0]


@pytest.fixture(params=ROWS)
def machines(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machines]:
    provider, mode = request.param
    cloud = request.getfixturevalue("ec2") if provider == "ec2" else None
    environment = cloud.quick_env if cloud else {}
    if provider == "docker":
        request.getfixturevalue("node_images")
        environment = request.getfixturevalue("engine").environment
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if cloud:
        cloud.grant_cpus()
        initialised = request.getfixturevalue("initialised")
        shutil.copytree(initialised, tmp_path / initialised.name, symlinks=True)
    folder = tmp_path / "clusters" / "contract"
    keys.ensure(folder / "ssh" / "user")
    keys.ensure(folder / "ssh" / "mesh")
    made = Machines(provider, folder, mode)
    try:
        yield made
        made.destroy(made.cluster(1))
        assert cloud is None or cloud.left() == []
    finally:
        if cloud:
            cloud.reset()


def test_plan_says_what_create_will_do(machines: Machines) -> None:
    provider = providers.load_provider(machines.provider)
    spec = replace(machines.cluster(2).spec, ttl=7200.0)
    plan, again = provider.plan(spec), provider.plan(spec)
    assert (plan.mode, plan.one_host, plan.question) == (again.mode, again.one_host, again.question)
    assert len(plan.lines) == len(again.lines)
    assert plan.mode
    assert plan.lines
    assert all(line and "\n" not in line for line in plan.lines)
    if plan.deadline:
        assert any(format_time(plan.deadline) in line for line in plan.lines)
    assert machines.said == []


@make_machines
def test_from_nothing_to_nothing(machines: Machines, tmp_path: Path) -> None:
    """With a second `create` in between, which changes nothing."""
    where, made = machines.create(2)
    assert [node.role for node in made.nodes].count(Role.WORKER) == 2
    assert [node.name for node in made.nodes if node.role is not Role.WORKER] == ["launcher"]
    assert set(made.host_keys) == {node.name for node in made.nodes}
    endpoints = {(node.address, node.ssh_port) for node in made.nodes if not node.via}
    assert len(endpoints) == len([node for node in made.nodes if not node.via])
    for node in made.nodes:
        assert made.host_keys[node.name].split()[0].startswith(("ssh-", "ecdsa-"))
        assert node.slots >= 1
        assert node.root.startswith("/")
        assert machines.hostname(where, made, node.name)
    assert machines.describe(where) == {node.name: "running" for node in made.nodes}
    assert machines.list_dead(where, otherwise=set()) == set()
    assert all("\n" not in line for line in machines.said)

    root = where.node("worker-1").root
    machines.ask(where, made, "worker-1", f"mkdir -p {root} && echo kept >{root}/mark")
    again, remade = machines.create(2)
    assert replace(remade, pool=None) == replace(made, pool=None)
    assert again == where
    assert set(machines.describe(where).values()) == {"running"}
    assert machines.ask(where, made, "worker-1", f"cat {root}/mark") == "kept\n"

    keys.ensure(tmp_path / "stranger")
    known = machines.folder / "ssh" / "known_hosts"
    stranger = SshTransport(Target(where.node("worker-1"), tmp_path / "stranger", known))
    result = stranger.run("true", timeout=20)
    stranger.close()
    assert result.exit_code is None, "the cluster's key is the only one that opens"
    assert result.error

    machines.destroy(where)
    assert set(machines.describe(where).values()) & {"running"} == set()
    names = {node.name for node in made.nodes}
    assert machines.list_dead(where, otherwise=names) == names
    for node in made.nodes:
        result = machines.transport(where, made, node.name).run("true", timeout=3)
        assert result.exit_code is None, node.name
    machines.destroy(where)


def test_destroying_the_unknown_is_nothing(machines: Machines) -> None:
    machines.destroy(machines.cluster(2))
    machines.destroy(machines.cluster(2))


def test_describing_the_unknown_says_what_is_wrong(machines: Machines) -> None:
    answer = machines.describe(machines.cluster(1))
    assert all(text and text != "running" for text in answer.values())


def test_an_impossible_wish_is_refused_before_anything_is_made(machines: Machines) -> None:
    provider = providers.load_provider(machines.provider)
    with pytest.raises(ClusterctlError) as caught:
        provider.plan(machines.cluster(10**6).spec)
    assert caught.value.exit_code in (2, 3)
    assert caught.value.hint


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(UsageError, match="locla") as caught:
        providers.load_creator("locla")
    assert "local" in caught.value.hint
