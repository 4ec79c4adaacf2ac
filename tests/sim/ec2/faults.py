"""What goes wrong on request.

A fault is a mapping with a `kind`; the others of its fields say where it applies.

| kind | fields | what happens |
|---|---|---|
| `error` | `action`, `code`, `message`, `status`, and those of `ice` | that call fails |
| `ice` | `zone`, `instance_type`, `market`, `node`, `calls` | no capacity for RunInstances |
| | `others` | the zones that its message says have some |
| `throttle` | `action`, `calls` | RequestLimitExceeded, 503 |
| `status500` | `action`, `calls` | InternalError, 500 |
| `expired` | `calls` | every call: ExpiredToken (EC2: RequestExpired) |
| `delay` | `action`, `seconds`, `calls` | the call takes that much longer |
| `price` | `instance_type`, `value` | USD an hour; null: the pricing API knows no price |
| `free_plan` | | the account is on the free plan, which has few types |
| `never_boot` | `node` | the instance runs, its machine never starts |
| `late` | `seconds` | what is new is unknown by its id and found by no tag for so long |
| `slow_end` | `seconds` | instances take that long to end, and hold their network meanwhile |
| `slow_gateway` | `seconds`, `kept` | new NAT gateways are `pending` so long (`kept`: and stay) |
| `slow_endpoint` | `seconds` | new Instance Connect endpoints are `create-in-progress` so long |
| `short_tunnels` | `seconds` | their connections last so long at most |
| `tunnel` | `calls` | they refuse a connection |
| `spot_notice` | `node`, `seconds` | its metadata announce the end, `seconds` (120) later |

`calls` is how often it applies (default: for ever). A field that is left out applies to all.
`market` is `spot` or `on-demand`.
`node` is the value of an instance's tag `clusterctl:node`, its `Name` or its id.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tests.sim.ec2.wire import ApiError

_SERVER_SIDE = {
    "ice": (
        "RunInstances",
        "InsufficientInstanceCapacity",
        "We currently do not have sufficient {type} capacity in the Availability Zone you "
        "requested ({zone}). Our system will be working on provisioning additional capacity.",
        500,
    ),
    "throttle": ("", "RequestLimitExceeded", "Request limit exceeded.", 503),
    "status500": ("", "InternalError", "An internal error has occurred", 500),
    "expired": ("", "RequestExpired", "Request has expired.", 400),
}
"""Kind → action (empty: as the fault says, or any), code, message, HTTP status."""

_OTHER_WORDS = {
    "RequestLimitExceeded": "ThrottlingException",
    "RequestExpired": "ExpiredTokenException",
}
"""The same in the services that speak JSON. STS says ExpiredToken."""


@dataclass(frozen=True)
class Where:
    """What a call or a machine is about."""

    action: str = ""
    zone: str = ""
    instance_type: str = ""
    market: str = ""
    names: frozenset[str] = frozenset()


@dataclass
class Faults:
    _all: list[dict[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: dict[str, Any]) -> None:
        with self._lock:
            self._all.append(dict(fault))

    def clear(self) -> None:
        with self._lock:
            self._all.clear()

    def known(self, kind: str) -> bool:
        """Whether there is one, wherever it applies."""
        with self._lock:
            return any(fault["kind"] == kind for fault in self._all)

    def take(self, *kinds: str, where: Where) -> dict[str, Any] | None:
        """The newest fault that applies here; counts as one of its calls."""
        with self._lock:
            for fault in reversed(self._all):
                if fault["kind"] in kinds and _applies(fault, where):
                    if "calls" in fault:
                        fault["calls"] -= 1
                    return fault
        return None

    def check(self, service: str, where: Where) -> None:
        """Raises what this call is to fail with."""
        fault = self.take("error", *_SERVER_SIDE, where=where)
        if fault is None:
            return
        _, code, message, status = _SERVER_SIDE.get(fault["kind"], ("", "", "", 400))
        code = fault.get("code", code)
        if service not in ("ec2", "sts"):
            code = _OTHER_WORDS.get(code, code)
            status = 400 if status == 503 else status
        elif service == "sts" and code == "RequestExpired":
            code, status = "ExpiredToken", 403
        message = fault.get("message", message) or code
        if "others" in fault:  # ray issue 57206
            message += (
                " You can currently get {type} capacity by not specifying an Availability Zone in"
                f" your request or choosing {fault['others']}."
            )
        message = message.replace("{type}", where.instance_type).replace("{zone}", where.zone)
        raise ApiError(code, message, fault.get("status", status))


def _applies(fault: dict[str, Any], where: Where) -> bool:
    action = fault.get("action") or _SERVER_SIDE.get(fault["kind"], ("",))[0]
    return (
        fault.get("calls", 1) > 0
        and action in ("", where.action)
        and fault.get("zone") in (None, where.zone)
        and fault.get("instance_type") in (None, where.instance_type)
        and fault.get("market") in (None, where.market)
        and (fault.get("node") is None or fault["node"] in where.names)
    )
