"""What Terraform says while it runs: lines of `-json` in, typed events out. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import ProviderError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChange:
    """One resource: `state` is start, progress, complete or errored; `seconds` since its start."""

    address: str
    action: str
    state: str
    seconds: float = 0.0
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """What Terraform complains about. `address` may be empty."""

    summary: str
    detail: str = ""
    address: str = ""
    severity: str = "error"

    @property
    def text(self) -> str:
        where = f"{self.address}: " if self.address else ""
        return f"{where}{self.summary}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """What a plan is going to do to one resource: `action` is create, update, delete, replace …"""

    address: str
    action: str
    reason: str = ""

    @property
    def destroys(self) -> bool:
        return self.action in ("delete", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    values: Mapping[str, Any]


Event = ResourceChange | PlannedChange | Diagnostic | Outputs


class TerraformError(ProviderError):
    """Terraform ended with an error. `diagnostics` are what it said, for those who know better."""

    def __init__(self, message: str, *, hint: str = "", diagnostics: tuple[Diagnostic, ...] = ()):
        super().__init__(message, hint=hint)
        self.diagnostics = diagnostics


def parse_event(line: bytes) -> Event | None:
    """One line of `-json` output; None for what says nothing to us, and for what is no event, such
    as a line that was cut off."""
    try:
        return _read_event(json.loads(line))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _read_event(event: Any) -> Event | None:
    kind = event["type"]
    if kind == "diagnostic":
        said = event["diagnostic"]
        return Diagnostic(
            summary=said.get("summary", ""),
            detail=said.get("detail", ""),
            address=said.get("address", ""),
            severity=said.get("severity", "error"),
        )
    if kind == "outputs":
        outputs = event.get("outputs", {})
        return Outputs(values={name: item.get("value") for name, item in outputs.items()})
    if kind == "planned_change":
        change = event["change"]
        return PlannedChange(
            address=change["resource"]["addr"],
            action=change["action"],
            reason=change.get("reason", ""),
        )
    if kind in ("apply_start", "apply_progress", "apply_complete", "apply_errored"):
        hook = event["hook"]
        return ResourceChange(
            address=hook["resource"]["addr"],
            action=hook.get("action", ""),
            state=kind.removeprefix("apply_"),
            seconds=float(hook.get("elapsed_seconds", 0)),
            id=hook.get("id_value", ""),
        )
    return None


def find_first_line(text: str) -> str:
    """What is wrong. A line that only announces it (`…:`) brings the first error along."""
    lines = [line.strip("╷│╵ ") for line in text.splitlines()]
    first, *rest = list(filter(None, lines)) or ["it printed nothing"]
    errors = [line for line in rest if line.startswith("Error:")] or rest
    return " ".join((first, *errors[:1])) if first.endswith(":") else first
