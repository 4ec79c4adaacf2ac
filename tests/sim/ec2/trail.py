"""CloudTrail's event history: what has been asked of EC2, and what EC2 has done by itself.

Source: CloudTrail API Reference, LookupEvents (one attribute, newest first, at most 50 events, two
lookups a second); User Guide, "CloudTrail record contents"; EC2 User Guide, "Determine whether
Amazon EC2 terminated a Spot Instance", which has the whole of a BidEvictedEvent. Whether those are
found by the id of the machine is not said there: here they are not.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from tests.sim.ec2.wire import Answer, ApiError, Request, document

STATES = ("TerminateInstances", "StopInstances", "StartInstances")
KEPT = 90 * 86400.0
SPOT = "BidEvictedEvent"


@dataclass(frozen=True)
class Event:
    name: str
    region: str
    when: float
    resources: tuple[str, ...]
    record: Mapping[str, Any]


@dataclass
class Trail:
    late: float = 0.0
    """Seconds until an event is found."""
    _events: list[Event] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        with self._lock:
            self._events.clear()

    def note(self, request: Request, body: bytes) -> None:
        """A call of EC2 that has succeeded."""
        if request.action in STATES:
            self.note_states(request.action, request.region, _states(body))

    def note_refused(self, request: Request, code: str) -> None:
        if request.service == "ec2" and request.action in STATES:
            ids = request.listed("InstanceId")
            said = {"items": [{"instanceId": id} for id in ids]}
            more = {
                "errorCode": f"Client.{code}",
                "requestParameters": {"instancesSet": said},
                "responseElements": None,
            }
            self._add(request.action, request.region, ids, more)

    def note_states(self, name: str, region: str, states: Mapping[str, tuple[str, str]]) -> None:
        """By instance: its states before and after."""
        items = [
            {
                "instanceId": id,
                "previousState": {"name": before},
                "currentState": {"name": after},
            }
            for id, (before, after) in states.items()
        ]
        asked = {"instancesSet": {"items": [{"instanceId": id} for id in states]}}
        more = {"requestParameters": asked, "responseElements": {"instancesSet": {"items": items}}}
        self._add(name, region, list(states), more)

    def note_eviction(self, region: str, id: str) -> None:
        more = {
            "eventType": "AwsServiceEvent",
            "requestParameters": None,
            "responseElements": None,
            "serviceEventDetails": {"instanceIdSet": [id]},
        }
        self._add(SPOT, region, (), more)

    def _add(self, name: str, region: str, ids: Iterable[str], more: Mapping[str, Any]) -> None:
        when = float(int(time.time()))
        record = {
            "eventVersion": "1.08",
            "eventTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
            "eventSource": "ec2.amazonaws.com",
            "eventName": name,
            "awsRegion": region,
            "eventType": "AwsApiCall",
            **more,
        }
        with self._lock:
            self._events.append(Event(name, region, when, tuple(ids), record))

    def answer(self, request: Request) -> Answer:
        if request.action != "LookupEvents":
            raise ApiError("UnsupportedOperationException", f"the simulator lacks {request.action}")
        form = request.parameters
        attributes = form.get("LookupAttributes", [])
        if len(attributes) > 1:
            raise ApiError("InvalidLookupAttributesException", "Only one attribute is allowed.")
        now = time.time()
        since, until = form.get("StartTime", now - KEPT), form.get("EndTime", now)
        if since > until:
            raise ApiError("InvalidTimeRangeException", "The start time is after the end time.")
        with self._lock:
            found = [
                event
                for event in reversed(self._events)
                if event.region == request.region
                and since <= event.when <= until
                and now - KEPT < event.when <= now - self.late
                and all(_matches(event, **one) for one in attributes)
            ]
        first, size = int(form.get("NextToken") or 0), int(form.get("MaxResults", 50))
        page: dict[str, Any] = {"Events": [_shown(one) for one in found[first : first + size]]}
        if first + size < len(found):
            page["NextToken"] = str(first + size)
        return document(page)


def _matches(event: Event, AttributeKey: str, AttributeValue: str) -> bool:
    if AttributeKey == "ResourceName":
        return AttributeValue in event.resources
    if AttributeKey == "EventName":
        return AttributeValue == event.name
    raise ApiError("InvalidLookupAttributesException", f"the simulator lacks {AttributeKey}")


def _shown(event: Event) -> dict[str, Any]:
    kind = "AWS::EC2::Instance"
    return {
        "EventId": str(uuid.uuid4()),
        "EventName": event.name,
        "EventTime": event.when,
        "EventSource": "ec2.amazonaws.com",
        "ReadOnly": "false",
        "Resources": [{"ResourceType": kind, "ResourceName": id} for id in event.resources],
        "CloudTrailEvent": json.dumps(event.record),
    }


def _states(body: bytes) -> dict[str, tuple[str, str]]:
    """Of an answer of EC2: instance → state before and after."""
    root = ElementTree.fromstring(body)
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    return {
        str(item.findtext(f"{space}instanceId")): (
            str(item.findtext(f"{space}previousState/{space}name")),
            str(item.findtext(f"{space}currentState/{space}name")),
        )
        for item in root.iter(f"{space}item")
        if item.findtext(f"{space}instanceId")
    }
