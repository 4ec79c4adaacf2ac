"""Nodes with a network, hostname, process table and mounts of their own.

One process, the switch, holds a network namespace with the bridge; one cable (veth) joins it to
this machine's network, and one goes to each node. The bridge does not lie in this machine's own
namespace because a Docker engine's packet filter would drop what crosses it there. No namespace has
a name: when the processes go, the kernel takes the rest.
"""

from __future__ import annotations

import os
import pwd
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Network
from pathlib import Path

from clusterctl import process
from clusterctl.errors import ProviderError
from clusterctl.providers.local import layout, modes
from clusterctl.providers.local.layout import STARTER, SWITCH, Place, Site
from clusterctl.providers.local.node_processes import (
    NodeProcess,
    locate_log,
    locate_script,
    read_last_words,
)
from clusterctl.providers.local.processes import Process, find_network
from clusterctl.providers.local.sshd import SEARCH, Server, is_locked, rewrite, unlock_shadow
from clusterctl.providers.shared import subnets
from clusterctl.providers.shared.sshd_probe import Endpoint
from clusterctl.timeouts import Deadline

_PORT = 22
_ROUTES = ("-4", "-j", "route", "show", "table", "all")
_PATIENCE = 5.0


def render_hosts(addresses: Mapping[str, str]) -> str:
    """/etc/hosts of every node. A node's own name gives its real address, never 127.0.0.1: Gloo
    listens where its hostname resolves to. The mapped form is what a peer's address looks like on
    a socket that serves IPv4 and IPv6, torch's for one.
    """
    lines = [
        f"{address}\t{name}\n::ffff:{address}\t{name}\n" for name, address in addresses.items()
    ]
    return "".join(("127.0.0.1\tlocalhost\n", "::1\tlocalhost ip6-localhost\n", *lines))


def name_port(pid: int) -> str:
    """The switch's end of a node's cable, after the node's process: no two ever share one."""
    return f"n{pid}"


def render_cable(port: str, device: str, address: str, pid: int) -> str:
    """`ip -batch` inside the switch: a cable from a new port of the bridge to a new device in the
    network of process `pid`.
    """
    far = f"name {device} address {subnets.compute_mac(address)} netns {pid}"
    return f"link add name {port} type veth peer {far}\nlink set {port} master br0 up\n"


def run_ip(site: Site, *args: str, stdin: str = "", inside: int = 0, check: bool = True) -> str:
    """Runs `ip`, in the network of process `inside` if given. ProviderError unless it succeeds.

    It is tagged as a node process is: if we are killed while it runs, the next start has to end it.
    """
    enter = f"nsenter --net=/proc/{inside}/ns/net".split() if inside else []
    environment = {"PATH": SEARCH, "CLUSTERCTL_NODE": site.make_tag(STARTER)}
    result = process.run(
        [*enter, "ip", *args], timeout=_PATIENCE, stdin=stdin.encode(), env=environment
    )
    if check and not result.ok:
        said = result.error or result.complaints
        raise ProviderError(f"the nodes' network could not be created: ip {' '.join(args)}: {said}")
    return result.text


def drop_interface(site: Site) -> None:
    """Takes this machine's end away at once; the kernel would do so some time after the switch."""
    if site.interface in (name for _, name in socket.if_nameindex()):
        run_ip(site, "link", "delete", site.interface, check=False)


