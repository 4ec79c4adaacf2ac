"""What `down` does where AWS refuses: it says so at once, with what it costs."""

from __future__ import annotations

import pytest

from clusterctl.errors import LeftoverError, ProviderError
from clusterctl.machines.ec2 import remove
from clusterctl.machines.ec2.provider import Ec2Provider
from tests.unit.fake_ec2 import Cloud, FakeApi

DENIED = ("UnauthorizedOperation", "You are not authorized to perform this operation.")


def removed(cloud: Cloud) -> list[str]:
    told: list[str] = []
    remove.remove_cluster(FakeApi(cloud), "lab-1", told.append)
    return told


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A launcher and a worker."""
    monkeypatch.setattr(remove, "PAUSE", 0.0)
    made = Cloud()
    made.make("lab-1", "launcher", "worker-1")
    return made


def test_all_that_carries_the_tag_goes(cloud: Cloud) -> None:
    cloud.things["vpc-2"] = ("VPC", "other-1")
    [line] = removed(cloud)
    assert line == "left over: 2 instances, 2 volumes, 1 VPC; removing"
    assert cloud.left() == ["vpc-2"]


def test_gc_says_what_aws_has_left(cloud: Cloud) -> None:
    told: list[str] = []
    provider = Ec2Provider(lambda region: FakeApi(cloud))
    provider.remove("lab-1", "us-east-1", told.append)
    assert told[-1].endswith("nothing tagged clusterctl:cluster=lab-1 is left in us-east-1")
    cloud.make("lab-1", "launcher")
    cloud.refusals = {"terminate_instances": DENIED}
    with pytest.raises(LeftoverError):
        provider.remove("lab-1", "us-east-1", told.append)
    assert "left over" in told[-1]


def test_what_costs_nothing_and_may_not_be_removed_keeps_no_machine(cloud: Cloud) -> None:
    cloud.refusals = {"delete_vpc": DENIED}
    with pytest.raises(LeftoverError, match=r"1 VPC \(vpc-1\) \(delete vpc: your AWS"):
        removed(cloud)
    assert cloud.left() == ["vpc-1"]


def test_credentials_that_end_in_between_are_no_empty_cloud(cloud: Cloud) -> None:
    cloud.refusals = {"describe_volumes": ("RequestExpired", "Request has expired.")}
    with pytest.raises(ProviderError, match="expired"):
        removed(cloud)
    assert "i-launcher" in cloud.left()


def test_what_is_found_has_its_price(cloud: Cloud) -> None:
    """A machine by its type, a disk by its size; a network costs nothing."""
    cloud.gib = 100
    found = {left.id: left.hourly for left in remove.find_priced(FakeApi(cloud))}
    assert found["i-worker-1"] == 1.0
    assert found["vol-worker-1"] == pytest.approx(0.073 * 100 / 730)
    assert found["vpc-1"] == 0
