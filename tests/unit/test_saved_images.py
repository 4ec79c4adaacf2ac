"""Machine images of one's own: their names, and what becomes of those that do not come to be."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import machine_images
from clusterctl.actions.common import open_store
from clusterctl.core.catalog import choose_instance_type
from clusterctl.core.model import CloudSpec, Cluster, ClusterSpec, NodeGroup, Runtime, Thing
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import preflight, refusals, saved
from clusterctl.machines.ec2 import remove as ec2_remove
from clusterctl.machines.ec2.api import Api, Image
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.protocol import Cloud, ProviderPlan, SavedImage
from tests.unit.calling import Call
from tests.unit.fake_ec2 import Offering
from tests.unit.making import cluster
from tests.unit.provided import provide

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


def test_gc_finds_snapshots_without_an_image() -> None:
    class Snapshots(Offering):
        def list_all(
            self, action: str, key: str, service: str = "ec2", /, **arguments: Any
        ) -> list[Any]:
            tags = [{"Key": "clusterctl:cluster", "Value": "mine"}]
            if key == "Images":
                return [{"BlockDeviceMappings": [{"Ebs": {"SnapshotId": "snap-7"}}, {}]}]
            made = [("snap-6", "pending"), ("snap-7", "completed"), ("snap-8", "completed")]
            rows = [{"SnapshotId": id, "State": state, "Tags": tags} for id, state in made]
            return rows if key == "Snapshots" else []

    [left] = ec2_remove.find_tagged(Snapshots("us-east-1"))
    assert (left.kind, left.id, left.cluster) == ("snapshot", "snap-8", "mine")


def test_workers_get_it_by_themselves_and_its_disk_is_not_grown() -> None:
    mine = saved.name_image(WISH, "cpu")

    class Having(Offering):
        def find_image(self, owner: str, name: str) -> Image | None:
            own = Image(id="ami-7", disk=68, name=mine)
            usual = Image(id="ami-1", disk=8)
            return {mine: own}.get(name) if owner == "self" else usual

    found = preflight.survey(Having("us-east-1"), WISH, None, print)
    assert {kind: image.id for kind, image in found.amis.items()} == {
        "launcher": "ami-1",
        "cpu": "ami-7",
    }
    assert (found.saved, found.machines[1].disk) == ({"cpu"}, 68)
    given = replace(WISH, cloud=replace(WISH.cloud, ami="ami-2"))
    found = preflight.survey(Having("us-east-1"), given, None, print)
    assert (found.saved, found.amis["cpu"].id) == (frozenset(), "ami-2")


@dataclass
class Making(Cloud):
    """A cloud whose machines never come to be; it says what is asked of it. `told`: this process
    is told to end meanwhile."""

    there: tuple[SavedImage, ...] = ()
    told: bool = False
    asked: list[str] = field(default_factory=list)
    features = Ec2Provider.features

    def name_saved(self, options: ClusterSpec, kind: str) -> str:
        assert options.runtime is Runtime.HOST
        return f"mine-{kind}"

    def find_usual_region(self) -> str:
        return "us-east-1"

    def find_owner(self) -> str:
        return "user/ana"

    def list_saved(self, region: str) -> tuple[SavedImage, ...]:
        return self.there

    def remove_saved(self, image: SavedImage, region: str, report: Any) -> None:
        self.asked.append(f"remove {image.id}")

    def plan(self, spec: ClusterSpec, *rest: Any, **more: Any) -> ProviderPlan:
        self.asked.append(f"plan {choose_instance_type(spec.groups[0])} {spec.ttl:g}")
        return ProviderPlan(mode="ec2", mode_reason="", one_host=False, lines=(), question="start?")

    def create(self, cluster: Cluster, folder: Path, report: Any) -> Any:
        self.asked.append("create")
        if self.told:
            signal.raise_signal(signal.SIGTERM)
        raise ProviderError("no capacity", hint=f"`clusterctl up {cluster.name}` resumes")

    def destroy(self, cluster: Cluster, folder: Path, report: Any) -> None:
        self.asked.append("destroy")

    def list_things(self, cluster: Cluster, folder: Path) -> tuple[Thing, ...]:
        return ()

    def find_ids(self, folder: Path) -> frozenset[str]:
        return frozenset()


def make(
    consent: Callable[[str], bool] = lambda question: True,
    report: Callable[[str], None] = lambda line: None,
    kind: str = "nvidia",
) -> SavedImage:
    return machine_images.make_image(
        open_store(),
        kind,
        runtime=Runtime.HOST,
        cloud=CloudSpec(region="us-east-1"),
        report=report,
        consent=consent,
    )


def test_a_new_account_can_make_an_image_for_cpu_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 5 vCPUs, two of which the launcher takes."""
    cloud = Making()
    provide(monkeypatch, "ec2", cloud)
    with pytest.raises(ProviderError) as caught:
        make(kind="cpu")
    assert caught.value.hint == "fix the problem, then run `clusterctl image ami cpu` again"
    assert cloud.asked[0] == "plan c7i.large 10800"