class Namespaces:
    """The network of a cluster in namespace mode."""

    def __init__(self, site: Site, server: Server, until: ExitStack) -> None:
        self._site = site
        self._server = server
        self._until = until
        self._switch = 0
        self._subnet = IPv4Network("0.0.0.0")

    def adopt(self, found: Sequence[Process]) -> bool:
        """The switch is whole once it has become `sleep`: it got our word after all was plugged."""
        here = find_network()
        whole = [
            one.pid
            for one in found
            if one.node == SWITCH and one.command == "sleep" and one.network != here
        ]
        if len(whole) != 1:
            return False
        addresses = run_ip(self._site, "-4", "-j", "address")
        subnet = subnets.find_own(addresses, self._site.interface)
        if subnet is None:
            return False
        self._switch, self._subnet = whole[0], subnet
        return True

    def renew(self) -> None:
        drop_interface(self._site)
        self._switch = 0
        self._subnet = subnets.claim(self._site.id, self._list_used, self._until)

    def _list_used(self) -> tuple[IPv4Network, ...]:
        addresses = run_ip(self._site, "-4", "-j", "address")
        return subnets.parse_taken(addresses, run_ip(self._site, *_ROUTES))

    def prune(self, kept: Sequence[Process]) -> None:
        """Unplugs nodes that are gone: the kernel takes its time, and theirs still answer ARP."""
        known = {name_port(one.pid) for one in kept} | {"lo", "br0", "uplink"}
        ports = subnets.parse_links(run_ip(self._site, "-o", "link", "show", inside=self._switch))
        if stale := sorted(ports - known):
            batch = "".join(f"link delete {port}\n" for port in stale)
            run_ip(
                self._site, "-force", "-batch", "-", stdin=batch, inside=self._switch, check=False
            )

    def listen(self, place: Place) -> tuple[Endpoint, ...]:
        address = subnets.compute_address(self._subnet, layout.parse_index(place.name))
        return ((address, _PORT), ("127.0.0.1", _PORT))

    def build_commands(self, places: Sequence[Place]) -> dict[str, list[str]]:
        """What to start: the nodes, and first the switch if there is none."""
        switch = ["unshare", "--net", "sh", locate_script("hold.sh"), "sleep", "infinity"]
        hidden = layout.find_hidden(self._site.folder, _list_needed())
        shadowed = is_locked(self._server.user)
        shared = self._site.shared
        nodes = {
            place.name: [
                *(*modes.UNSHARE, "sh", "-eu", locate_script("node.sh")),
                *(place.name, self.listen(place)[0][0], str(place.folder), str(hidden)),
                *(str(place.shadow) if shadowed else "", self._server.path),
                str(shared) if shared.is_dir() else "",
            ]
            for place in places
        }
        return nodes if self._switch else {SWITCH: switch, **nodes}

    def write_files(self, places: Sequence[Place]) -> None:
        """Tells all nodes, old and new, who is there."""
        text = render_hosts({place.name: self.listen(place)[0][0] for place in places})
        for place in places:
            rewrite(place.hosts, text, 0o644)
        if is_locked(self._server.user):
            shadow = unlock_shadow(Path("/etc/shadow").read_text(errors="replace"))
            for place in places:
                rewrite(place.shadow, shadow)

    def connect(self, started: Mapping[str, NodeProcess]) -> None:
        """Plugs the cables once every node process is in its own namespace."""
        self._await_namespaces(started)
        nodes = {name: owner for name, owner in started.items() if name != SWITCH}
        batch = "".join(
            render_cable(
                name_port(owner.pid),
                "eth0",
                subnets.compute_address(self._subnet, layout.parse_index(name)),
                owner.pid,
            )
            for name, owner in nodes.items()
        )
        if SWITCH not in started:
            run_ip(self._site, "-batch", "-", stdin=batch, inside=self._switch)
            return
        here, ours = self._site.interface, str(self._subnet[subnets.HOST])
        bridge = "link add name br0 type bridge\nlink set br0 up\n"
        batch = bridge + render_cable("uplink", here, ours, os.getpid()) + batch
        run_ip(self._site, "-batch", "-", stdin=batch, inside=started[SWITCH].pid)
        up = f"address add {ours}/{self._subnet.prefixlen} dev {here}\nlink set {here} up\n"
        run_ip(self._site, "-batch", "-", stdin=up)
        self._switch = started[SWITCH].pid

    def _await_namespaces(self, started: Mapping[str, NodeProcess]) -> None:
        here, deadline = find_network(), Deadline(_PATIENCE)
        for name, owner in started.items():
            while (there := find_network(owner.pid)) == here and not deadline.passed:
                time.sleep(0.001)
            if there in (0, here):
                raise ProviderError(
                    f"{name} could not be started: {read_last_words(locate_log(self._site, name))}"
                )


def _list_needed() -> tuple[Path, ...]:
    """What must stay visible: homes and Python's places, as given and with links followed."""
    homes = (Path.home(), Path(pwd.getpwuid(os.geteuid()).pw_dir))
    python = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable))
    paths = (*homes, *python, layout.SCRATCH)
    return (*paths, *(path.resolve() for path in paths))
