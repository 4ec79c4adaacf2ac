"""Connections through EC2 Instance Connect Endpoints: WebSockets over TLS, whose signed address is
checked, and from there on TCP inside the VPC, as far as security groups let it.

Sources: aws/aws-cli, awscli/customizations/ec2instanceconnect (the address and its signature; the
bytes are binary messages); IAM User Guide, "Create a signed AWS API request"; Service Authorization
Reference, "… for Amazon EC2 Instance Connect" (what OpenTunnel is asked about); aidansteele/rdsconn
issue 5 (how a refusal looks, and the ports); EC2 User Guide, "Quotas for EC2 Instance Connect
Endpoint"; gravitational/teleport pull request 32899 (a machine that does not answer shows only
after the WebSocket is open). How AWS says the end of an hour is not documented.
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from tests.sim.ec2 import gaps
from tests.sim.ec2.endpoints import CONNECTIONS, READY, Endpoint
from tests.sim.ec2.faults import Where
from tests.sim.ec2.firewall import leaves, members
from tests.sim.ec2.server import ADMINISTRATOR, Layer
from tests.sim.ec2.wire import DATE

SECRET = "simulated"
SERVICE = "ec2-instance-connect"
LONGEST = 3600.0
ANSWER = 3.0
"""Seconds that a machine has to answer; on AWS it is about ten."""

Connect = Callable[[str, str, str, int, float], socket.socket]
"""VPC, source, address, port, seconds → a connection inside the VPC."""


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Tunnels:
    """Begins with the first question where it is."""

    def __init__(self, folder: Path, layer: Layer, connect: Connect) -> None:
        self._folder, self._layer, self._connect = folder, layer, connect
        self._server: Server | None = None
        self._open: dict[ServerConnection, str] = {}
        """Each with the id of its endpoint."""
        self.longest = LONGEST

    def start(self) -> str:
        """The file with whom to trust."""
        authority, key = self._folder / "tunnels.pem", self._folder / "tunnels.key"
        if self._server is None:
            _write_certificate(authority, key)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority, key)
            self._server = serve(
                self._carry,
                "127.0.0.1",
                0,
                ssl=context,
                process_request=self._check,
                compression=None,
                max_size=None,
                ping_interval=None,
            )
            port = self._server.socket.getsockname()[1]
            self._layer.world.endpoints.dns_name = f"localhost:{port}"
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return str(authority)

    def count(self) -> int:
        return len(self._open)

    def cut(self) -> int:
        found = list(self._open)
        for connection in found:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
        return len(found)

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        try:
            self._admit(connection, request)
        except Refused as no:
            body = json.dumps({"ErrorCode": no.code, "Message": str(no)}).encode()
            date = formatdate(time.time() + self._layer.ahead, usegmt=True)
            headers = Headers(
                [
                    ("Content-Type", "application/json"),
                    ("Content-Length", str(len(body))),
                    ("Date", date),
                ]
            )
            return Response(no.status, "Refused", headers, body)
        return None

    def _admit(self, connection: ServerConnection, request: Request) -> None:
        now = time.time() + self._layer.ahead
        key, said = check_signature(request.path, request.headers["Host"], now)
        one = self._layer.world.endpoints.all.get(said["instanceConnectEndpointId"])
        if one is None or one.state != READY:
            raise Refused(400, "InvalidParameter", "The specified endpoint is not valid.")
        self._authorize(key, said, one)
        if said["remotePort"] not in ("22", "3389"):
            raise Refused(
                400,
                "InvalidParameter",
                "The specified RemotePort is not valid. Specify either 22 or 3389 as the RemotePort"
                " and retry your request.",
            )
        if list(self._open.values()).count(one.id) >= CONNECTIONS:
            raise Refused(429, "TooManyConnections", f"{one.id} has {CONNECTIONS} connections")
        fault = self._layer.faults.take("tunnel", where=Where())
        if fault and fault["how"] == "refused":
            raise Refused(503, "ServiceUnavailable", "Try again later.")
        connection.said = {**said, "hangs": bool(fault)}  # type: ignore[attr-defined]
        self._open[connection] = one.id

    def _authorize(self, key: str, said: dict[str, str], one: Endpoint) -> None:
        names = ("remotePort", "privateIpAddress", "maxTunnelDuration")
        ask: dict[str, Any] = {
            "action": f"{SERVICE}:OpenTunnel",
            "resource": one.arn,
            "context": {
                **{f"{SERVICE}:{name}": said[name] for name in names if name in said},
                **{f"aws:ResourceTag/{name}": value for name, value in one.tags.items()},
            },
        }
        call = {"action": ask["action"], "region": one.region, "key": key, "asks": [ask]}
        self._layer.calls.append({**call, "administrator": key == ADMINISTRATOR})
        if not self._layer.allows(key, ask):
            raise Refused(
                403,
                "AccessDenied",
                f"User: arn:aws:iam::{gaps.ACCOUNT}:user/simulated is not authorized to perform:"
                f" {ask['action']} on resource: {one.arn}",
            )

    def _carry(self, connection: ServerConnection) -> None:
        try:
            self._relay(connection, connection.said)  # type: ignore[attr-defined]
        except ConnectionClosed:
            pass
        finally:
            self._open.pop(connection, None)

    def _relay(self, connection: ServerConnection, said: dict[str, Any]) -> None:
        limit = min(float(said.get("maxTunnelDuration", LONGEST)), self.longest)
        over = threading.Timer(limit, connection.close)
        over.daemon = True
        over.start()
        try:
            if said["hangs"]:
                while True:
                    connection.recv()
            with self._reach(said) as machine:
                answering = threading.Thread(target=_answer, args=(machine, connection))
                answering.start()
                try:
                    while True:
                        machine.sendall(connection.recv())  # type: ignore[arg-type]
                except OSError:
                    pass
                finally:
                    with suppress(OSError):
                        machine.shutdown(socket.SHUT_RDWR)
                    answering.join()
        except OSError:
            connection.close(1011, "the machine does not answer")
        finally:
            over.cancel()

    def _reach(self, said: dict[str, Any]) -> socket.socket:
        """As its groups let it out; those of the machine are that machine's. OSError."""
        world = self._layer.world
        one = world.endpoints.all[said["instanceConnectEndpointId"]]
        there = gaps.backend(one.region)
        groups = [there.get_security_group_from_id(id) for id in one.groups]
        known = members(item for item in there.all_instances() if item.state == "running")
        address, port = said["privateIpAddress"], int(said["remotePort"])
        if not leaves(groups, known, address, port):
            time.sleep(ANSWER)
            raise TimeoutError
        made = self._connect(one.vpc, one.address, address, port, ANSWER)
        made.settimeout(None)
        return made


