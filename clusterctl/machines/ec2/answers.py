"""What AWS's answers say, as values: instance types, images, instances, prices, clocks. Pure."""

from __future__ import annotations

import calendar
import json
import math
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

_DRAWN = re.compile(r"/[A-Za-z-]*\d{9,}$")
"""The name of a session that an SDK has made up from the time."""


def name_owner(arn: str) -> str:
    """Who that is, as a tag may have it: `user/ana`, `assumed-role/Train/ana@example.org`."""
    who = _DRAWN.sub("", arn.split(":", 5)[-1])
    return re.sub(r"[^\w +=.:/@-]", "_", who)[:256]


_MARKETS, _ROOT, _EFA = ("on-demand", "spot"), "/dev/sda1", "efa"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """What EC2 says about a type. `gpu_maker` and `gpu`, what they are called, are empty without
    GPUs."""

    name: str
    vcpus: int
    gpus: int = 0
    gpu_maker: str = ""
    gpu: str = ""
    clusters: bool = False
    """Whether it may be in a cluster placement group."""
    efa: tuple[str, ...] = ()
    """What the interface of each network card is where Elastic Fabric Adapters are used, as
    infra/ec2 has it; () without any."""
    architectures: tuple[str, ...] = ("x86_64",)
    markets: tuple[str, ...] = _MARKETS
    """How it can be bought; also `capacity-block`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A machine image. `disk`: the size in GiB of its root snapshot, which a disk has to hold;
    `device`: what the root disk is called; `windows`: what it runs; `platform`: what is billed for
    its system; `owner`: an account, or `amazon`."""

    id: str
    architecture: str = "x86_64"
    disk: int = 0
    device: str = _ROOT
    windows: bool = False
    name: str = ""
    description: str = ""
    platform: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance. `node` is the value of its tag; `address` is empty without a public one."""

    id: str
    node: str
    type: str
    state: str
    zone: str
    address: str
    private_address: str
    launched: float
    spot: bool = False
    subnet: str = ""
    ended: float | None = None
    """When it stopped or was terminated, if EC2 says so."""
    born: float | None = None
    """When its first disk was attached: `launched` is when it was started last."""
    why: str = ""
    """EC2's code for that, such as Server.SpotInstanceTermination, else who did it."""
    shared: str = ""
    """The folder that it shares with the other nodes of its cluster."""


LIVING = ("pending", "running", "stopping", "stopped", "shutting-down")
STOPPED = ("stopping", "stopped")
ENDED = ("shutting-down", "terminated")


def find_highest_price(texts: Iterable[str], usage: str = "") -> float | None:
    """In US dollars, of rows of AWS's price list whose type of usage ends so; None without any.
    Raises ValueError for what is no such row."""
    try:
        prices = [
            float(dimension["pricePerUnit"]["USD"])
            for text in texts
            for row in (json.loads(text),)
            if row.get("product", {}).get("attributes", {}).get("usagetype", "").endswith(usage)
            for term in row.get("terms", {}).get("OnDemand", {}).values()
            for dimension in term["priceDimensions"].values()
            if "USD" in dimension.get("pricePerUnit", {})
        ]
    except (AttributeError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return max((price for price in prices if 0 < price < math.inf), default=None)


def read_skew(response: Any) -> float:
    """Seconds that this machine's clock is ahead of that of whoever answered."""
    sent = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return time.time() - parsedate_to_datetime(sent).timestamp()
    except (TypeError, ValueError):
        return 0.0


def read_instance_type(item: dict[str, Any]) -> InstanceType:
    gpus = item.get("GpuInfo", {}).get("Gpus", ())
    return InstanceType(
        name=item["InstanceType"],
        vcpus=int(item["VCpuInfo"]["DefaultVCpus"]),
        gpus=sum(int(gpu.get("Count", 1)) for gpu in gpus),
        gpu_maker=gpus[0].get("Manufacturer", "") if gpus else "",
        gpu=gpus[0].get("Name", "") if gpus else "",
        clusters="cluster" in item.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
        efa=_choose_efa_cards(item.get("NetworkInfo", {})),
        architectures=tuple(item.get("ProcessorInfo", {}).get("SupportedArchitectures", ())),
        markets=tuple(item.get("SupportedUsageClasses", _MARKETS)),
    )


def _choose_efa_cards(network: dict[str, Any]) -> tuple[str, ...]:
    """The first card has an address of its own, and the others none: with many they would use up a
    subnet, and confuse Linux about the way back. Source: EC2 User Guide, "Maximize network
    bandwidth on Amazon EC2 instances with multiple network cards"."""
    if not network.get("EfaSupported"):
        return ()
    cards = sorted(network.get("NetworkCards", ()), key=lambda card: int(card["NetworkCardIndex"]))
    # Without a word about a card, it has what its type has.
    can = [_EFA in card.get("InterfaceTypes", (_EFA,)) for card in cards] or [True]
    others = [f"{_EFA}-only" for card in can[1:] if card]
    most = int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", len(can)))
    return (_EFA if can[0] else "interface", *others[: most - can[0]])


def read_image(item: dict[str, Any]) -> Image:
    root = item.get("RootDeviceName", "")
    disks = [
        int(disk["Ebs"].get("VolumeSize", 0))
        for disk in item.get("BlockDeviceMappings", ())
        if disk.get("DeviceName") == root and "Ebs" in disk
    ]
    return Image(
        id=item["ImageId"],
        architecture=item.get("Architecture", "x86_64"),
        disk=max(disks, default=0),
        device=root or _ROOT,
        windows=item.get("Platform", "") == "windows",
        name=item.get("Name", ""),
        description=item.get("Description", ""),
        platform=item.get("PlatformDetails", ""),
        owner=item.get("ImageOwnerAlias") or item.get("OwnerId", ""),
    )


def _read_end(reason: str) -> float | None:
    """`User initiated (2026-11-22 21:30:00 GMT)`, or `Service initiated`; else there is no time."""
    found = re.search(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)", reason)
    with suppress(ValueError):
        return calendar.timegm(time.strptime(found[1], "%Y-%m-%d %H:%M:%S")) if found else None
    return None


def read_instance(item: dict[str, Any]) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    launched = item.get("LaunchTime")
    reason = str(item.get("StateTransitionReason", ""))
    disks = [disk.get("Ebs", {}) for disk in item.get("BlockDeviceMappings", ())]
    return Instance(
        id=item["InstanceId"],
        node=tags.get("clusterctl:node", ""),
        shared=tags.get("clusterctl:shared", ""),
        type=item.get("InstanceType", ""),
        state=item["State"]["Name"],
        zone=item.get("Placement", {}).get("AvailabilityZone", ""),
        address=item.get("PublicIpAddress", ""),
        private_address=item.get("PrivateIpAddress", ""),
        launched=launched.timestamp() if launched else 0.0,
        spot=item.get("InstanceLifecycle") == "spot",
        subnet=item.get("SubnetId", ""),
        ended=_read_end(reason),
        born=min((d["AttachTime"].timestamp() for d in disks if "AttachTime" in d), default=None),
        why=item.get("StateReason", {}).get("Code", "") or reason.partition(" (")[0],
    )
