"""What IAM is asked before EC2 does what a call says: actions, resources and condition keys.

Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon EC2". A
call asks about every resource that it makes (with `aws:RequestTag`) or names (with
`aws:ResourceTag`, as it is before the call), and once more about `ec2:CreateTags` for every new one
that gets tags (with `ec2:CreateAction`). Nearly all of Describe… knows no resources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterctl.core.text import read_toml
from tests.sim.ec2.wire import Request, pairs

ACCOUNT = "123456789012"
Tags = Mapping[str, str]
Look = Callable[[str], Tags]
"""The tags of what there is, by its id or name."""

TABLES = read_toml(Path(__file__).with_name("authorization.toml"))
NEW = TABLES["new"]

KINDS = TABLES["kinds"]

NAMES = TABLES["names"]


def asks(request: Request, look: Look, new_tags: Look) -> Iterator[dict[str, Any]]:
    """Each as `iam.allows` takes it. `new_tags`: those that a new resource of a kind is to get."""
    action = f"{request.service}:{request.action}"
    form = request.parameters
    if request.service == "iam" and "RoleName" in form:
        arn = f"arn:aws:iam::{ACCOUNT}:role/{form['RoleName']}"
        yield {"action": action, "resource": arn, "context": {}}
        return
    if request.service == "scheduler" and not request.action.startswith("List"):
        yield from _scheduling(action, request)
        return
    general = request.action.startswith(("Describe", "Get"))
    if request.service != "ec2" or (general and request.action not in TABLES["looks"]):
        yield {"action": action, "resource": "*", "context": {}}
        return
    new = list(NEW.get(request.action, ()))
    if request.parameters.get("InstanceMarketOptions.MarketType") == "spot":
        new.append("spot-instances-request")
    for kind in new:
        tags = _keys("aws:RequestTag", new_tags(kind))
        arn = _arn(request, kind, "*")
        if kind != "spot-instances-request":  # RunInstances has no such resource
            said_of_it = _said_of(kind, form) if request.action == "RunInstances" else {}
            yield {"action": action, "resource": arn, "context": {**tags, **said_of_it}}
        if tags:
            made = {**tags, "ec2:CreateAction": request.action}
            yield {"action": "ec2:CreateTags", "resource": arn, "context": made}
    if request.action == "CreateInstanceConnectEndpoint":
        # It makes an interface, for which who asks needs the right. Source: EC2 User Guide, "Grant
        # permissions to use EC2 Instance Connect Endpoint".
        yield from _make_interface(request, look)
        if not request.listed("SecurityGroupId"):  # then it gets the default group of its VPC
            group = _arn(request, "security-group", "sg-default")
            for asked in (action, "ec2:CreateNetworkInterface"):
                yield {"action": asked, "resource": group, "context": {}}
    said = _keys("aws:RequestTag", pairs(request.parameters)) if "Tags" in request.action else {}
    for kind, name in sorted(_named(request)):
        context = {
            **said,
            **_keys("aws:ResourceTag", look(name)),
            **_keys("ec2:ResourceTag", look(name)),
        }
        yield {"action": action, "resource": _arn(request, kind, name), "context": context}


def _make_interface(request: Request, look: Look) -> Iterator[dict[str, Any]]:
    action = "ec2:CreateNetworkInterface"
    yield {"action": action, "resource": _arn(request, "network-interface", "*"), "context": {}}
    for kind, name in sorted(_named(request)):
        context = _keys("aws:ResourceTag", look(name))
        yield {"action": action, "resource": _arn(request, kind, name), "context": context}


def _said_of(kind: str, form: Mapping[str, Any]) -> dict[str, str]:
    """Condition keys of what RunInstances makes, as its request says it: EC2 does not look them up
    in a launch template (karpenter-provider-aws, pull request 9256)."""
    return {
        key: str(form[name]) for key, name in TABLES["said"].get(kind, {}).items() if name in form
    }


def _scheduling(action: str, request: Request) -> Iterator[dict[str, Any]]:
    """Source: Service Authorization Reference, "… for Amazon EventBridge Scheduler", and the User
    Guide's "Setting up": whoever gives a schedule its role has to have the right to pass it."""
    form = request.parameters
    kind = "schedule-group" if action.endswith("Group") else "schedule"
    name = f"{form['GroupName']}/{form['Name']}" if "GroupName" in form else form["Name"]
    arn = f"arn:aws:scheduler:{request.region}:{ACCOUNT}:{kind}/{name}"
    if request.action == "TagResource":
        arn = form["Name"]
    tags = _keys("aws:RequestTag", {tag["Key"]: tag["Value"] for tag in form.get("Tags", ())})
    yield {"action": action, "resource": arn, "context": tags}
    if tags and request.action != "TagResource":
        yield {"action": "scheduler:TagResource", "resource": arn, "context": tags}
    if "Target" in form:
        passed = {"iam:PassedToService": "scheduler.amazonaws.com"}
        role = form["Target"]["RoleArn"]
        yield {"action": "iam:PassRole", "resource": role, "context": passed}


def _named(request: Request) -> set[tuple[str, str]]:
    """What the call names that exists."""
    found = set()
    for key, value in request.parameters.items():
        if key.startswith(("Filter.", "TagSpecification.", "UserData")):
            continue
        match = re.fullmatch(r"([a-z]+)-[0-9a-f]{6,}", str(value))
        if match and match[1] in KINDS:
            found.add((KINDS[match[1]], str(value)))
        elif key in NAMES and not (key in ("KeyName", "GroupName") and request.action in NEW):
            found.add((NAMES[key], str(value)))
    if request.action == "RunInstances" and "KeyName" in request.parameters:
        found.add(("key-pair", request.parameters["KeyName"]))
    return found


def _arn(request: Request, kind: str, name: str) -> str:
    account = "" if kind in ("image", "snapshot") else ACCOUNT
    return f"arn:aws:ec2:{request.region}:{account}:{kind}/{name}"


def _keys(prefix: str, tags: Tags) -> dict[str, str]:
    return {f"{prefix}/{key}": value for key, value in tags.items()}
