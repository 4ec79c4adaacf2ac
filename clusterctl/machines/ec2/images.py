"""Machine images: the newest of each kind, or the one of --ami, looked at before it costs money."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterctl.core import catalog
from clusterctl.core.model import ClusterSpec
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2.api import Api, Image
from clusterctl.machines.ec2.spec import PlannedMachine
from clusterctl.machines.protocol import LAUNCHER

_FREE = "Linux/UNIX"
"""What `PlatformDetails` says where the system costs nothing, whichever Linux it is:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-info-fields.html"""

_ALLOWED = (
    "images that your account does not allow are not shown: `aws ec2 get-allowed-images-settings`"
)
"""Source: EC2 User Guide, "Allowed AMIs"."""

_OTHERS = {
    r"\bamzn2?\b|\bamzn2-|\bal20\d\d\b|amazon linux": "Amazon Linux",
    r"\brhel\b|\brhel-|red hat": "Red Hat Enterprise Linux",
    r"\bcentos\b": "CentOS",
    r"\brocky\b": "Rocky Linux",
    r"\balmalinux\b": "AlmaLinux",
    r"\bfedora\b": "Fedora",
    r"\bsuse\b|\bsles\b": "SUSE Linux",
    r"\bdebian\b": "Debian",
    r"\bbottlerocket\b": "Bottlerocket",
}
"""What the name or the description of an image says of one that has no user `ubuntu`."""


def choose_image(
    api: Api, options: ClusterSpec, machines: Sequence[PlannedMachine]
) -> dict[str, Image]:
    """The images by kind. Raises ProviderError or UsageError for one that cannot serve."""
    kinds = dict.fromkeys(machine.image for machine in machines)
    found: dict[str, str] = {}
    same: dict[catalog.MachineImage, str] = {}
    for kind in kinds:
        row = catalog.MACHINE_IMAGES[kind]
        if options.cloud.ami and kind != LAUNCHER:
            found[kind] = options.cloud.ami
        else:
            found[kind] = same.get(row) or api.find_image(row.owner, row.name)
            same[row] = found[kind]
        if not found[kind]:
            raise ProviderError(
                f"no machine image {row.name!r} of {row.owner} is in {api.region}",
                hint="choose another --region"
                + (", or name one with --ami" if kind != LAUNCHER else "")
                + f"; {_ALLOWED}",
            )
    known = api.list_images(found.values())
    if options.cloud.ami and options.cloud.ami not in known:
        raise UsageError(
            f"no machine image {options.cloud.ami!r} in {api.region}",
            hint=f"images have a different id in each region: correct --ami; {_ALLOWED}",
        )
    images = {kind: known.get(id, Image(id=id)) for kind, id in found.items()}
    for machine in machines:
        _check_image(machine, images[machine.image])
    return images


def _check_image(machine: PlannedMachine, image: Image) -> None:
    """Raises UsageError for a disk that is smaller than what is copied to it, and for an image of
    another architecture."""
    if image.architecture != "x86_64":
        raise UsageError(
            f"--ami {image.id}: its architecture is {image.architecture}, and that of"
            f" {machine.instance_type} is x86_64",
            hint="choose another image",
        )
    if other := _find_other_system(image):
        raise UsageError(
            f"--ami {image.id}: it runs {other}",
            hint="choose an image of Ubuntu, with its user `ubuntu`",
        )
    if machine.disk < image.disk:
        raise UsageError(
            f"the disk of {machine.name}, {machine.disk} GiB, is smaller than the snapshot of image"
            f" {image.id}: {image.disk} GiB",
            hint=f"--disk {image.disk} or more",
        )


def _find_other_system(image: Image) -> str:
    """What it runs, where that is known not to be Ubuntu; "" otherwise."""
    if image.windows or image.platform.startswith("Windows"):
        return "Windows"
    said = f"{image.name} {image.description}".lower()
    if "ubuntu" in said or image.platform.startswith("Ubuntu"):
        return ""
    if image.platform not in ("", _FREE):
        return image.platform
    found = (name for pattern, name in _OTHERS.items() if re.search(pattern, said))
    return next(found, "")


def describe_image(image: Image) -> str:
    """Of the plan: an image of the user's, as far as AWS tells what it is."""
    owner = image.owner or "an unknown owner"
    sure = (
        ""
        if "ubuntu" in f"{image.name} {image.description} {image.platform}".lower()
        else ("; whether it is Ubuntu, with the user `ubuntu`, is not known before it boots")
    )
    return f"machine image of the workers: {image.id} ({image.name or 'no name'}, of {owner}){sure}"
