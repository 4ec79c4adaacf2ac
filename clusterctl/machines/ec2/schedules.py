"""The deadline outside the machines: EventBridge Scheduler ends those whose own agent does not.

A schedule for each instance: TerminateInstances with one id that is gone ends none of the others.
With private workers, a NAT gateway and its address have schedules, too.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterctl.core import assets
from clusterctl.core.clock import Deadline
from clusterctl.core.model import GATEWAY, Cluster, fold
from clusterctl.errors import NodeUnreachable, ProviderError
from clusterctl.machines import deadlines
from clusterctl.machines.charges import LATER, RELEASE
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import host_keys as ec2_host_keys
from clusterctl.machines.ec2 import spec
from clusterctl.machines.ec2.api import TAG, Api, as_list, filter_by_cluster, find_instances
from clusterctl.machines.ec2.refusals import RefusedByAws
from clusterctl.machines.protocol import Resource

ROLE = "clusterctl-deadline"
"""What the schedules may do. One role for the account: who may make roles at will has all rights,
so that this is left to an administrator's `up`, once."""
POLICY = "terminate-clusters"
KIND = "schedule group"
PREFIX = "clusterctl-"
SPREADING = 30.0
"""Seconds that a new role may be unknown to the scheduler."""
_GONE = "ResourceNotFoundException"
AT_ONCE = 8
"""Regions take 50 schedules a second or more."""
UNGUARDED = (
    'only their own agents keep the deadline; docs/ec2.md, "The deadline in AWS", lists the rights'
)


def check_schedule(api: Api, *, nat: bool = False) -> str:
    """What `up` says about it in its plan; `nat`: the cluster has a NAT gateway. Raises
    ProviderError where we may not even look."""
    api.call("list_schedule_groups", "scheduler", NamePrefix=PREFIX, MaxResults=1)
    what = "AWS terminates what still runs one minute later" + ", and removes the NAT gateway" * nat
    return what if _has_role(api) else f"{what}, if you may create the role {ROLE}"


def name_group(cluster_id: str) -> str:
    return f"{PREFIX}{cluster_id}"


def prepare(api: Api, cluster_id: str, more_tags: Mapping[str, str] | None = None) -> None:
    """What schedules need; `more_tags`: beside the cluster's id, also of a group that is there.
    Raises ProviderError: there is none then, unless there was before."""
    given = {key: value for key, value in (more_tags or {}).items() if value}  # it takes no ""
    if not _has_role(api):
        _make_role(api)
    made = {"Name": name_group(cluster_id), "Tags": as_list({**given, TAG: cluster_id})}
    if not _call_unless(api, "ConflictException", "create_schedule_group", **made):
        with suppress(ProviderError):  # no deadline depends on them
            label_schedule(api, cluster_id, given)


def label_schedule(api: Api, cluster_id: str, tags: Mapping[str, str]) -> None:
    """Gives the group of a cluster's schedules other tags. Raises ProviderError."""
    account, group = api.find_account(), name_group(cluster_id)
    arn = f"arn:aws:scheduler:{api.region}:{account}:schedule-group/{group}"
    _call_unless(api, _GONE, "tag_resource", ResourceArn=arn, Tags=as_list(tags))


def schedule_ends(
    api: Api,
    cluster_id: str,
    instances: Collection[str],
    deadline: float,
    clock: Callable[[], float] = time.time,
    *,
    nat: bool = False,
) -> None:
    """Has AWS end these instances after the deadline, and no others of the cluster; with `nat` its
    NAT gateway, too, and then the address of that. Raises ProviderError; some may then have an
    earlier one as before."""
    group = name_group(cluster_id)
    role = f"arn:aws:iam::{api.find_account()}:role/{ROLE}"
    found = api.list_all("list_schedules", "Schedules", "scheduler", GroupName=group)
    known = {str(item["Name"]) for item in found}
    ends: dict[str, _End] = {
        id: ("terminateInstances", {"InstanceIds": [id]}, LATER) for id in instances
    }
    if nat:
        ends |= find_network(api, cluster_id)

    def schedule(name: str) -> None:
        call, arguments, later = ends[name]
        when = time.gmtime(math.ceil(max(deadline, clock()) + later))
        _retry_for_role(
            lambda: api.call(
                "update_schedule" if name in known else "create_schedule",
                "scheduler",
                GroupName=group,
                Name=name,
                ScheduleExpression=time.strftime("at(%Y-%m-%dT%H:%M:%S)", when),
                FlexibleTimeWindow={"Mode": "OFF"},
                ActionAfterCompletion="DELETE",
                Target={
                    "Arn": f"arn:aws:scheduler:::aws-sdk:ec2:{call}",
                    "RoleArn": role,
                    "Input": json.dumps(arguments),
                },
            )
        )

    def drop(name: str) -> None:
        _call_unless(api, _GONE, "delete_schedule", GroupName=group, Name=name)

    for first in sorted(ends)[:1]:
        schedule(first)  # alone: it waits for the role, and shows whether the others can be made
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(schedule, sorted(ends)[1:]))
        list(pool.map(drop, known.difference(ends)))


_End = tuple[str, Mapping[str, Any], float]
"""A call of EC2, and how many seconds after the deadline."""


