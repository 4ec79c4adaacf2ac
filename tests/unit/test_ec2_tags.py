"""--tag: what an organization demands of all that is made, before it costs money."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.model import CloudSpec, ClusterSpec, NodeGroup
from clusterctl.providers.ec2 import eventbridge, failures, preflight, tagging, tags, update_rules
from clusterctl.providers.ec2.api import Api
from tests.unit.fake_ec2 import Offering
from tests.unit.making import cluster


def wish(*tag: str) -> ClusterSpec:
    cloud = CloudSpec(region="us-east-1", tag=tag)
    groups = (NodeGroup(count=1, family="cpu"),)
    return ClusterSpec(name="lab", provider="ec2", groups=groups, cloud=cloud)


def test_keys_and_values_are_split_at_the_first_equals_sign() -> None:
    assert tags.parse(["team=ml", "project=a=b", "empty="]) == {
        "team": "ml",
        "project": "a=b",
        "empty": "",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("team", "is not KEY=VALUE"),
        ("=ml", "is not KEY=VALUE"),
        ("aws:team=ml", "reserved by AWS"),
        ("AWS:team=ml", "reserved by AWS"),
        ("clusterctl:cluster=other", "clusterctl sets itself"),
        ("Name=mine", "clusterctl sets itself"),
        (f"{'k' * 129}=ml", "up to 128"),
        (f"team={'v' * 257}", "up to 256"),
    ],
)
def test_what_is_no_tag_is_refused_before_aws_is_asked(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        update_rules.resolve(wish(text), None)


def test_more_tags_than_ec2_takes_are_refused() -> None:
    with pytest.raises(UsageError, match="41 tags"):
        tags.parse(f"key-{number}=x" for number in range(41))


def test_a_further_up_adds_tags_and_removes_none() -> None:
    """The rights of policy.json remove no tags."""
    before = replace(cluster(provider="ec2"), spec=wish("team=ml", "stage=test"))
    found = update_rules.resolve(wish("stage=live", "cost=7"), before)
    assert found.cloud.tag == ("team=ml", "stage=live", "cost=7")


def test_the_dry_runs_have_them() -> None:
    """An organization's policy that demands them denies what is made otherwise."""
    asked: list[tuple[str, Any]] = []

    class Asking(Offering):
        check_launch_right = Api.check_launch_right
        check_right = Api.check_right

        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            assert arguments["DryRun"] is True
            asked.append((action, arguments["TagSpecifications"]))
            return {}

    preflight.survey(Asking("us-east-1"), wish("team=ml"), {}, "", print)
    launched = {"instance", "volume", "network-interface"}  # all that a launch makes
    made = {
        "run_instances": launched,
        "create_vpc": {"vpc"},
        "create_internet_gateway": {"internet-gateway"},
    }
    assert {action for action, _ in asked} == set(made)
    for action, specifications in asked:
        assert {one["ResourceType"] for one in specifications} == made[action]
        for one in specifications:
            assert {"Key": "team", "Value": "ml"} in one["Tags"]
            assert {"Key": "clusterctl:cluster", "Value": "lab"} in one["Tags"]
    asked.clear()
    preflight.survey(Asking("us-east-1"), wish("team=ml"), {"launcher": "t3.micro"}, "", print)
    assert {action for action, _ in asked} == {"run_instances"}, "it has its network"


class Tagged(Api):
    """Resources with tags: id → kind and tags."""

    def __init__(self, things: dict[str, tuple[str, dict[str, str]]]) -> None:
        super().__init__("us-east-1")
        self.things = things
        self.calls = 0

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        assert action == "describe_tags"
        said = {one["Name"]: one["Values"] for one in arguments["Filters"]}
        return [
            {"ResourceId": id}
            for id, (kind, tags) in self.things.items()
            if kind in said["resource-type"]
            and any(tags.get(name) in said["value"] for name in said["key"])
        ]

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        assert action == "create_tags"
        self.calls += 1
        for id in arguments["Resources"]:
            tags = {tag["Key"]: tag["Value"] for tag in arguments["Tags"]}
            self.things[id] = (self.things[id][0], {**self.things[id][1], **tags})


