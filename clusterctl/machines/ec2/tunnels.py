"""Connections through an EC2 Instance Connect Endpoint: a WebSocket whose binary messages are the
bytes of a TCP connection that the endpoint makes inside its VPC. AWS checks who opens it by the
signature in its address. Source: aws/aws-cli, awscli/customizations/ec2instanceconnect.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from concurrent import futures
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.core.model import ClusterSpec, Node
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2.api import TAG, Api
from clusterctl.machines.ec2.refusals import RefusedByAws
from clusterctl.transport.protocol import Tunnel

if TYPE_CHECKING:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import ClientConnection

SERVICE = "ec2-instance-connect"
EXPIRES = 60
"""Seconds in which a signed address has to be used, as AWS's own tool has it."""
DURATION = 3600
"""Seconds that a connection may last: AWS's limit. Whoever needs it longer connects anew."""
NOTICED = 10.0
"""Seconds that a clock differs from what is known of it, before a signature is made anew."""
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
def _open_api(region: str) -> Api:
    return Api(region)


def open_to(node: Node, seconds: float) -> Tunnel:
    """As `open_tunnel`, by what the node's record says."""
    return open_tunnel(_open_api(ConnectEndpoint.parse(node.tunnel).region), node, seconds)


def open_tunnel(api: Api, node: Node, seconds: float) -> Tunnel:
    """A connection to the node's sshd. Raises ProviderError, TimeoutError."""
    from websockets.exceptions import InvalidStatus, WebSocketException

    deadline = Deadline(seconds)
    endpoint = ConnectEndpoint.parse(node.tunnel)
    # Nobody has a time limit for the resolver, nor for a program that gives credentials.
    connecting = run_in_background(partial(_connect, api, endpoint, node, deadline))
    try:
        opened = deadline.await_result(connecting)
    except InvalidStatus as error:
        raise _make_refused_error(endpoint, error) from error
    except TimeoutError:
        connecting.add_done_callback(_drop)
        raise
    except (OSError, WebSocketException) as error:
        raise _make_unreachable_error(endpoint, str(error)) from error
    return _Carrier(*opened).start(endpoint.id)


def _make_unreachable_error(endpoint: ConnectEndpoint, why: str) -> ProviderError:
    return ProviderError(
        f"{endpoint.id} cannot be reached at {endpoint.dns_name}: {why}",
        hint="check your network and your proxy: HTTPS (port 443) to that name has to be open;"
        " if a proxy looks into it, name the file with its certificate in AWS_CA_BUNDLE",
        transient=True,
    )


Opened = tuple[ExitStack, "ClientConnection"]
"""A connection, and what closes it."""


def _connect(api: Api, endpoint: ConnectEndpoint, node: Node, deadline: Deadline) -> Opened:
    from websockets.exceptions import InvalidStatus

    context = _build_context(api.find_ca_bundle())
    proxy = _find_proxy(endpoint.dns_name)
    query = {
        "instanceConnectEndpointId": endpoint.id,
        "remotePort": node.ssh_port,
        "privateIpAddress": node.private_address,
        "maxTunnelDuration": DURATION,
    }
    address = f"wss://{endpoint.dns_name}/openTunnel?{urlencode(query)}"
    try:
        return _dial(api, address, context, proxy, deadline)
    except InvalidStatus as error:
        if not _learn_time(api, error):
            raise
        return _dial(api, address, context, proxy, deadline)


def _sign(api: Api, address: str) -> str:
    """The address, signed by AWS's clock instead of this machine's, as far as that is known:
    botocore corrects none, and what it signs for a minute is of no use a minute late."""
    from botocore.auth import SIGV4_TIMESTAMP, SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    class Auth(SigV4QueryAuth):  # type: ignore[misc]
        def _modify_request_before_signing(self, request: Any) -> None:
            now = datetime.now(timezone.utc) - timedelta(seconds=api.ahead)
            request.context["timestamp"] = now.strftime(SIGV4_TIMESTAMP)
            super()._modify_request_before_signing(request)

    request = AWSRequest("GET", address)
    Auth(api.find_keys(), SERVICE, api.region, EXPIRES).add_auth(request)
    return str(request.url)


