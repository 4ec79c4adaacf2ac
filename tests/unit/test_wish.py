"""The options of `up`: which groups of machines they mean."""

from __future__ import annotations

import pytest

from clusterctl.actions import up
from clusterctl.errors import UsageError
from clusterctl.model import ClusterSpec
from clusterctl.providers import ProviderPlan
from tests.unit.calling import Call


@pytest.fixture
def wishes(monkeypatch: pytest.MonkeyPatch) -> list[ClusterSpec]:
    """What reaches the action, which refuses it."""
    seen: list[ClusterSpec] = []

    def plan(store: object, spec: ClusterSpec, tell: object) -> ProviderPlan:
        seen.append(spec)
        raise UsageError("seen")

    monkeypatch.setattr(up, "plan", plan)
    return seen


def counts(spec: ClusterSpec) -> list[int]:
    return [group.count for group in spec.groups]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--gpu g4dn", [4]),
        ("--gpu g4dn:1", [1]),
        ("--gpu g4dn:1 --cpu t3.large", [1, 4]),
        ("--gpu g4dn --workers 3", [3]),
        ("--cpu c6i.large --workers 1", [1]),
    ],
)
def test_counts_of_the_command_line_go_before_the_settings(
    line: str,
    expected: list[int],
    call: Call,
    wishes: list[ClusterSpec],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLUSTERCTL_UP_WORKERS", "4")
    call("up", "--dry-run", *line.split())
    assert [counts(spec) for spec in wishes] == [expected]


@pytest.mark.parametrize("line", ["--gpu g4dn", "--cpu c6i.large", "--instance-type c6i.large"])
def test_a_count_that_nobody_says_is_left_open(
    line: str, call: Call, wishes: list[ClusterSpec]
) -> None:
    call("up", "--dry-run", *line.split())
    assert [counts(spec) for spec in wishes] == [[0]]


def test_spot_in_the_settings_is_for_ec2_alone(
    call: Call, wishes: list[ClusterSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_UP_SPOT", "1")
    call("up", "--dry-run", "--provider", "local")
    assert [spec.provider for spec in wishes] == ["local"]
