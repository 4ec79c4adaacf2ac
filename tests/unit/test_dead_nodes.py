"""Whether a launcher that does not answer is worth waiting for."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.actions.jobs import find_dead
from clusterctl.core.model import Cluster, Phase
from clusterctl.errors import RecordError
from clusterctl.machines.ec2.provider import Ec2Provider
from tests.unit import making
from tests.unit.provided import provide

ENDED = {"launcher": "terminated: EC2 reclaimed the spot instance"}
ALL = {"launcher", "worker-1", "worker-2"}


class Knowing(Ec2Provider):
    def list_dead(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return ENDED


@pytest.fixture(autouse=True)
def knowing(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "ec2", Knowing())


def test_the_provider_is_asked() -> None:
    cluster = making.cluster()
    open_store().save(cluster)
    assert find_dead(open_store(), cluster) == ENDED


def test_of_attached_hosts_nobody_knows() -> None:
    cluster = making.cluster(provider="hosts")
    open_store().save(cluster)
    assert find_dead(open_store(), cluster) == {}


@pytest.mark.parametrize(
    "record", [None, {"id": "another"}, {"phase": Phase.DELETING}], ids=["none", "other", "ending"]
)
def test_a_cluster_that_was_taken_down_meanwhile_will_not_answer(
    record: dict[str, object] | None,
) -> None:
    cluster = making.cluster()
    if record:
        open_store().save(replace(cluster, **record))  # type: ignore[arg-type]
    found = find_dead(open_store(), cluster)
    assert set(found) == ALL
    assert set(found.values()) == {"cluster lab was taken down"}


def test_a_damaged_record_says_nothing_about_machines() -> None:
    cluster = making.cluster()
    open_store().save(cluster)
    (open_store().locate_folder("lab") / "cluster.json").write_text("{")
    with pytest.raises(RecordError):
        find_dead(open_store(), cluster)
