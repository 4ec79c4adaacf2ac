"""Machine images of one's own: their names, and what becomes of those that do not come to be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from clusterctl.core.model import CloudSpec, ClusterSpec, NodeGroup, Runtime
from clusterctl.errors import ProviderError
from clusterctl.machines.ec2 import preflight, refusals, saved
from clusterctl.machines.ec2.api import Api, Image
from tests.unit.fake_ec2 import Offering

WISH = ClusterSpec(
    name="lab",
    provider="ec2",
    groups=(NodeGroup(count=1, family="cpu"),),
    runtime=Runtime.HOST,
    cloud=CloudSpec(region="us-east-1"),
)


def test_another_content_is_another_image() -> None:
    wishes = [
        WISH,
        replace(WISH, runtime=Runtime.DOCKER),
        replace(WISH, runtime=Runtime.DOCKER, image="mine:7"),
        replace(WISH, runtime=Runtime.DOCKER, images={"nvidia": "mine:8"}),
    ]
    names = [saved.name_image(wish, "nvidia") for wish in wishes]
    assert len({*names, saved.name_image(WISH, "cpu")}) == 5
    assert names[0].startswith("clusterctl-nvidia-host-")
    assert saved.name_image(replace(WISH, name="other"), "nvidia") == names[0]
    others = replace(wishes[1], images={"launcher": "mine:9"})
    assert saved.name_image(others, "nvidia") == names[1]


@dataclass
class Copying(Api):
    """An EC2 whose image is in these states, one after the other. `refused`: what it says to the
    first call."""

    states: list[str]
    refused: str = ""
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__("us-east-1")

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        self.calls.append(f"{action} {arguments.get('ImageId') or arguments.get('SnapshotId', '')}")
        if action == "create_image" and self.refused:
            raise refusals.make_refusal("create image", self.refused, "", "us-east-1")
        return {"ImageId": "ami-7"}

    def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state == "stopped by a person":
            raise KeyboardInterrupt
        disk = {"Ebs": {"SnapshotId": "snap-7", "VolumeSize": 135}}
        row = {"ImageId": "ami-7", "Name": "mine", "State": state, "BlockDeviceMappings": [disk]}
        return [row] if state != "not shown yet" else []

    def find_price(self, item: str) -> float | None:
        return 0.05


def save(api: Copying) -> saved.SavedImage:
    return saved.save(api, "i-1", "mine", "cpu", {}, lambda line: None, sleep=lambda seconds: None)


@pytest.mark.parametrize("refused", ["", "InvalidAMIName.Duplicate"])
def test_an_image_is_waited_for(refused: str) -> None:
    """Also where the answer was lost, and boto3 has asked a second time."""
    states = ["pending"] * bool(refused) + ["not shown yet", "pending", "available"]
    made = save(Copying(states, refused))
    assert (made.id, made.gib, made.snapshots) == ("ami-7", 135, ("snap-7",))
    assert made.monthly == pytest.approx(6.75)


def test_half_an_image_is_removed_with_its_snapshot() -> None:
    gone = ["deregister_image ami-7", "delete_snapshot snap-7"]
    failed = Copying(["pending", "failed"])
    with pytest.raises(ProviderError, match="no machine image of i-1: failed"):
        save(failed)
    assert failed.calls[1:] == gone
    stopped = Copying(["pending", "stopped by a person", "pending"])
    with pytest.raises(KeyboardInterrupt):
        save(stopped)
    assert stopped.calls[1:] == gone
    refused = Copying(["pending"], "UnauthorizedOperation")
    with pytest.raises(ProviderError):
        save(refused)
    assert len(refused.calls) == 1, "an image of that name is somebody else's"


def test_workers_get_it_by_themselves_and_its_disk_is_not_grown() -> None:
    mine = saved.name_image(WISH, "cpu")

    class Having(Offering):
        def find_image(self, owner: str, name: str) -> Image | None:
            own = Image(id="ami-7", disk=68, name=mine)
            usual = Image(id="ami-1", disk=8)
            return {mine: own}.get(name) if owner == "self" else usual

    found = preflight.survey(Having("us-east-1"), WISH, {}, "", print)
    assert {kind: image.id for kind, image in found.amis.items()} == {
        "launcher": "ami-1",
        "cpu": "ami-7",
    }
    assert (found.saved, found.machines[1].disk) == ({"cpu"}, 68)
    given = replace(WISH, cloud=replace(WISH.cloud, ami="ami-2"))
    found = preflight.survey(Having("us-east-1"), given, {}, "", print)
    assert (found.saved, found.amis["cpu"].id) == (frozenset(), "ami-2")
