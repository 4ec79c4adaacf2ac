"""clusterctl: from nothing to a measured multi-node training job, and no bill left behind."""

from __future__ import annotations

# Not from typing: it takes 10 ms, in which Ctrl-C would print a traceback (see __main__).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterctl.api import Cluster

__version__ = "0.1.0"
__all__ = ["Cluster"]


def __getattr__(name: str) -> object:
    """`Cluster` is loaded when it is first used: the command line does not need it."""
    if name == "Cluster":
        from clusterctl.api import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
