"""`extend` and the record: it never says less than what may still cost. No machines."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusterctl import providers
from clusterctl.actions import open_store
from clusterctl.actions.extend import extend
from clusterctl.errors import NodeUnreachable
from clusterctl.model import Cluster
from clusterctl.state import Store
from tests.unit.making import cluster

HOUR = 3600.0


@dataclass
class Machines:
    """A provider. `noted`: what the record said when its machines were told."""

    store: Store
    silent: bool = False
    noted: list[float | None] = field(default_factory=list)

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        self.noted.append(self.store.cluster(cluster.name).deadline)
        if self.silent:
            raise NodeUnreachable("the old deadline stays on worker-2: no answer")


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines(open_store())
    monkeypatch.setattr(providers, "load", lambda name: made)
    return made


def on_record(store: Store, ends_in: float | None) -> float | None:
    """The deadline of the cluster that is now on record."""
    end = None if ends_in is None else time.time() + ends_in
    store.save(cluster(deadline=end))
    return end


@pytest.mark.parametrize("ttl", [HOUR, 4 * HOUR])
def test_whoever_did_not_answer_the_later_end_is_on_record(machines: Machines, ttl: float) -> None:
    """Some nodes have the new one, others the old: any of them may cost until then."""
    end = on_record(machines.store, 2 * HOUR)
    machines.silent = True
    with pytest.raises(NodeUnreachable):
        extend(machines.store, "lab", ttl, print)
    kept = machines.store.cluster("lab").deadline
    assert kept == pytest.approx(max(end or 0.0, time.time() + ttl), abs=60)


@pytest.mark.parametrize("ttl", [HOUR, 4 * HOUR])
def test_the_record_is_not_behind_while_nodes_are_told(machines: Machines, ttl: float) -> None:
    """We may be killed right then."""
    end = on_record(machines.store, 2 * HOUR)
    done = extend(machines.store, "lab", ttl, print)
    assert machines.noted == [max(end or 0.0, done.deadline)]
    assert machines.store.cluster("lab").deadline == done.deadline


def test_what_has_no_end_may_keep_none(machines: Machines) -> None:
    """Some nodes of a cluster without --ttl did not answer."""
    on_record(machines.store, None)
    machines.silent = True
    with pytest.raises(NodeUnreachable):
        extend(machines.store, "lab", HOUR, print)
    assert machines.store.cluster("lab").deadline is None
