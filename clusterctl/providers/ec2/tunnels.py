"""Connections through an EC2 Instance Connect Endpoint: a WebSocket whose binary messages are the
bytes of a TCP connection that the endpoint makes inside its VPC. AWS checks who opens it by the
signature in its address. Source: aws/aws-cli, awscli/customizations/ec2instanceconnect.
"""

from __future__ import annotations

import json
import socket
import ssl
from concurrent import futures
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from clusterctl.errors import ProviderError
from clusterctl.model import Node
from clusterctl.providers.ec2.api import Api
from clusterctl.timeouts import Deadline, run_in_background
from clusterctl.transport import Tunnel

if TYPE_CHECKING:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import ClientConnection

SERVICE = "ec2-instance-connect"
EXPIRES = 60
"""Seconds in which a signed address has to be used, as AWS's own tool has it."""
LONGEST = 3600
"""Seconds that a connection may last: AWS's limit. Whoever needs it longer connects anew."""
MESSAGE = 65_000
"""Bytes of a message at most, as AWS's own tool sends them."""
CLOSING = 2.0
"""Seconds for the farewell."""
DENIED = "does not let you connect through"
"""Of an error that no wait helps against."""


@dataclass(frozen=True, slots=True)
class ConnectEndpoint:
    """What `Node.tunnel` holds, as text."""

    region: str
    id: str
    dns_name: str

    @classmethod
    def parse(cls, text: str) -> ConnectEndpoint:
        return cls(*text.split("/", 2))

    def __str__(self) -> str:
        return f"{self.region}/{self.id}/{self.dns_name}"


@cache
def _api(region: str) -> Api:
    return Api(region)


def open_to(node: Node, seconds: float) -> Tunnel:
    """As `open_tunnel`, by what the node's record says."""
    return open_tunnel(_api(ConnectEndpoint.parse(node.tunnel).region), node, seconds)


def open_tunnel(api: Api, node: Node, seconds: float) -> Tunnel:
    """A connection to the node's sshd. Raises ProviderError, TimeoutError."""
    from websockets.exceptions import InvalidStatus, WebSocketException

    deadline = Deadline(seconds)
    endpoint = ConnectEndpoint.parse(node.tunnel)
    query = {
        "instanceConnectEndpointId": endpoint.id,
        "remotePort": node.ssh_port,
        "privateIpAddress": node.private_address,
        "maxTunnelDuration": LONGEST,
    }
    address = f"wss://{endpoint.dns_name}/openTunnel?{urlencode(query)}"
    signed = api.sign(SERVICE, address, EXPIRES)
    # Nobody has a time limit for the resolver.
    connecting = run_in_background(partial(_connect, signed, api.find_ca_bundle(), seconds))
    try:
        opened = deadline.await_result(connecting)
    except InvalidStatus as error:
        raise _refused(endpoint, error) from error
    except TimeoutError:
        connecting.add_done_callback(_drop)
        raise
    except (OSError, WebSocketException) as error:
        raise ProviderError(
            f"{endpoint.id} cannot be reached at {endpoint.dns_name}: {error}",
            hint="check your network and your proxy: HTTPS (port 443) to that name has to be open;"
            " if a proxy looks into it, name the file with its certificate in AWS_CA_BUNDLE",
            transient=True,
        ) from error
    return _Carrier(*opened).start(endpoint.id)


Opened = tuple[ExitStack, "ClientConnection"]
"""A connection, and what closes it."""


def _connect(address: str, authorities: str | None, seconds: float) -> Opened:
    from websockets.sync.client import connect

    closing = ExitStack()
    connection = closing.enter_context(
        connect(
            address,
            ssl=ssl.create_default_context(cafile=authorities),
            compression=None,
            open_timeout=seconds,
            close_timeout=CLOSING,
            ping_interval=None,  # SSH has its own
            max_size=None,
        )
    )
    return closing, connection


def _drop(connecting: futures.Future[Opened]) -> None:
    """It is for nobody any more."""
    if connecting.exception() is None:
        closing, _ = connecting.result()
        closing.close()


def _refused(endpoint: ConnectEndpoint, error: InvalidStatus) -> ProviderError:
    """AWS's own words are JSON (aidansteele/rdsconn, issue 5)."""
    status, body = error.response.status_code, error.response.body or b""
    try:
        said = json.loads(body)
        code, text = str(said["ErrorCode"]), str(said["Message"])
    except (ValueError, LookupError, TypeError):
        code, text = "", body.decode(errors="replace").strip()[:200] or f"HTTP status {status}"
    if status in (401, 403) or code == "AccessDenied":
        return ProviderError(
            f"AWS {DENIED} {endpoint.id}: {text}",
            hint="the right ec2-instance-connect:OpenTunnel is in infra/ec2/policy.json; a wrong"
            " clock makes signatures invalid, too",
        )
    return ProviderError(
        f"{endpoint.id} opens no connection: {text}",
        hint="an endpoint has 20 connections at a time; `aws ec2"
        " describe-instance-connect-endpoints` shows its state",
        transient=True,
    )


class _Carrier:
    """Hands on what comes from one side to the other, in two threads, until one of them closes."""

    def __init__(self, closing: ExitStack, connection: ClientConnection) -> None:
        self._closing, self._connection = closing, connection

    def start(self, endpoint: str) -> Tunnel:
        ours, self._sock = socket.socketpair()
        receiving = run_in_background(self._receive)
        run_in_background(partial(self._send, receiving))
        return Tunnel(ours, partial(self._explain, endpoint))

    def _receive(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                message = self._connection.recv()
                self._sock.sendall(message if isinstance(message, bytes) else message.encode())
        except (ConnectionClosed, OSError):
            pass  # whoever reads from our end sees it
        finally:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def _send(self, receiving: futures.Future[None]) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while data := self._sock.recv(MESSAGE):
                self._connection.send(data)
        except (ConnectionClosed, OSError):
            pass
        finally:
            self._closing.close()
            futures.wait((receiving,), CLOSING)
            self._sock.close()

    def _explain(self, endpoint: str) -> str:
        """Why the other side has closed it."""
        reason = self._connection.close_reason
        return f"{endpoint} closed the connection: {reason}" if reason else ""
