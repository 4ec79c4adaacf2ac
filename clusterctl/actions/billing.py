"""The charges of a cluster, as whoever bills its machines has them."""

from __future__ import annotations

from pathlib import Path

from clusterctl import providers
from clusterctl.errors import ClusterctlError
from clusterctl.model import Charge, Cluster
from clusterctl.providers.shared import charges as measured


def correct_times(cluster: Cluster, folder: Path) -> tuple[Charge, ...]:
    """The charges with the times of whoever bills them, where those are told. The record keeps
    them: AWS forgets machines an hour after their end."""
    if not cluster.charges:
        return ()
    try:
        lives = providers.load_billing(cluster).list_lives(cluster, folder)
    except ClusterctlError:
        return cluster.charges
    return measured.correct(cluster.charges, lives)
