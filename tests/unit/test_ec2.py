"""The pure parts of the EC2 provider."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core import catalog, keys
from clusterctl.core.model import ClusterSpec, NodeGroup, Runtime
from clusterctl.errors import UsageError
from clusterctl.machines import deadlines
from clusterctl.machines.ec2 import create, prices, refusals, remove, spec
from clusterctl.machines.ec2.api import Image
from clusterctl.machines.ec2.create import make_is_known
from clusterctl.machines.ec2.host_keys import HostKeys
from clusterctl.machines.protocol import Resource
from clusterctl.terraform.binary import Binary
from clusterctl.terraform.folder import Terraform
from tests.unit.making import charge, wish
from tests.unit.tables import rows


@rows("counts, present, numbers", "ec2.workers_keep_their_numbers")
def test_workers_keep_their_numbers(
    counts: list[tuple[str, int]], present: list[str], numbers: list[list[int]]
) -> None:
    groups = [NodeGroup(count=count, family=family) for family, count in counts]
    there = {n: f"{family}.xlarge" for n, family in enumerate(present, start=1) if family}
    assert [list(some) for some in spec.number_workers(groups, there)] == numbers


def test_disks_differ_only_where_nobody_said_how_large() -> None:
    groups = (NodeGroup(count=1, family="cpu"), NodeGroup(count=1, family="g5"))
    images = {"cpu": Image(id="ami-1", disk=8), "nvidia": Image(id="ami-2", disk=75)}

    def sizes(options: ClusterSpec, **there: tuple[int, int]) -> list[int]:
        present = {number: "g5.xlarge" for number, name in ((2, "worker-2"),) if name in there}
        machines = spec.plan_machines(options, {}, present, there)
        return [m.disk for m in spec.size_disks(machines, images)]

    assert sizes(wish(*groups)) == [30, 68, 135]
    assert sizes(wish(*groups, disk=50)) == [30, 50, 50]
    running = replace(charge("worker-2", part="disk"), item="100 GiB gp3")
    ended = replace(running, node="worker-1", until=1.0)
    assert spec.read_disks([running, ended, charge("worker-1")]) == {"worker-2": (100, 0)}
    assert sizes(wish(*groups), **{"worker-2": (100, 0)}) == [30, 68, 100], "who runs keeps it"


def test_a_disk_is_faster_where_its_worker_builds_a_container() -> None:
    """What runs keeps what it has: changing that takes a right of its own, and other money."""
    groups = (NodeGroup(count=1, family="cpu"), NodeGroup(count=1, family="g5"))
    images = {"cpu": Image(id="ami-1", disk=8), "nvidia": Image(id="ami-2", disk=75)}
    kinds = {"worker-1": "c7i.xlarge", "worker-2": "g5.xlarge"}

    def speeds(
        saved: Container[str] = (), there: dict[str, tuple[int, int]] | None = None, **more: Any
    ) -> list[int]:
        there, options = there or {}, replace(wish(*groups), **{"runtime": Runtime.DOCKER, **more})
        present = spec.read_present({name: kinds[name] for name in there})
        machines = spec.plan_machines(options, {}, present, there)
        return [m.faster for m in spec.size_disks(machines, images, saved, there)]

    assert speeds() == [0, 125, 125]
    assert speeds(runtime=Runtime.HOST) == [0, 0, 0]
    assert speeds(images={"cpu": "me/mine:1"}) == [0, 0, 125], "one that is pulled is not built"
    assert speeds(saved={"nvidia"}) == [0, 125, 0], "nothing is installed there"
    assert speeds(saved={"cpu"}, there={"worker-1": (68, 125), "worker-2": (135, 0)}) == [0, 125, 0]
    running = replace(charge("worker-1", part="disk"), item="68 GiB gp3 at 250 MB/s")
    assert spec.read_disks([running]) == {"worker-1": (68, 125)}


def test_a_type_without_family_gets_the_image_of_its_gpus() -> None:
    kinds = {"p3.2xlarge": "NVIDIA", "c6i.large": ""}
    groups = [NodeGroup(count=1, instance_type=name) for name in kinds]
    assert [spec.choose_image_kind(group, kinds) for group in groups] == ["nvidia", "cpu"]


@pytest.mark.parametrize("count", [0, 1001])
def test_impossible_numbers_of_workers_are_refused(count: int) -> None:
    with pytest.raises(UsageError, match=str(count)):
        spec.check_spec(wish(NodeGroup(count=count, family="cpu")))


def test_clusters_have_networks_of_their_own() -> None:
    networks = {spec.choose_cidr(f"lab-{number}") for number in range(200)}
    assert len(networks) > 50
    assert all(64 <= int(text.split(".")[1]) < 128 for text in networks)


@rows("kind, code, spot_name, spot", "ec2.types_count_towards_their_quotas")
def test_types_count_towards_their_quotas(kind: str, code: str, spot_name: str, spot: str) -> None:
    """Spot instances have quotas of their own."""
    row = catalog.find_quota(kind)
    found = (row.on_demand, row.spot_name, row.spot) if row else ("", "", "")
    assert found == (code, spot_name, spot)


@rows("kind, percent", "ec2.a_burstable_type_has_a_baseline")
def test_a_burstable_type_has_a_baseline(kind: str, percent: int | None) -> None:
    assert catalog.find_baseline(kind) == percent


def test_no_default_worker_is_burstable_or_without_a_price() -> None:
    """A worker that computes all the time is throttled, or costs more than the table says."""
    kinds = {family.name: family.instance_type for family in catalog.FAMILIES.values()}
    assert [catalog.find_baseline(kind) for kind in kinds.values()] == [None] * len(kinds)
    assert kinds["cpu"] in catalog.PRICES


def test_every_price_says_where_it_is_from() -> None:
    for item, price in catalog.PRICES.items():
        assert price.source.startswith("https://"), item
        assert len(price.date) == 10, item
    undated = {"g7"}  # AWS is asked, as always; nobody has published its price with a date
    for family in (row for name, row in catalog.FAMILIES.items() if name not in undated):
        assert prices.look_up_fallback(family.instance_type, "us-east-1").dollars
    for name in (catalog.LAUNCHER_TYPE, *catalog.ONE_SIZE.values()):
        assert prices.look_up_fallback(name, "us-east-1").dollars
    assert prices.look_up_fallback("g4dn.xlarge", "eu-west-1").dollars is None


def test_packages_are_those_of_the_constraints() -> None:
    text = (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
    for lines in catalog.NODE_PACKAGES.values():
        for line in lines:
            assert line.replace("'", '"') in text


def test_what_runs_goes_on_and_what_is_gone_ends() -> None:
    old = [charge("worker-1"), charge("worker-2"), charge("worker-9", until=5.0)]
    new = [charge("worker-1", since=100.0, hourly=2.0), charge("worker-3", since=100.0)]
    merged = {item.node: item for item in prices.merge(old, new, 100.0)}
    assert merged["worker-1"] == charge("worker-1"), "it was bought at the old price"
    assert merged["worker-2"].until == 100.0
    assert merged["worker-9"].until == 5.0
    assert merged["worker-3"].since == 100.0


def test_what_is_there_without_terraforms_knowing_is_told_from_other_failures() -> None:
    repeated = "aws_security_group.ssh: api error InvalidPermission.Duplicate: the rule"
    assert refusals.is_repeated(["something else", repeated])
    assert refusals.is_repeated(["api error RouteAlreadyExists: a route"])
    assert not refusals.is_repeated(["api error InvalidPermission.Malformed: no"])
    assert not refusals.is_repeated(["a rule of that name is a Duplicate"])


def test_user_data_is_small_valid_and_armed() -> None:
    pair = keys.generate()
    text = create.render_userdata(
        host_key=pair, authorized="ssh-ed25519 A", deadline=1e9 + 0.7, root="/home/u/r", spot=True
    )
    assert len(text) < create.LIMIT
    first, body = text.split("\n", 1)
    assert first == "#cloud-config"
    config = json.loads(body)
    assert config["ssh_keys"]["ed25519_private"] == pair.private
    files = {item["path"]: item["content"] for item in config["write_files"]}
    assert files[deadlines.FILE] == "1000000000\n"
    script = files[create.AGENT]
    assert "spot/instance-action" in script
    done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    unit = files[f"/etc/systemd/system/{create.UNIT}"]
    [after] = [line for line in unit.splitlines() if line.startswith("After=")]
    assert "cloud-init.service" in after, "in an image of a node, the agent would see its deadline"


def test_host_keys_of_a_new_namesake_are_new(tmp_path: Path) -> None:
    store = HostKeys(tmp_path)
    first = store.make_boot_keys(["worker-1"], living=())["worker-1"]
    assert store.known == {"worker-1": (first.public,)}
    assert store.make_boot_keys(["worker-1"], living=())["worker-1"] == first, (
        "not yet used: still good"
    )
    assert store.make_boot_keys(["worker-1"], living=("worker-1",))["worker-1"] == first
    on_record = tmp_path / "ec2" / "host-keys.json"
    kept = json.loads(on_record.read_text())
    on_record.write_text(json.dumps({**kept, "known": {"worker-1": ["ssh-ed25519 ROTATED"]}}))
    second = store.make_boot_keys(["worker-1"], living=())["worker-1"]
    assert second != first
    assert store.known == {"worker-1": (second.public,)}
    store.forget(["worker-1"])
    assert store.known == {}
    assert not store.booting


def note(folder: Path, **rows: dict[str, Any]) -> Callable[[Resource], bool]:
    """What Terraform knows by a state with one resource of each of these kinds."""
    usual = {"mode": "managed", "name": "this"}
    state = [{**usual, "type": f"aws_{kind}", "instances": [row]} for kind, row in rows.items()]
    (folder / "terraform.tfstate").write_text(json.dumps({"resources": state}))
    binary = Binary("terraform", (1, 11, 4))
    return make_is_known(Terraform(folder, binary, cluster="lab", cache=folder))


def test_what_terraform_has_not_noted_is_told_apart(tmp_path: Path) -> None:
    """Names of ours are the cluster's id, which every tag in the state holds."""
    assert not note(tmp_path)(Resource("instance", "i-1"))
    machine = {"index_key": "launcher", "attributes": {"id": "i-1", "tags": {"c": "lab-1"}}}
    known = note(tmp_path, instance=machine)
    assert known(Resource("instance", "i-1"))
    assert not known(Resource("instance", "i-2"))
    assert not known(Resource("key pair", "lab-1"))
    assert not known(Resource("placement group", "lab-1"))
    assert note(tmp_path, instance=machine, key_pair={})(Resource("key pair", "lab-1"))


