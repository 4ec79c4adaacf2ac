"""The process that takes a local cluster down at its deadline."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions import status
from clusterctl.actions.common import open_store
from clusterctl.core.model import Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.machines import providers
from clusterctl.machines.local import processes
from clusterctl.machines.local.layout import Site, make_site
from tests.unit.scripts import until

HOUR = 3600.0


@pytest.fixture
def lab() -> Iterator[tuple[Cluster, Site]]:
    """A local cluster without nodes, on record; none of its processes outlives the test."""
    store = open_store()
    spec = ClusterSpec(name="lab", provider="local", groups=(NodeGroup(count=1),))
    now = time.time()
    cluster = Cluster(
        id=f"lab-{time.monotonic_ns():x}",
        spec=spec,
        phase=Phase.READY,
        created=now,
        deadline=now + HOUR,
    )
    store.save(cluster)
    place = make_site(cluster.id, store.locate_folder("lab"))
    yield cluster, place
    assert processes.end(place, lambda process: True, seconds=5) == []


def arm(cluster: Cluster, place: Site, deadline: float) -> None:
    providers.load_provider("local").extend(cluster, place.folder, deadline)


def test_it_runs_nothing_from_the_folder_of_up(
    lab: tuple[Cluster, Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's `clusterctl` there would run as the user of the cluster, often root; a
    `random.py`, there or on PYTHONPATH, would end it before it has taken the cluster down."""
    cluster, place = lab
    ran = tmp_path / "ran"
    folder = tmp_path / "project"
    (folder / "clusterctl").mkdir(parents=True)
    program = f"open({str(ran)!r}, 'a').write(__name__)\nraise SystemExit(1)\n"
    for name in ("clusterctl/__init__.py", "clusterctl/__main__.py", "random.py", "site.py"):
        (folder / name).write_text(program)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    # Settings are for what a person types; these would end it with an error.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    for settings in (folder / "clusterctl.toml", folder / "clusterctl" / "clusterctl.toml"):
        settings.write_text("no = 'such key'\n")
    arm(cluster, place, time.time() - 1)
    until(lambda: ran.exists() or not open_store().list_names())
    assert not ran.exists()


def test_status_says_when_it_is_gone(lab: tuple[Cluster, Site]) -> None:
    cluster, place = lab
    store = open_store()
    arm(cluster, place, time.time() + HOUR)
    assert status.read_status(store, cluster).warnings == ()
    for process in processes.scan(place):
        with suppress(ProcessLookupError):  # one that has ended by itself since
            os.kill(process.pid, signal.SIGKILL)
    until(lambda: not processes.scan(place))
    (said,) = status.read_status(store, cluster).warnings
    assert "is not running: `clusterctl up lab` starts it again" in said
    (said,) = status.read_status(store, replace(cluster, deadline=time.time() - 1)).warnings
    assert "`clusterctl down lab` removes it" in said
    assert status.read_status(store, replace(cluster, deadline=None)).warnings == ()


def test_status_says_when_it_cannot_take_the_cluster_down(lab: tuple[Cluster, Site]) -> None:
    cluster, place = lab
    store = open_store()
    arm(cluster, place, time.time() + HOUR)
    assert status.read_status(store, replace(cluster, deadline=time.time() - 1)).warnings == ()
    (said,) = status.read_status(store, replace(cluster, deadline=time.time() - HOUR)).warnings
    assert "it could not be taken down at its deadline" in said
    assert "`clusterctl down lab` removes it" in said


def test_it_ends_where_the_cluster_s_folder_is_gone(lab: tuple[Cluster, Site]) -> None:
    cluster, place = lab
    arm(cluster, place, time.time() + 6)  # it looks again then, or after five seconds
    (place.folder / "deadline").unlink()
    until(lambda: not processes.scan(place))
    assert open_store().list_names() == ("lab",)
