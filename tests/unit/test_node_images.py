"""Which image each kind of node gets; what `up` shows and refuses before it costs money."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import images, up_plan
from clusterctl.actions.common import open_store
from clusterctl.cli import main
from clusterctl.core import catalog
from clusterctl.core.model import ClusterSpec, NodeGroup, Runtime
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import registry
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.protocol import Provider, ProviderPlan
from clusterctl.machines.registry import RegistryLogin
from tests.sim import hub as hubs
from tests.sim.hub import Hub
from tests.unit.making import cluster
from tests.unit.provided import provide
from tests.unit.tables import rows

KINDS = ("launcher", "nvidia")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hubs.running() as found:
        found.serve_bases()
        monkeypatch.setenv(registry.HUB_URL, found.url)
        yield found


def spec(**changes: Any) -> ClusterSpec:
    group = NodeGroup(count=2, family="g4dn")
    return ClusterSpec(name="lab", provider="ec2", groups=(group,), **changes)


def resolve(of: ClusterSpec, *kinds: str, **known: str) -> dict[str, up_plan.NodeImage]:
    return up_plan.resolve_node_images(of, kinds or KINDS, known, lambda host: None)


def test_by_itself_every_kind_is_built_from_its_recipe(hub: Hub) -> None:
    found = resolve(spec())
    listed = registry.read_downloads()
    base = listed["base"]["image"]
    assert {kind: image.recipe for kind, image in found.items()} == {kind: kind for kind in KINDS}
    assert {image.bases for image in found.values()} == {(base,)}
    assert found["nvidia"].reference == registry.make_tag("nvidia", listed)
    tagged, _, digest = base.partition("@")
    assert found["launcher"].line == (
        "image of the launcher: built there from the recipe 'launcher', on"
        f" {tagged} ({digest[:19]})"
    )


@rows("texts, image, images", "node_images.what_is_chosen")
def test_what_is_chosen(texts: tuple[str, ...], image: str, images: dict[str, str]) -> None:
    assert up_plan.parse_images(texts) == (image, images)


@rows("texts, says", "node_images.what_cannot_be_chosen")
def test_what_cannot_be_chosen(texts: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        up_plan.parse_images(texts)
    assert caught.value.hint


def test_a_kind_that_the_cluster_does_not_have(hub: Hub) -> None:
    with pytest.raises(UsageError, match="the cluster has no amd nodes"):
        resolve(spec(images={"amd": "me/amd:1"}))


def test_an_image_of_ones_own_is_pinned_and_measured(hub: Hub) -> None:
    digest = hub.serve("me/gpu", "1", size=3_200_000_000, login="me:secret")
    with pytest.raises(ProviderError, match="it is private or does not exist"):
        resolve(spec(image="me/gpu:1"))
    logins = {"docker.io": RegistryLogin("me", "secret")}
    found = up_plan.resolve_node_images(spec(image="me/gpu:1"), KINDS, {}, logins.get)
    assert found["nvidia"].reference == f"me/gpu@{digest}"
    assert found["nvidia"].line == f"image of nvidia workers: me/gpu:1 ({digest[:19]}, 3,200 MB)"
    assert found["nvidia"].login == RegistryLogin("me", "secret")
    assert "secret" not in repr(found)


def test_amd_workers_get_a_public_image_that_is_not_ours(hub: Hub) -> None:
    digest = hub.serve("rafalsiwek/g4ad_distributed_ml", "1.0_pytorch_2.5.1", size=9_000_000_000)
    found = resolve(spec(), "launcher", "amd")["amd"]
    assert (found.recipe, found.reference.rpartition("@")[2]) == ("", digest)
    assert found.line == (
        "image of amd workers: rafalsiwek/g4ad_distributed_ml:1.0_pytorch_2.5.1"
        f" ({digest[:19]}, 9,000 MB), published by the author of the seed project, not by us"
    )
    hub.serve("me/amd", "1")
    own = resolve(spec(images={"amd": "me/amd:1"}), "launcher", "amd")["amd"]
    assert "seed project" not in own.line


class Machines(Provider):
    """EC2 as `up` plans with it: it has what it takes, and costs money."""

    features = Ec2Provider.features

    def plan(self, spec: ClusterSpec, *rest: Any, **more: Any) -> ProviderPlan:
        return ProviderPlan(
            mode="ec2",
            mode_reason="",
            one_host=False,
            lines=("machines",),
            kinds=KINDS,
            disks={"nvidia": 75},
            question="start 3 machines?",
        )


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "ec2", Machines())


def test_new_nodes_get_the_image_that_the_others_have(hub: Hub, machines: None) -> None:
    """Whatever its tag means by now, until --image is given again."""
    first = hub.serve("me/gpu", "1", size=1_000_000)
    second = hub.serve("me/gpu", "1", size=2_000_000)
    assert first != second
    store = open_store()
    pinned = dict.fromkeys(KINDS, f"me/gpu@{first}")
    old = cluster(provider="ec2", images=pinned)
    store.save(replace(old, spec=spec(image="me/gpu:1")))
    again = replace(spec(), groups=(NodeGroup(count=3),))
    lines = "\n".join(up_plan.plan(store, again, print).lines)
    assert first[:19] in lines
    assert second[:19] not in lines
    given = "\n".join(up_plan.plan(store, replace(again, image="me/gpu:1"), print).lines)
    assert second[:19] in given


@pytest.mark.parametrize("words", [["--image", "me/none:1"], ["--image", "nvidia=me/none:1"]])
def test_nothing_is_made_where_an_image_is_missing(
    words: list[str], hub: Hub, machines: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.execute(["up", "--gpu", "g4dn", "--yes", *words]) == 3
    said = capsys.readouterr().err
    assert "docker.io does not provide the image me/none:1" in said
    assert open_store().list_names() == ()


def test_on_the_machines_themselves_no_registry_is_asked(hub: Hub, machines: None) -> None:
    lines = up_plan.plan(open_store(), spec(runtime=Runtime.HOST), print).lines
    assert [line.partition(":")[0] for line in lines] == [
        "machines",
        "installing on the launcher",
        "installing on nvidia workers",
    ]
    assert hub.asked == []


@rows(
    "recipe, size, runtime, says", "node_images.the_plan_says_what_is_fetched_and_how_long_it_takes"
)
def test_the_plan_says_what_is_fetched_and_how_long_it_takes(
    recipe: str, size: int, runtime: str, says: str
) -> None:
    image = up_plan.NodeImage("some/image@sha256:1", "", recipe=recipe, size=size)
    images = {} if runtime == "host" else {"nvidia": image}
    installs = up_plan.measure_installs(("nvidia",), images, Runtime(runtime))
    assert "".join(up_plan.describe_installs(installs, {"cpu": 250})) == says
    [faster] = up_plan.describe_installs({"nvidia": (2.9, 11.0)}, {"nvidia": 250})
    assert faster.endswith("about 3 min (at 50 and 250 MB/s)")


@rows("disk, image, written, least", "node_images.a_disk_has_room_for_what_is_installed")
def test_a_disk_has_room_for_what_is_installed(
    disk: int, image: int, written: float, least: int
) -> None:
    """A launcher's is not chosen, and of a kind without a size nothing is known."""
    installs = {"launcher": (0.1, 99.0), "cpu": (0.1, 0.1), "amd": (1.0, written)}
    images = {"cpu": 1, "amd": image}
    with pytest.raises(UsageError) if least else nullcontext() as caught:
        up_plan.check_disk(disk, images, installs)
    if caught:
        assert caught.value.message.startswith(f"--disk {disk} is too small for amd workers: ")
        assert caught.value.hint == f"--disk {least} or more"