def test_a_nat_gateway_that_terraform_would_replace_is_removed_first(tmp_path: Path) -> None:
    """Ctrl-C while AWS was making it: whether it was there in the end is known to who removes it,
    and Terraform does not say so."""
    tainted = {"attributes": {"id": "i-1"}, "status": "tainted"}
    gateway = {"attributes": {"id": "nat-1"}}
    for row, known in ((gateway, True), ({**gateway, "status": "tainted"}, False)):
        is_known = note(tmp_path, nat_gateway=row, instance=tainted)
        assert is_known(Resource("NAT gateway", "nat-1")) is known
        assert is_known(Resource("instance", "i-1")), "Terraform replaces it"


def test_the_parts_of_a_kept_instance_stay_with_it() -> None:
    """Terraform may have been stopped between the two: a disk in use cannot be removed anyway."""
    kinds = {kind.name: kind for kind in remove.KINDS}

    def thing(kind: str, id: str, **item: Any) -> remove.Found:
        return kinds[kind], item, Resource(kind, id)

    found = [
        thing("instance", "i-1"),
        thing("instance", "i-2"),
        thing("volume", "vol-1", Attachments=[{"InstanceId": "i-1"}]),
        thing("volume", "vol-2", Attachments=[{"InstanceId": "i-2"}]),
        thing("volume", "vol-3", Attachments=[]),
        thing("network interface", "eni-1", Attachment={"InstanceId": "i-1"}),
        thing("network interface", "eni-2", Attachment={"InstanceId": "i-2"}),
        thing("spot request", "sir-1", InstanceId="i-1"),
        thing("spot request", "sir-2"),
    ]
    left = remove.drop_kept(found, lambda left: left.id == "i-1")
    assert [item.id for _, _, item in left] == ["i-2", "vol-2", "vol-3", "eni-2", "sir-2"]
