"""Machine images of one's own, made of a worker that `up` has set up: machines from them have
nothing to install. Each is called after what was installed, and found again by that name."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from clusterctl.core import catalog
from clusterctl.core.clock import Deadline
from clusterctl.core.model import ClusterSpec, Reporter, Runtime
from clusterctl.errors import ProviderError
from clusterctl.machines import registry
from clusterctl.machines.ec2 import prices
from clusterctl.machines.ec2.api import OWNER_TAG, TAG, Api, as_list, read_tags
from clusterctl.machines.ec2.refusals import RefusedByAws
from clusterctl.machines.protocol import SavedImage

IMAGE_TAG = "clusterctl:image"
"""The kind of nodes that an image is for."""
LIMIT = 3600.0
"""Seconds that EC2 may take to copy a disk to a snapshot."""
POLL = 5.0


def name_image(options: ClusterSpec, kind: str) -> str:
    """What the image for workers of that kind is called: with other packages, or another container
    image, it has another name."""
    host = options.runtime is Runtime.HOST
    content: object = [catalog.NODE_PACKAGES, catalog.TORCH_INDEX[kind]]
    if not host:
        chosen = catalog.choose_image(kind, options.image, options.images)
        recipe = chosen in catalog.RECIPES
        content = registry.make_tag(chosen, registry.read_downloads()) if recipe else chosen
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
    return f"clusterctl-{kind}-{'host' if host else 'docker'}-{digest}"


def list_images(api: Api) -> tuple[SavedImage, ...]:
    """Those of the account in this region, the oldest first, also unfinished ones."""
    search = [{"Name": "tag-key", "Values": [IMAGE_TAG]}]
    rows = api.list_all("describe_images", "Images", Owners=["self"], Filters=search)
    price = prices.find_quote(api, prices.SNAPSHOT).dollars if rows else None
    return tuple(sorted((_read(row, price) for row in rows), key=lambda image: image.made))


def _read(row: Mapping[str, Any], price: float | None) -> SavedImage:
    disks = [disk["Ebs"] for disk in row.get("BlockDeviceMappings", ()) if "Ebs" in disk]
    tags = read_tags(row)
    gib = sum(int(disk.get("VolumeSize", 0)) for disk in disks)
    return SavedImage(
        id=row["ImageId"],
        name=row.get("Name", ""),
        kind=tags.get(IMAGE_TAG, ""),
        state=row.get("State", ""),
        made=row.get("CreationDate", ""),
        gib=gib,
        monthly=price and price * gib,
        snapshots=tuple(disk["SnapshotId"] for disk in disks if disk.get("SnapshotId")),
        owner=tags.get(OWNER_TAG, ""),
    )


def save(
    api: Api,
    machine: str,
    name: str,
    kind: str,
    tags: Mapping[str, str],
    report: Reporter,
    sleep: Callable[[float], None] = time.sleep,
) -> SavedImage:
    """The image of that instance, once EC2 has all of it. What does not come to be is removed, also
    where somebody stops this. Raises ProviderError."""
    id = _create(api, machine, name, kind, as_list({**tags, TAG: name, IMAGE_TAG: kind}))
    report(f"EC2 copies the disk to a snapshot for {name} ({id}): this takes some minutes")
    made, end = None, Deadline(LIMIT)
    try:
        while not end.passed:
            # For some seconds, one that is new may not be shown.
            made = next((image for image in list_images(api) if image.id == id), made)
            if made and made.state != "pending":
                break
            sleep(POLL)
        if made is None or made.state != "available":
            raise ProviderError(
                f"EC2 made no machine image of {machine}: {made.state if made else 'not shown'}",
                hint="run the same command again",
            )
    except BaseException:
        remove(api, made or SavedImage(id=id, name=name, kind=kind), report)
        raise
    return made


def _create(api: Api, machine: str, name: str, kind: str, tags: list[dict[str, str]]) -> str:
    try:
        made = api.call(
            "create_image",
            InstanceId=machine,
            Name=name,
            Description=f"Ubuntu with what clusterctl installs on {kind} workers",
            TagSpecifications=[{"ResourceType": of, "Tags": tags} for of in ("image", "snapshot")],
        )
    except RefusedByAws as refused:
        # boto3 asks again where an answer is lost, and a name is given once.
        mine = [image for image in list_images(api) if image.name == name]
        if refused.code != "InvalidAMIName.Duplicate" or not mine:
            raise
        return mine[-1].id
    return str(made["ImageId"])


def remove(api: Api, image: SavedImage, report: Reporter) -> None:
    """With its snapshots. Machines that run are not affected. Raises ProviderError."""
    snapshots = set(image.snapshots)
    with suppress(ProviderError):  # they may have come meanwhile
        known = next((one for one in list_images(api) if one.id == image.id), image)
        snapshots |= set(known.snapshots)
    _ignore_gone(api, "deregister_image", ImageId=image.id)
    for snapshot in sorted(snapshots):
        _ignore_gone(api, "delete_snapshot", SnapshotId=snapshot)
    report(f"removed machine image {image.name} ({image.id}) and its snapshot")


def _ignore_gone(api: Api, action: str, **what: str) -> None:
    try:
        api.call(action, **what)
    except RefusedByAws as refused:
        if not refused.code.endswith((".NotFound", ".Unavailable")):
            raise