def _dial(
    api: Api, address: str, context: ssl.SSLContext, proxy: str | None, deadline: Deadline
) -> Opened:
    from websockets.sync.client import connect

    closing = ExitStack()
    connection = closing.enter_context(
        connect(
            _sign(api, address),
            ssl=context,
            proxy=proxy,
            proxy_ssl=context if proxy and proxy.startswith("https:") else None,
            compression=None,
            open_timeout=deadline.left,
            close_timeout=CLOSING,
            ping_interval=None,  # SSH has its own
            max_size=None,
        )
    )
    return closing, connection


def _learn_time(api: Api, error: InvalidStatus) -> bool:
    """Whether AWS's clock, by its answer, is another than we signed by."""
    code, _ = _read(error)
    if error.response.status_code != 403 or not code:
        return False
    try:
        theirs = parsedate_to_datetime(error.response.headers["Date"]).timestamp()
    except (LookupError, TypeError, ValueError):
        return False
    ahead = time.time() - theirs
    if abs(ahead - api.ahead) < NOTICED:
        return False
    api.ahead = ahead
    return True


def _build_context(named: str | None) -> ssl.SSLContext:
    """The system's authorities, botocore's, and those of files that are named: a proxy that looks
    into TLS may leave WebSockets alone."""
    from botocore.httpsession import get_cert_path

    context = ssl.create_default_context()
    context.load_verify_locations(get_cert_path(True))
    for file in (named, os.environ.get("REQUESTS_CA_BUNDLE")):
        if file:
            context.load_verify_locations(file)
            # Python sets it from 3.13 on; authorities of companies often do not comply.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _find_proxy(host: str) -> str | None:
    """The one that botocore would take, with a scheme. Raises ProviderError."""
    from botocore.utils import get_environ_proxies

    found = get_environ_proxies(f"https://{host}").get("https")
    if not found:
        return None
    try:
        parts = urlsplit(found if "//" in found else f"//{found}", "http")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:  # it may hold a password: not shown
        raise ProviderError(
            "HTTPS_PROXY does not name an HTTP proxy",
            hint="its form is http://HOST:PORT; SOCKS proxies cannot be used",
        )
    user, at, place = parts.netloc.rpartition("@")
    if user and ":" not in user:
        user += ":"
    return f"{parts.scheme}://{user}{at}{place}"


def _drop(connecting: futures.Future[Opened]) -> None:
    """It is for nobody any more."""
    if connecting.exception() is None:
        closing, _ = connecting.result()
        closing.close()


def _read(error: InvalidStatus) -> tuple[str, str]:
    """Code and text of AWS's own words, which are JSON (aidansteele/rdsconn, issue 5); without a
    code it may be the page of a proxy."""
    status, body = error.response.status_code, error.response.body or b""
    try:
        said = json.loads(body)
        return str(said["ErrorCode"]), str(said["Message"])
    except (ValueError, LookupError, TypeError):
        text = body.decode(errors="replace").strip()[:200] or f"HTTP status {status}"
        return "HTTP" if "x-amzn-requestid" in error.response.headers else "", text


