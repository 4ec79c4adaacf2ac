"""A verb that waits for AWS says every five seconds that it still does."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.cli import console
from clusterctl.core.model import Charge, CloudSpec, Cluster, Thing
from clusterctl.errors import ProviderError
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.protocol import ProviderPlan, Resource
from tests.unit.calling import Call
from tests.unit.making import cluster
from tests.unit.provided import provide

SILENCE = 0.05


class Hanging(Ec2Provider):
    """An AWS that hangs the first time, and then does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = False

    def _wait(self) -> ProviderError:
        if not self.waited:
            time.sleep(10 * SILENCE)
        self.waited = True
        return ProviderError("AWS did not answer", hint="check your network")

    def plan(self, *about: object, **more: object) -> ProviderPlan:
        raise self._wait()

    def list_things(self, cluster: Cluster, folder: Path) -> tuple[Thing, ...]:
        raise self._wait()

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        raise self._wait()

    def allow(self, cluster: Cluster, folder: Path, networks: object) -> tuple[str, ...]:
        raise self._wait()

    def stop(self, cluster: Cluster, folder: Path, report: object) -> float:
        raise self._wait()

    def check_pausing(self, cluster: Cluster, folder: Path) -> None:
        raise self._wait()

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        raise self._wait()

    def find_usual_region(self) -> str:
        return "us-east-1"

    def list_regions(self) -> tuple[str, ...]:
        return ("us-east-1",)

    def find_owner(self) -> str:
        return ""

    def find(self, region: str) -> tuple[Resource, ...]:
        raise self._wait()


@pytest.mark.parametrize(
    "line",
    [
        ("up", "lab", "--yes"),
        ("up", "lab", "--dry-run"),
        ("start", "--yes"),
        ("gc", "--yes"),
        ("status",),
        ("status", "--live"),
        ("list", "--all"),
        ("cost",),
        ("allow", "192.0.2.1"),
        ("extend", "--ttl", "4h", "--yes"),
        ("stop", "--yes"),
        ("down", "--yes"),
        ("gc", "--adopt", "other"),
    ],
    ids=" ".join,
)
def test_who_waits_for_aws_says_so(
    line: tuple[str, ...], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide(monkeypatch, "ec2", Hanging())
    monkeypatch.setattr(console, "SILENCE", SILENCE)
    now = time.time()
    charge = Charge(node="launcher", part="instance", item="x", hourly=1.0, source="", since=1.0)
    made = cluster(charges=(charge,), created=1.0, deadline=now + 3600)
    spec = replace(made.spec, cloud=CloudSpec(region="us-east-1", idle=60.0))
    open_store().save(replace(made, spec=spec))
    said = call(*line)
    assert "s  still working" in said.err
    assert "AWS did not answer" in said.err + said.out
