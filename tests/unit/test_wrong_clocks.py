"""A clock that is wrong, on this machine or on a node: deadlines and costs stay right, and a person
is told."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import status
from clusterctl.core.model import CloudSpec, ClusterSpec, NodeGroup
from clusterctl.errors import ProviderError
from clusterctl.machines import bootstrap, deadlines
from clusterctl.machines.ec2.provider import Ec2Provider
from tests.unit.making import cluster
from tests.unit.provided import Running, provide
from tests.unit.staged import lab
from tests.unit.test_ec2_zones import Market

HOUR = 3600.0
NOW = 1.7e9


def put(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Programs that are found before those of this machine, each as sh."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


# ------------------------------------------------------------------------------- this machine's


def account(ahead: float) -> type[Market]:
    """AWS, where this machine's clock is so many seconds ahead."""

    class Account(Market):
        def find_account(self) -> str:
            self.ahead = ahead
            return super().find_account()

    return Account


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Ec2Provider]:
    """This machine's clock shows NOW."""
    version = """echo '{"terraform_version": "1.11.4"}'"""
    put(tmp_path / "bin", monkeypatch, terraform=version)
    return lambda ahead: Ec2Provider(account(ahead), clock=lambda: NOW)


def options(**cloud: Any) -> ClusterSpec:
    groups = (NodeGroup(count=1, family="cpu"),)
    place = CloudSpec(region="us-east-1", **cloud)
    return ClusterSpec(name="lab", provider="ec2", groups=groups, ttl=HOUR, cloud=place)


@pytest.mark.parametrize(("ahead", "said"), [(240.0, "4 min ahead of"), (-240.0, "4 min behind")])
def test_the_deadline_is_by_the_clock_of_aws(
    ahead: float, said: str, provider: Callable[[float], Ec2Provider]
) -> None:
    told: list[str] = []
    plan = provider(ahead).plan(options(ssh_cidr="203.0.113.7/32"), None, told.append)
    assert plan.deadline == NOW - ahead + HOUR
    assert {charge.since for charge in plan.charges} == {NOW - ahead}
    assert f"this machine's clock is {said} AWS's: the deadline is computed with AWS's time" in told


@pytest.mark.parametrize(("ahead", "taken"), [(240.0, 240.0), (-240.0, -240.0), (1.5, 0.0)])
def test_a_deadline_that_is_moved_is_by_the_clock_of_aws(
    ahead: float, taken: float, provider: Callable[[float], Ec2Provider], tmp_path: Path
) -> None:
    told: list[str] = []
    assert provider(ahead).measure_clock(cluster(), tmp_path, told.append) == taken
    assert len(told) == bool(taken)


@pytest.mark.parametrize(
    ("ahead", "said"), [(3 * HOUR, "3.0 h ahead"), (-3 * HOUR, "3.0 h behind")]
)
def test_nothing_is_started_or_extended_with_a_clock_that_is_hours_off(
    ahead: float, said: str, provider: Callable[[float], Ec2Provider], tmp_path: Path
) -> None:
    """Nodes would take any time that they are told."""
    with pytest.raises(ProviderError, match=f"clock is {said}") as caught:
        provider(ahead).plan(options())
    assert "timedatectl" in caught.value.hint
    with pytest.raises(ProviderError, match=f"clock is {said}"):
        provider(ahead).measure_clock(cluster(), tmp_path, print)


# ------------------------------------------------------------------------------------- a node's


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts the agent of a node on EC2 whose clock is so many seconds ahead of that of the
    metadata service, which is right."""
    story = tmp_path / "story"
    script = deadlines.render_agent(
        root=str(tmp_path),
        end=f"echo end >>{story}; exit 0",
        metadata=True,
        file=str(tmp_path / "deadline"),
    )
    started: list[subprocess.Popen[bytes]] = []

    def start(ahead: int, *, answers: bool = True) -> subprocess.Popen[bytes]:
        header = 'printf "HTTP/1.1 401\\r\\nDate: %s\\r\\n\\r\\n" "$(/bin/date -uR)"'
        put(
            tmp_path / "bin",
            monkeypatch,
            date=f'[ "$1" != +%s ] && exec /bin/date "$@"; echo $(($(/bin/date +%s) + {ahead}))',
            curl=header if answers else "exit 7",
        )
        started.append(subprocess.Popen(["sh", "-c", script], start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("ahead", [3 * 3600, -3 * 3600])
def test_a_node_ends_at_its_deadline_whatever_its_clock_shows(
    ahead: int, agent: Callable[..., Any], tmp_path: Path
) -> None:
    at = int(time.time()) + 3
    (tmp_path / "deadline").write_text(f"{at}\n0\n")
    assert agent(ahead).wait(60) == 0
    assert time.time() >= at
    assert (tmp_path / "story").read_text() == "end\n"


def test_a_node_whose_clock_is_ahead_outlives_its_first_look(
    agent: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "deadline").write_text(f"{int(time.time()) + 3600}\n")
    process = agent(3 * 3600)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)


def test_a_live_status_names_nodes_with_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = lab(tmp_path / "nodes")
    provide(monkeypatch, "local", Running())
    made = replace(where.where, created=0.0)
    ours = time.time() + 7200
    said = status.read_status(where.store, made, live=True, clock=lambda: ours).warnings
    assert said == tuple(
        f"the clock of {name} is 2 h behind this machine's: the times of its jobs are wrong"
        for name in ("launcher", "worker-1", "worker-2")
    )
    assert status.read_status(where.store, made, live=True).warnings == ()


def test_ends_that_a_launcher_reports_are_by_our_clock() -> None:
    """An hour after their end AWS has forgotten the workers, and only the launcher tells when that
    was."""
    report = bootstrap.parse_idle_agent(
        f"ended worker-1 {int(NOW + 3 * HOUR)}\nnow launcher {NOW + 4 * HOUR:.0f}"
    )
    assert report.compute_ends(NOW + 5) == {"worker-1": NOW + 5 - HOUR}
    right = bootstrap.parse_idle_agent(f"ended worker-1 {int(NOW)}\nnow launcher {NOW + HOUR:.0f}")
    assert right.compute_ends(NOW + HOUR + 5) == {"worker-1": NOW}


def test_without_an_answer_a_node_takes_its_own_clock(
    agent: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "deadline").write_text(f"{int(time.time()) + 3600}\n")
    assert agent(3 * 3600, answers=False).wait(60) == 0