def find_network(api: Api, cluster_id: str) -> Mapping[str, _End]:
    """What costs money by the hour in a cluster's own network, by its id."""
    mine = [filter_by_cluster(cluster_id)]
    gateways = api.list_all("describe_nat_gateways", "NatGateways", Filter=mine)
    addresses = api.list_all("describe_addresses", "Addresses", Filters=mine)
    alive = [item["NatGatewayId"] for item in gateways if item["State"] in ("pending", "available")]
    held = [item["AllocationId"] for item in addresses]
    return {
        **{id: ("deleteNatGateway", {"NatGatewayId": id}, LATER) for id in alive},
        **{id: ("releaseAddress", {"AllocationId": id}, RELEASE) for id in held},
    }


def find_schedule(api: Api, cluster_id: str = "") -> list[Resource]:
    """The groups of schedules, of one cluster or of all. None where we may not ask: then we have
    made none."""
    prefix = PREFIX + cluster_id
    try:
        found = api.list_all(
            "list_schedule_groups", "ScheduleGroups", "scheduler", NamePrefix=prefix
        )
    except ProviderError:
        return []
    names = [str(item["Name"]) for item in found if item.get("State") != "DELETING"]
    return [
        Resource(KIND, name, name.removeprefix(PREFIX))
        for name in names
        if not cluster_id or name == prefix
    ]


def remove_schedule(api: Api, group: str) -> None:
    """With all its schedules."""
    _call_unless(api, _GONE, "delete_schedule_group", Name=group)


def _has_role(api: Api) -> bool:
    """Whether the role is there with its rights, which come last."""
    named = {"RoleName": ROLE, "PolicyName": POLICY}
    return _call_unless(api, "NoSuchEntity", "get_role_policy", "iam", **named)


def _make_role(api: Api) -> None:
    texts = assets.find_folder("infra") / "ec2"
    _call_unless(
        *(api, "EntityAlreadyExists", "create_role", "iam"),
        RoleName=ROLE,
        AssumeRolePolicyDocument=(texts / "deadline-trust.json").read_text(),
        Description="Lets EventBridge Scheduler end clusterctl's machines at their deadline",
    )
    api.call(
        "put_role_policy",
        "iam",
        RoleName=ROLE,
        PolicyName=POLICY,
        PolicyDocument=(texts / "deadline-role.json").read_text(),
    )


def _call_unless(
    api: Api, ignored: str, action: str, service: str = "scheduler", /, **arguments: Any
) -> bool:
    """Whether AWS did not refuse it with that code."""
    try:
        api.call(action, service, **arguments)
    except RefusedByAws as refused:
        if refused.code != ignored:
            raise
        return False
    return True


def _retry_for_role(ask: Callable[[], Any]) -> Any:
    """Asks again while the scheduler may not assume a role that has just been made."""
    end = Deadline(SPREADING)
    while True:
        try:
            return ask()
        except RefusedByAws as refused:
            spreads = refused.code == "ValidationException" and "assume the role" in refused.message
            if end.passed or not spreads:
                raise
        time.sleep(1)


# -------------------------------------------------------------------------------------------------
# A later deadline: in AWS, and on each node.


_NEXT = f"{deadlines.FILE}.next"
EXTEND_TIMEOUT = 30.0


def extend(api: Api, cluster: Cluster, folder: Path, deadline: float) -> None:
    """Raises as the protocol says."""
    state = spec.load_state(folder)
    # First: where AWS keeps an earlier end, a later one of the nodes would be a lie.
    if state.guarded if state else find_schedule(api, cluster.id):
        _extend_in_aws(api, cluster, deadline)
    text = f"{int(deadline)}"
    command = f"exec sudo -n sh -c 'echo {text} >{_NEXT} && mv {_NEXT} {deadlines.FILE}'"
    host_keys = ec2_host_keys.HostKeys(folder)
    with host_keys.open_pool(cluster.nodes) as pool:
        failed = [r for r in pool.run(command, timeout=EXTEND_TIMEOUT) if not r.ok]
    if failed:
        with suppress(ProviderError):  # nodes have been told by now: it is for the next look
            # Unused workers may have ended.
            running = {item.node for item in find_instances(api, cluster.id)}
            failed = [result for result in failed if result.node in running]
    if failed:
        raise NodeUnreachable(
            f"the old deadline still applies on {'; '.join(fold(failed))}",
            hint="`clusterctl status --live` shows each node's own; try again",
            transient=True,
        )


def label(api: Api, cluster: Cluster, folder: Path, deadline: float) -> None:
    """As the protocol says: all that EC2 has of the cluster, and the group of its schedules."""
    value = ec2_api.render_deadline(deadline)
    ec2_api.label(api, cluster.id, ec2_api.DEADLINE_TAG, value)
    state = spec.load_state(folder)
    if state and state.guarded:
        label_schedule(api, cluster.id, {ec2_api.DEADLINE_TAG: value})


def _extend_in_aws(api: Api, cluster: Cluster, deadline: float) -> None:
    there = [item.id for item in find_instances(api, cluster.id)]
    nat = any(item.part == GATEWAY and item.until is None for item in cluster.charges)
    try:
        schedule_ends(api, cluster.id, there, deadline, nat=nat)
    except RefusedByAws as refused:
        if refused.code != _GONE:
            raise
        # Another person has removed the cluster, or its schedules alone.
        name = cluster.name
        gone = "its schedules in AWS are gone" if there else "none of its machines is running"
        raise ProviderError(
            f"the deadline of cluster {name} cannot be moved: {gone}",
            hint=f"`clusterctl up {name}` creates what is missing, `clusterctl down {name}`"
            " removes the cluster",
        ) from refused
