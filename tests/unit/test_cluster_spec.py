"""The options of `up`: which groups of machines they mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions import up_plan
from clusterctl.actions.common import open_store
from clusterctl.core.model import ClusterSpec, NodeGroup, Runtime
from clusterctl.errors import UsageError
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.local.provider import LocalProvider
from clusterctl.machines.protocol import Features, Provider, ProviderPlan
from tests.unit.calling import Call, judge
from tests.unit.making import cluster
from tests.unit.provided import provide
from tests.unit.tables import rows


@dataclass
class Refusing(Provider):
    """A provider that notes what it is asked for, and plans nothing."""

    features: Features
    seen: list[ClusterSpec]

    def plan(self, spec: ClusterSpec, *others: object, ahead: Path | None = None) -> ProviderPlan:
        self.seen.append(spec)
        raise UsageError("seen")


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> list[ClusterSpec]:
    """What reaches the provider."""
    seen: list[ClusterSpec] = []
    for name, provider in (("local", LocalProvider), ("ec2", Ec2Provider)):
        provide(monkeypatch, name, Refusing(provider.features, seen))
    return seen


def counts(spec: ClusterSpec) -> list[int]:
    return [group.count for group in spec.groups]


@pytest.mark.parametrize(
    ("line", "group"),
    [
        ("--gpu g4dn", NodeGroup(count=7, family="g4dn")),
        ("--cpu c6i.large", NodeGroup(count=7, family="cpu", instance_type="c6i.large")),
        ("--instance-type c6i.large", NodeGroup(count=7, instance_type="c6i.large")),
    ],
)
def test_a_count_that_nobody_says_is_left_open(
    line: str, group: NodeGroup, call: Call, specs: list[ClusterSpec]
) -> None:
    """It is that of the cluster there is, else the usual one."""
    call("up", "--dry-run", *line.split())
    there = cluster()
    open_store().save(replace(there, spec=replace(there.spec, groups=(group,))))
    call("up", "lab", "--dry-run", *line.split())
    assert [counts(spec) for spec in specs] == [[up_plan.DEFAULT_WORKERS], [7]]


@rows("line, runtime", "cluster_spec.ranks_run_on_machines_whose_image_has_what_they_need")
def test_ranks_run_on_machines_whose_image_has_what_they_need(
    line: str, runtime: str, call: Call, specs: list[ClusterSpec]
) -> None:
    """AWS's machine image for NVIDIA has driver and libfabric."""
    call("up", "--dry-run", "--provider", "ec2", *line.split())
    assert [spec.runtime and spec.runtime.value for spec in specs] == [runtime]


def test_a_cluster_keeps_its_runtime(call: Call, specs: list[ClusterSpec]) -> None:
    there = cluster()
    groups = (NodeGroup(count=1, family="g4dn"),)
    made = replace(there.spec, provider="ec2", groups=groups, runtime=Runtime.DOCKER)
    open_store().save(replace(there, spec=made))
    call("up", "lab", "--workers", "2", "--dry-run")
    assert [spec.runtime for spec in specs] == [Runtime.DOCKER]


def test_a_shared_folder_is_there_from_the_first_day_or_not_at_all(
    call: Call, specs: list[ClusterSpec]
) -> None:
    """Nodes that run would have to be made anew to see one."""
    there = cluster()
    there = replace(there, spec=replace(there.spec, provider="local"))
    open_store().save(there)
    said = call("up", "lab", "--shared", "--dry-run")
    assert (said.code, specs) == (2, [])
    assert "cluster lab was created without --shared" in said.err
    assert "`clusterctl down lab` first" in said.err
    open_store().save(replace(there, spec=replace(there.spec, shared=True)))
    call("up", "lab", "--workers", "3", "--dry-run")
    call("up", "other", "--dry-run", "--provider", "local")
    assert [spec.shared for spec in specs] == [True, False]


@pytest.mark.parametrize("value", ["true", "false"])
def test_shared_is_a_setting_too(value: str, call: Call, specs: list[ClusterSpec]) -> None:
    Path("clusterctl.toml").write_text(f"[up]\nshared = {value}\n")
    call("up", "--dry-run", "--provider", "local")
    assert [spec.shared for spec in specs] == [value == "true"]


def test_an_image_needs_containers(call: Call) -> None:
    words = ["--provider", "ec2", "--runtime", "host", "--image", "mine:7"]
    judge(call("up", "--dry-run", *words), 2, "--image needs containers", "one of the two")


@rows(
    "line, family, kind",
    "cluster_spec.a_gpu_by_the_name_that_people_use_and_a_family_of_one_size",
)
def test_a_gpu_by_the_name_that_people_use_and_a_family_of_one_size(
    line: str, family: str, kind: str, call: Call, specs: list[ClusterSpec]
) -> None:
    call("up", *line.split(), "--dry-run")
    assert specs[-1].groups == (NodeGroup(count=3, family=family, instance_type=kind),)


@pytest.mark.parametrize(("named", "kind"), [("A100", "p4d.24xlarge"), ("h100:8", "p5.48xlarge")])
def test_eight_gpus_or_eight_machines_of_eight(named: str, kind: str, call: Call) -> None:
    judge(
        call("up", "--gpu", named, "--dry-run"), 2, "unknown GPU family", f"--instance-type {kind}"
    )


def test_a_slip_is_named_before_the_cluster_that_there_is(call: Call) -> None:
    open_store().save(cluster(name="default", provider="local"))
    judge(call("up", "--gpu", "g4dnn"), 2, "unknown GPU family 'g4dnn'", "did you mean 'g4dn'")
    judge(call("up", "--gpu", "g4dn"), 7, "cluster 'default' already exists", "down default")


def test_a_setup_of_nodes_is_kept_and_local_nodes_have_none(
    call: Call, specs: list[ClusterSpec], tmp_path: Path
) -> None:
    script = tmp_path / "setup.sh"
    script.write_text("apt-get install -y ffmpeg")
    said = call("up", "--provider", "local", "--setup", str(script), "--dry-run")
    assert (said.code, specs) == (2, [])
    call("up", "--provider", "ec2", "--setup", str(script), "--dry-run")
    assert [spec.setup for spec in specs] == ["apt-get install -y ffmpeg\n"]
    assert call("up", "--provider", "ec2", "--setup", "nope.sh", "--dry-run").code == 2
