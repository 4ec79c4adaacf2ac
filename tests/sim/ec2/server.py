"""The endpoint: moto's dispatcher behind a layer that adds, breaks and writes down.

POST /_sim/VERB   with a JSON document: the control of the tests (`control.py`)
anything else     a call of AWS
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tests.sim.ec2 import authorization, gaps, iam, market, wire
from tests.sim.ec2.faults import Faults, Where
from tests.sim.ec2.schedules import Schedules
from tests.sim.ec2.throttling import Buckets
from tests.sim.ec2.wire import Answer, ApiError, Request

Start = Callable[..., Any]
Control = Callable[[str, dict[str, Any]], object]
Given = tuple[tuple[Any, ...], bytes]
"""What `start_response` is called with, and the body."""

_KEPT = 256
"""Answers that are kept for those who ask again."""

_NAMES = {"api.pricing": "pricing"}
"""Names in signatures → names in policies, where they differ."""


NOT_ENABLED = frozenset({"af-south-1"})
"""Regions that the account has not opted in to; credentials are not known there. Source: AWS
Account Management Reference Guide, "Enable or disable AWS Regions in your account"."""


ADMINISTRATOR = "AKIAADMINISTRATOR"
"""The access key of the tests themselves."""


def _denied(service: str, ask: dict[str, Any]) -> ApiError:
    """Source of the text: IAM User Guide, "Troubleshoot access denied error messages"."""
    said = (
        f"User: arn:aws:iam::{gaps.ACCOUNT}:user/simulated is not authorized to perform:"
        f" {ask['action']} on resource: {ask['resource']} because no identity-based policy allows"
        f" the {ask['action']} action"
    )
    if service == "ec2":
        message = f"You are not authorized to perform this operation. {said}"
        return ApiError("UnauthorizedOperation", message, 403)
    return ApiError(
        "AccessDenied" if service in ("sts", "iam") else "AccessDeniedException", said, 403
    )


def _enabled(request: Request) -> None:
    if request.region not in NOT_ENABLED:
        return
    if request.service == "ec2":
        message = "AWS was not able to validate the provided access credentials"
        raise ApiError("AuthFailure", message, 401)
    message = "The security token included in the request is invalid."
    raise ApiError("InvalidClientTokenId", message, 403)


_BY_ID = {
    "InstanceId": ("instance", "InvalidInstanceID"),
    "VpcId": ("vpc", "InvalidVpcID"),
    "SubnetId": ("subnet", "InvalidSubnetID"),
    "GroupId": ("security group", "InvalidGroup"),
    "InternetGatewayId": ("internetGateway", "InvalidInternetGatewayID"),
    "RouteTableId": ("routeTable", "InvalidRouteTableID"),
}
"""Parameter of a Describe call → what AWS calls it, and how its error begins."""


class Layer:
    """A WSGI application around moto's."""

    def __init__(self, moto: Callable[..., Iterable[bytes]], world: gaps.World, faults: Faults):
        self._moto = moto
        self.world = world
        self.faults = faults
        self.schedules = Schedules()
        self.control: Control = lambda verb, said: None
        self.calls: list[dict[str, Any]] = []
        self._given: dict[str, Given] = {}
        self.late = 0.0
        self.births: dict[str, float] = {}
        """Id → when it was made."""
        self.policy: dict[str, Any] | None = None
        """What IAM allows all but ADMINISTRATOR; None: anything."""
        world.allowed = self._allowed
        self.buckets = Buckets()

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path.startswith("/_sim/"):
            return self._controlled(path.removeprefix("/_sim/"), environ, start_response)
        # Go's SDK may close a connection whose answer comes while it is still about to finish the
        # request (smithy-go closes the body that net/http then reads), and asks again. From AWS
        # answers take too long for that.
        invocation = environ.get("HTTP_AMZ_SDK_INVOCATION_ID", "")
        request = wire.parse(environ)  # reads to the end
        given = self._given.get(invocation) or self._give(request, environ)
        if invocation and given[0][0].startswith("200"):
            self._given[invocation] = given
            for old in list(self._given)[:-_KEPT]:
                self._given.pop(old, None)
        status, headers, *rest = given[0]
        start_response(status, headers, *rest)
        return [given[1]]

    def _give(self, request: Request, environ: dict[str, Any]) -> Given:
        gaps.current.request = request
        try:
            self._authorize(request, self._note(request))
            answer = self._answer(request)
            given = self._by_moto(request, environ) if answer is None else _plain(answer)
            return self._eventually(request, given)
        except ApiError as failed:
            answer = wire.error(request.service, failed.code, failed.message, failed.status)
        except Exception:
            # The client has to see an answer, and whoever reads the log what was wrong.
            traceback.print_exc()
            answer = wire.error(request.service, "InternalError", "see the simulator's log", 500)
        finally:
            gaps.current.request = None
        return _plain(answer)

    def _allowed(self, action: str, resource: str, context: dict[str, str]) -> bool:
        request: Request = gaps.current.request
        if self.policy is None or request.key == ADMINISTRATOR:
            return True
        return iam.allows(self.policy, action, resource, context)

    def allows(self, key: str, ask: dict[str, Any]) -> bool:
        """Whether IAM allows whoever has this access key what it is asked."""
        free = self.policy is None or key == ADMINISTRATOR
        return free or iam.allows(self.policy or {}, **ask)

    def _authorize(self, request: Request, asks: list[dict[str, Any]]) -> None:
        if self.policy is None or request.key == ADMINISTRATOR:
            return
        for ask in asks:
            if not iam.allows(self.policy, **ask):
                raise _denied(request.service, ask)

    def _note(self, request: Request) -> list[dict[str, Any]]:
        """Writes the call down; returns what IAM is asked about it."""
        service = _NAMES.get(request.service, request.service)
        call: dict[str, Any] = {"action": f"{service}:{request.action}", "region": request.region}
        call |= {"key": request.key, "administrator": request.key == ADMINISTRATOR}
        if request.action == "RunInstances":
            call |= {"type": request.parameters.get("InstanceType"), "zone": zone_of(request)}
        if _dry(request):
            call["dry_run"] = True
        named = replace(request, service=service)
        call["asks"] = list(
            authorization.asks(
                named,
                lambda name: self._tags(request, name),
                lambda kind: gaps.new_tags(request, kind),
            )
        )
        self.calls.append(call)
        asks: list[dict[str, Any]] = call["asks"]
        return asks

    def _tags(self, request: Request, name: str) -> dict[str, str]:
        """The tags of what has this id or name now; of an association, those of its table."""
        group = self.world.placement_groups.get(name)
        for one in [*self.world.owners([name]), *([group] if group else [])]:
            return one.tags
        backend = gaps.backend(request.region)
        names = {pair.key_name: pair.id for pair in backend.key_pairs.values()}
        for table in backend.describe_route_tables():
            names |= dict.fromkeys(table.all_associations_ids, table.id)
        return dict(backend.tags.get(names.get(name, name), {}))

    def _answer(self, request: Request) -> Answer | None:
        _enabled(request)
        if self.world.ending and request.service == "ec2":
            self.world.end(gaps.backend(request.region).all_instances())
        self._take_token(request)
        where = where_of(request)
        if delay := self.faults.take("delay", where=where):
            time.sleep(delay["seconds"])
        self.faults.check(request.service, where)
        if _dry(request) and request.action != "RunInstances":  # moto knows that one
            raise ApiError(
                "DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412
            )
        if request.service == "scheduler":
            return self.schedules.answer(request)
        if request.service == "pricing":
            return market.pricing(request, self.world.prices)
        if request.service == "freetier":
            plan = "FREE" if self.world.free_plan else "PAID"
            return wire.document({"accountPlanType": plan, "accountPlanStatus": "ACTIVE"})
        if request.service == "servicequotas":
            return market.service_quotas(request, self.world.granted)
        if request.service == "ec2" and request.action in gaps.ACTIONS and not _dry(request):
            return gaps.ACTIONS[request.action](self.world, request)
        return None

    def _eventually(self, request: Request, given: Given) -> Given:
        """What is young is not shown yet. Source: EC2 Developer Guide, "Eventual consistency in the
        Amazon EC2 API"; terraform-provider-aws issue 8029."""
        if not self.late or request.service != "ec2":
            return given
        now = time.monotonic()
        if request.action.startswith(("Run", "Create", "Import")):
            for id in re.findall(rb"Id>([a-z]+-[0-9a-f]{8,})</", given[1]):
                self.births.setdefault(id.decode(), now)
        young = {id for id, born in self.births.items() if now < born + self.late}
        if not young or not request.action.startswith("Describe"):
            return given
        for name, (kind, code) in _BY_ID.items():
            for id in request.listed(name):
                if id in young:
                    raise ApiError(f"{code}.NotFound", f"The {kind} ID '{id}' does not exist")
        if any(name.startswith("tag") for name in request.filters()):
            body = wire.without(given[1], young)
            (status, headers, *rest) = given[0]
            kept = [pair for pair in headers if pair[0].lower() != "content-length"]
            return (status, [*kept, ("Content-Length", str(len(body)))], *rest), body
        return given

    def _take_token(self, request: Request) -> None:
        if request.service != "ec2" or _dry(request):
            return
        machines = len(request.listed("InstanceId"))
        if request.action == "RunInstances":
            machines = int(request.parameters.get("MaxCount", 1))
        if not self.buckets.take(request.region, request.action, machines):
            raise ApiError(
                "RequestLimitExceeded",
                f"Request limit exceeded. Account {gaps.ACCOUNT} has been throttled on"
                f" ec2:{request.action} because it exceeded its request rate limit.",
                503,
            )

    def _by_moto(self, request: Request, environ: dict[str, Any]) -> Given:
        seen: list[tuple[Any, ...]] = []

        def remember(*args: Any, **kwargs: Any) -> None:
            seen.append(args)

        try:
            if request.action == "RunInstances":
                # So are quotas.
                with self.world.addressing:
                    body = b"".join(self._moto(environ, remember))
            else:
                body = b"".join(self._moto(environ, remember))
        except NotImplementedError as missing:
            raise ApiError("InvalidAction", f"the simulator lacks this: {missing}") from None
        if seen[0][0].startswith(("500", "501")) and b"has not been implemented" in body:
            raise ApiError("InvalidAction", f"the simulator lacks {request.action}")
        return seen[0], body

    def _controlled(
        self, verb: str, environ: dict[str, Any], start_response: Start
    ) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        said = json.loads(environ["wsgi.input"].read(length) or b"{}")
        try:
            answer = wire.document(self.control(verb, said))
        except Exception:
            answer = Answer(traceback.format_exc().encode(), 500, "text/plain")
        start, body = _plain(answer)
        start_response(*start)
        return [body]


