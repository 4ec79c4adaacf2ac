"""Fewer workers, without machines: what is said and asked before they go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl import providers
from clusterctl.actions import open_store, shrink, up
from clusterctl.errors import UsageError
from clusterctl.jobs import outputs
from clusterctl.jobs.outputs import Found, Output
from clusterctl.jobs.start import list_rank_nodes
from clusterctl.model import Charge, Cluster, ClusterSpec, Job, JobState, NodeGroup
from clusterctl.providers.protocol import Features, ProviderPlan
from tests.unit import making

PAID = (Charge(node="launcher", part="instance", item="x", hourly=1.0, source="", since=0.0),)


class Planner:
    """A provider that numbers its workers from 1."""

    features = Features()

    def plan(self, spec: ClusterSpec, *others: object, ahead: Path | None = None) -> ProviderPlan:
        return ProviderPlan(mode="m", mode_reason="", one_host=False, lines=("a plan",))


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node answers, and has a MB from every job that ran there. Its logs cannot be had."""

    @contextmanager
    def connected(*anything: object) -> Iterator[None]:
        yield

    def find(job: Job, cluster: Cluster, pool: object, *, timeout: float) -> Found:
        return Found(
            tuple(Output(name, "model.pt", 10**6) for name in list_rank_nodes(job, cluster))
        )

    monkeypatch.setattr(providers, "load", lambda name: Planner())
    monkeypatch.setattr(shrink, "open_pool", connected)
    monkeypatch.setattr(shrink, "connect_or_report", lambda pool, names, tell: {})
    monkeypatch.setattr(shrink, "save_logs", lambda store, job, *more: None)
    monkeypatch.setattr(outputs, "find", find)


def lab(*, paid: bool) -> Cluster:
    names = ("launcher", *(f"worker-{number}" for number in range(1, 9)))
    nodes = [making.node(name, f"10.0.0.{index + 10}") for index, name in enumerate(names)]
    return making.cluster(*nodes, provider="ec2" if paid else "local", charges=PAID if paid else ())


def ended(cluster: Cluster, workers: int, **changes: object) -> Job:
    """A job that has ended, with ranks on the first so many workers."""
    what = making.spec(nodes=workers)
    return making.job(cluster, what, started=1.0, state=JobState.SUCCEEDED, **changes)


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
    intent = up._intend(wish, cluster, told.append)
    up._record(store, wish, intent, told.append, consent)
    return told, asked


def test_machines_that_cost_money_go_only_with_consent() -> None:
    cluster = lab(paid=True)
    with pytest.raises(UsageError, match="nothing was removed"):
        smaller(cluster, 2, [], yes=False)
    assert open_store().cluster("lab") == cluster
    assert smaller(cluster, 2, [])[1] == ["remove worker-[3-8]?"]
    assert smaller(cluster, 8, [])[1] == []


def test_the_plan_says_who_goes() -> None:
    cluster = lab(paid=True)
    open_store().save(cluster)
    wish = replace(cluster.spec, groups=(NodeGroup(count=2),))
    assert up.plan(open_store(), wish, print).lines == ("a plan", "to be removed: worker-[3-8]")


@pytest.mark.parametrize("paid", [True, False])
def test_what_nobody_fetched_is_named(paid: bool) -> None:
    """Only what lies on the workers that go: the rest stays where it is. Clusters that cost nothing
    never ask."""
    cluster = lab(paid=paid)
    told, asked = smaller(cluster, 2, [ended(cluster, 4)])
    assert "job 7 has unfetched outputs there: 2.0 MB" in told
    assert asked == ["remove worker-[3-8]?"] * paid


@pytest.mark.parametrize("kept", [{"workers": 2}, {"workers": 8, "fetched": True}])
def test_nothing_is_said_of_a_cluster_that_loses_nothing(kept: dict[str, int]) -> None:
    cluster = lab(paid=False)
    told, _ = smaller(cluster, 2, [ended(cluster, **kept)])
    assert not any("unfetched" in line for line in told)


def test_workers_of_a_job_that_runs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.jobs.control.refresh", lambda job, *more: job)
    cluster = lab(paid=False)
    running = replace(ended(cluster, 3), state=JobState.RUNNING)
    with pytest.raises(UsageError, match=r"job 7 has ranks on worker-3, which would be removed"):
        smaller(cluster, 2, [running])
    assert smaller(cluster, 3, [running])[1] == []
