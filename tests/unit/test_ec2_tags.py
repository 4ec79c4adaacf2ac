"""--tag: what an organization demands of all that is made, before it costs money."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.core.model import CloudSpec, ClusterSpec, NodeGroup
from clusterctl.errors import UsageError
from clusterctl.machines.ec2 import api, deadline, preflight, refusals, spec
from clusterctl.machines.ec2.api import Api
from tests.unit.fake_ec2 import Offering
from tests.unit.tables import rows


def wish(*tag: str) -> ClusterSpec:
    cloud = CloudSpec(region="us-east-1", tag=tag)
    groups = (NodeGroup(count=1, family="cpu"),)
    return ClusterSpec(name="lab", provider="ec2", groups=groups, cloud=cloud)


def test_keys_and_values_are_split_at_the_first_equals_sign() -> None:
    assert api.parse_tags(["team=ml", "project=a=b", "empty="]) == {
        "team": "ml",
        "project": "a=b",
        "empty": "",
    }


@rows("text, said", "ec2_tags.what_is_no_tag_is_refused_before_aws_is_asked")
def test_what_is_no_tag_is_refused_before_aws_is_asked(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        spec.resolve_rules(wish(text), None)


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


def test_schedules_have_them() -> None:
    """EventBridge Scheduler takes no empty values, and would refuse them all."""
    made: dict[str, Any] = {}

    class Scheduling(Api):
        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            made.update({action: arguments})
            return {}

    deadline.prepare(Scheduling("us-east-1"), "lab-1", {"team": "ml", "empty": ""})
    assert made["create_schedule_group"]["Tags"] == [
        {"Key": "team", "Value": "ml"},
        {"Key": "clusterctl:cluster", "Value": "lab-1"},
    ]


@pytest.mark.parametrize("refused", [False, True])
def test_a_group_of_schedules_that_is_there_gets_them(refused: bool) -> None:
    """A further `up` may give others. No deadline depends on them."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Scheduling(Api):
        def find_account(self) -> str:
            return "123456789012"

        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            asked.append((action, arguments))
            if action == "create_schedule_group":
                raise refusals.make_refusal(action, "ConflictException", "exists", "us-east-1")
            if action == "tag_resource" and refused:
                raise refusals.make_refusal(action, "AccessDeniedException", "no", "us-east-1")
            return {}

    deadline.prepare(Scheduling("us-east-1"), "lab-1", {"team": "ml"})
    action, arguments = asked[-1]
    assert action == "tag_resource"
    arn = "arn:aws:scheduler:us-east-1:123456789012:schedule-group/clusterctl-lab-1"
    assert arguments == {"ResourceArn": arn, "Tags": [{"Key": "team", "Value": "ml"}]}


def test_a_tag_policy_that_refuses_a_value_is_named() -> None:
    text = "The tag policy does not allow the specified value for the following tag key: 'team'."
    error = refusals.make_refusal("run instances", "TagPolicyViolation", text, "us-east-1")
    assert "tag policy" in error.message
    assert "'team'" in error.message
    assert "--tag" in error.hint
