"""`extend` and the record: it never says less than what may still cost. No machines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import lifetime
from clusterctl.actions.common import open_store
from clusterctl.core.job import JobState
from clusterctl.core.model import CloudSpec, Cluster, Phase, Reporter, Thing
from clusterctl.core.text import format_time
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError
from clusterctl.machines.protocol import Cloud
from clusterctl.state.store import Store
from tests.unit.making import charge, cluster, job, spec
from tests.unit.provided import provide

NOW, HOUR = 1.7e9, 3600.0

extend = partial(lifetime.extend, clock=lambda: NOW)


def agreed(question: str) -> bool:
    return True


def unasked(question: str) -> bool:
    raise AssertionError(question)


NODES = frozenset(("launcher", "worker-1", "worker-2"))


@dataclass
class Machines(Cloud):
    """A provider whose `billed` machines run. `noted`: what the record said when they were told."""

    store: Store
    names: Iterable[str] = NODES
    silent: bool = False
    refused: bool = False
    untagged: bool = False
    ahead: float = 0.0
    noted: list[float | None] = field(default_factory=list)

    def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
        return [Thing(id=name, node=name) for name in self.names]

    def measure_clock(self, cluster: Cluster, folder: Path, report: Reporter) -> float:
        return self.ahead

    def label_deadline(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        assert self.store.read_cluster("lab").deadline == deadline, "the record goes first"
        if self.untagged:
            raise ProviderError("create tags: your AWS credentials have expired")

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        self.noted.append(self.store.read_cluster(cluster.name).deadline)
        if self.refused:
            raise ProviderError("list schedules: your AWS credentials have expired")
        if self.silent:
            raise NodeUnreachable("the old deadline still applies on worker-2: no answer")


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines(open_store())
    provide(monkeypatch, "ec2", made)
    return made


def on_record(
    store: Store, ends_in: float | None, now: float = NOW, **changes: Any
) -> float | None:
    """The deadline of the cluster that is now on record."""
    charges = tuple(charge(name, since=now) for name in NODES)
    end = None if ends_in is None else now + ends_in
    store.save(cluster(deadline=end, charges=charges, **changes))
    return end


def on_budget(dollars: float) -> Cluster:
    """Ready, with an hour to go."""
    on_record(open_store(), HOUR)
    made = open_store().read_cluster("lab")
    return replace(made, spec=replace(made.spec, cloud=CloudSpec(budget=dollars)))


def test_the_new_deadline_is_by_the_clock_of_the_cloud(machines: Machines) -> None:
    machines.ahead = 240.0
    on_record(machines.store, HOUR)
    extended, _ = extend(machines.store, "lab", 2 * HOUR, print, unasked)
    assert extended.deadline == NOW - 240 + 2 * HOUR
    assert machines.store.read_cluster("lab").deadline == extended.deadline


def test_a_tag_that_stays_behind_is_said_and_no_failure(machines: Machines) -> None:
    """The nodes have their new end: nothing else has to be done again."""
    machines.untagged = True
    on_record(machines.store, 2 * HOUR)
    told: list[str] = []
    done = extend(machines.store, "lab", 4 * HOUR, told.append, agreed)
    assert done[0].deadline == NOW + 4 * HOUR
    [line] = told
    assert "create tags: your AWS credentials have expired" in line


@pytest.mark.parametrize("ttl", [HOUR, 4 * HOUR])
def test_a_deadline_that_the_cloud_does_not_move_stays_on_record(
    machines: Machines, ttl: float
) -> None:
    """The record would promise hours in which AWS ends the machines."""
    end = on_record(machines.store, 2 * HOUR)
    machines.refused = True
    told: list[str] = []
    with pytest.raises(ProviderError):
        extend(machines.store, "lab", ttl, told.append, agreed)
    assert machines.store.read_cluster("lab").deadline == end
    [line] = told
    assert line.startswith("the deadline was not changed: the machines keep costing $")
    assert line.endswith(f" until {format_time(end)}")


@pytest.mark.parametrize("ttl", [HOUR, 4 * HOUR])
def test_the_record_is_not_behind_while_nodes_are_told(machines: Machines, ttl: float) -> None:
    """We may be killed right then."""
    end = on_record(machines.store, 2 * HOUR)
    done = extend(machines.store, "lab", ttl, print, agreed)
    assert machines.noted == [max(end or 0.0, done[0].deadline)]
    assert machines.store.read_cluster("lab").deadline == done[0].deadline


def test_what_has_no_end_may_keep_none(machines: Machines) -> None:
    """Some nodes of a cluster without --ttl did not answer."""
    on_record(machines.store, None)
    machines.silent = True
    with pytest.raises(NodeUnreachable):
        extend(machines.store, "lab", HOUR, print, agreed)
    assert machines.store.read_cluster("lab").deadline is None


@pytest.mark.parametrize(
    ("billed", "changes", "said"),
    [
        (NODES, {"nodes": ()}, "cluster lab has no nodes yet"),
        ((), {"nodes": ()}, "cluster lab has no nodes yet"),
        ((*NODES, "worker-3"), {}, "worker-3 of cluster lab is no node yet"),
        ((*NODES, "worker-3", "worker-4"), {}, r"worker-\[3-4\] of cluster lab are no nodes yet"),
    ],
)
def test_machines_that_cannot_be_told_come_first(
    billed: Iterable[str], changes: dict[str, Any], said: str, machines: Machines
) -> None:
    """They would keep the old deadline, and nobody would know."""
    machines.names = billed
    end = on_record(machines.store, HOUR, phase=Phase.CREATING, **changes)
    with pytest.raises(UsageError, match=said) as caught:
        extend(machines.store, "lab", 4 * HOUR, print, agreed)
    assert caught.value.hint == "`clusterctl up lab` completes it first"
    assert machines.noted == []
    assert machines.store.read_cluster("lab").deadline == end


def test_a_cluster_that_has_ended_is_not_extended(machines: Machines) -> None:
    machines.names = ()
    end = on_record(machines.store, -HOUR)
    with pytest.raises(UsageError, match="cluster lab has no running machines") as caught:
        extend(machines.store, "lab", HOUR, print, agreed)
    assert "clusterctl up lab" in caught.value.hint
    assert machines.store.read_cluster("lab").deadline == end


def running(store: Store, number: int, **changes: Any) -> None:
    store.save_job(job(cluster(), state=JobState.RUNNING, id=number, **changes))


def refuse(store: Store, ttl: float) -> str:
    """What is asked; the answer is no."""
    asked: list[str] = []
    with pytest.raises(UsageError, match="the deadline of cluster lab stays as it is"):
        extend(store, "lab", ttl, print, lambda text: bool(asked.append(text)))
    [question] = asked
    return question


def test_an_earlier_end_is_asked_for(machines: Machines) -> None:
    """`--ttl 30m` on a cluster that has hours to go may be meant as "30 minutes more"."""
    end = on_record(machines.store, 8 * HOUR)
    question = refuse(machines.store, HOUR / 2)
    assert f"instead of {format_time(end or 0.0)}" in question
    assert "job" not in question
    assert machines.noted == []
    assert machines.store.read_cluster("lab").deadline == end
    extend(machines.store, "lab", HOUR / 2, print, agreed)
    assert len(machines.noted) == 1


def test_jobs_that_would_be_cut_off_are_named(machines: Machines) -> None:
    """Those that end by themselves before are not, nor those of another cluster."""
    store = machines.store
    on_record(store, None)
    extend(store, "lab", HOUR, print, unasked)
    on_record(store, None)
    running(store, 1)
    running(store, 2, started=NOW, what=spec(timeout=HOUR / 2))
    running(store, 3, started=NOW, what=spec(timeout=2 * HOUR))
    running(store, 4, cluster_id="other-1")
    store.save_job(job(cluster(), state=JobState.SUCCEEDED, id=5))
    assert "jobs running: 1, 3;" in refuse(store, HOUR)


def test_a_budget_is_the_limit(machines: Machines) -> None:
    """Three machines at a dollar an hour, and $10: three hours are paid for, four are not."""
    machines.store.save(on_budget(10.0))
    with pytest.raises(
        UsageError, match=r"would cost \$12\.\d\d, and .* budget is \$10\.00"
    ) as why:
        extend(machines.store, "lab", 4 * HOUR, print, unasked)
    assert re.search(r"`clusterctl up lab --budget 12\.\d\d` or a shorter --ttl", why.value.hint)
    assert machines.noted == []
    done = extend(machines.store, "lab", 3 * HOUR, print, unasked)
    assert done[1] == pytest.approx(9.0, abs=0.1)


def test_a_budget_lasts_no_longer_where_a_price_is_unknown(machines: Machines) -> None:
    """As that of spot workers that moved while AWS did not tell it. An earlier end costs less."""
    made = on_budget(10.0)
    first, *others = made.charges
    unknown = replace(first, hourly=None, item="g4dn.xlarge")
    machines.store.save(replace(made, charges=(unknown, *others)))
    with pytest.raises(UsageError, match=r"the price of g4dn\.xlarge is unknown"):
        extend(machines.store, "lab", 2 * HOUR, print, unasked)
    assert machines.noted == []
    extend(machines.store, "lab", HOUR / 2, print, lambda question: True)