def _make_refused_error(endpoint: ConnectEndpoint, error: InvalidStatus) -> ProviderError:
    code, text = _read(error)
    if error.response.status_code in (401, 403) or code == "AccessDenied":
        if not code:
            return _make_unreachable_error(endpoint, f"not AWS, but maybe a proxy, answers: {text}")
        right = "the right ec2-instance-connect:OpenTunnel is in infra/ec2/policy.json"
        clock = "is this machine's clock right? AWS accepts a signature for a minute"
        is_late = any(word in text.lower() for word in ("expired", "not yet current"))
        return ProviderError(
            f"AWS {DENIED} {endpoint.id}: {text}", hint=clock if is_late else right
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


# -------------------------------------------------------------------------------------------------
# EC2 Instance Connect Endpoints, before one is made: whether it may be, and whether there is one.


_GONE = ("delete-complete", "create-failed")
_READY = ("create-complete", "update-in-progress", "update-complete", "update-failed")
"""States in which it takes connections: while it is changed, and when that failed, it works as
before (EC2 User Guide, "Modify an EC2 Instance Connect Endpoint")."""


@dataclass(frozen=True, slots=True)
class Existing:
    """The endpoint that somebody else keeps in the VPC, and its security groups."""

    endpoint: ConnectEndpoint
    groups: tuple[str, ...]


def check_endpoints(api: Api, options: ClusterSpec, id: str, *, there: bool) -> Existing | None:
    """The one to use that is in the VPC already; None where one is to be made. `id`: of a cluster
    whose own may be there; `there`: it has machines. Raises ProviderError and UsageError where none
    can be used or made."""
    cloud = options.cloud
    if not cloud.instance_connect:
        return None
    # AWS wants a subnet to be asked also where nothing is made: any.
    search = [("subnet-id", list(cloud.subnet))] if cloud.subnet else [("vpc-id", [cloud.vpc])]
    filters = [{"Name": key, "Values": ids} for key, ids in search if ids != [""]]
    subnets = api.list_all("describe_subnets", "Subnets", Filters=filters)
    if filters and subnets:
        action, key = "describe_instance_connect_endpoints", "InstanceConnectEndpoints"
        of_vpc = [{"Name": "vpc-id", "Values": [subnets[0]["VpcId"]]}]
        found = api.list_all(action, key, Filters=of_vpc)
        for item in (item for item in found if item["State"] not in _GONE):
            tags = {tag["Key"]: str(tag["Value"]) for tag in item.get("Tags", ())}
            owner = tags.get(TAG, "")
            return None if owner and owner == id else _use(api, item, owner)
    if subnets and not there:
        _check_rights(api, options, min(str(item["SubnetId"]) for item in subnets))
    return None


def describe_endpoints(existing: Existing | None) -> str:
    """Of the plan: how SSH gets to the launcher."""
    whose = f"{existing.endpoint.id}, which the VPC has already" if existing else "one is made"
    return (
        "SSH to the launcher goes through an EC2 Instance Connect Endpoint, which costs nothing"
        f" ({whose}); no network can connect to it directly"
    )


def _use(api: Api, item: dict[str, Any], owner: str) -> Existing:
    name, vpc = str(item["InstanceConnectEndpointId"]), str(item["VpcId"])
    if owner:
        raise UsageError(
            f"{vpc} has an EC2 Instance Connect Endpoint of cluster {owner} ({name}), which serves"
            " that cluster alone, and a VPC can have one",
            hint="choose another --vpc, or leave --instance-connect out",
        )
    if item["State"] not in _READY:
        raise ProviderError(
            f"{name}, the EC2 Instance Connect Endpoint of {vpc}, is in the state {item['State']}",
            hint="wait until its state is create-complete, or choose another --vpc",
        )
    endpoint = ConnectEndpoint(api.region, name, str(item["DnsName"]))
    return Existing(endpoint, tuple(map(str, item.get("SecurityGroupIds", ()))))


def _check_rights(api: Api, options: ClusterSpec, subnet: str) -> None:
    """Raises ProviderError where we may make none: Terraform would find out when machines run."""
    pairs = ec2_api.as_list({TAG: options.name, **ec2_api.parse_tags(options.cloud.tag)})
    try:
        api.check_right(
            "create_instance_connect_endpoint",
            SubnetId=subnet,
            TagSpecifications=[{"ResourceType": "instance-connect-endpoint", "Tags": pairs}],
        )
    except RefusedByAws as refused:
        raise ProviderError(
            f"--instance-connect: {refused.message}",
            hint=f"clusterctl makes an EC2 Instance Connect Endpoint; {refused.hint}",
        ) from refused
