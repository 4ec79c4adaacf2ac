"""What several verbs do alike. A module here is one use case, which orchestrates; what decides
and what touches the world is in the rooms below."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.core.model import NAME_PATTERN, Cluster, Consent, Phase, Reporter
from clusterctl.core.progress import COPIED
from clusterctl.core.text import format_time
from clusterctl.errors import ClusterctlError, NodeUnreachable, RecordError, UsageError
from clusterctl.state.files import write_atomic
from clusterctl.state.home import find_home
from clusterctl.state.store import Store

if TYPE_CHECKING:  # what only looks at records connects to nothing
    from clusterctl.transport.pool import Pool

# -------------------------------------------------------------------------------------------------
# The keys by which the nodes of a cluster are known: its known_hosts, and the record of it.


def write_known_hosts(store: Store, cluster: Cluster, host_keys: Mapping[str, str]) -> Cluster:
    """From now on the nodes may show these keys (by node) and no others. Returns the record with
    them."""
    from clusterctl.core.keys import name_host

    named = [(cluster.node(name), key) for name, key in host_keys.items()]
    keys = {name_host(node.address, node.ssh_port or 22): key for node, key in named}
    cluster = replace(cluster, host_keys=keys)
    _write_known_hosts(store, cluster)
    return cluster


def mend_known_hosts(store: Store, cluster: Cluster) -> None:
    """Makes known_hosts be what is on record. In other phases than READY another command may be
    writing it."""
    if cluster.phase is Phase.READY and cluster.host_keys:
        with suppress(OSError):  # the connection says what is not known
            _write_known_hosts(store, cluster)


def _write_known_hosts(store: Store, cluster: Cluster) -> None:
    path = store.locate_folder(cluster.name) / "ssh" / "known_hosts"
    data = "".join(f"{name} {key}\n" for name, key in cluster.host_keys.items()).encode()
    with suppress(OSError):
        if path.read_bytes() == data:
            return
    write_atomic(path, data)


# -------------------------------------------------------------------------------------------------

AHEAD = 8
"""Nodes at most that are connected to before it is known which of them a job needs."""
RECORD_PATIENCE = 2.0
"""Seconds after which a person wants to know what we wait for."""


def open_store() -> Store:
    """The records of this person, wherever their state home is."""
    return Store(find_home())


def open_cluster(name: str | None) -> tuple[Store, Cluster]:
    """The records, and the cluster of that name, or the only one there is."""
    store = open_store()
    return store, choose_cluster(store, name)


def check_name(name: str) -> str:
    """A cluster name that is safe in hostnames, paths and tags, or UsageError."""
    if not NAME_PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid cluster name",
            hint="use a-z, 0-9 and dashes, starting with a letter, at most 30 characters",
        )
    return name


def choose_cluster(store: Store, name: str | None) -> Cluster:
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


def connect_or_report(pool: Pool, names: Sequence[str], report: Reporter) -> dict[str, str]:
    """Connects to these nodes; returns those that do not answer, each with the reason. Says whom
    it waits for."""
    slow = [r.node for r in pool.connect(names, timeout=RECORD_PATIENCE) if not r.ok]
    if not slow:
        return {}
    report(f"waiting for {', '.join(slow)}")
    from clusterctl.transport.ssh import CONNECT_LIMIT

    results = pool.connect(slow, timeout=CONNECT_LIMIT - RECORD_PATIENCE)
    return {result.node: result.error for result in results if not result.ok}


def connect_ahead(pool: Pool, cluster: Cluster) -> None:
    """Begins to connect to the nodes of a small cluster while a job for it is prepared."""
    names = [node.name for node in cluster.nodes if not node.tunnel]
    if len(names) <= AHEAD:
        with contextlib.suppress(RecordError):
            require_ready(cluster)
            pool.connect_ahead(names, timeout=RECORD_PATIENCE)


class Unfetched(Struct, frozen=True, kw_only=True):
    """What happens to outputs that were never fetched, and to the files of a shared folder. By
    default they keep the cluster alive."""

    fetch: bool = False
    """They are brought here first, into `job-N` and `shared-NAME`."""
    discard: bool = False
    """They may go; with `fetch`, those that cannot be brought."""
    ask: Consent | None = None
    """Asks whether they may go; None: there is nobody to ask."""
    end: bool = True
    """Whether running jobs may be ended without either of these; a person is asked first."""


@contextmanager
def open_pool(store: Store, cluster: Cluster) -> Iterator[Pool]:
    """Connections to the cluster's nodes, opened when first used, closed on the way out."""
    from clusterctl.transport.pool import Pool

    mend_known_hosts(store, cluster)
    folder = store.locate_folder(cluster.name) / "ssh"
    with Pool.of(cluster, folder) as pool:
        try:
            yield pool
        except NodeUnreachable as error:
            error.cluster = cluster.name
            raise


class Connected(Struct, frozen=True):
    """A cluster with its records and connections to its nodes, and who hears of progress."""

    store: Store
    cluster: Cluster
    pool: Pool
    report: Reporter
    away: Mapping[str, str] = field(default_factory=dict)
    """Nodes that do not answer, and why."""

    @property
    def here(self) -> Cluster:
        """The cluster without those."""
        return self.cluster.drop_nodes(self.away)


@contextmanager
def connect_all(
    store: Store, cluster: Cluster, report: Reporter, names: Sequence[str] | None = None
) -> Iterator[Connected]:
    """Connections to these nodes, or to all, as far as they answer."""
    with open_pool(store, cluster) as pool:
        names = [node.name for node in cluster.nodes] if names is None else names
        yield Connected(store, cluster, pool, report, connect_or_report(pool, names, report))


# -------------------------------------------------------------------------------------------------
# The log file: what went wrong, for the day after.


LIMIT = 5_000_000
"""Bytes after which the log starts anew; the old one is kept once."""


def record(text: str) -> str:
    """Appends to the log; returns its path, or nothing where it cannot be written."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with contextlib.suppress(OSError, ValueError, ClusterctlError):
        place = find_home()
        place.make(place.path)
        if place.log.exists() and place.log.stat().st_size > LIMIT:
            place.log.replace(place.log.with_suffix(".log.1"))
        fd = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{stamp} {text}\n")
        return str(place.log)
    return ""
