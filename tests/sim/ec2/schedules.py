"""EventBridge Scheduler: one-time schedules that end machines and NAT gateways at their time.

Sources: EventBridge Scheduler API Reference (UpdateSchedule: what a request leaves out gets its
default) and User Guide ("Setting up": the execution role has to let the scheduler assume it; "Using
universal targets"; "Deleting a schedule"), EC2 API Reference (TerminateInstances: one unknown id,
and no instance is terminated).
"""

from __future__ import annotations

import calendar
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.sim.ec2 import gaps, iam, wire
from tests.sim.ec2.wire import Answer, ApiError, Request

ASSUME = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
CALLS = {
    "terminateInstances": ("ec2:TerminateInstances", "instance"),
    "deleteNatGateway": ("ec2:DeleteNatGateway", "natgateway"),
    "releaseAddress": ("ec2:ReleaseAddress", "elastic-ip"),
}
"""Universal target → the right that it takes, and what it is about."""
TARGET = "arn:aws:scheduler:::aws-sdk:ec2:"


@dataclass
class Group:
    region: str
    name: str
    tags: dict[str, str]
    schedules: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Schedules:
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    ahead: float = 0.0
    """Seconds that the scheduler's clock is ahead of ours: tests do not wait for it."""
    settling: float = 0.0
    """Seconds that a new role may not be assumed."""
    failed: list[str] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        return wire.document(ACTIONS[request.action](self, request) or {})

    def fire(self) -> None:
        """What is due happens."""
        now = time.time() + self.ahead
        for group in list(self.groups.values()):
            for name, one in list(group.schedules.items()):
                if one["at"] > now or one.get("fired"):
                    continue
                one["fired"] = True
                if why := _call(group.region, one["Target"]):
                    self.failed.append(f"{group.name}/{name}: {why}")
                if one.get("ActionAfterCompletion") == "DELETE":
                    group.schedules.pop(name, None)

    def group(self, request: Request, name: str) -> Group:
        found = self.groups.get((request.region, name))
        if not found:
            message = f"Schedule group {name} does not exist."
            raise ApiError("ResourceNotFoundException", message, 404)
        return found


def _call(region: str, target: Mapping[str, Any]) -> str:
    """With the role's rights; what went wrong."""
    name = target["Arn"].removeprefix(TARGET)
    action, kind = CALLS[name]
    said = json.loads(target["Input"])
    backend, role = gaps.backend(region), _role(target["RoleArn"])
    policies = [json.loads(text) for text in role.policies.values()] if role else []
    ids = said.get("InstanceIds") or [said.get("NatGatewayId") or said.get("AllocationId")]
    known: dict[str, Any] = {
        **{one.id: one for one in backend.all_instances()},
        **backend.nat_gateways,
        **{one.allocation_id: one for one in backend.addresses},
    }
    if unknown := [id for id in ids if id not in known]:
        return f"NotFound {unknown}"
    for id in ids:
        tags = {f"aws:ResourceTag/{key}": value for key, value in backend.tags.get(id, {}).items()}
        arn = f"arn:aws:ec2:{region}:{gaps.ACCOUNT}:{kind}/{id}"
        if not any(iam.allows(one, action, arn, tags) for one in policies):
            return f"{action} is not allowed for {id}"
    try:
        for id in ids:
            if kind == "instance":
                known[id].terminate()
            elif kind == "natgateway":
                backend.delete_nat_gateway(id)
            else:
                backend.release_address(None, allocation_id=id)
    except ApiError as error:
        return f"{error.code}: {error.message}"
    return ""


def _role(arn: str) -> Any:
    from moto.iam.models import iam_backends

    roles = iam_backends[gaps.ACCOUNT]["aws"].roles.values()
    return next((role for role in roles if role.arn == arn), None)


