"""Public addresses, each of one simulator at a time: all of a machine share its table of routes."""

from __future__ import annotations

import ipaddress
import itertools
import random
import socket
import threading
from collections.abc import Callable

PUBLIC = ipaddress.IPv4Network("198.51.100.0/24")  # TEST-NET-2: nobody's
_POOL = [str(one) for one in PUBLIC.hosts()][9:]
_MORE = [str(one) for one in ipaddress.IPv4Network("198.18.0.0/21").hosts()]
"""Of RFC 2544, for more instances than have machines: nobody reaches these."""


class Addresses:
    """`used` tells which are in use. An address that was, and is not any more, is free again, and
    the last to be given out: a machine that is started again has another one."""

    def __init__(self, used: Callable[[], set[str]]) -> None:
        self._used = used
        self._claims: dict[str, socket.socket] = {}
        self._seen: set[str] = set()
        self._given: dict[str, int] = {}
        """Address → its place among those that were given out."""
        self._places = itertools.count()
        self._lock = threading.Lock()

    def take(self) -> str:
        with self._lock:
            self._release()
            pool = random.sample(_POOL, len(_POOL))
            usual = sorted(pool, key=lambda one: self._given.get(one, -1))
            for address in (*usual, *_MORE):
                if claim := _claim(address):
                    self._claims[address] = claim
                    self._given[address] = next(self._places)
                    return address
        raise RuntimeError(f"all of {PUBLIC} and more is in use")

    def _release(self) -> None:
        used = self._used()
        for address in self._seen - used:
            self._claims.pop(address).close()
        self._seen = used & self._claims.keys()


def _claim(address: str) -> socket.socket | None:
    """A name that one process has at a time; whoever is killed loses it. A route would come too
    late: a machine boots first."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0clusterctl simulated EC2 {address}")
    except OSError:
        claim.close()
        return None
    return claim