def _dry(request: Request) -> bool:
    return request.service == "ec2" and request.parameters.get("DryRun") == "true"


def where_of(request: Request) -> Where:
    if request.service != "ec2":
        return Where(action=request.action)
    names = {request.parameters.get("InstanceId", ""), *request.listed("InstanceId")}
    tags = request.tags("instance")
    names |= {tags.get("clusterctl:node", ""), tags.get("Name", "")}
    # A dry run asks for rights: what goes wrong with a launch is not known by then.
    action = request.action
    if _dry(request):
        action = "DryRun" if action == "RunInstances" else f"DryRun{action}"
    return Where(
        action=action,
        zone=zone_of(request) if request.action == "RunInstances" else "",
        instance_type=request.parameters.get("InstanceType", ""),
        market=request.parameters.get("InstanceMarketOptions.MarketType", "on-demand"),
        names=frozenset(names - {""}),
    )


def zone_of(request: Request) -> str:
    """The zone that RunInstances is about: said, or that of the subnet."""
    form = request.parameters
    subnet = form.get("SubnetId") or form.get("NetworkInterface.1.SubnetId")
    if subnet:
        for one in gaps.backend(request.region).describe_subnets():
            if one.id == subnet:
                return str(one.availability_zone)
    return str(form.get("Placement.AvailabilityZone", ""))


def _plain(answer: Answer) -> Given:
    status = {200: "200 OK"}.get(answer.status, f"{answer.status} Error")
    length = str(len(answer.body))
    return (status, [("Content-Type", answer.type), ("Content-Length", length)]), answer.body
