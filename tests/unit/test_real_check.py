"""`check --real`: whatever happens, the cluster goes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from clusterctl.actions import check as actions_check
from clusterctl.actions.common import open_store
from clusterctl.core.model import CloudSpec, Cluster, ClusterSpec, Runtime, Thing
from clusterctl.errors import LeftoverError, ProviderError, UsageError
from clusterctl.machines.ec2 import prices
from clusterctl.machines.ec2.api import InstanceType
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.protocol import Provider, ProviderPlan, QuotaExceeded
from tests.unit.fake_ec2 import Offering
from tests.unit.provided import provide


class Cloud(Provider):
    """A provider of machines that are never there: it says what is asked of it."""

    features = Ec2Provider.features

    def __init__(self, left: str = "", told: str = "") -> None:
        """`told`: when this process is told to end."""
        self.asked: list[str] = []
        self.left = left
        self.told = told

    def plan(self, spec: ClusterSpec, *rest: Any, **more: Any) -> ProviderPlan:
        self.asked.append("plan")
        line = f"AWS account 123456789012: {spec.workers} workers for ${spec.cloud.budget:.2f}"
        return ProviderPlan(
            mode="ec2", mode_reason="", one_host=False, lines=(line,), question="start 3 machines?"
        )

    def create(self, cluster: Cluster, folder: Path, report: Any) -> Any:
        self.asked.append("create")
        if self.told == "create":
            signal.raise_signal(signal.SIGTERM)
        raise ProviderError("no capacity", hint="later")

    def destroy(self, cluster: Cluster, folder: Path, report: Any) -> None:
        self.asked.append("destroy")
        if self.told == "destroy":
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
        self.asked.append("destroyed")
        if self.left:
            raise LeftoverError(self.left, hint="again")

    def list_things(self, cluster: Cluster, folder: Path) -> tuple[Thing, ...]:
        return ()

    def find_ids(self, folder: Path) -> frozenset[str]:
        return frozenset()


def run(consent: Callable[[str], bool], report: Callable[[str], None] = lambda line: None) -> None:
    actions_check.run_real_check(
        open_store(),
        runtime=Runtime.HOST,  # no registry is asked for images
        cloud=CloudSpec(region="us-east-1"),
        report=report,
        consent=consent,
    )


def test_a_cluster_that_fails_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud()
    provide(monkeypatch, "ec2", cloud)
    with pytest.raises(ProviderError, match="no capacity"):
        run(lambda question: True)
    assert cloud.asked[:2] == ["plan", "create"]
    assert cloud.asked[-1] == "destroyed"
    assert open_store().list_names() == ()


def test_what_could_not_be_removed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "ec2", Cloud(left="AWS still has 1 volume (vol-3)"))
    with pytest.raises(LeftoverError, match="vol-3"):
        run(lambda question: True)


@pytest.fixture
def other() -> Iterator[Callable[[int, FrameType | None], None]]:
    """What this process does about SIGTERM, whoever has said so before."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError("the signal came through")

    before = signal.signal(signal.SIGTERM, fail)
    yield fail
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("when", ["create", "destroy"])
def test_who_is_told_to_end_removes_the_cluster_first(
    when: str,
    monkeypatch: pytest.MonkeyPatch,
    other: Callable[[int, FrameType | None], None],
) -> None:
    """By `kill`, a batch system or a closed terminal. As a command of its own it would end there
    and then, and the machines would run on until their deadline."""
    cloud = Cloud(told=when)
    provide(monkeypatch, "ec2", cloud)
    expected = KeyboardInterrupt if when == "create" else ProviderError
    with pytest.raises(expected):
        run(lambda question: True)
    assert cloud.asked[-2:] == ["destroy", "destroyed"]
    assert open_store().list_names() == ()
    assert signal.getsignal(signal.SIGTERM) is other


MACHINES = {"t3.micro": 0.0104, "t3.small": 0.0208}
"""US dollars per hour in us-east-1."""
PARTS = {prices.DISK: 0.08, prices.ADDRESS: 0.005, prices.TRAFFIC: 0.09}


class Shop(Offering):
    """A region where everything costs so many times as much as in us-east-1."""

    times = 1.0

    def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
        return {name: InstanceType(name=name, vcpus=2) for name in names}

    def find_price(self, item: str) -> float:
        times = 1.0 if item in (prices.ADDRESS, prices.TRAFFIC) else self.times
        return {**MACHINES, **PARTS}[item] * times


@pytest.mark.usefixtures("terraform")
@pytest.mark.parametrize("times", [1.0, 1.7, 3.5])
def test_a_check_costs_ten_cents_at_most(times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the launcher computes all the time, and nobody runs `down`. It has time for it."""
    plans: list[ProviderPlan] = []

    class Here(Shop):
        pass

    Here.times = times

    class Noting(Ec2Provider):
        def plan(self, *given: Any, **more: Any) -> ProviderPlan:
            plans.append(super().plan(*given, **more))
            return plans[-1]

    began = time.time()
    provide(monkeypatch, "ec2", Noting(Here, my_address=lambda: "203.0.113.9"))
    with pytest.raises(UsageError, match="aborted"):
        run(lambda question: False)
    [plan] = plans
    hours = ((plan.deadline or 0) - began) / 3600
    disks = 3 * 30 * 0.08 / 672  # the shortest month
    hourly = (sum(MACHINES.values()) + MACHINES["t3.small"] + disks) * times + 3 * 0.005
    surplus = (2 - 2 * 0.1) * 0.05  # of two vCPUs with a baseline of 10 %
    assert surplus == pytest.approx(actions_check.CREDITS)
    assert (hourly + surplus) * (hours + 1 / 60) <= 0.10
    assert hours > (0.5 if times == 1.0 else 0.1)


def test_nothing_is_made_without_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud()
    provide(monkeypatch, "ec2", cloud)
    with pytest.raises(UsageError, match="nothing was started"):
        run(lambda question: False)
    assert "create" not in cloud.asked


@pytest.mark.parametrize(("fits", "asked"), [(1, [2, 1]), (0, [2])])
def test_a_check_is_as_large_as_the_quota(
    fits: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new account has 5 vCPUs: the launcher and one worker take 4."""
    sizes: list[int] = []

    class Small(Cloud):
        def plan(self, spec: ClusterSpec, *rest: Any, **more: Any) -> ProviderPlan:
            sizes.append(spec.workers)
            if spec.workers > 1:
                refused = QuotaExceeded("the quota is 5 vCPUs")
                refused.fits = fits
                raise refused
            return super().plan(spec)

    provide(monkeypatch, "ec2", Small())
    with pytest.raises((UsageError, QuotaExceeded), match="nothing was" if fits else "5 vCPUs"):
        run(lambda question: False)
    assert sizes == asked
