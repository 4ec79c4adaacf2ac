"""Words that a shell may complete: what is on record here. Nobody is asked, and nothing raises."""

from __future__ import annotations

from contextlib import suppress

from clusterctl.actions.common import choose_cluster, open_store
from clusterctl.actions.jobs import choose_own
from clusterctl.data.datasets import load_datasets
from clusterctl.errors import ClusterctlError
from clusterctl.project.program import list_bundled


def list_clusters() -> list[str]:
    with suppress(ClusterctlError, OSError):
        return list(open_store().list_names())
    return []


def list_nodes(cluster: str | None) -> list[str]:
    """Of that cluster, or of the only one."""
    with suppress(ClusterctlError, OSError):
        return [node.name for node in choose_cluster(open_store(), cluster).nodes]
    return []


def list_jobs() -> list[str]:
    """Their numbers, the last first."""
    with suppress(ClusterctlError, OSError):
        return [str(job.id) for job in reversed(choose_own(open_store().list_jobs()))]
    return []


def list_programs() -> list[str]:
    return list_bundled()


def list_data_sets() -> list[str]:
    return list(load_datasets())
