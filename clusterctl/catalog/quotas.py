"""The limits of EC2 on vCPUs, and what counts towards each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """An EC2 limit in vCPUs. `families` are the beginnings of instance types that it counts;
    `spot_name` is what the limit of their spot instances is called, where that differs; its code is
    "" where we do not know it."""

    name: str
    on_demand: str
    spot: str
    families: tuple[str, ...]
    spot_name: str = ""


QUOTAS = (
    Quota("G and VT", "L-DB2E81BA", "L-3819A6DF", ("g", "vt")),
    Quota("P", "L-417A185B", "L-7212CCBC", ("p2", "p3", "p4", "p6")),
    Quota("P", "L-417A185B", "L-C4BD4855", ("p5",), "P5"),
    Quota("DL", "L-6E869C2A", "L-85EED4F7", ("dl",)),
    Quota("Trn", "L-2C3B7624", "L-6B0D517C", ("trn",)),
    Quota("Inf", "L-1945791B", "L-B5D1601B", ("inf",)),
    Quota("HPC", "L-F7808C92", "", ("hpc",)),
    Quota("F", "L-74FC7D96", "L-88CF9481", ("f",)),
    Quota("X", "L-7295265B", "L-E3A00192", ("x",)),
    Quota("High Memory", "L-43DA4232", "", ("u-", "u7")),
    Quota(
        "Standard (A, C, D, H, I, M, R, T, Z)",
        "L-1216C47A",
        "L-34B43A08",
        ("a", "c", "d", "h", "i", "m", "r", "t", "z"),
    ),
)
"""The first row that fits an instance type is its own. Codes as `aws service-quotas
list-service-quotas --service-code ec2` prints them; hpc and u types are never spot instances. Some
accounts have no quota of P5's own any more: L-7212CCBC counts all of P there."""


def find_quota(instance_type: str) -> Quota | None:
    """The limit that an instance type counts towards, as far as we know it."""
    if instance_type.startswith("mac"):
        return None  # whole hosts
    return next((row for row in QUOTAS if instance_type.startswith(row.families)), None)
