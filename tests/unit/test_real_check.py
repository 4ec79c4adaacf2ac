"""`check --real`: whatever happens, the cluster goes and a report stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.actions import open_store, real_check
from clusterctl.errors import LeftoverError, ProviderError, UsageError
from clusterctl.model import Cluster, ClusterSpec
from clusterctl.providers.ec2.provider import Ec2Provider
from clusterctl.providers.protocol import ProviderPlan
from tests.unit.provided import provide


class Cloud:
    """A provider of machines that are never there: it says what is asked of it."""

    features = Ec2Provider.features

    def __init__(self, left: str = "") -> None:
        self.asked: list[str] = []
        self.left = left

    def plan(self, spec: ClusterSpec, *rest: Any, **more: Any) -> ProviderPlan:
        self.asked.append("plan")
        line = f"AWS account 123456789012: {spec.workers} workers for ${spec.cloud.budget:.2f}"
        return ProviderPlan(
            mode="ec2", mode_reason="", one_host=False, lines=(line,), question="start 3 machines?"
        )

    def create(self, cluster: Cluster, folder: Path, report: Any) -> Any:
        self.asked.append("create")
        raise ProviderError("no capacity at 198.51.100.7, 10.0.0.4", hint="later")

    def destroy(self, cluster: Cluster, folder: Path, report: Any) -> None:
        self.asked.append("destroy")
        if self.left:
            raise LeftoverError(self.left, hint="again")

    def list_billed(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return {}

    def list_made(self, folder: Path) -> frozenset[str]:
        return frozenset()

    def find_ids(self, folder: Path) -> frozenset[str]:
        return frozenset()


def check(
    monkeypatch: pytest.MonkeyPatch, cloud: Cloud, folder: Path, agreed: bool
) -> tuple[str, str]:
    """What was said, and the report; "" without one."""
    provide(monkeypatch, "ec2", cloud)
    told: list[str] = []
    with pytest.raises((ProviderError, UsageError, LeftoverError)) as caught:
        real_check.run(
            open_store(),
            region="us-east-1",
            runtime=None,
            ssh_cidr="",
            folder=folder,
            report=told.append,
            consent=lambda question: agreed,
        )
    reports = [path.read_text() for path in folder.glob("clusterctl-check-*.md")]
    return "\n".join([*told, caught.value.message]), "".join(reports)


def test_a_cluster_that_fails_is_removed_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cloud = Cloud()
    said, report = check(monkeypatch, cloud, tmp_path, agreed=True)
    assert cloud.asked[:2] == ["plan", "create"]
    assert cloud.asked[-1] == "destroy"
    assert open_store().names() == ()
    assert "attach it to an issue" in said
    assert "| result | failed: up: no capacity at <address>, 10.0.0.4 |" in report
    assert "AWS account <account>: 2 workers for $0.10" in report
    assert str(Path.home()) not in report


def test_a_report_names_nobody() -> None:
    said = "arn 123456789012, jane-doe-check-a1-77: 52.1.2.3, 10.0.0.4, version 1.2.3"
    shown = real_check.anonymous(said, "check-a1")
    assert shown == "arn <account>, <owner>-check-a1-77: <address>, 10.0.0.4, version 1.2.3"


def test_what_could_not_be_removed_is_in_the_report_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cloud = Cloud(left="AWS still has 1 volume (vol-3)")
    said, report = check(monkeypatch, cloud, tmp_path, agreed=True)
    assert said.endswith("AWS still has 1 volume (vol-3)")
    assert "down failed: AWS still has 1 volume (vol-3)" in report


def test_nothing_is_made_without_consent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cloud = Cloud()
    said, report = check(monkeypatch, cloud, tmp_path, agreed=False)
    assert "aborted; nothing was started" in said
    assert "create" not in cloud.asked
    assert report == ""
