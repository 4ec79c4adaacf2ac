"""What attaching hosts and attaching a batch system have in common."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from clusterctl.errors import RecordError
from clusterctl.model import Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.state import Store

CONNECT_TIMEOUT = 20.0
ASK_TIMEOUT = 120.0


def prepare_record(store: Store, name: str, provider: str, count: int, identity: str) -> Cluster:
    """The record to attach to: a new one, or the one that an earlier `attach` has made."""
    old = store.find(name)
    if old and old.spec.provider != provider:
        raise RecordError(
            f"cluster {name!r} already exists ({old.spec.provider})",
            hint=f"`clusterctl {old.end} {name}` first, or choose another name",
        )
    spec = ClusterSpec(name=name, provider=provider, groups=(NodeGroup(count=count),))
    if old:
        return replace(old, spec=spec, identity=identity)
    return Cluster(
        id=f"{name}-{secrets.token_hex(4)}",
        spec=spec,
        phase=Phase.CREATING,
        created=time.time(),
        mode="attached",
        identity=identity,
    )
