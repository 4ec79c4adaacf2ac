"""`image ami`: a machine image of one's own, made by a cluster of one worker that goes again."""

from __future__ import annotations

import re
import secrets

from msgspec.structs import replace

from clusterctl import process
from clusterctl.actions import costs, up_plan
from clusterctl.actions.common import Unfetched, open_pool
from clusterctl.actions.down import take_down
from clusterctl.actions.up import bring_up
from clusterctl.core import catalog
from clusterctl.core.model import (
    CloudSpec,
    Cluster,
    ClusterSpec,
    Consent,
    NodeGroup,
    Reporter,
    Runtime,
)
from clusterctl.errors import ClusterctlError, ProviderError, UsageError
from clusterctl.machines import providers
from clusterctl.machines.protocol import MAKES_IMAGE, SavedImage
from clusterctl.options.kinds import EC2
from clusterctl.state.store import Store

KINDS = ("nvidia", "cpu", "amd")
_MAKES = re.compile(rf"{MAKES_IMAGE}({'|'.join(KINDS)})-[0-9a-f]{{6}}")
TTL = 3 * 3600.0
"""Seconds until the machines end themselves, should nobody remove them: an hour to install, and one
for EC2 to copy the disk."""
FORGET_LIMIT = 120.0
SMALLEST = {"cpu": "c7i.large"}
"""Beside its launcher that fits the 5 vCPUs of a new account."""


def report_left(store: Store, report: Reporter) -> None:
    """Says which clusters another `image ami` uses, or has left: it may have been killed."""
    for old in store.list_clusters():
        if found := _MAKES.fullmatch(old.name):
            report(
                f"cluster {old.name} of another `image ami {found[1]}` is still there,"
                f" {costs.describe_bill(old)}: `clusterctl down {old.name}` removes it"
            )


def list_images(region: str) -> tuple[SavedImage, ...]:
    cloud = providers.load_cloud()
    return cloud.list_saved(region or cloud.find_usual_region())


def remove_images(
    kind: str, region: str, report: Reporter, consent: Consent, *, everyones: bool = False
) -> tuple[SavedImage, ...]:
    """Removes those for that kind of workers, and with `everyones` also those that other users of
    the account have made. Raises UsageError for no."""
    cloud = providers.load_cloud()
    region = region or cloud.find_usual_region()
    found = tuple(image for image in cloud.list_saved(region) if image.kind == kind)
    mine = cloud.find_owner() if found and not everyones else ""
    theirs = [image for image in found if mine and image.owner not in ("", mine)]
    for image in theirs:
        report(f"keeping {image.name} of {image.owner}: --everyones removes it too")
    found = tuple(image for image in found if image not in theirs)
    names = ", ".join(f"{image.name} ({image.id})" for image in found)
    if found and not consent(f"remove {names}?"):
        raise UsageError("aborted; nothing was removed")
    for image in found:
        cloud.remove_saved(image, region, report)
    return found


def make_image(
    store: Store,
    kind: str,
    *,
    runtime: Runtime | None,
    cloud: CloudSpec,
    report: Reporter,
    consent: Consent,
) -> SavedImage:
    """The image that new workers of that kind are made from: the one there is, else a new one.
    Whatever happens, no machine and no half of an image stays."""
    aws = providers.load_cloud()
    region = cloud.region or aws.find_usual_region()
    family = next(row.name for row in catalog.FAMILIES.values() if row.image == kind)
    spec = ClusterSpec(
        name=f"{MAKES_IMAGE}{kind}-{secrets.token_hex(3)}",
        provider=EC2.owner,
        groups=(NodeGroup(count=1, family=family, instance_type=SMALLEST.get(kind, "")),),
        ttl=TTL,
        runtime=runtime,
        cloud=replace(cloud, region=region),
    )
    name = aws.name_saved(up_plan.complete(spec, None), kind)
    for image in aws.list_saved(region):
        if image.name != name:
            continue
        if image.state in ("available", "pending"):
            report(f"{name} is {image.state} already")
            _report_price(image, report)
            return image
        aws.remove_saved(image, region, report)
    with process.handle_signals() as ignore:
        try:
            try:
                made = bring_up(store, spec, report, consent).cluster
            except ClusterctlError as error:
                if spec.name in (error.hint or ""):  # which is removed
                    error.hint = f"fix the problem, then run `clusterctl image ami {kind}` again"
                raise
            _forget(store, made)
            image = aws.save_image(made, store.locate_folder(made.name), name, kind, report)
            _report_price(image, report)  # before machines are removed, which may fail
            return image
        finally:
            ignore()
            if spec.name in store.list_names():
                discard = Unfetched(discard=True)
                take_down(store, spec.name, report, lambda question: True, discard, force=True)


def _report_price(image: SavedImage, report: Reporter) -> None:
    price = "an unknown price" if image.monthly is None else f"${image.monthly:.2f} at most"
    report(
        f"`up` uses {image.name} for {image.kind} workers once it is available; its snapshot costs"
        f" {price} a month, until `clusterctl image ami {image.kind} --remove`"
    )


def _forget(store: Store, cluster: Cluster) -> None:
    """Removes from the worker what is not for machines of other clusters."""
    worker = cluster.workers[0]
    script = providers.load_cloud().render_forgetting(worker)
    with open_pool(store, cluster) as pool:
        [result] = pool.run(
            "exec /bin/sh -s", [worker.name], stdin=script.encode(), timeout=FORGET_LIMIT
        )
    if not result.ok:
        raise ProviderError(
            f"{worker.name} could not be made ready for an image: {result.why}",
            hint="no image was made; run the same command again",
        )
