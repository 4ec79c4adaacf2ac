"""A port that answers nothing at all, as behind a firewall."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager


@contextmanager
def deaf_port() -> Iterator[int]:
    """Of 127.0.0.1. Its queue is full, so that the kernel drops what comes."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(5)]
        sockets[0].bind(("127.0.0.1", 0))
        sockets[0].listen(0)
        for one in sockets[1:]:
            one.setblocking(False)
            one.connect_ex(sockets[0].getsockname())
        yield int(sockets[0].getsockname()[1])
