"""The keys by which the nodes of a cluster are known: its known_hosts, and the record of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from clusterctl import known_hosts
from clusterctl.model import Cluster, Node, Phase
from clusterctl.state import Store
from clusterctl.state.home import write_atomic


def name_in_known_hosts(node: Node) -> str:
    return known_hosts.name_host(node.address, node.ssh_port or 22)


def write_known_hosts(store: Store, cluster: Cluster, host_keys: Mapping[str, str]) -> Cluster:
    """From now on the nodes may show these keys (by node) and no others. Returns the record with
    them."""
    keys = {name_in_known_hosts(cluster.node(name)): key for name, key in host_keys.items()}
    text = _complete("", keys)
    write_atomic(store.locate_folder(cluster.name) / "ssh" / "known_hosts", text.encode())
    return replace(cluster, host_keys=keys)


def mend_known_hosts(store: Store, cluster: Cluster) -> None:
    """Puts keys that known_hosts has lost back into it, as they are on record. A node for which it
    has another key keeps that. In other phases than READY another command may be writing it."""
    if cluster.phase is not Phase.READY or not cluster.host_keys:
        return
    path = store.locate_folder(cluster.name) / "ssh" / "known_hosts"
    text = ""
    with suppress(OSError):
        text = path.read_text(errors="replace")
    mended = _complete(text, cluster.host_keys)
    if mended != text:
        with suppress(OSError):  # the connection says what is not known
            write_atomic(path, mended.encode())


def _complete(text: str, keys: Mapping[str, str]) -> str:
    """`text`, a known_hosts file, with these keys (as `ssh-ed25519 AAAA…`, by `host_name`) where it
    has none for that host. If it lacks one, lines that make no sense are left out."""
    good, there = [], set[str]()
    for line in text.splitlines():
        for patterns, key in known_hosts.read_entries(line):
            if _is_whole(key):
                good.append(line)
                there.update(patterns.split(","))
    lost = [f"{name} {key}" for name, key in keys.items() if name not in there]
    return "".join(f"{line}\n" for line in (*good, *lost)) if lost else text


def _is_whole(key: known_hosts.HostKey) -> bool:
    """Whether nothing was cut off the key: it is made of its kind and of other fields, each after
    its length (RFC 4253, section 6.6)."""
    fields, rest = [], key.blob
    while len(rest) >= 4:
        end = 4 + int.from_bytes(rest[:4], "big")
        if end > len(rest):
            return False
        fields.append(rest[4:end])
        rest = rest[end:]
    return not rest and len(fields) > 1 and fields[0] == key.kind.encode()
