"""Who opens the tunnels that some nodes need (`Node.tunnel`). Apart from the providers themselves:
whoever connects to nodes makes no machines."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from clusterctl.core.model import Cluster
from clusterctl.transport.protocol import OpenTunnel

TUNNELS = {"ec2": "clusterctl.machines.ec2.tunnels:open_to"}
"""By provider."""


def find_tunnel(cluster: Cluster) -> OpenTunnel | None:
    """None where no node of it needs one."""
    row = TUNNELS.get(cluster.spec.provider, "")
    if not row or not any(node.tunnel for node in cluster.nodes):
        return None
    module, _, function = row.partition(":")
    return cast(OpenTunnel, getattr(import_module(module), function))
