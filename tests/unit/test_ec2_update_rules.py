"""What a further `up` may change about machines that run, and what the record says they cost."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core.model import GATEWAY, Charge, Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.errors import UsageError
from clusterctl.machines.ec2 import preflight, prices, spec
from clusterctl.machines.ec2.api import Api, Instance
from clusterctl.machines.ec2.prices import Quote
from tests.unit import making
from tests.unit.fake_ec2 import instance
from tests.unit.making import node
from tests.unit.tables import rows

NOW = 1.7e9
HOUR = 3600.0
LATE = 120.0
"""Seconds after the deadline until AWS has ended what has not ended itself."""
PRESENT = {"launcher": "t3.micro", "worker-1": "t3.xlarge"}


def wish(count: int = 1, kind: str = "t3.xlarge", ttl: float = 0.0, **cloud: object) -> ClusterSpec:
    group = NodeGroup(count=count, instance_type=kind)
    return replace(making.wish(group, **cloud), ttl=ttl)


def cluster(made: ClusterSpec) -> Cluster:
    return Cluster(
        id="lab-1", spec=made, phase=Phase.READY, created=NOW - HOUR, deadline=NOW + 7 * HOUR
    )


charge = partial(making.charge, since=NOW - HOUR)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (wish(kind="g4dn.xlarge"), "worker-1 of cluster lab is a t3.xlarge, not a g4dn.xlarge"),
        (wish(launcher_type="t3.small"), "launcher of cluster lab is a t3.micro, not a t3.small"),
    ],
)
def test_machines_that_run_are_never_replaced(changed: ClusterSpec, said: str) -> None:
    machines = spec.plan_machines(changed, {}, spec.read_present(PRESENT))
    with pytest.raises(UsageError, match=said) as caught:
        spec.check_kept(changed, machines, PRESENT)
    assert "clusterctl down lab" in caught.value.hint
    spec.check_kept(changed, machines, {})


@rows("changes, said", "ec2_update_rules.what_would_replace_machines_is_refused")
def test_what_would_replace_machines_is_refused_before_aws_is_asked_about_it(
    changes: dict[str, Any], said: str
) -> None:
    """Else the answer would be about a network or a zone that they are not in."""

    class There(Api):
        def find_account(self) -> str:
            return ""

        def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
            return [instance("launcher")]

    made = replace(cluster(wish()), nodes=(node("launcher"),))
    changed = {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()}
    with pytest.raises(UsageError, match=said) as caught:
        preflight.survey(There("us-east-1"), wish(**changed), made, print)
    assert "clusterctl down lab" in caught.value.hint
    here = wish(zones=("us-east-1b", "us-east-1a"))
    spec.check_settings(here, made, "us-east-1a")
    spec.check_settings(wish(zones=("us-east-1b",)), made, "")


def test_workers_come_and_go() -> None:
    for count in (1, 3):
        machines = spec.plan_machines(wish(count), {}, spec.read_present(PRESENT))
        spec.check_kept(wish(count), machines, PRESENT)


@rows("cloud, said", "ec2_update_rules.options_that_exclude_each_other")
def test_options_that_exclude_each_other(cloud: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        spec.resolve_rules(wish(**cloud), None)


def test_a_life_that_is_too_short_is_refused_before_aws_is_asked() -> None:
    with pytest.raises(UsageError, match="--ttl of 1 s: the machines would end before they are"):
        spec.resolve_rules(wish(ttl=1.0), None)
    assert spec.resolve_rules(wish(ttl=1.0), cluster(wish())), "`extend` moves the deadline"


def test_a_deadline_that_is_armed_stays() -> None:
    armed = NOW + 7 * HOUR
    running = [charge("worker-1")]
    for old in (cluster(wish(ttl=8 * HOUR)), cluster(wish(ttl=8 * HOUR, budget=8.0))):
        assert spec.choose_deadline(old.spec, old, PRESENT, running, NOW) == armed
    with pytest.raises(UsageError, match="`up` does not change that") as caught:
        spec.choose_deadline(wish(ttl=1800), cluster(wish()), PRESENT, running, NOW)
    assert "clusterctl extend lab --ttl" in caught.value.hint
    # Nothing runs: nothing is armed.
    assert spec.choose_deadline(wish(ttl=1800), cluster(wish()), {}, running, NOW) == NOW + 1800
    # In whole seconds, as nodes keep it: no node ends before the record says.
    assert spec.choose_deadline(wish(ttl=1800), None, {}, [], NOW + 0.75) == NOW + 1800


@rows("nodes, hint", "ec2_update_rules.machines_beyond_their_deadline_get_no_other")
def test_machines_beyond_their_deadline_get_no_other(nodes: tuple[str, ...], hint: str) -> None:
    """They have the one on record, or one that nobody knows."""
    old = replace(cluster(wish()), deadline=NOW - HOUR, nodes=tuple(map(node, nodes)))
    with pytest.raises(UsageError, match=r"should have ended at .*, and are still") as caught:
        spec.choose_deadline(wish(), old, PRESENT, [charge("worker-1")], NOW)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("charges", "budget"),
    [
        ([charge("worker-1"), charge("worker-2", since=NOW)], 8.0),  # one more, the same budget
        ([charge("worker-1")], 7.0),  # a smaller one
    ],
)
def test_a_budget_holds_for_what_is_added(charges: list[Charge], budget: float) -> None:
    old = cluster(wish(budget=8.0))
    with pytest.raises(UsageError, match=rf"more than --budget {budget:.2f}") as caught:
        spec.choose_deadline(wish(budget=budget), old, PRESENT, charges, NOW)
    assert "clusterctl extend lab --ttl" in caught.value.hint


def test_an_end_within_the_minute_is_no_advice() -> None:
    """`extend --ttl 0m` would be refused."""
    old, nearly = cluster(wish(budget=8.0)), 1.01  # an hour has cost a dollar
    with pytest.raises(UsageError, match="more than --budget") as caught:
        spec.choose_deadline(wish(budget=nearly), old, PRESENT, [charge("worker-1")], NOW)
    assert "extend" not in caught.value.hint
    assert "`clusterctl down lab`: $1.00 is spent already" in caught.value.hint


def test_a_second_life_has_what_the_first_left_of_the_budget() -> None:
    """The machines have ended at their deadline; `up` makes the cluster again."""
    before = charge("worker-1", until=NOW)  # an hour: a dollar
    again = [before, charge("worker-1", since=NOW)]
    old = cluster(wish(budget=3.0))
    assert spec.choose_deadline(wish(budget=3.0), old, {}, again, NOW) == NOW + 2 * HOUR - LATE
    with pytest.raises(UsageError, match=r"--budget \$1.00 is spent: \$1.00 so far"):
        spec.choose_deadline(wish(budget=1.0), old, {}, again, NOW)


def test_a_nat_gateway_that_went_on_has_used_up_its_part_of_the_budget() -> None:
    """It runs until `down`, also after its machines have ended."""
    gateway = charge("launcher", part=GATEWAY, since=NOW - 10 * HOUR)
    again = [charge("worker-1", until=NOW - 9 * HOUR), gateway, charge("worker-1", since=NOW)]
    old = cluster(wish(budget=15.0))
    spent = again[0].compute_dollars(NOW) + 10
    begun = 1 + 2 / 60  # the hour of the gateway that has begun when AWS removes it
    left = (15 - spent - begun) / 2 * HOUR - LATE
    assert spec.choose_deadline(wish(budget=15.0), old, {}, again, NOW) == int(NOW + left)


def test_a_larger_budget_is_taken() -> None:
    charges = [charge("worker-1"), charge("worker-2", since=NOW)]
    old = cluster(wish(budget=8.0))
    assert spec.choose_deadline(wish(budget=15.1), old, PRESENT, charges, NOW) == old.deadline


def test_a_move_to_on_demand_changes_the_price_of_instances_alone() -> None:
    disk = charge("worker-1", 0.1, part="disk")
    found = prices.requote(
        [charge("worker-1"), disk, charge("launcher", item="y"), charge("worker-2")],
        {"x": Quote(3.0, "list")},
        {"launcher", "worker-1"},
    )
    assert [item.hourly for item in found] == [3.0, 0.1, 1.0, 1.0], "worker-2 is where it was"
    assert found[0].source == "list"


def test_a_budget_that_is_over_before_it_begins_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--budget 0.001 lasts for \d+ s"):
        spec.choose_deadline(wish(budget=0.001), None, {}, [charge("worker-1")], NOW)


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1"])
def test_regions_of_other_partitions_are_refused(region: str) -> None:
    with pytest.raises(UsageError, match=f"region {region}: .* China and GovCloud"):
        spec.resolve_rules(wish(region=region), None)
