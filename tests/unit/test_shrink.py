"""Fewer workers: what is said and asked before they go. Nodes are folders of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions import up, up_plan
from clusterctl.actions.common import open_store
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Charge, Cluster, ClusterSpec, NodeGroup, Thing
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.protocol import Cloud, Created, Features, ProviderPlan
from tests.unit import making, staged
from tests.unit.provided import provide
from tests.unit.staged import Staged

PAID = (Charge(node="launcher", part="instance", item="x", hourly=1.0, source="", since=0.0),)


class Agreed(ProviderError):
    """All questions have their answer: there is nothing more to see here."""


class Planner(Cloud):
    """A provider that numbers its workers from 1, and whose machines are as they are."""

    features = Features()

    def plan(self, spec: ClusterSpec, *others: object, ahead: Path | None = None) -> ProviderPlan:
        return ProviderPlan(mode="m", mode_reason="", one_host=False, lines=("a plan",))

    def create(self, cluster: Cluster, *others: object) -> Created:
        raise Agreed("nothing is removed here")

    def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
        return [Thing(id=node.name, node=node.name) for node in cluster.nodes]


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("local", "ec2"):
        provide(monkeypatch, name, Planner())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "nodes"


def lab(folder: Path, *, paid: bool) -> Staged:
    provider = "ec2" if paid else "local"
    workers = [f"worker-{number}" for number in range(1, 9)]
    return staged.lab(folder, provider, workers=workers, charges=PAID if paid else ())


def ended(cluster: Cluster, workers: int, **changes: object) -> Job:
    """A job that has ended, with ranks on the first so many workers."""
    what = making.spec(nodes=workers)
    return making.job(cluster, what, started=1.0, state=JobState.SUCCEEDED, **changes)


def made(here: Staged, workers: int) -> Job:
    """The same, with its files on the nodes, and a MB that each rank has written."""
    tree = here.folder / "tree"
    tree.mkdir()
    (tree / "train.py").touch()
    job = here.job(tree, what=making.spec(nodes=workers))
    for place in job.placement:
        (here.work(place.node) / "model.pt").write_bytes(bytes(10**6))
    return job


def smaller(
    cluster: Cluster, workers: int, jobs: Sequence[Job], *, yes: bool = True
) -> tuple[list[str], list[str]]:
    """Brings the cluster down to so many workers; returns what was said and what was asked."""
    store, told, asked = open_store(), list[str](), list[str]()
    store.save(cluster)
    for job in jobs:
        store.save_job(job)

    def consent(question: str) -> bool:
        asked.append(question)
        return yes

    wish = replace(cluster.spec, groups=(NodeGroup(count=workers),))
    with suppress(Agreed):
        up.bring_up(store, wish, told.append, consent)
    return told, asked


def test_machines_that_cost_money_go_only_with_consent(folder: Path) -> None:
    cluster = lab(folder, paid=True).where
    with pytest.raises(UsageError, match="nothing was removed"):
        smaller(cluster, 2, [], yes=False)
    assert open_store().read_cluster("lab") == cluster
    assert smaller(cluster, 2, [])[1] == ["remove worker-[3-8]?"]
    assert smaller(cluster, 8, [])[1] == []


def test_the_plan_says_who_goes(folder: Path) -> None:
    cluster = lab(folder, paid=True).where
    wish = replace(cluster.spec, groups=(NodeGroup(count=2),))
    plan = up_plan.plan(open_store(), wish, print)
    assert plan.lines == (
        "a plan",
        "to be removed: worker-[3-8]",
    )


@pytest.mark.parametrize("paid", [True, False])
def test_what_nobody_fetched_goes_only_with_consent(paid: bool, folder: Path) -> None:
    """Only what lies on the workers that go: the rest stays where it is."""
    here = lab(folder, paid=paid)
    told, asked = smaller(here.where, 2, [made(here, 4)])
    assert "job 7 has unfetched outputs: 2.0 MB" in told
    assert asked == ["remove worker-[3-8], and lose these files?"]


@pytest.mark.parametrize("kept", [{"workers": 2}, {"workers": 8, "fetched": True}])
def test_nothing_is_said_of_a_cluster_that_loses_nothing(
    kept: dict[str, int], folder: Path
) -> None:
    cluster = lab(folder, paid=False).where
    told, _ = smaller(cluster, 2, [ended(cluster, **kept)])
    assert not any("unfetched" in line for line in told)


def test_workers_of_a_job_that_runs_stay(folder: Path) -> None:
    here = lab(folder, paid=False)
    with here.running(made(here, 3)) as running:
        with pytest.raises(UsageError, match=r"job 7 has ranks on worker-3, which would be remove"):
            smaller(here.where, 2, [running])
        assert smaller(here.where, 3, [running])[1] == []
