"""The buckets of EC2, without a simulator around them."""

from __future__ import annotations

import pytest

from tests.sim.ec2.throttling import Buckets


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("action", "at_once", "later"),
    [
        ("RunInstances", 5, 2),
        ("CreateTags", 100, 10),
        ("DescribeInstances", 100, 20),
        ("CreateVpc", 50, 5),
    ],
)
def test_each_action_has_a_bucket_of_its_own(action: str, at_once: int, later: int) -> None:
    clock = Clock()
    buckets = Buckets(clock)
    assert sum(buckets.take("us-east-1", action) for _ in range(200)) == at_once
    assert buckets.take("us-east-1", "DescribeVpcs")
    assert buckets.take("eu-west-1", action)
    clock.now += 1
    assert sum(buckets.take("us-east-1", action) for _ in range(200)) == later


def test_machines_are_rationed_beside_the_calls_that_start_them() -> None:
    """A thousand at once, then two a second; a call that does not fit takes nothing."""
    clock = Clock()
    buckets = Buckets(clock)
    assert [buckets.take("us-east-1", "RunInstances", 400) for _ in range(3)] == [True, True, False]
    assert buckets.take("us-east-1", "RunInstances", 200)
    clock.now += 10
    assert not buckets.take("us-east-1", "RunInstances", 21)
    assert buckets.take("us-east-1", "RunInstances", 20)
