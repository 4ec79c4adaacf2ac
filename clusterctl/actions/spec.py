"""Which machines a person asks for: the options of `up` as a ClusterSpec."""

from __future__ import annotations

import re

from clusterctl.actions import node_images
from clusterctl.errors import UsageError
from clusterctl.model import CloudSpec, ClusterSpec, NodeGroup, Runtime
from clusterctl.options.clusters import Up
from clusterctl.options.limits import DOCKER, EC2, LAUNCHER


def make_spec(name: str, given: Up) -> ClusterSpec:
    """What was given to `up`. Without a provider, the one that the options imply; "" leaves it to
    the cluster that exists."""
    if given.shared and re.fullmatch(r"fs-[0-9a-f]{8,40}", name):
        raise UsageError(
            f"{name} is the ID of a file system, not the name of a cluster",
            hint=f"write it right after the option: --shared {name}",
        )
    cloud = given.gpu or given.cpu or given.instance_type
    implied = EC2.owner if cloud else DOCKER.owner if given.gpus else ""
    image, images = node_images.parse_images(given.image) if given.image else ("", {})
    return ClusterSpec(
        name=name,
        provider=given.provider or implied,
        groups=_make_groups(given),
        ttl=given.ttl,
        runtime=Runtime(given.runtime) if given.runtime else None,
        image=image,
        images=images,
        gpus=given.gpus,
        shared=bool(given.shared),
        cloud=CloudSpec(
            **given.pick_fields(CloudSpec), file_system=given.shared.removeprefix(LAUNCHER)
        ),
    )


def _make_groups(given: Up) -> tuple[NodeGroup, ...]:
    """The groups of workers. A count of 0: not given. A number of workers on this command line
    must not contradict the counts of the groups; one in the settings gives way to them."""
    workers, instance_type, typed = given.workers, given.instance_type, "workers" in given.typed
    named = [("--gpu", text) for text in given.gpu] + [("--cpu", text) for text in given.cpu]
    if instance_type and len(named) > 1:
        raise UsageError(
            "--instance-type works with one group of workers",
            hint="give each group as --cpu TYPE:N or --gpu FAMILY:N",
        )
    if not named:
        return (NodeGroup(count=workers, instance_type=instance_type),)
    counted = any(":" in text for _, text in named)
    if workers and typed and (counted or len(named) > 1):
        of = "groups that have their own count" if counted else f"{len(named)} groups"
        each = " ".join(f"{option} {text.partition(':')[0]}:N" for option, text in named)
        raise UsageError(
            f"--workers {workers} cannot be combined with {of}", hint=f"write the counts as {each}"
        )
    found = []
    for option, text in named:
        match = re.fullmatch(r"([A-Za-z0-9.-]+)(?::([1-9]\d{0,4}))?", text)
        if match is None:
            example = {"--gpu": "g4dn:4", "--cpu": "c7i.xlarge:4"}[option]
            raise UsageError(
                f"{option} {text!r} must be NAME or NAME:N", hint=f"for example {option} {example}"
            )
        name, number = match[1], int(match[2] or workers)
        if option == "--gpu":
            found.append(NodeGroup(count=number, family=name, instance_type=instance_type))
        else:
            kind = instance_type or name.lower()
            found.append(NodeGroup(count=number, family="cpu", instance_type=kind))
    return tuple(found)
