"""The ends of machines that EC2 does not show any more, by CloudTrail as it is simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.charge_model import Charge
from clusterctl.model import Cluster, Phase
from clusterctl.providers.ec2 import eventbridge, lives
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.protocol import Ended
from tests.ec2.conftest import policy
from tests.sim.lab import Lab
from tests.unit.making import cluster, node

pytestmark = [pytest.mark.netns, pytest.mark.sshd]

LOOKUP = "cloudtrail:LookupEvents"


@pytest.fixture
def api(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """As clusterctl asks AWS, with the rights of infra/ec2/policy.json."""
    api = lab.connect(monkeypatch)
    lab.ec2.policy(policy())
    lab.ec2.fault("never_boot")
    yield api
    lab.ec2.policy(None)


def launch(lab: Lab, *names: str, **more: Any) -> Cluster:
    """A cluster of these nodes, an hour old, whose `down` was killed."""
    made = [
        lab.launch(
            name,
            TagSpecifications=[
                {
                    "ResourceType": "instance",
                    "Tags": [
                        {"Key": "clusterctl:cluster", "Value": "lab-1a2b"},
                        {"Key": "clusterctl:node", "Value": name},
                    ],
                }
            ],
            **more,
        )
        for name in names
    ]
    now = time.time()
    charges = tuple(
        Charge(node=name, part="instance", item="x", hourly=1.0, source="", since=now - 3600)
        for name in names
    )
    nodes = (replace(node(name), machine=id) for name, id in zip(names, made, strict=True))
    deadline = now + 8 * 3600
    found = cluster(*nodes, charges=charges, deadline=deadline, phase=Phase.DELETING)
    return replace(found, created=now - 3600)


def ask(lab: Lab, api: Api, made: Cluster, later: float = 1800.0) -> dict[str, Ended]:
    """Half an hour later, EC2 has forgotten them."""
    lab.ec2.forget_ended()
    lab.ec2.forget_calls()
    return dict(lives.list_ended(api, made, time.time() + later))


def lookups(lab: Lab) -> int:
    return sum(call["action"] == LOOKUP for call in lab.ec2.calls)


def test_one_call_that_ended_all_machines_is_one_lookup(lab: Lab, api: Api) -> None:
    """Also where one was ended before, and by the schedule of its deadline."""
    made = launch(lab, "launcher", "worker-1", "worker-2")
    ids = {one.name: one.machine for one in made.nodes}
    lab.ec2.make_role()
    eventbridge.prepare(api, "lab-1a2b")
    # They are asked about by their IDs. Asked about first, it would tell of both calls at once.
    ended = max(ids.values())
    eventbridge.schedule_ends(api, "lab-1a2b", [ended], time.time() + 3600)
    lab.ec2.turn_the_scheduler_ahead(3600 + 120)
    lab.until(lambda: " ".join(lab.states()), {"running running running"})
    eventbridge.remove(api, "clusterctl-lab-1a2b")
    early = time.time()
    api.call("terminate_instances", InstanceIds=[ids["worker-2"], ids["launcher"], ids["worker-1"]])
    found = ask(lab, api, made)
    assert set(found) == set(ids)
    assert all(abs(end.when - early) < 10 and not end.doubt for end in found.values())
    assert lookups(lab) == 2, "the schedule's, and ours"


def test_an_interrupted_spot_instance_has_an_event_of_ec2(lab: Lab, api: Api) -> None:
    lab.ec2.clear()  # what boots is told
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    made = launch(lab, "worker-1", **spot)
    made = replace(made, spec=replace(made.spec, cloud=replace(made.spec.cloud, spot=True)))
    lab.ec2.fault("spot_notice", node="worker-1", seconds=1)
    lab.until(lambda: " ".join(lab.states()), {"running"})
    end = ask(lab, api, made)["worker-1"]
    assert abs(end.when - time.time()) < 10
    assert not end.doubt


def test_a_machine_that_was_stopped_first_ran_until_then(lab: Lab, api: Api) -> None:
    made = launch(lab, "worker-1")
    [id] = [one.machine for one in made.nodes]
    api.call("stop_instances", InstanceIds=[id])
    time.sleep(2)
    api.call("terminate_instances", InstanceIds=[id])
    end = ask(lab, api, made)["worker-1"]
    assert end.ran
    assert 1 <= end.when - end.ran <= 6


def test_without_the_right_or_in_time_the_end_is_the_latest_it_can_be(lab: Lab, api: Api) -> None:
    made = launch(lab, "worker-1")
    rights = policy()
    rights["Statement"][0]["Action"].remove(LOOKUP)
    lab.ec2.policy(rights)
    api.call("terminate_instances", InstanceIds=[made.nodes[0].machine])
    now = time.time()
    end = ask(lab, api, made)["worker-1"]
    assert abs(end.when - (now + 1800)) < 10
    assert "cloudtrail:LookupEvents" in end.doubt
    lab.ec2.policy(policy())
    lab.ec2.fault("late_events", seconds=900)
    end = ask(lab, api, made)["worker-1"]
    assert "its events may be late" in end.doubt
    assert abs(end.when - (now + 1800)) < 10
    end = ask(lab, api, made, later=9 * 3600)["worker-1"]
    assert (end.when, end.doubt) == (made.deadline, ""), "it has ended itself: nobody is told"
    lab.ec2.clear()
    assert abs(ask(lab, api, made)["worker-1"].when - now) < 10


def test_two_lookups_a_second_are_enough(lab: Lab, api: Api) -> None:
    """Also for many machines, and for many clusters that are asked about at the same time."""
    each = []
    for n in range(1, 21):
        lab.ec2.refill()
        each.append(launch(lab, f"worker-{n}"))
    nodes = tuple(one for made in each for one in made.nodes)
    whole = replace(each[0], nodes=nodes, charges=tuple(made.charges[0] for made in each))
    for one in nodes:
        api.call("terminate_instances", InstanceIds=[one.machine])
    lab.ec2.refill()
    found = ask(lab, api, whole)
    assert len(found) == 20
    assert not any(end.doubt for end in found.values())
    assert lookups(lab) < 10
    lab.ec2.refill()
    later = time.time() + 1800
    with ThreadPoolExecutor(len(each)) as pool:
        answers = list(pool.map(lambda made: lives.list_ended(api, made, later), each))
    assert not [end.doubt for answer in answers for end in answer.values() if end.doubt]