def test_a_disk_without_room_is_refused_before_anything_is_made(machines: None) -> None:
    small = spec(runtime=Runtime.HOST)
    small = replace(small, cloud=replace(small.cloud, disk=83))
    with pytest.raises(UsageError, match="image takes 75 GiB, and") as caught:
        up_plan.plan(open_store(), small, print)
    assert caught.value.hint == "--disk 84 or more"


@pytest.mark.parametrize("recipe", catalog.RECIPES)
def test_every_recipe_is_made_for_a_kind_of_node(recipe: str) -> None:
    _, images = up_plan.parse_images((recipe,))
    assert set(images) <= set(catalog.CONTAINER_IMAGES)
    assert list(images.values()) == [recipe]


# ------------------------------------------------------------------------------------------------
# What pip is asked for when the wheels of an image are downloaded.


def test_pip_is_our_own_whatever_lies_in_the_current_folder(tmp_path: Path) -> None:
    """`up --provider docker` downloads as root, in whatever folder it is typed."""
    foreign = tmp_path / "pip"
    foreign.mkdir()
    for name in ("__init__.py", "__main__.py"):
        (foreign / name).write_text("open('ran', 'w')\n")
    argv = images.make_pip_argv(tmp_path / "wanted", tmp_path / "wheels", registry.read_downloads())
    pip = [*argv[: argv.index("download")], "--version"]
    done = subprocess.run(pip, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("pip "), done
    assert not (tmp_path / "ran").exists()
