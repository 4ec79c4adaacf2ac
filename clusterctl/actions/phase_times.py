"""How long each phase of a node took when clusters were made, kept in the state home: what a live
view of `up` says of the time left until nodes of this very cluster tell."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from clusterctl.errors import ClusterctlError
from clusterctl.model import Cluster
from clusterctl.state import Home
from clusterctl.state.home import write_atomic

FILE = "phase-times.json"
MOST = 50
"""Sorts of clusters that are remembered."""

_Times = dict[str, dict[str, float]]


def load(home: Home, cluster: Cluster) -> dict[str, float]:
    """Seconds by phase, as `NodePhases.medians` names them, of the last cluster of this sort."""
    return _read(home).get(_make_key(cluster), {})


def save(home: Home, cluster: Cluster, seconds: Mapping[str, float]) -> None:
    """Nothing depends on it: where it cannot be written, it is left out."""
    times, sort = _read(home), _make_key(cluster)
    times.pop(sort, None)
    kept = list(times.items())[1 - MOST :]
    with suppress(ClusterctlError):
        write_atomic(home.path / FILE, msgspec.json.encode({**dict(kept), sort: dict(seconds)}))


def _read(home: Home) -> _Times:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((home.path / FILE).read_bytes(), type=_Times)
    return {}


def _make_key(cluster: Cluster) -> str:
    """Equal for clusters whose nodes should take equally long."""
    spec = cluster.spec
    groups = (f"{group.family} {group.instance_type}" for group in spec.groups)
    runtime = spec.runtime.value if spec.runtime else ""
    images = (f"{kind}={image}" for kind, image in sorted(cluster.images.items()))
    return " ".join((spec.provider, runtime, *groups, *images))
