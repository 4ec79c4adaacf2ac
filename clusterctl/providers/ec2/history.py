"""When machines ended that EC2 no longer shows, by CloudTrail's event history.

EC2 shows a machine for about an hour after its end. The event history is on in every account, costs
nothing, and keeps the calls of 90 days in each region: CloudTrail User Guide, "Working with
CloudTrail event history"; API Reference, LookupEvents (two lookups a second). An interrupted spot
instance has a BidEvictedEvent: EC2 User Guide, "Determine whether Amazon EC2 terminated a Spot
Instance". A machine that shut itself down, at its deadline or because nobody used it, has none.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from clusterctl.errors import ProviderError, describe_reason
from clusterctl.model import Cluster, Phase
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.protocol import Ended
from clusterctl.state.home import write_atomic
from clusterctl.timeouts import Deadline

LATE = 900.0
"""Seconds that an event may be missing. AWS says "about 5 minutes" on average, and guarantees
nothing (CloudTrail User Guide, "Getting and viewing your CloudTrail log files"); it once said 15.
"""
KEPT = 90 * 86400.0
LOOKUPS, SECONDS = 20, 20.0
"""At most, for one cluster."""
FEW = 5
"""Machines that are asked about one by one at once. Of more, the calls of the whole account are
read first, with half of the lookups."""
FOR_EVICTIONS = 5
"""Lookups that are left for what EC2 itself has ended in the whole account."""
SURELY = 3600.0
"""Seconds after the deadline until nothing ends a machine any more."""
ENDS = ("TerminateInstances", "BidEvictedEvent")
STOP, START = "StopInstances", "StartInstances"
BEFORE = ("shutting-down", "terminated")
"""States of a machine that a call does not end any more."""

FILE = Path("ec2", "ends.json")
"""In the cluster's folder: the ends that are certain, by machine."""

End = tuple[float | None, float | None]
"""When a machine ended, and since when it had been stopped by then."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """What has happened to one machine, and when."""

    machine: str
    name: str
    when: float


def list_forgotten(
    api: Api, cluster: Cluster, now: float, shown: Collection[str], folder: Path | None = None
) -> dict[str, Ended]:
    """The ends of the machines on record that EC2 does not show any more; `shown`: the nodes that
    it shows. What is certain is kept in the cluster's `folder`, and not asked for again."""
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
    known = _load(folder)
    asked = missing.keys() - known.keys()
    look = _Look(api, cluster, asked, now)
    if asked:
        look.find_events()
    latest = min(now, cluster.deadline or now)
    found, new = {}, {}
    for machine, name in missing.items():
        end, ran = known.get(machine) or look.read_life(machine)
        told = machine in known or machine in look.told
        if end is None and name not in planned:
            continue
        last = latest if end is None else end
        if machine in asked and told and now >= last + LATE:
            new[machine] = (last, ran if end is None or ran is not None else end)
        if end is None:
            late = "its events may be late, and a machine that shut itself down has none"
            doubt = look.why if not told else late if now < latest + LATE else ""
            found[name] = Ended(latest, ran=ran, doubt=doubt)
        elif end >= planned.get(name, 0.0):
            found[name] = Ended(end, ran=end if ran is None and machine in asked else ran)
    _keep(folder, known, new)
    return found


def _load(folder: Path | None) -> dict[str, End]:
    try:
        data = (folder / FILE).read_bytes() if folder else b"{}"
        return msgspec.json.decode(data, type=dict[str, End])
    except (OSError, msgspec.DecodeError):
        return {}


def _keep(folder: Path | None, known: Mapping[str, End], new: Mapping[str, End]) -> None:
    if not folder or not new:
        return
    with suppress(OSError):  # it is asked for again
        (folder / FILE).parent.mkdir(mode=0o700, exist_ok=True)  # not that of a removed cluster
        write_atomic(folder / FILE, msgspec.json.encode({**known, **new}))