def _schedule(world: Schedules, request: Request) -> dict[str, Any]:
    form = request.parameters
    at = re.fullmatch(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)", form["ScheduleExpression"])
    target = form["Target"]
    known = target["Arn"].startswith(TARGET) and target["Arn"].removeprefix(TARGET) in CALLS
    if not at or form["FlexibleTimeWindow"] != {"Mode": "OFF"} or not known:
        raise ApiError("ValidationException", f"the simulator lacks {form}")
    role = _role(target["RoleArn"])
    trust = json.loads(role.assume_role_policy_document)["Statement"] if role else []
    trusted = any(
        one["Effect"] == "Allow" and one["Principal"].get("Service") == "scheduler.amazonaws.com"
        for one in trust
    )
    if not trusted or time.time() < role.create_date.timestamp() + world.settling:
        raise ApiError("ValidationException", ASSUME)
    kept = {key: form[key] for key in ("Target", "ActionAfterCompletion") if key in form}
    return {**kept, "at": calendar.timegm(time.strptime(at[1], "%Y-%m-%dT%H:%M:%S"))}


def _create(world: Schedules, request: Request) -> dict[str, str]:
    form = request.parameters
    group = world.group(request, form["GroupName"])
    if form["Name"] in group.schedules:
        raise ApiError("ConflictException", f"Schedule {form['Name']} already exists.", 409)
    group.schedules[form["Name"]] = _schedule(world, request)
    return {"ScheduleArn": f"arn:aws:scheduler:{request.region}:::{uuid.uuid4()}"}


def _found(world: Schedules, request: Request) -> tuple[Group, str]:
    form = request.parameters
    group = world.group(request, form["GroupName"])
    if form["Name"] not in group.schedules:
        raise ApiError("ResourceNotFoundException", f"Schedule {form['Name']} does not exist.", 404)
    return group, form["Name"]


def _update(world: Schedules, request: Request) -> dict[str, str]:
    group, name = _found(world, request)
    group.schedules[name] = _schedule(world, request)
    return {"ScheduleArn": f"arn:aws:scheduler:{request.region}:::{uuid.uuid4()}"}


def _delete(world: Schedules, request: Request) -> None:
    group, name = _found(world, request)
    del group.schedules[name]


def _list(world: Schedules, request: Request) -> dict[str, Any]:
    group = world.group(request, request.parameters["GroupName"])
    return {"Schedules": [{"Name": name, "GroupName": group.name} for name in group.schedules]}


def _create_group(world: Schedules, request: Request) -> dict[str, str]:
    form = request.parameters
    key = (request.region, form["Name"])
    if key in world.groups:
        raise ApiError("ConflictException", f"Schedule group {key[1]} already exists.", 409)
    tags = {tag["Key"]: tag["Value"] for tag in form.get("Tags", ())}
    world.groups[key] = Group(*key, tags)
    return {"ScheduleGroupArn": f"arn:aws:scheduler:{request.region}:::{key[1]}"}


def _delete_group(world: Schedules, request: Request) -> None:
    world.groups.pop((request.region, world.group(request, request.parameters["Name"]).name))


def _tag(world: Schedules, request: Request) -> None:
    group = world.group(request, request.parameters["Name"].rpartition("/")[2])
    group.tags |= {tag["Key"]: tag["Value"] for tag in request.parameters["Tags"]}


def _list_groups(world: Schedules, request: Request) -> dict[str, Any]:
    prefix = request.parameters.get("NamePrefix", "")
    names = [name for region, name in world.groups if region == request.region]
    found = [name for name in ("default", *names) if name.startswith(prefix)]
    return {"ScheduleGroups": [{"Name": name, "State": "ACTIVE"} for name in found]}


ACTIONS: dict[str, Callable[[Schedules, Request], Any]] = {
    "CreateSchedule": _create,
    "CreateScheduleGroup": _create_group,
    "DeleteSchedule": _delete,
    "DeleteScheduleGroup": _delete_group,
    "ListScheduleGroups": _list_groups,
    "ListSchedules": _list,
    "TagResource": _tag,
    "UpdateSchedule": _update,
}
