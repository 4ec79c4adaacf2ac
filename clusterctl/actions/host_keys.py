"""The keys by which the nodes of a cluster are known: its known_hosts, and the record of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from clusterctl.model import Cluster, Node, Phase
from clusterctl.state import Store
from clusterctl.state.home import write_atomic
from clusterctl.transport import known_hosts


def name_in_known_hosts(node: Node) -> str:
    return known_hosts.host_name(node.address, node.ssh_port or 22)


def write_known_hosts(store: Store, cluster: Cluster, host_keys: Mapping[str, str]) -> Cluster:
    """From now on the nodes may show these keys (by node) and no others. Returns the record with
    them."""
    keys = {name_in_known_hosts(cluster.node(name)): key for name, key in host_keys.items()}
    text = known_hosts.complete("", keys)
    write_atomic(store.folder(cluster.name) / "ssh" / "known_hosts", text.encode())
    return replace(cluster, host_keys=keys)


def mend_known_hosts(store: Store, cluster: Cluster) -> None:
    """Puts keys that known_hosts has lost back into it, as they are on record. A node for which it
    has another key keeps that. In other phases than READY another command may be writing it."""
    if cluster.phase is not Phase.READY or not cluster.host_keys:
        return
    path = store.folder(cluster.name) / "ssh" / "known_hosts"
    text = ""
    with suppress(OSError):
        text = path.read_text(errors="replace")
    mended = known_hosts.complete(text, cluster.host_keys)
    if mended != text:
        with suppress(OSError):  # the connection says what is not known
            write_atomic(path, mended.encode())
