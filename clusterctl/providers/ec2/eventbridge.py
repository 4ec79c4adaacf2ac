"""The deadline outside the machines: EventBridge Scheduler ends those whose own agent does not.

A schedule for each instance: TerminateInstances with one id that is gone ends none of the others.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from clusterctl import assets
from clusterctl.errors import ProviderError
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.failures import Refused
from clusterctl.providers.ec2.tags import as_list
from clusterctl.providers.protocol import Resource

ROLE = "clusterctl-deadline"
"""What the schedules may do. One role for the account: who may make roles at will has all rights,
so that this is left to an administrator's `up`, once."""
POLICY = "terminate-clusters"
KIND = "schedule group"
PREFIX = "clusterctl-"
LATER = 60.0
"""Seconds after the deadline: by then the node's agent has ended the machine, if it can."""
SPREADING = 30.0
"""Seconds that a new role may be unknown to the scheduler."""
AT_ONCE = 8
"""Regions take 50 schedules a second or more."""
UNGUARDED = (
    'only their own agents keep the deadline; docs/ec2.md, "The deadline in AWS", lists the rights'
)


def check(api: Api) -> str:
    """What `up` says about it in its plan. Raises ProviderError where we may not even look."""
    api.call("list_schedule_groups", "scheduler", NamePrefix=PREFIX, MaxResults=1)
    if _has_role(api):
        return "AWS terminates what still runs one minute later"
    return f"AWS terminates what still runs one minute later, if you may create the role {ROLE}"


def group_of(cluster_id: str) -> str:
    return f"{PREFIX}{cluster_id}"


def prepare(api: Api, cluster_id: str, more_tags: Mapping[str, str] | None = None) -> None:
    """What schedules need; `more_tags`: of the user's own. Raises ProviderError: there is none
    then, unless there was before."""
    if not _has_role(api):
        _make_role(api)
    _unless(
        "ConflictException",
        lambda: api.call(
            "create_schedule_group",
            "scheduler",
            Name=group_of(cluster_id),
            Tags=as_list({**(more_tags or {}), "clusterctl:cluster": cluster_id}),
        ),
    )


def arm(
    api: Api,
    cluster_id: str,
    instances: Collection[str],
    deadline: float,
    clock: Callable[[], float] = time.time,
) -> None:
    """Has AWS end these instances after the deadline, and no others of the cluster. Raises
    ProviderError; some may then have an earlier one as before."""
    group = group_of(cluster_id)
    role = f"arn:{api.partition}:iam::{api.account()}:role/{ROLE}"
    found = api.all("list_schedules", "Schedules", "scheduler", GroupName=group)
    known = {str(item["Name"]) for item in found}
    when = time.gmtime(math.ceil(max(deadline, clock()) + LATER))
    expression = time.strftime("at(%Y-%m-%dT%H:%M:%S)", when)

    def schedule(instance: str) -> None:
        verb = "update_schedule" if instance in known else "create_schedule"
        _once_role_is_known(
            lambda: api.call(
                verb,
                "scheduler",
                GroupName=group,
                Name=instance,
                ScheduleExpression=expression,
                FlexibleTimeWindow={"Mode": "OFF"},
                ActionAfterCompletion="DELETE",
                Target={
                    "Arn": f"arn:{api.partition}:scheduler:::aws-sdk:ec2:terminateInstances",
                    "RoleArn": role,
                    "Input": json.dumps({"InstanceIds": [instance]}),
                },
            )
        )

    def drop(instance: str) -> None:
        _unless(
            "ResourceNotFoundException",
            lambda: api.call("delete_schedule", "scheduler", GroupName=group, Name=instance),
        )

    for first in sorted(instances)[:1]:
        schedule(first)  # alone: it waits for the role, and shows whether the others can be made
    _each(schedule, sorted(instances)[1:])
    _each(drop, known.difference(instances))


def find(api: Api, cluster_id: str = "") -> list[Resource]:
    """The groups of schedules, of one cluster or of all. None where we may not ask: then we have
    made none."""
    prefix = PREFIX + cluster_id
    try:
        found = api.all("list_schedule_groups", "ScheduleGroups", "scheduler", NamePrefix=prefix)
    except ProviderError:
        return []
    names = [str(item["Name"]) for item in found if item.get("State") != "DELETING"]
    return [
        Resource(KIND, name, name.removeprefix(PREFIX))
        for name in names
        if not cluster_id or name == prefix
    ]


def remove(api: Api, group: str) -> None:
    """With all its schedules."""
    _unless(
        "ResourceNotFoundException",
        lambda: api.call("delete_schedule_group", "scheduler", Name=group),
    )


def _has_role(api: Api) -> bool:
    """Whether it is there with its rights, which come last."""
    try:
        api.call("get_role_policy", "iam", RoleName=ROLE, PolicyName=POLICY)
    except Refused as refused:
        if refused.code not in ("NoSuchEntity", "NoSuchEntityException"):
            raise
        return False
    return True


def _make_role(api: Api) -> None:
    texts = assets.folder("infra") / "ec2"
    _unless(
        "EntityAlreadyExists",
        lambda: api.call(
            "create_role",
            "iam",
            RoleName=ROLE,
            AssumeRolePolicyDocument=(texts / "deadline-trust.json").read_text(),
            Description="Lets EventBridge Scheduler end clusterctl's machines at their deadline",
        ),
    )
    api.call(
        "put_role_policy",
        "iam",
        RoleName=ROLE,
        PolicyName=POLICY,
        PolicyDocument=(texts / "deadline-role.json").read_text(),
    )


def _unless(code: str, ask: Callable[[], Any]) -> None:
    try:
        ask()
    except Refused as refused:
        if refused.code != code:
            raise


def _once_role_is_known(ask: Callable[[], Any]) -> None:
    """Asks again while the scheduler may not assume a role that has just been made."""
    end = time.monotonic() + SPREADING
    while True:
        try:
            ask()
        except Refused as refused:
            if refused.code != "ValidationException" or "assume the role" not in refused.message:
                raise
            if time.monotonic() > end:
                raise
            time.sleep(1)
        else:
            return


def _each(what: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(what, names))