@pytest.mark.parametrize("told", [False, True])
def test_the_machines_go_whatever_happens(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Making(told=told)
    provide(monkeypatch, "ec2", cloud)
    with pytest.raises(KeyboardInterrupt if told else ProviderError):
        make()
    assert cloud.asked == ["plan g4dn.xlarge 10800", "create", "destroy"]
    assert open_store().list_names() == ()


def test_images_of_others_stay_unless_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"ami-1": "user/ana", "ami-2": "user/bob", "ami-3": ""}
    there = tuple(SavedImage(id=id, name=id, kind="cpu", owner=o) for id, o in owners.items())
    told: list[str] = []

    def remove(**more: bool) -> list[str]:
        cloud = Making(there=there)
        provide(monkeypatch, "ec2", cloud)
        machine_images.remove_images("cpu", "", told.append, lambda question: True, **more)
        return cloud.asked

    assert remove() == ["remove ami-1", "remove ami-3"]
    assert told == ["keeping ami-2 of user/bob: --everyones removes it too"]
    assert remove(everyones=True) == [f"remove {id}" for id in owners]


@pytest.mark.parametrize("words", [(), ("nvidia",), ("cpu", "--remove", "--yes")])
def test_machines_of_an_attempt_that_was_killed_are_named(
    words: tuple[str, ...], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = SavedImage(id="ami-1", name="mine-nvidia", kind="nvidia", state="available")
    provide(monkeypatch, "ec2", Making(there=(image,)))
    for name in ("image-nvidia-a1b2c3", "image-mine"):
        open_store().save(cluster(name=name))
    said = call("image", "ami", *words, *(("--runtime", "host") if words == ("nvidia",) else ()))
    assert said.code == 0, said.err
    [line] = [line for line in said.err.splitlines() if "still there" in line]
    assert "cluster image-nvidia-a1b2c3 of another `image ami nvidia` is still there, $" in line
    assert line.endswith(": `clusterctl down image-nvidia-a1b2c3` removes it")


def test_settings_of_up_do_not_matter_to_a_list(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    provide(monkeypatch, "ec2", Making(there=(SavedImage(id="ami-1", name="a", kind="cpu"),)))
    (tmp_path / "clusterctl.toml").write_text('[up]\nssh_cidr = "203.0.113.7/32"\n')
    monkeypatch.chdir(tmp_path)
    done = call("image", "ami")
    assert (done.code, done.err) == (0, "")


def test_one_that_is_there_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SavedImage(id="ami-1", name="mine-nvidia", kind="nvidia", state="failed")
    other = SavedImage(id="ami-2", name="mine-cpu", kind="cpu", state="available")
    cloud = Making(there=(other, failed))
    provide(monkeypatch, "ec2", cloud)
    with pytest.raises(UsageError, match="aborted"):
        make(lambda question: False)
    assert cloud.asked == ["remove ami-1", "plan g4dn.xlarge 10800"]
    there = replace(failed, id="ami-3", state="available")
    cloud = Making(there=(other, there))
    provide(monkeypatch, "ec2", cloud)
    assert make() == there
    assert cloud.asked == []
    gone = machine_images.remove_images("nvidia", "us-east-1", print, lambda question: True)
    assert (gone, cloud.asked) == ((there,), ["remove ami-3"])
    with pytest.raises(UsageError, match="nothing was removed"):
        machine_images.remove_images("nvidia", "us-east-1", print, lambda question: False)