@dataclass
class _Look:
    """One command's lookups for the machines of a cluster."""

    api: Api
    cluster: Cluster
    machines: Collection[str]
    now: float
    told: set[str] = field(default_factory=set)
    """Machines of which all events are known."""
    why: str = ""
    """Why those of the others are not."""
    _events: list[StateChange] = field(default_factory=list)
    _left: int = LOOKUPS
    _end: Deadline = field(default_factory=lambda: Deadline(SECONDS))

    def read_life(self, machine: str) -> End:
        ran: float | None = None
        mine = [event for event in self._events if event.machine == machine]
        for event in sorted(mine, key=lambda event: event.when):
            if event.name in ENDS:
                return event.when, ran
            if event.name == START:
                ran = None
            elif ran is None:
                ran = event.when
        return None, ran

    def find_events(self) -> None:
        """A call that has ended many machines is one event."""
        until = min(self.now, (self.cluster.deadline or self.now) + SURELY)
        if until <= self.now - KEPT:
            self.why = f"it keeps events for {KEPT / 86400:.0f} days"
            return
        kept = FOR_EVICTIONS if self.cluster.spec.cloud.spot else 0
        asked: set[str] = set()
        sure = False
        try:
            if not self._ask_by_call(asked, until):
                self._ask_one_by_one(asked, kept)
            # AWS's documents do not say that these are found by the machines' ids.
            spot = kept and self._list_open()
            sure = not spot or self._ask("EventName", ENDS[1], until=until)
        except ProviderError as error:
            self.why = describe_reason(error)
        self.told = asked if sure or not kept else asked.difference(self._list_open())
        tried = LOOKUPS - self._left
        self.why = self.why or f"{tried} lookups did not suffice; the next command goes on"

    def _list_open(self) -> list[str]:
        ended = {event.machine for event in self._events if event.name in ENDS}
        return sorted(set(self.machines) - ended)

    def _ask_by_call(self, asked: set[str], until: float) -> bool:
        """About all machines, if the account has few enough such calls."""
        if len(self.machines) <= FEW:
            return False
        calls, kept = (ENDS[0], STOP, START), LOOKUPS // 2
        whole = all(self._ask("EventName", name, kept, until) for name in calls)
        asked.update(self.machines if whole else ())
        return whole

    def _ask_one_by_one(self, asked: set[str], kept: int) -> None:
        for machine in sorted(self.machines):
            if machine in self._list_open() and not self._ask("ResourceName", machine, kept):
                break
            asked.add(machine)

    def _ask(self, key: str, value: str, kept: int = 0, until: float | None = None) -> bool:
        """Whether all pages were read. `kept`: lookups for later questions."""
        asked: dict[str, Any] = {
            "LookupAttributes": [{"AttributeKey": key, "AttributeValue": value}],
            "StartTime": _read_time(max(self.cluster.created, self.now - KEPT)),
            **({} if until is None else {"EndTime": _read_time(until)}),
        }
        while self._left > kept and not self._end.passed:
            self._left -= 1
            _take_turn(self.api.region)
            answer = self.api.call("lookup_events", "cloudtrail", **asked)
            for event in answer.get("Events", ()):
                found = _read_event(event)
                self._events += (one for one in found if one.machine in self.machines)
            if not answer.get("NextToken"):
                return True
            asked["NextToken"] = answer["NextToken"]
        return False


def _read_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


_turns: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2))
"""When the last two lookups were made in each region."""
_taking = threading.Lock()


def _take_turn(region: str) -> None:
    """Two lookups a second, of all clusters that are asked about at the same time."""
    with _taking:
        now, last = time.monotonic(), _turns[region]
        mine = max(now, last[0] + 1.0) if len(last) == 2 else now
        last.append(mine)
    time.sleep(mine - now)


def _read_event(event: dict[str, Any]) -> Iterator[StateChange]:
    """What one of CloudTrail's events says of each machine; nothing of a call that failed, or came
    when the machine was ending already."""
    name = str(event.get("EventName", ""))
    with suppress(ValueError, AttributeError, LookupError, TypeError):
        when, said = event["EventTime"].timestamp(), json.loads(event["CloudTrailEvent"])
        if name not in (*ENDS, STOP, START) or said.get("errorCode"):
            return
        for machine in _list_machines(event, said):
            yield StateChange(machine, name, when)


def _list_machines(event: dict[str, Any], said: dict[str, Any]) -> list[str]:
    """AWS leaves out long parts, or says so in their place."""
    if machines := _find(said, "serviceEventDetails", "instanceIdSet"):
        return list(machines)
    for part in ("responseElements", "requestParameters"):
        if items := _find(said, part, "instancesSet", "items"):
            return [
                item["instanceId"]
                for item in items
                if _find(item, "previousState", "name") not in BEFORE
            ]
    return [str(item.get("ResourceName", "")) for item in event.get("Resources", ())]


def _find(said: Any, *keys: str) -> Any:
    for key in keys:
        said = said.get(key) if isinstance(said, dict) else None
    return said