def test_a_further_up_gives_new_tags_to_machines_with_their_disks_and_interfaces() -> None:
    """Terraform knows nothing of workers that were launched by one call, and changes no interface;
    the network is Terraform's."""
    mine = {"clusterctl:cluster": "lab-1"}
    api = Tagged(
        {
            "i-1": ("instance", {**mine, "team": "ml"}),
            "i-2": ("instance", mine),
            "vol-2": ("volume", {**mine, "team": "old"}),
            "eni-2": ("network-interface", mine),
            "vpc-1": ("vpc", mine),
            "i-3": ("instance", {"clusterctl:cluster": "other"}),
        }
    )
    tagging.label_machines(api, "lab-1", {"team": "ml"})
    having = {id for id, (_, tags) in api.things.items() if tags.get("team") == "ml"}
    assert having == {"i-1", "i-2", "vol-2", "eni-2"}
    assert api.calls == 1
    tagging.label_machines(api, "lab-1", {"team": "ml"})
    assert api.calls == 1, "what has them is left alone"


def test_schedules_have_them() -> None:
    """EventBridge Scheduler takes no empty values, and would refuse them all."""
    made: dict[str, Any] = {}

    class Scheduling(Api):
        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            made.update({action: arguments})
            return {}

    eventbridge.prepare(Scheduling("us-east-1"), "lab-1", {"team": "ml", "empty": ""})
    assert made["create_schedule_group"]["Tags"] == [
        {"Key": "team", "Value": "ml"},
        {"Key": "clusterctl:cluster", "Value": "lab-1"},
    ]


@pytest.mark.parametrize("refused", [False, True])
def test_a_group_of_schedules_that_is_there_gets_them(refused: bool) -> None:
    """A further `up` may give others. No deadline depends on them."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Scheduling(Api):
        partition = "aws"

        def find_account(self) -> str:
            return "123456789012"

        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            asked.append((action, arguments))
            if action == "create_schedule_group":
                raise failures.make_refusal(action, "ConflictException", "exists", "us-east-1")
            if action == "tag_resource" and refused:
                raise failures.make_refusal(action, "AccessDeniedException", "no", "us-east-1")
            return {}

    eventbridge.prepare(Scheduling("us-east-1"), "lab-1", {"team": "ml"})
    action, arguments = asked[-1]
    assert action == "tag_resource"
    arn = "arn:aws:scheduler:us-east-1:123456789012:schedule-group/clusterctl-lab-1"
    assert arguments == {"ResourceArn": arn, "Tags": [{"Key": "team", "Value": "ml"}]}


def test_a_tag_policy_that_refuses_a_value_is_named() -> None:
    text = "The tag policy does not allow the specified value for the following tag key: 'team'."
    error = failures.make_refusal("run instances", "TagPolicyViolation", text, "us-east-1")
    assert "tag policy" in error.message
    assert "'team'" in error.message
    assert "--tag" in error.hint


def test_terraform_gets_them(tmp_path: Path) -> None:
    from clusterctl.providers.ec2 import spec as layout

    machines = layout.plan_machines(wish(), {}, {})
    some = layout.ModuleVariables(
        **_variables(machines), tags={"team": "ml"}, shared="/shared"
    ).render()
    assert (some["tags"], some["shared"]) == ({"team": "ml"}, "/shared")
    none = layout.ModuleVariables(**_variables(machines)).render()
    assert not {"tags", "shared"} & set(none), "the module of an older cluster does not know them"


def _variables(machines: Any) -> dict[str, Any]:
    return {
        "cluster_id": "lab-1",
        "name": "lab",
        "region": "us-east-1",
        "zone": "us-east-1a",
        "machines": machines,
        "amis": {},
        "spot": False,
        "placement": (),
        "efa": False,
        "subnet": "",
        "reservation": None,
        "ssh_cidr": "",
        "public_key": "",
        "user_data": {},
        "hours": 8.0,
    }