def _answer(machine: socket.socket, connection: ServerConnection) -> None:
    try:
        while data := machine.recv(65536):
            connection.send(data)
    except (OSError, ConnectionClosed):
        pass
    connection.close()


def check_signature(target: str, host: str, now: float) -> tuple[str, dict[str, str]]:
    """The access key, and what the address says. Raises Refused for one that is not signed as it
    has to be."""
    parts = urlsplit(target)
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    try:
        signature = said.pop("X-Amz-Signature")
        key, day, region, service, end = said["X-Amz-Credential"].split("/")
        when, seconds = said["X-Amz-Date"], float(said["X-Amz-Expires"])
        signed = calendar.timegm(time.strptime(when, DATE))
    except (LookupError, ValueError) as error:
        raise Refused(403, "MissingAuthenticationToken", f"not signed: {error}") from error
    query = "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
        for name, value in sorted(said.items())
    )
    empty = hashlib.sha256(b"").hexdigest()
    canonical = f"GET\n{parts.path}\n{query}\nhost:{host}\n\nhost\n{empty}"
    scope = f"{day}/{region}/{service}/{end}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    secret = f"AWS4{SECRET}".encode()
    for text in (day, region, service, end, f"AWS4-HMAC-SHA256\n{when}\n{scope}\n{digest}"):
        secret = hmac.digest(secret, text.encode(), "sha256")
    if service != SERVICE or not hmac.compare_digest(secret.hex(), signature):
        raise Refused(403, "InvalidSignatureException", "The signature does not match.")
    if parts.path != "/openTunnel" or not signed - 300 <= now <= signed + min(seconds, 60):
        raise Refused(403, "RequestExpired", "Request has expired.")
    return key, said


def _write_certificate(authority: Path, file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=7))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    authority.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem, pkcs = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(pem, pkcs, plain))
