"""Where a cluster goes when a zone has no room, without Terraform: what it would be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.model import CloudSpec, Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.providers.ec2 import Ec2Provider, _Begun, _Planned, spec
from clusterctl.providers.ec2.api import Api, Instance
from clusterctl.providers.ec2.failures import CapacityError
from clusterctl.providers.ec2.hostkeys import HostKeys
from clusterctl.providers.ec2.memory import Memory, recall
from clusterctl.providers.ec2.preflight import Survey
from clusterctl.terraform import Diagnostic, Terraform, TerraformError

ZONES = ("us-east-1a", "us-east-1b")
FULL = Diagnostic(summary="api error InsufficientInstanceCapacity: none left")


class Empty:
    """An account without machines."""

    region = "us-east-1"

    def instances(self, *filters: Any, **more: Any) -> list[Instance]:
        return []


class Runner:
    """A Terraform that finds room only in these pairs of a zone and "spot or not"."""

    def __init__(self, room: set[tuple[str, bool]]) -> None:
        self.room = room
        self.tried: list[tuple[str, bool]] = []

    def apply(
        self, variables: Mapping[str, Any], on_event: Callable[[Any], None], *, parallelism: int
    ) -> dict[str, Any]:
        self.tried.append((variables["zone"], variables["spot"]))
        if self.tried[-1] not in self.room:
            raise TerraformError("apply failed", diagnostics=(FULL,))
        return {"nodes": []}


def attempts(
    folder: Path, room: set[tuple[str, bool]], memory: Memory, **cloud: Any
) -> list[tuple[str, bool]]:
    wish = ClusterSpec(
        name="lab",
        provider="ec2",
        groups=(NodeGroup(count=1, family="cpu"),),
        cloud=CloudSpec(region="us-east-1", **cloud),
    )
    cluster = Cluster(id="lab-1", spec=wish, phase=Phase.CREATING, created=0.0)
    machines = spec.machines(wish, {}, {})
    found = Survey(account="1", machines=machines, types={}, zones=ZONES, amis={}, placement=False)
    planned = _Planned(wish, found, cast(Api, Empty()), cast(_Begun, None))
    runner = Runner(room)
    terraform = cast(Terraform, runner)
    keys = HostKeys(folder)
    Ec2Provider()._apply(cluster, planned, memory, folder, terraform, keys, lambda line: None)
    return runner.tried


def test_spot_becomes_on_demand_only_where_that_was_said(tmp_path: Path) -> None:
    room = {("us-east-1b", False)}
    spot = Memory(id="lab-1", region="us-east-1", spot=True)
    with pytest.raises(CapacityError, match="no zone has room") as caught:
        attempts(tmp_path, room, spot, spot=True)
    assert "--spot-fallback" in caught.value.hint
    spot = Memory(id="lab-1", region="us-east-1", spot=True)
    tried = attempts(tmp_path, room, spot, spot=True, spot_fallback=True)
    assert tried == [(ZONES[0], True), (ZONES[1], True), (ZONES[0], False), (ZONES[1], False)]
    kept = recall(tmp_path)
    assert kept
    assert (kept.zone, kept.spot) == ("us-east-1b", False), "a later `up` adds of the same kind"


def test_a_zone_that_had_no_room_is_not_tried_again(tmp_path: Path) -> None:
    memory = Memory(id="lab-1", region="us-east-1", zone="us-east-1b")
    assert attempts(tmp_path, {("us-east-1b", False)}, memory) == [("us-east-1b", False)]


def test_another_day_all_zones_are_tried_again(tmp_path: Path) -> None:
    memory = Memory(id="lab-1", region="us-east-1", spot=True)
    with pytest.raises(CapacityError):
        attempts(tmp_path, set(), memory, spot=True, spot_fallback=True)
    kept = recall(tmp_path)
    assert kept
    tried = attempts(tmp_path, {("us-east-1a", True)}, kept, spot=True, spot_fallback=True)
    assert tried == [("us-east-1a", True)]
