"""Do the hosts reach each other at ports other than SSH's? MPI and training take theirs, high ones,
when a job starts; a firewall between hosts would let the job hang."""

from __future__ import annotations

import shlex
from contextlib import ExitStack, closing, suppress

from clusterctl.errors import NodeUnreachable
from clusterctl.model import Cluster, Node, NodeResult
from clusterctl.transport import Channel
from clusterctl.transport.pool import Pool

LIMIT = 15.0
"""Seconds for each step."""

_LISTEN = """
import socket, sys
server = socket.socket()
server.bind((sys.argv[1], 0))
server.listen(16)
print("port %d" % server.getsockname()[1])
sys.stdout.flush()
sys.stdin.read()
"""
"""Listens at the address until its stdin ends."""

_CALL = """
import socket, sys
for address, port in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        socket.create_connection((address, int(port)), 5).close()
        print("ok")
    except OSError as error:
        print(error)
"""


def check_ports(pool: Pool, cluster: Cluster) -> None:
    """Launcher ↔ every worker, and a ring among the workers, at a port that each host chooses. What
    has no Python is left out. Raises NodeUnreachable with the edges that do not work."""
    nodes = {node.name: node for node in cluster.nodes if node.python}
    edges = [edge for edge in _list_edges(cluster) if set(edge) <= set(nodes)]
    with ExitStack() as stack:
        ports = _listen(pool, [nodes[name] for _, name in edges], stack)
        failed = []
        callers: dict[str, list[str]] = {source: [] for source, _ in edges}
        for source, target in edges:
            if target in ports:
                callers[source].append(target)

        def call(name: str) -> NodeResult:
            words = [word for t in callers[name] for word in (nodes[t].private_address, ports[t])]
            argv = (nodes[name].python, "-I", "-c", _CALL, *words)
            return pool.find_transport(name).run(shlex.join(argv), timeout=LIMIT)

        for result in pool.call_each(call, list(callers)):
            for target, said in zip(callers[result.node], result.text.splitlines(), strict=False):
                if said != "ok":
                    failed.append(f"{result.node} → {target}: port {ports[target]}: {said}")
    if failed:
        raise NodeUnreachable(
            f"the hosts reach each other by SSH, but not on other ports: {'; '.join(failed)}",
            hint="MPI and training choose ports when a job starts: open the TCP ports 1024"
            " to 65535 between the hosts in their firewalls",
            transient=True,
        )


def _list_edges(cluster: Cluster) -> list[tuple[str, str]]:
    launcher = cluster.launcher.name
    workers = [node.name for node in cluster.workers if node.name != launcher]
    ring = zip(workers, [*workers[1:], *workers[:1]], strict=True) if len(workers) > 1 else ()
    return [*((launcher, w) for w in workers), *((w, launcher) for w in workers), *ring]


def _listen(pool: Pool, nodes: list[Node], stack: ExitStack) -> dict[str, str]:
    """Ports by node. One that cannot listen is left out: its Python says why when it is used."""
    channels: dict[str, Channel] = {}
    for node in {node.name: node for node in nodes}.values():
        command = shlex.join((node.python, "-I", "-c", _LISTEN, node.private_address))
        channel = pool.find_transport(node.name).open(f"exec {command}", timeout=LIMIT)
        channels[node.name] = stack.enter_context(closing(channel))
    ports = {}
    for name, channel in channels.items():
        with suppress(OSError):
            word, _, port = channel.receive(LIMIT).decode(errors="replace").strip().partition(" ")
            if word == "port" and port.isdecimal():
                ports[name] = port
    return ports
