"""Hands connections on: from a port inside of a VPC to one on this machine's loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

_PIECE = 1 << 18


def forward(listener: socket.socket, port: int, allowed: Callable[[str], bool]) -> None:
    """Until `listener` is closed. `allowed`: whether who has this address gets through."""
    threading.Thread(target=_accept, args=(listener, port, allowed), daemon=True).start()


def _accept(listener: socket.socket, port: int, allowed: Callable[[str], bool]) -> None:
    with contextlib.suppress(OSError):
        while True:
            near, (address, _) = listener.accept()
            if not allowed(address):
                near.close()  # nobody waits for a time-out here
                continue
            try:
                far = socket.create_connection(("127.0.0.1", port), timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(_PIECE):
            sink.sendall(data)
    except OSError:
        pass  # one side went away: so does the other
    finally:
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_WR if one is sink else socket.SHUT_RD)
