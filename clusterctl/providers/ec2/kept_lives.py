"""The lives of what an `up` removes that is on no record: EC2 shows them for about an hour, and the
command may be killed before it notes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from clusterctl.charge_model import GATEWAY
from clusterctl.model import Cluster
from clusterctl.providers.ec2 import lives, tagged_resources
from clusterctl.providers.ec2.answers import LIVING
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.tags import filter_by_cluster
from clusterctl.providers.protocol import Life
from clusterctl.providers.resources import Resource
from clusterctl.state.home import write_atomic

FILE = Path("ec2", "lives.json")
"""In the cluster's folder."""


def load(folder: Path) -> tuple[Life, ...]:
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=tuple[Life, ...])
    except (OSError, msgspec.DecodeError):
        return ()


def add(folder: Path | None, shown: Iterable[Life]) -> tuple[Life, ...]:
    """What EC2 shows, and before that what is kept and it does not show any more."""
    shown = tuple(shown)
    there = {(life.node, life.since) for life in shown}
    kept = load(folder) if folder else ()
    return (*(life for life in kept if (life.node, life.since) not in there), *shown)


def keep(
    api: Api,
    cluster: Cluster,
    folder: Path,
    is_known: Callable[[Resource], bool],
    clock: Callable[[], float] = time.time,
) -> None:
    """Keeps the lives of what is there and not known, which ends now: before it is removed. Again
    afterwards, with the ends that EC2 tells. Raises ProviderError."""
    now, search = clock(), [filter_by_cluster(cluster.id)]
    kept = {(life.node, life.since): life for life in load(folder)}
    for item in api.list_instances(*search, states=LIVING):
        if item.node and not is_known(Resource("instance", item.id)):
            kept[item.node, item.launched] = Life(item.node, item.launched, item.ended or now)
    if any(item.part == GATEWAY for item in cluster.charges):
        for row in api.list_all("describe_nat_gateways", "NatGateways", Filter=search):
            known = is_known(Resource(tagged_resources.GATEWAY, row["NatGatewayId"]))
            if row["State"] == "available" and not known:
                since = row["CreateTime"].timestamp()
                kept[GATEWAY, since] = Life(GATEWAY, since, now)
    if not kept:
        return
    for life in lives.list_lives(api, cluster):
        if life.until is not None and (life.node, life.since) in kept:
            kept[life.node, life.since] = life
    with suppress(OSError):
        (folder / FILE).parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(folder / FILE, msgspec.json.encode(tuple(kept.values())))
