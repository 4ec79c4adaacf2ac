"""clusterctl: from nothing to a measured multi-node training job, and no bill left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterctl.api import Cluster as Cluster

__version__ = "0.1.0"
__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    """`Cluster` is loaded when it is first used: the command line does not need it."""
    if name == "Cluster":
        from clusterctl.api import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
