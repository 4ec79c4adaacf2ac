"""Machine images that are made of instances: moto's, with what AWS does beside.

Sources: EC2 API Reference, CreateImage, DeregisterImage, DeleteSnapshot and "Error codes"; EC2 User
Guide, "Create an Amazon EBS-backed AMI": an image is `pending` until all of the disk is copied, and
`failed` where the instance goes before that.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sim.ec2.wire import ApiError

TAKES = 3.0
"""Seconds; on AWS some minutes."""
KEPT = (
    *("etc/clusterctl", "etc/hosts", "etc/ssh", "etc/systemd/system", "home/ubuntu"),
    *("opt/clusterctl", "root/.ssh", "var/lib/clusterctl"),
)
"""What of a light host's files an image of it has."""


@dataclass
class Saved:
    """`files`: a tar archive of what was on the disk."""

    image: Any
    instance: Any
    gib: int
    files: Path
    done: float

    def look(self) -> None:
        """Its state by now."""
        if self.image.state != "pending":
            return
        if self.instance.state not in ("running", "stopped"):
            self.image.state = "failed"
        elif time.monotonic() >= self.done:
            self.image.state = "available"


class Images:
    """All that were made, by id."""

    def __init__(self) -> None:
        self.all: dict[str, Saved] = {}
        self.folder = Path()
        self.find_pid: Callable[[str], int] = lambda instance: 0
        """A process of an instance's machine."""

    def create(self, backend: Any, form: Any, tags: dict[str, dict[str, str]]) -> Any:
        name, id = form["Name"], form["InstanceId"]
        for image in backend.amis.values():
            if image.name == name and image.owner_id == backend.account_id:
                raise ApiError(
                    "InvalidAMIName.Duplicate",
                    f"AMI name {name} is already in use by AMI {image.id}",
                )
        instance = backend.get_instance(id)
        [(device, block), *_] = instance.get_block_device_mapping
        image = backend.create_image(id, name, form.get("Description", ""), [])
        image.state, image.root_device_name = "pending", device
        image.add_tags(tags["image"])
        image.ebs_snapshot.add_tags(tags["snapshot"])
        size = int(backend.volumes[block.volume_id].size)
        files = self.folder / f"{image.id}.tar"
        pid = self.find_pid(id)
        argv = ["nsenter", f"--target={pid}", "--mount", "tar", "--create", "--ignore-failed-read"]
        with files.open("wb") as sink:
            subprocess.run(
                [*argv, "--directory=/", *KEPT], stdout=sink, stderr=subprocess.DEVNULL, timeout=15
            )
        done = time.monotonic() + TAKES
        self.all[image.id] = Saved(image, instance, size, files, done)
        return image

    def look(self) -> None:
        for saved in self.all.values():
            saved.look()

    def find_size(self, id: str) -> int | None:
        return self.all[id].gib if id in self.all else None

    def find_files(self, id: str) -> str:
        return str(self.all[id].files) if id in self.all else ""

    def deregister(self, id: str) -> None:
        if gone := self.all.pop(id, None):
            gone.files.unlink(missing_ok=True)

    def clear(self) -> None:
        for id in list(self.all):
            self.deregister(id)
