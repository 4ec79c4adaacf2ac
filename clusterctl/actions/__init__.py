"""One use-case per module: they orchestrate. What decides and what touches the world is below."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from clusterctl.actions.known_hosts_file import mend_known_hosts
from clusterctl.errors import NodeUnreachable, RecordError, UsageError
from clusterctl.formats import format_time
from clusterctl.model import NAME_PATTERN, Cluster, Phase, Reporter
from clusterctl.providers.shared import tunnels
from clusterctl.state import Store as Store
from clusterctl.state import find_home
from clusterctl.transfer_meter import COPIED
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import CONNECT_LIMIT

PATIENCE = 2.0
"""Seconds after which a person wants to know what we wait for."""


def open_store() -> Store:
    """The records of this person, wherever their state home is."""
    return Store(find_home())


def check_name(name: str) -> str:
    """A cluster name that is safe in hostnames, paths and tags, or UsageError."""
    if not NAME_PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid cluster name",
            hint="use a-z, 0-9 and dashes, starting with a letter, at most 30 characters",
        )
    return name


def choose(store: Store, name: str | None) -> Cluster:
    """The cluster of that name, or the only one there is."""
    if name is not None:
        return store.read_cluster(check_name(name))
    return store.read_cluster(find_only_name(store))


def find_only_name(store: Store) -> str:
    """The name of the only cluster there is; RecordError, UsageError."""
    names = store.list_names()
    if not names:
        raise RecordError("no cluster exists", hint="`clusterctl up` creates one")
    if len(names) > 1:
        raise UsageError(
            f"several clusters exist: {', '.join(names)}",
            hint="choose one with --cluster NAME",
        )
    return names[0]


def require_ready(cluster: Cluster) -> Cluster:
    """The cluster, if jobs can run on it."""
    if cluster.deadline and cluster.deadline < time.time():
        raise RecordError(
            f"cluster {cluster.name!r} shut down at {format_time(cluster.deadline)}, its deadline",
            hint=f"`clusterctl down {cluster.name}` removes it,"
            f" `clusterctl up {cluster.name}` creates it again",
        )
    if cluster.phase is not Phase.READY:
        raise RecordError(
            f"cluster {cluster.name!r} is {cluster.phase.value}, not ready",
            hint=f"`{cluster.repair}` continues,"
            f" `clusterctl {cluster.end} {cluster.name}` removes it",
        )
    return cluster


def require_machines(cluster: Cluster, there: Collection[str]) -> None:
    """Raises UsageError where `there`, the nodes that whoever bills them knows of, is empty: they
    have ended, or somebody else has removed them."""
    name = cluster.name
    if not there:
        raise UsageError(
            f"cluster {name} has no running machines",
            hint=f"`clusterctl up {name}` creates it again, `clusterctl down {name}` removes it",
        )


def require_owned(cluster: Cluster) -> Cluster:
    """The cluster, if its machines are clusterctl's; UsageError for those that were attached."""
    if cluster.attached:
        raise UsageError(
            f"cluster {cluster.name!r} was attached: clusterctl does not control the number or"
            " lifetime of its machines",
            hint=f"`{cluster.repair}` inspects them again,"
            f" `clusterctl detach {cluster.name}` stops using them",
        )
    return cluster


def count_copied() -> tuple[int, int | None]:
    """Bytes that copies to and from nodes have moved in this process, and those that the copies
    under way still have to move (None: unknown)."""
    return COPIED.read(), COPIED.left


def count_moved() -> tuple[int, int | None]:
    """The same with what programs have downloaded that this process has started."""
    size, left = count_copied()
    return size + COPIED.downloaded, left


def connect_or_report(pool: Pool, names: Sequence[str], report: Reporter) -> dict[str, str]:
    """Connects to these nodes; returns those that do not answer, each with the reason. Says whom
    it waits for."""
    slow = [r.node for r in pool.connect(names, timeout=PATIENCE) if not r.ok]
    if not slow:
        return {}
    report(f"waiting for {', '.join(slow)}")
    results = pool.connect(slow, timeout=CONNECT_LIMIT - PATIENCE)
    return {result.node: result.error for result in results if not result.ok}


@contextmanager
def open_pool(store: Store, cluster: Cluster) -> Iterator[Pool]:
    """Connections to the cluster's nodes, opened when first used, closed on the way out."""

    mend_known_hosts(store, cluster)
    folder = store.locate_folder(cluster.name) / "ssh"
    with Pool.of(cluster, folder, tunnels.find(cluster)) as pool:
        try:
            yield pool
        except NodeUnreachable as error:
            error.cluster = cluster.name
            raise
