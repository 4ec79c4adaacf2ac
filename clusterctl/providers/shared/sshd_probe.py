"""Asks many sshd at once whether they are there."""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections.abc import Mapping
from contextlib import ExitStack

from clusterctl.timeouts import Deadline

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
