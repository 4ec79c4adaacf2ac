"""The network of a VPC: a namespace with a bridge and a gateway, and machines plugged into it.

This machine reaches public addresses only, each by a route of its own; private ones can be reached
from inside alone, so that VPCs may have equal addresses. No machine has its public address itself:
the gateway translates them, also for who comes from inside and is then a stranger from outside.
Source: VPC User Guide, "Enable internet access for a VPC using an internet gateway".

No namespace has a name: each is held by a descriptor of this process, and the kernel takes it away
with us.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import Any, TypeVar

from tests.sim.ec2.dns import RESOLVER

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
YOU, _THERE = "203.0.113.7", "169.254.77.2"  # of the cable between this machine and any VPC
IMDS = "169.254.169.254"

T = TypeVar("T")


def ip(*lines: str, inside: int | None = None, check: bool = True) -> None:
    """`ip -batch`, in the namespace of this descriptor if one is given."""
    enter = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{inside}"] if inside is not None else []
    argv = [*enter, "ip", "-force", "-batch", "-"]
    done = subprocess.run(argv, input="\n".join(lines).encode(), capture_output=True)
    if check and done.returncode:
        raise OSError(f"ip -batch: {done.stderr.decode()}: {lines}")


def iptables(namespace: str, lines: Iterable[str]) -> None:
    """One table of iptables, as it is to be from now on. `namespace`: the file that stands for it.
    Raises CalledProcessError."""
    argv = ["nsenter", f"--net={namespace}", "iptables-restore", "--wait"]
    text = "".join(f"{line}\n" for line in lines)
    subprocess.run(argv, input=text.encode(), check=True, capture_output=True)


def _in_thread(work: Callable[[], T]) -> T:
    """In a thread of its own, which may leave this machine's network."""
    result: list[T] = []
    error: list[BaseException] = []

    def body() -> None:
        try:
            result.append(work())
        except BaseException as failed:
            error.append(failed)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if error:
        raise error[0]
    return result[0]


def _new_namespace() -> int:
    def work() -> int:
        if _LIBC.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        settings = {
            "ip_forward": "1",
            "conf/all/rp_filter": "0",
            "conf/default/rp_filter": "0",
            "conf/all/send_redirects": "0",
            "conf/default/send_redirects": "0",
        }
        for name, value in settings.items():
            with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
                file.write(value)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(work)


class Vpc:
    """One VPC, from the first of its machines on."""

    def __init__(self, id: str, prefix: str) -> None:
        self.id = id
        digest = hashlib.sha256(f"{prefix}{id}".encode()).hexdigest()[:8]
        self.cable = f"{prefix}{digest}"  # this machine's end
        self.namespace = _new_namespace()
        self._gateways: set[IPv4Network] = set()
        self._public: dict[str, IPv4Address] = {}
        """Public address → private one."""
        self._ports: set[str] = set()
        ip(
            "link set lo up",
            "link add br0 type bridge",
            "link set br0 up",
            f"address add {IMDS}/32 dev br0",
            f"address add {RESOLVER}/32 dev br0",
            f"link add uplink type veth peer name {self.cable} netns {os.getpid()}",
            f"address add {_THERE}/32 dev uplink",
            "link set uplink up",
            f"route add default via {YOU} dev uplink onlink",
            inside=self.namespace,
        )
        ip(f"address add {YOU}/32 dev {self.cable}", f"link set {self.cable} up")

    def plug(
        self, port: str, pid: int, subnet: IPv4Network, private: IPv4Address, public: str | None
    ) -> None:
        """A cable to the network of process `pid`, where it is eth0."""
        # Neighbours remember who had a private address before; a VPC's do not.
        ethernet = ":".join(f"{byte:02x}" for byte in b"\2\0" + private.packed)
        lines = [
            f"link add {port} type veth peer name eth0 address {ethernet} netns {pid}",
            f"link set {port} master br0 up",
        ]
        if subnet not in self._gateways:
            lines.append(f"address add {subnet[1]}/{subnet.prefixlen} dev br0")
            self._gateways.add(subnet)
        ip(*lines, inside=self.namespace)
        self._ports.add(port)
        if public:
            self._public[public] = private
            self._translate()
            ip(f"route replace {public}/32 via {_THERE} dev {self.cable} onlink")

    def _translate(self) -> None:
        lines = ["*nat"]
        for public, private in self._public.items():
            lines += [
                f"-A PREROUTING -d {public}/32 -j DNAT --to-destination {private}",
                f"-A POSTROUTING -s {private}/32 -o uplink -j SNAT --to-source {public}",
                f"-A POSTROUTING -s {private}/32 -m conntrack --ctstate DNAT"
                f" -j SNAT --to-source {public}",
            ]
        iptables(f"/proc/{os.getpid()}/fd/{self.namespace}", [*lines, "COMMIT"])

    def unplug(self, port: str, public: str | None) -> None:
        """Takes the cable away at once; the kernel would do so some time after the machine."""
        ip(f"link delete {port}", inside=self.namespace, check=False)
        self._ports.discard(port)
        if public and self._public.pop(public, None):
            ip(f"route delete {public}/32 dev {self.cable}", check=False)
            self._translate()

    @property
    def empty(self) -> bool:
        return not self._ports

    def listen(self, port: int) -> socket.socket:
        """A listening socket inside, at the address of the metadata service."""
        listener = self._socket(socket.SOCK_STREAM, (IMDS, port))
        listener.listen(64)
        return listener

    def resolver(self) -> socket.socket:
        """The socket that questions about names come to."""
        return self._socket(socket.SOCK_DGRAM, (RESOLVER, 53))

    def connect(self, source: str, address: str, port: int, seconds: float) -> socket.socket:
        """Made inside, from an address that no machine has: that of an interface of AWS's own.
        OSError."""
        ip(f"address replace {source}/32 dev br0", inside=self.namespace)

        def work() -> socket.socket:
            if _LIBC.setns(self.namespace, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            made = socket.socket()
            try:
                made.settimeout(seconds)
                made.bind((source, 0))
                made.connect((address, port))
            except OSError:
                made.close()
                raise
            return made

        return _in_thread(work)

    def _socket(self, kind: int, address: tuple[str, int]) -> socket.socket:
        def work() -> socket.socket:
            if _LIBC.setns(self.namespace, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            made = socket.socket(socket.AF_INET, kind)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            return made

        return _in_thread(work)

    def close(self) -> None:
        ip(f"link delete {self.cable}", check=False)
        with contextlib.suppress(OSError):
            os.close(self.namespace)


def configure(pid: int, private: IPv4Address, subnet: IPv4Network) -> None:
    """What a machine's own DHCP client does when it starts again."""
    lines = [f"address add {private}/{subnet.prefixlen} broadcast + dev eth0", "link set eth0 up"]
    lines.append(f"route add default via {gateway(subnet)}")
    lines.append(f"route add 169.254.169.254/32 via {gateway(subnet)}")
    argv = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-force", "-batch", "-"]
    subprocess.run(argv, input="\n".join(lines).encode(), check=True, capture_output=True)


def gateway(subnet: IPv4Network) -> str:
    return str(subnet[1])


def subnet_of(instance: Any) -> IPv4Network:
    """Of moto's instance."""
    return IPv4Network(instance.nics[0].subnet.cidr_block)
