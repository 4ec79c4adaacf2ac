"""Which /24 a cluster gets: pure functions over what `ip -j` says, and a claim against rivals."""

from __future__ import annotations

import errno
import hashlib
import os
import selectors
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address, IPv4Network

import msgspec
from msgspec import Struct

from clusterctl.core.clock import Deadline
from clusterctl.errors import ProviderError

POOL = IPv4Network("198.18.0.0/15")
"""Reserved for tests inside one's own walls (RFC 2544): routed nowhere, rarely used by VPNs."""

HOST = 254
"""Last octet of this machine's own address in a cluster's subnet."""


def list_candidates(cluster_id: str) -> Iterator[IPv4Network]:
    """All /24 of the pool, starting at one that depends on the id: rivals seldom meet."""
    subnets = list(POOL.subnets(new_prefix=24))
    first = int.from_bytes(hashlib.sha256(cluster_id.encode()).digest()[:4], "big") % len(subnets)
    return iter(subnets[first:] + subnets[:first])


class _Address(Struct, frozen=True):
    local: str = ""
    prefixlen: int = 0


class _Row(Struct, frozen=True):
    """What `ip -j` says of an interface, or of a route."""

    ifname: str = ""
    addr_info: tuple[_Address, ...] = ()
    dst: str = ""

    @property
    def networks(self) -> list[IPv4Network]:
        texts = [f"{address.local}/{address.prefixlen}" for address in self.addr_info]
        return list(filter(None, map(parse_network, [*texts, self.dst])))


def _read_rows(text: str) -> list[_Row]:
    """Other programs called `ip` print something else: nothing is known."""
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(text or "[]", type=list[_Row])
    return []


def parse_taken(addresses: str, routes: str) -> tuple[IPv4Network, ...]:
    """The networks in use, from `ip -4 -j address` and `ip -4 -j route show table all`.

    Routes wider than /8 are left out: those are ways to everywhere else, halved or not.
    """
    rows = (*_read_rows(addresses), *_read_rows(routes))
    return tuple(network for row in rows for network in row.networks if network.prefixlen >= 8)


def find_own(addresses: str, interface: str) -> IPv4Network | None:
    """The subnet that this cluster has already, from the address on its cable."""
    rows = [row for row in _read_rows(addresses) if row.ifname == interface]
    return next((n for row in rows for n in row.networks if n.subnet_of(POOL)), None)


def parse_network(text: str) -> IPv4Network | None:
    """None for what is none, as the destination `default`."""
    try:
        return IPv4Network(text, strict=False)
    except ValueError:
        return None


def claim(
    cluster_id: str, in_use: Callable[[], Collection[IPv4Network]], until: ExitStack
) -> IPv4Network:
    """A free subnet that no other clusterctl takes before `until` closes.

    The claim is the name of an abstract socket: it belongs to one network namespace, as addresses
    do, and it ends with us, whatever happens. `in_use` is asked under the claim: a rival that has
    given its claim up has an address by then.
    """
    busy: Collection[IPv4Network] = ()
    for subnet in list_candidates(cluster_id):
        if any(subnet.overlaps(network) for network in busy):
            continue
        with ExitStack() as attempt:
            name = attempt.enter_context(socket.socket(socket.AF_UNIX))
            try:
                name.bind(f"\0clusterctl-subnet-{subnet.network_address}")
            except OSError:
                continue
            busy = in_use()
            if not any(subnet.overlaps(network) for network in busy):
                until.push(attempt.pop_all())
                return subnet
    raise ProviderError(
        f"every /24 of {POOL} overlaps with an address or a route of this machine",
        hint="remove one (ip -4 route show table all); CLUSTERCTL_LOCAL_MODE=loopback, for local"
        " nodes, needs none",
    )


def compute_address(subnet: IPv4Network, index: int) -> str:
    """The launcher (0) has .1, worker N has .N+1."""
    return str(subnet[index + 1])


def compute_mac(ip: str) -> str:
    """A hardware address that follows from the IP: a replaced node is found where it was.

    Where it is given, udev also refrains from changing it behind our back.
    """
    return "02:00:" + ":".join(f"{octet:02x}" for octet in IPv4Address(ip).packed)


def parse_links(text: str) -> set[str]:
    """The names of the interfaces that `ip -j link` lists."""
    return {row.ifname for row in _read_rows(text)}


# -------------------------------------------------------------------------------------------------
# Asks many sshd at once whether they are there.


Endpoint = tuple[str, int]


def probe(endpoints: Mapping[str, Endpoint], *, seconds: float) -> dict[str, str]:
    """Name → nothing where an SSH server greets, else what is wrong. All within `seconds`.

    An open port alone proves little: the kernel completes connections for a server that hangs.
    """
    answers: dict[str, str] = {}
    deadline = Deadline(seconds)
    with selectors.DefaultSelector() as selector, ExitStack() as sockets:
        for name, endpoint in endpoints.items():
            connection = sockets.enter_context(socket.socket())
            connection.setblocking(False)
            code = connection.connect_ex(endpoint)
            if code in (0, errno.EINPROGRESS):
                selector.register(connection, selectors.EVENT_READ, (name, connection))
            else:
                answers[name] = _describe_trouble(endpoint, os.strerror(code))
        while selector.get_map() and not deadline.passed:
            for key, _ in selector.select(deadline.left):
                name, connection = key.data
                answers[name] = _read_greeting(connection, endpoints[name])
                selector.unregister(connection)
    return {
        name: answers.get(name, _describe_trouble(endpoint, f"no answer within {seconds:g} s"))
        for name, endpoint in endpoints.items()
    }


def _read_greeting(connection: socket.socket, endpoint: Endpoint) -> str:
    try:
        banner = connection.recv(64)
    except OSError as error:
        return _describe_trouble(endpoint, error.strerror or str(error))
    return (
        "" if banner.startswith(b"SSH-") else _describe_trouble(endpoint, "no SSH server answers")
    )


def _describe_trouble(endpoint: Endpoint, what: str) -> str:
    return f"sshd at {endpoint[0]}:{endpoint[1]}: {what}"
