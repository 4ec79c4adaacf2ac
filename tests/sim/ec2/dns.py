"""The resolver of a VPC: names such as ip-10-77-0-4.ec2.internal, both ways, and nothing else."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from ipaddress import IPv4Address

RESOLVER = "169.254.169.253"

_A, _PTR = 1, 12
_NAME = re.compile(r"ip-(\d+)-(\d+)-(\d+)-(\d+)\.(ec2|[a-z0-9-]+\.compute)\.internal")
_REVERSE = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)\.in-addr\.arpa")

Known = Callable[[str], bool]
"""Whether an instance of this network has this address."""


def serve(listener: socket.socket, known: Known) -> None:
    """Answers until `listener` is closed."""
    threading.Thread(target=_loop, args=(listener, known), daemon=True).start()


def _loop(listener: socket.socket, known: Known) -> None:
    with contextlib.suppress(OSError):
        while True:
            question, who = listener.recvfrom(4096)
            with contextlib.suppress(IndexError, struct.error, UnicodeDecodeError):
                listener.sendto(answer(question, known), who)


def answer(question: bytes, known: Known) -> bytes:
    """RFC 1035, one question: an answer, "no such name", or a name without such a record."""
    labels, position = [], 12
    while length := question[position]:
        labels.append(question[position + 1 : position + 1 + length].decode("ascii"))
        position += 1 + length
    kind = struct.unpack_from("!H", question, position + 1)[0]
    asked = question[12 : position + 5]
    name = ".".join(labels).lower()
    data, found = b"", False
    if (match := _NAME.fullmatch(name)) and known(address := ".".join(match.groups()[:4])):
        found = True
        data = IPv4Address(address).packed if kind == _A else b""
    elif (match := _REVERSE.fullmatch(name)) and known(address := ".".join(match.groups()[::-1])):
        found = True
        data = _packed(f"ip-{address.replace('.', '-')}.ec2.internal") if kind == _PTR else b""
    # An answer, recursion desired and available; name error where nothing is known.
    flags = 0x8180 | (0 if found else 3)
    head = question[:2] + struct.pack("!5H", flags, 1, 1 if data else 0, 0, 0)
    if not data:
        return head + asked
    # The name again, as a pointer to where it was asked.
    return head + asked + struct.pack("!HHHIH", 0xC00C, kind, 1, 60, len(data)) + data


def _packed(name: str) -> bytes:
    labels = (label.encode() for label in name.split("."))
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
