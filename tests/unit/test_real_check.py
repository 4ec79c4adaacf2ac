"""`check --real`: whatever happens, the cluster goes and a report stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.actions import open_store, real_check
from clusterctl.errors import LeftoverError, ProviderError, UsageError
from clusterctl.model import CloudSpec, Cluster, ClusterSpec
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
        raise ProviderError("no capacity\nat 198.51.100.7 | 10.0.0.4", hint="later")

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
            runtime=None,
            cloud=CloudSpec(region="us-east-1"),
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
    assert r"| result | failed: up: no capacity at <address> \| 10.0.0.4 |" in report
    assert "  → later" in report
    assert "AWS account <account>: 2 workers for $0.10" in report
    assert str(Path.home()) not in report


SSO = "arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_Dev_01/ana.maier@corp.example"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("arn 123456789012, jane-doe-check-a1-77", "arn <account>, <owner>-check-a1-77"),
        ("52.1.2.3, 10.0.0.4, version 1.2.3", "<address>, 10.0.0.4, version 1.2.3"),
        # What AWS says where a right is missing, which is how most first reports end.
        (f"User: {SSO} is not", "User: arn:aws:sts::<account>:<identity> is not"),
        ("(arn:aws-cn:iam::123456789012:user/ana)", "(arn:aws-cn:iam::<account>:<identity>)"),
        ("arn:aws:ec2:us-east-1:123456789012:vpc/*", "arn:aws:ec2:us-east-1:<account>:vpc/*"),
        ("ssh ana@corp.example: no", "ssh <person>: no"),
        ("from 2001:db8::7 at 2026-11-24 07:14:30", "from <address> at 2026-11-24 07:14:30"),
    ],
)
def test_a_report_names_nobody(said: str, shown: str) -> None:
    assert real_check.anonymous(said, "check-a1") == shown


def test_a_report_takes_no_longer_for_a_long_word() -> None:
    """Hours, where an expression looks from each letter to the end of the word."""
    word = "x-" * 200_000
    assert real_check.anonymous(word, "check-a1") == word


def test_a_report_shows_no_folders_of_home_and_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = f"{Path.home()}/.local/state and {tmp_path}/data"
    assert real_check.anonymous(said, "check-a1") == "~/.local/state and ./data"


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
