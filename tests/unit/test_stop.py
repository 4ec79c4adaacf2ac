"""`stop` and what it leaves: disks that cost money, and a cluster that says so. No machines."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core.job import JobState
from clusterctl.core.model import Charge, Cluster, Phase, Reporter, Thing
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.local.provider import LocalProvider
from tests.unit.calling import Call, judge
from tests.unit.provided import NothingLeft, provide
from tests.unit.staged import Staged, lab

HOURLY = {"instance": 1.0, "disk": 0.25, "address": 0.5}


@dataclass
class Cloud(NothingLeft, LocalProvider):
    """A cloud whose machines can be stopped; `refuses`: what it says instead."""

    stopped: list[str] = field(default_factory=list)
    refuses: BaseException | None = None
    unpausable: str = ""
    trouble: str = ""
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What it shows of these machines, which run otherwise."""

    def check_pausing(self, cluster: Cluster, folder: Path) -> None:
        if self.unpausable:
            raise UsageError(self.unpausable, hint="`clusterctl down lab`")

    def stop(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        if self.refuses:
            raise self.refuses
        self.stopped.append(cluster.id)
        for node in cluster.nodes:
            self.told.setdefault(node.name, {"state": "off", "until": 1.7e9})

    def find_deadline_trouble(self, cluster: Cluster, folder: Path) -> str:
        return self.trouble

    def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
        return [
            Thing(id=node.name, node=node.name, **{"since": 1.6e9, **self.told.get(node.name, {})})
            for node in cluster.nodes
        ]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud()
    provide(monkeypatch, "local", made)
    return made


@pytest.fixture
def here(tmp_path: Path, cloud: Cloud) -> Staged:
    where = lab(tmp_path / "nodes")
    charges = tuple(
        Charge(node="worker-1", part=part, item=part, hourly=price, source="", since=1.6e9)
        for part, price in HOURLY.items()
    )
    where.store.save(replace(where.where, charges=charges, deadline=4e9))
    return where


def work(here: Staged, tmp_path: Path, **changes: Any) -> None:
    """Job 7, on record."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").touch()
    here.job(tree)
    here.store.save_job(replace(here.store.read_job(7), **changes))


def test_a_stopped_cluster_costs_what_its_disks_do(call: Call, here: Staged, cloud: Cloud) -> None:
    said = call("stop", "--json")
    assert (said.code, cloud.stopped) == (0, [here.where.id])
    assert json.loads(said.out)["dollars_per_hour"] == 0.25
    record = here.store.read_cluster("lab")
    ends = {charge.part: charge.until for charge in record.charges}
    assert ends == {"instance": 1.7e9, "disk": None, "address": 1.7e9}
    status = json.loads(call("status", "--json").out)
    assert (status["phase"], status["dollars_per_hour"]) == ("stopped", 0.25)
    assert status["warnings"] == []
    assert "its disks cost $0.2500/h until" in call("stop").err
    assert {charge.part: charge.until for charge in here.store.read_cluster("lab").charges} == ends


def test_stop_ends_and_counts_what_somebody_started_in_a_stopped_cluster(
    call: Call, here: Staged, cloud: Cloud
) -> None:
    call("stop")
    cloud.told["worker-1"] = {"since": 1.7e9 + 1000, "state": "off", "until": 1.7e9 + 4600}
    assert call("stop").code == 0
    counted = [
        (item.part, item.since, item.until)
        for item in here.store.read_cluster("lab").charges
        if item.since > 1.6e9
    ]
    runs = (1.7e9 + 1000, 1.7e9 + 4600)
    assert sorted(counted) == [("address", *runs), ("instance", *runs)]


def test_what_others_have_removed_is_not_said_to_be_stopped(
    call: Call, here: Staged, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Empty(Cloud):
        def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
            return []

    empty = Empty()
    provide(monkeypatch, "local", empty)
    judge(call("stop"), 2, "cluster lab has no running machines", "clusterctl down lab")
    assert empty.stopped == []
    assert here.store.read_cluster("lab").phase is Phase.READY


def test_what_a_stopped_cluster_cannot_do_names_start(call: Call, here: Staged) -> None:
    call("stop")
    judge(call("run", "train.py"), 7, "cluster 'lab' is stopped", "clusterctl start lab")
    judge(call("extend", "--ttl", "4h"), 2, "cluster lab is stopped", "clusterctl start lab")


def test_nobody_ends_a_stopped_cluster_without_the_schedules(
    call: Call, here: Staged, cloud: Cloud
) -> None:
    call("stop")
    cloud.trouble = "stopped machines keep no deadline"
    [warning] = json.loads(call("status", "--json").out)["warnings"]
    assert warning == "stopped machines keep no deadline: `clusterctl down lab` removes it"


def test_running_jobs_are_asked_about(
    call: Call, here: Staged, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(here, tmp_path, state=JobState.RUNNING)
    cloud.unpausable = "the workers of cluster lab are spot instances"
    judge(call("stop", "--yes"), 2, "spot instances", "clusterctl down lab")
    assert here.store.read_job(7).state is JobState.RUNNING
    cloud.unpausable = ""
    here.lose_supervisor(7)
    assert call("stop", "--yes").code == 0
    assert here.store.read_job(7).state.ended


def test_a_stop_that_fails_half_way_counts_what_has_ended(
    call: Call, here: Staged, cloud: Cloud
) -> None:
    """The cloud tells that for an hour alone."""
    cloud.refuses = ProviderError("stop instances: Request limit exceeded", hint="again")
    look = cloud.list_things

    def list_things(cluster: Cluster, folder: Path) -> list[Thing]:
        if cluster.stopping:
            cloud.told["worker-1"] = {"state": "off", "until": 1.7e9}
        return look(cluster, folder)

    cloud.list_things = list_things  # type: ignore[method-assign]
    assert call("stop").code == 3
    kept = (here.store.locate_folder("lab") / "ledger").read_text()
    assert '"state":"off","since":1600000000.0,"until":1700000000.0' in kept


def test_a_stop_that_is_refused_changes_no_record(call: Call, here: Staged, cloud: Cloud) -> None:
    before = here.store.read_cluster("lab")
    cloud.refuses = ProviderError(
        "stop instances: your AWS credentials have expired", hint="log in"
    )
    said = call("stop")
    _, _, after = said.err.partition("\n")
    assert "not everything was stopped: up to 1 machine may keep costing $1.75/h" in said.err
    assert "; `clusterctl stop lab` continues\n" in said.err
    judge(replace(said, err=after), 3, "credentials have expired", "log in")
    assert here.store.read_cluster("lab") == replace(before, stopping=True)
    assert before.phase is Phase.READY


@pytest.mark.parametrize("verb", ["stop", "down"])
def test_what_an_interrupted_command_leaves_running_is_said(
    verb: str, call: Call, here: Staged, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.refuses = KeyboardInterrupt()
    monkeypatch.setattr(cloud, "destroy", cloud.stop)
    said = call(verb, "--yes", *(["--discard"] if verb == "down" else []))
    assert said.code == 130
    assert "may keep costing" in said.err
    assert "$1.75/h" in said.err


def test_a_cluster_that_cannot_be_looked_at_is_not_said_to_be_stopped(
    call: Call, here: Staged, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Cloud):
        def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
            raise ProviderError("asking for instances: AWS did not answer")

    provide(monkeypatch, "local", Silent())
    said = call("stop")
    assert said.code == 3
    assert "nothing was stopped: the machines keep costing $1.75/h until" in said.err


def test_a_stop_that_was_killed_does_not_hide_what_runs(
    call: Call, here: Staged, cloud: Cloud
) -> None:
    """EC2 has stopped the machines, and the record knows nothing of it."""
    cloud.refuses = KeyboardInterrupt()
    with contextlib.suppress(KeyboardInterrupt):
        call("stop", "--json")
    cloud.told = {node.name: {"state": "off", "until": 1.7e9} for node in here.where.nodes}
    status = json.loads(call("status", "--json").out)
    assert (status["phase"], status["dollars_per_hour"]) == ("ready", 0.25)
    [said] = status["warnings"]
    assert "`stop` has not finished for cluster lab: nothing runs, $0.2500/h" in said
    assert "`clusterctl stop lab` completes it" in said
    assert "nothing runs, $0.2500/h" in call("cost").err
    cloud.refuses = None
    assert call("stop").code == 0
    assert json.loads(call("status", "--json").out)["warnings"] == []


def test_down_does_not_wait_for_machines_that_are_stopped(
    call: Call, here: Staged, tmp_path: Path
) -> None:
    work(here, tmp_path, state=JobState.SUCCEEDED)
    call("stop")
    said = call("down", "--yes")
    assert said.code == 2
    assert "cannot check the outputs of job 7" in said.err
    assert "after `clusterctl start lab`, --fetch saves them first" in said.err
    assert "nothing was removed: the disks keep costing $0.25/h until" in said.err
    assert here.store.list_names() == ("lab",)


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_only_machines_of_a_cloud_can_be_stopped(verb: str, call: Call, tmp_path: Path) -> None:
    lab(tmp_path / "nodes")
    judge(call(verb), 2, "cannot be stopped and started", "clusterctl down lab")
