"""Three witnesses of a cluster: its record, Terraform's state, and AWS by tag. Any of them may be
damaged or gone, and what `down`, `status` and `up` do is right: machines go or are spoken of."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.core.model import Charge, NodeGroup, Runtime
from clusterctl.machines.ec2 import remove
from clusterctl.machines.ec2 import spec as ec2_spec
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.ec2.spec import ProviderState
from tests.unit.calling import Call
from tests.unit.fake_ec2 import ACCOUNT, LAUNCHED, Allowing, Cloud, FakeApi
from tests.unit.making import cluster, node, note_machines
from tests.unit.provided import provide

NODES = ("launcher", "worker-1", "worker-2")
ID = "lab-1a2b"
REGION = "eu-west-1"
HOUR = 3600.0

UP = ("--cpu", "c7i.xlarge", "--runtime", "host", "--ssh-cidr", "192.0.2.1/32")

RIGHT, DAMAGED, EMPTY, GONE = "right", "damaged", "empty", "gone"
FILES = (RIGHT, DAMAGED, EMPTY, GONE)
CASES = list(itertools.product(FILES, FILES, (RIGHT, DAMAGED, GONE)))
"""Of the record, of what Terraform and the provider keep, and of the machines: `damaged` is a file
that was cut off, or one of three machines that ended itself."""


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    """Another region than the usual one. Terraform is a script that fails."""
    script = tmp_path / "bin" / "terraform"
    script.parent.mkdir()
    version = """echo '{"terraform_version": "1.11.4"}'"""
    script.write_text(f"#!/bin/sh\ncase $* in *version*) {version} ;; *) exit 1 ;; esac\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setattr(remove, "PAUSE", 0.0)
    made = Cloud(region=REGION)
    provide(monkeypatch, "ec2", Ec2Provider(lambda region: Whole(made, region)))
    return made


class Whole(Allowing, FakeApi):
    """The same account, with all that a plan asks about."""

    def list_zones(self, types: Iterable[str]) -> tuple[str, ...]:
        return (f"{self.region}a",)


def arrange(
    cloud: Cloud, record: str, state: str, machines: str, deadline: float = LAUNCHED + HOUR
) -> None:
    """A cluster of three machines on the record, of which these witnesses are left."""
    store = open_store()
    charges = tuple(
        Charge(node=name, part="instance", item="x", hourly=1.0, source="", since=LAUNCHED)
        for name in NODES
    )
    made = cluster(charges=charges, deadline=deadline, account=ACCOUNT)
    groups = (NodeGroup(count=2, instance_type="t3.micro"),)
    where = replace(made.spec.cloud, region=REGION, idle=0.0, ssh_cidr=UP[-1])
    spec = replace(made.spec, groups=groups, runtime=Runtime.HOST, cloud=where)
    store.save(replace(made, spec=spec))
    folder = store.locate_folder("lab")
    path = folder / "cluster.json"
    ec2_spec.save_state(folder, ProviderState(id=ID, region=REGION))
    (folder / "terraform").mkdir()
    rows = [
        {
            **{"mode": "managed", "type": "aws_instance", "name": "this"},
            "instances": [{"index_key": name, "attributes": {"id": f"i-{name}"}}],
        }
        for name in NODES
    ]
    files = {
        folder / "terraform" / "terraform.tfstate": json.dumps({"resources": rows}),
        folder / "terraform" / "cluster.tfvars.json": json.dumps(
            {"cluster_id": ID, "region": REGION}
        ),
        folder / "ec2" / "memory.json": (folder / "ec2" / "memory.json").read_text(),
    }
    for file, text in files.items():
        if state == GONE:
            file.unlink(missing_ok=True)
        else:
            file.write_text(damaged(text, state))
    if record == GONE:
        path.unlink()
    else:
        path.write_text(damaged(path.read_text(), record))
    if machines != GONE:
        cloud.make(ID, *NODES[: 3 if machines == RIGHT else 2])


def damaged(text: str, how: str) -> str:
    return {RIGHT: text, DAMAGED: text[: len(text) // 2], EMPTY: ""}[how]


def known(record: str, state: str) -> bool:
    """Whether anything here tells which cluster it was."""
    return RIGHT in (record, state)


@pytest.mark.parametrize(("record", "state", "machines"), CASES)
def test_down_leaves_nothing_or_says_so(
    record: str, state: str, machines: str, cloud: Cloud, call: Call
) -> None:
    arrange(cloud, record, state, machines)
    said = call("down", "lab", "--force" if known(record, state) else "--yes")
    if known(record, state):
        assert (said.code, cloud.left()) == (0, []), said.err
        assert ("there is no receipt" in said.err) is (record != RIGHT)
        assert open_store().list_names() == ()
        receipts = open_store().list_past()
        assert [item.id for item in receipts] == [ID]
        if record == RIGHT:
            assert all(item.until is not None for item in receipts[0].charges)
        return
    # Only AWS knows: nobody is told that nothing is left, and nothing here is thrown away.
    assert said.code == 7
    assert "`clusterctl gc` finds it in AWS" in said.err
    assert open_store().list_names() == ("lab",)
    found = call("gc", "--dry-run", "--json", "--region", REGION).document["found"]
    assert [item["id"] for item in found] == ([ID] if machines != GONE else [])
    call("gc", "--yes", "-c", ID, "--region", REGION)
    assert cloud.left() == []
    assert call("down", "lab", "--force").code == 0
    assert open_store().list_names() == ()


@pytest.mark.parametrize(("record", "state", "machines"), CASES)
def test_status_takes_no_figure_from_a_damaged_witness(
    record: str, state: str, machines: str, cloud: Cloud, call: Call
) -> None:
    """The deadline is over: AWS is asked, wherever the cluster is."""
    arrange(cloud, record, state, machines)
    said = call("status", "lab", "--json")
    if record != RIGHT:
        assert said.code == 7
        return
    assert said.code == 0
    running = {RIGHT: 3.0, DAMAGED: 2.0, GONE: 0.0}[machines]
    assert said.document["dollars_per_hour"] == running
    assert any("still costs" in line for line in said.document["warnings"]) is bool(running)


@pytest.mark.parametrize(("record", "state", "machines"), CASES)
def test_up_goes_on_with_the_cluster_or_removes_it_or_makes_none(
    record: str, state: str, machines: str, cloud: Cloud, call: Call
) -> None:
    """As far as Terraform, which fails here: what there is by then, and what is said of it."""
    arrange(cloud, record, state, machines, deadline=time.time() + HOUR)
    before = cloud.left()
    said = call("up", "lab", *(UP if record == GONE else ()), "--yes")
    assert "run_instances" not in cloud.calls
    if record == RIGHT:
        # Machines that a person has paid for are not thrown away, and there is no second cluster.
        assert (said.code, cloud.left()) == (3, before), said.err
        assert open_store().read_cluster("lab").id == ID
        lost = "state of cluster lab is lost" in said.err
        assert lost is (state in (EMPTY, GONE))
        running = sum(name.startswith("i-") for name in before)
        kept = next((x for x in said.err.splitlines() if "still running: " in x), "")
        assert (f", ${running}.00/h until " in kept) is bool(running)
        return
    if (record, state) == (GONE, RIGHT):
        assert f"found cluster {ID} without a local record; removing it first" in said.err
        assert (said.code, cloud.left()) == (3, []), said.err
        assert [item.id for item in open_store().list_past()] == [ID]
        assert open_store().read_cluster("lab").id != ID
        return
    assert (said.code, cloud.left()) == (7, before), said.err
    assert (
        "cannot be read:" if record in (DAMAGED, EMPTY) else "nothing in it shows which one"
    ) in said.err
    assert open_store().list_names() == ("lab",)


def test_machines_that_terraform_does_not_know_go_by_their_tags(cloud: Cloud, call: Call) -> None:
    """They hold the network that Terraform would wait for. An `up` was cut off when it had made
    them, or one of an earlier version has launched them beside Terraform."""
    arrange(cloud, RIGHT, RIGHT, RIGHT)
    cloud.make(ID, "worker-3")
    said = call("down", "lab", "--force")
    assert "worker-3: not in Terraform's state; removing by tag" in said.err
    assert (said.code, cloud.left()) == (0, [])


def test_up_removes_no_node_that_terraform_does_not_know(cloud: Cloud, call: Call) -> None:
    arrange(cloud, RIGHT, RIGHT, RIGHT, deadline=time.time() + HOUR)
    store, nodes = open_store(), [replace(node(one), machine=f"i-{one}") for one in NODES]
    store.save(replace(store.read_cluster("lab"), nodes=tuple(nodes)))
    note_machines(store.locate_folder("lab"), *NODES[:2])
    before = cloud.left()
    said = call("up", "lab", "--yes")
    assert "worker-2 of cluster lab is not in Terraform's state" in said.err
    assert (said.code, cloud.left()) == (3, before)


def test_a_cluster_that_was_taken_back_asks_for_its_shared_folder(cloud: Cloud, call: Call) -> None:
    """Its machines do not let us in any more, so that nobody knows what is in it."""
    cloud.shared = "/shared"
    arrange(cloud, GONE, GONE, RIGHT)
    assert call("gc", "--adopt", ID, "--region", REGION).code == 0
    assert open_store().read_cluster("lab").shared == "/shared"
    before = cloud.left()
    said = call("down", "lab", "--yes")
    assert said.code == 2
    assert "the shared folder /shared may have files" in said.err
    assert cloud.left() == before
