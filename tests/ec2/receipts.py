"""What `down` says that clusters have cost, against what the simulated AWS charges for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clusterctl.core.model import NETWORK_PARTS, Charge

LATE = 30.0
"""Seconds for each start and end. AWS tells times in whole seconds, a disk goes with its machine
without a time of its own, and on a busy machine the simulator removes it up to ten seconds later.
They cost less than half a cent for every type that the tests use."""

PLANNED = 240.0
"""Seconds for a NAT gateway: it counts from the plan on, and until everything is removed."""

SHUTDOWN = 120.0
"""The same for full machines that end unused: the receipt has the time at which they were told to,
and they are billed until their services have stopped (docs/money.md). systemd allows those 90 s."""

CENT, FEW = 0.01, 10
"""US dollars by which the whole receipt of a cluster with so few machines may differ."""

ROUNDING = 1e-9

BY_TERRAFORM = "standalone"
"""The cluster that a test makes with the Terraform module alone: nobody writes a receipt of it."""


def differences(home: Path, bill: Sequence[dict[str, Any]], late: float = LATE) -> list[str]:
    """One line for each part of a machine that is not charged for as the receipt has it, and for
    each cluster without one. `home`: where clusterctl keeps its records. `late`: seconds for each
    start and end."""
    charges: dict[str, list[Charge]] = {}
    for path in (home / "past").glob("*/cluster.json"):
        record = json.loads(path.read_text())
        charges[record["id"]] = [msgspec.convert(item, Charge) for item in record["charges"]]
    billed: dict[str, list[dict[str, Any]]] = {}
    for use in bill:
        if use["cluster"] not in ("", BY_TERRAFORM) and use["node"]:  # tests make others by hand
            billed.setdefault(use["cluster"], []).append(use)
    found = [f"{id}: no receipt" for id in billed if id not in charges]
    for id, mine in charges.items():
        found += [f"{id}: {line}" for line in _compare(mine, billed.get(id, []), late)]
    return found


def _compare(
    charges: Sequence[Charge], uses: Sequence[dict[str, Any]], late: float
) -> Iterator[str]:
    """By part of a node: the time that was counted, and what it costs."""
    yield from (f"{use['node']} has unlimited CPU credits" for use in uses if _surplus(use))
    whole, bill = (
        sum(item.compute_dollars(0.0) for item in charges),
        sum(u["dollars"] for u in uses),
    )
    exact = all(item.hourly is not None for item in charges)  # else the receipt says "at least"
    slower = (late - LATE) / 3600 * sum(item.hourly or 0.0 for item in charges)
    seen = not any(item.unseen for item in charges)
    few = len({use["node"] for use in uses}) <= FEW
    if exact and seen and few and abs(whole - bill) > CENT + slower:
        yield f"${whole:.4f} on the receipt, ${bill:.4f} on the bill"
    parts = {(item.node, item.part) for item in charges} | {(u["node"], u["part"]) for u in uses}
    for node, part in sorted(parts):
        said = [item for item in charges if (item.node, item.part) == (node, part)]
        real = [use for use in uses if (use["node"], use["part"]) == (node, part)]
        apart = (PLANNED if part in NETWORK_PARTS else late) * max(len(said), len(real))
        seconds = sum((item.until or 0.0) - item.since for item in said)
        counted = sum(use["seconds"] for use in real)
        dollars = sum(item.compute_dollars(0.0) for item in said)
        charged = sum(use["dollars"] for use in real)
        hourly = max((item.hourly or 0.0 for item in said), default=0.0)
        known = all(item.hourly is not None for item in said)
        cents = apart * hourly / 3600 + ROUNDING
        if any(item.unseen for item in said):  # the most that it can be
            wrong = seconds < counted - apart or (known and dollars < charged - cents)
        else:
            wrong = abs(seconds - counted) > apart or (known and abs(dollars - charged) > cents)
        if wrong:
            yield (
                f"{node} {part}: {len(said)} on the receipt, {seconds:.1f} s, ${dollars:.6f};"
                f" {len(real)} on the bill, {counted:.1f} s, ${charged:.6f}"
            )


def _surplus(use: dict[str, Any]) -> bool:
    return bool(use["unlimited"]) and use["node"] != "launcher"
