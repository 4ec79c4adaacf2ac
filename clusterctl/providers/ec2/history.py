"""When machines ended that EC2 no longer shows, by CloudTrail's event history.

EC2 shows a machine for about an hour after its end. The event history is on in every account, costs
nothing, and keeps the calls of 90 days in each region: CloudTrail User Guide, "Working with
CloudTrail event history"; API Reference, LookupEvents (two lookups a second). An interrupted spot
instance has a BidEvictedEvent: EC2 User Guide, "Determine whether Amazon EC2 terminated a Spot
Instance". A machine that shut itself down, at its deadline or because nobody used it, has none.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from clusterctl.errors import ProviderError, reason
from clusterctl.model import Cluster, Phase
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.protocol import Ended
from clusterctl.timeouts import Deadline

LATE = 900.0
"""Seconds that an event may be missing. AWS says "about 5 minutes" on average, and guarantees
nothing (CloudTrail User Guide, "Getting and viewing your CloudTrail log files"); it once said 15.
"""
KEPT = 90 * 86400.0
LOOKUPS, SECONDS = 20, 20.0
"""At most, for one cluster."""
ENDS = ("TerminateInstances", "BidEvictedEvent")
STOP, START = "StopInstances", "StartInstances"
BEFORE = ("shutting-down", "terminated")
"""States of a machine that a call does not end any more."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """What has happened to one machine, and when."""

    machine: str
    name: str
    when: float


def list_forgotten(
    api: Api, cluster: Cluster, now: float, shown: Collection[str]
) -> dict[str, Ended]:
    """The ends of the machines on record that EC2 does not show any more; `shown`: the nodes that
    it shows."""
    planned: dict[str, float] = {}
    for item in cluster.charges:
        if item.until is None:
            planned[item.node] = min(item.since, planned.get(item.node, item.since))
    changing = cluster.phase is Phase.CREATING  # it may have planned an end, and not reached it
    missing = {
        node.machine: node.name
        for node in cluster.nodes
        if node.machine and node.name not in shown and (changing or node.name in planned)
    }
    if not missing:
        return {}
    events, why = _find_events(api, missing, cluster, now)
    latest = min(now, cluster.deadline or now)
    if not why and now < latest + LATE:
        why = "its events may be late, and a machine that shut itself down has none"
    found = {}
    for machine, name in missing.items():
        end, ran = _read_life(event for event in events if event.machine == machine)
        if end is not None and end >= planned.get(name, 0.0):
            found[name] = Ended(end, ran=end if ran is None else ran)
        elif end is None and name in planned:
            found[name] = Ended(latest, ran=ran, doubt=why)
    return found


def _read_life(events: Iterable[StateChange]) -> tuple[float | None, float | None]:
    """When a machine ended, and since when it had been stopped by then."""
    ran: float | None = None
    for event in sorted(events, key=lambda event: event.when):
        if event.name in ENDS:
            return event.when, ran
        if event.name == START:
            ran = None
        elif ran is None:
            ran = event.when
    return None, ran


def _find_events(
    api: Api, machines: Collection[str], cluster: Cluster, now: float
) -> tuple[list[StateChange], str]:
    """Those of these machines, and why some may be missing; "" where all were asked for. A call
    that has ended many of them is one event."""
    events: list[StateChange] = []
    end, left = Deadline(SECONDS), LOOKUPS
    questions = [("ResourceName", machine) for machine in sorted(machines)]
    if cluster.spec.cloud.spot:
        # AWS's documents do not say that these are found by the machines' ids.
        questions.insert(0, ("EventName", ENDS[1]))
    since = datetime.fromtimestamp(max(cluster.created, now - KEPT), timezone.utc)
    for key, value in questions:
        if any(event.machine == value and event.name in ENDS for event in events):
            continue
        asked: dict[str, Any] = {
            "LookupAttributes": [{"AttributeKey": key, "AttributeValue": value}],
            "StartTime": since,
        }
        while True:
            if not left or end.passed:
                return events, f"it was asked for {LOOKUPS - left} of {len(questions)} answers"
            left -= 1
            try:
                answer = api.call("lookup_events", "cloudtrail", **asked)
            except ProviderError as error:
                return events, reason(error)
            for event in answer.get("Events", ()):
                events += (one for one in _read_event(event) if one.machine in machines)
            if not answer.get("NextToken"):
                break
            asked["NextToken"] = answer["NextToken"]
    old = cluster.deadline is not None and cluster.deadline < now - KEPT
    return events, f"it keeps events for {KEPT / 86400:.0f} days" if old else ""


def _read_event(event: dict[str, Any]) -> Iterator[StateChange]:
    """What one of CloudTrail's events says of each machine; nothing of a call that failed, or came
    when the machine was ending already."""
    name = str(event.get("EventName", ""))
    with suppress(ValueError, AttributeError, LookupError, TypeError):
        when, said = event["EventTime"].timestamp(), json.loads(event["CloudTrailEvent"])
        if name not in (*ENDS, STOP, START) or said.get("errorCode"):
            return
        for machine in (said.get("serviceEventDetails") or {}).get("instanceIdSet", ()):
            yield StateChange(machine, name, when)
        # AWS leaves out long answers.
        for part in (said.get("responseElements"), said.get("requestParameters")):
            if items := ((part or {}).get("instancesSet") or {}).get("items", ()):
                for item in items:
                    if (item.get("previousState") or {}).get("name") not in BEFORE:
                        yield StateChange(item["instanceId"], name, when)
                return
