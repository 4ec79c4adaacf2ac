"""EC2 Instance Connect Endpoints: what is known before one is made, and connections through one.
The code of clusterctl against the simulated API, and against machines."""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from clusterctl.core.model import CloudSpec, ClusterSpec, Node, NodeGroup
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import network, preflight, remove, tunnels
from clusterctl.machines.ec2.api import TAG, Api
from clusterctl.machines.ec2.tunnels import ConnectEndpoint
from clusterctl.transport.protocol import Tunnel
from tests.e2e.cli import wait_for
from tests.ec2.conftest import policy
from tests.sim.lab import Lab, their_network, with_nat
from tests.unit.making import node

pytestmark = [pytest.mark.netns, pytest.mark.sshd]

RIGHTS = policy()


@pytest.fixture
def api(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Api:
    return lab.connect(monkeypatch, AWS_CA_BUNDLE=lab.ec2.trust_tunnels())


@contextmanager
def endpoint(lab: Lab, subnet: str = "", **tags: str) -> Iterator[str]:
    """One with the default group of its VPC; its id."""
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    more: dict[str, Any] = {}
    if pairs:
        kind = "instance-connect-endpoint"
        more["TagSpecifications"] = [{"ResourceType": kind, "Tags": pairs}]
    made = lab.api.create_instance_connect_endpoint(SubnetId=subnet or lab.subnet, **more)
    id = str(made["InstanceConnectEndpoint"]["InstanceConnectEndpointId"])
    try:
        yield id
    finally:
        lab.api.delete_instance_connect_endpoint(InstanceConnectEndpointId=id)


def spec(**cloud: Any) -> ClusterSpec:
    cloud = {"region": "us-east-1", "instance_connect": True, **cloud}
    groups = (NodeGroup(count=1, family="cpu"),)
    return ClusterSpec(name="lab", provider="ec2", groups=groups, cloud=CloudSpec(**cloud))


def check(api: Api, id: str = "", **cloud: Any) -> tunnels.Existing | None:
    """What is known before money is spent."""
    return tunnels.check_endpoints(api, spec(**cloud), id, there=False)


def behind(lab: Lab, id: str) -> Node:
    """The machine `one` as a node behind an endpoint."""
    [item] = lab.api.describe_instance_connect_endpoints(InstanceConnectEndpointIds=[id])[
        "InstanceConnectEndpoints"
    ]
    tunnel = str(ConnectEndpoint("us-east-1", id, item["DnsName"]))
    private = lab.ec2.machine("one").private
    return node("launcher", address=private, private_address=private, ssh_port=22, tunnel=tunnel)


def greeting(tunnel: Tunnel) -> bytes:
    with tunnel.sock as sock:
        sock.settimeout(20)
        return sock.recv(100)


def test_who_has_the_rights_of_an_earlier_version_finds_what_there_is(lab: Lab, api: Api) -> None:
    older = json.loads(json.dumps(RIGHTS))
    older["Statement"][0]["Action"].remove("ec2:DescribeInstanceConnectEndpoints")
    group = lab.group("lab-1-nodes")
    lab.api.create_tags(Resources=[group], Tags=[{"Key": TAG, "Value": "lab-1"}])
    lab.ec2.policy(older)
    try:
        assert [left.id for left in remove.find_tagged(api, "lab-1")] == [group]
    finally:
        lab.ec2.policy(None)


def test_the_endpoint_of_a_network_of_theirs_is_used(lab: Lab, api: Api) -> None:
    with their_network(lab.api, "us-east-1a") as (vpc, subnet):
        assert check(api, vpc=vpc) is None
        with endpoint(lab, subnet) as id:
            for where in ({"vpc": vpc}, {"subnet": (subnet,)}):
                found = check(api, **where)
                assert found
                assert found.endpoint.id == id
                assert len(found.groups) == 1
                assert id in tunnels.describe_endpoints(found)
        with endpoint(lab, subnet, **{TAG: "lab-2"}):
            with pytest.raises(UsageError, match=r"of cluster lab-2 .* serves that cluster alone"):
                check(api, vpc=vpc)
            assert check(api, "lab-2", vpc=vpc) is None, "its own, which Terraform keeps"
        lab.ec2.fault("slow_endpoint", seconds=6)
        made = lab.api.create_instance_connect_endpoint(SubnetId=subnet)["InstanceConnectEndpoint"]
        with pytest.raises(ProviderError, match="create-in-progress"):
            check(api, vpc=vpc)
        id = made["InstanceConnectEndpointId"]

        def ready() -> bool:
            found = lab.api.describe_instance_connect_endpoints(InstanceConnectEndpointIds=[id])
            return bool(found["InstanceConnectEndpoints"][0]["State"] == "create-complete")

        wait_for(ready, 20, "it to be there")
        assert check(api, vpc=vpc)
        lab.api.delete_instance_connect_endpoint(InstanceConnectEndpointId=id)


def test_an_endpoint_that_is_being_made_is_removed_when_it_is_there(lab: Lab, api: Api) -> None:
    lab.ec2.fault("slow_endpoint", seconds=5)
    tags = [{"Key": TAG, "Value": "lab-1"}]
    made = lab.api.create_instance_connect_endpoint(
        SubnetId=lab.subnet,
        TagSpecifications=[{"ResourceType": "instance-connect-endpoint", "Tags": tags}],
    )["InstanceConnectEndpoint"]
    with pytest.raises(ClientError, match="OperationNotPermitted"):
        lab.api.delete_instance_connect_endpoint(
            InstanceConnectEndpointId=made["InstanceConnectEndpointId"]
        )
    said: list[str] = []
    remove.remove_all(api, "lab-1", said.append)
    assert f"AWS is still creating {made['InstanceConnectEndpointId']}" in said[1]
    assert remove.find_tagged(api, "lab-1") == ()


def test_who_may_make_no_endpoint_is_told_before_it_costs(lab: Lab, api: Api) -> None:
    deny = {"Effect": "Deny", "Action": "ec2:CreateInstanceConnectEndpoint", "Resource": "*"}
    for rights, allowed in ((RIGHTS["Statement"], True), ([*RIGHTS["Statement"], deny], False)):
        lab.ec2.policy({**RIGHTS, "Statement": rights})
        try:
            if allowed:
                preflight.survey(api, spec(), {}, "", lambda line: None)
                continue
            with pytest.raises(ProviderError, match=r"^--instance-connect: "):
                preflight.survey(api, spec(), {}, "", lambda line: None)
        finally:
            lab.ec2.policy(None)
    assert lab.api.describe_instance_connect_endpoints()["InstanceConnectEndpoints"] == []


def test_machines_without_public_addresses_need_one_closed_subnet_alone(lab: Lab, api: Api) -> None:
    cidr = "10.97.0.16/28"
    with (
        their_network(lab.api, "us-east-1a", cidr="10.97.0.0/24") as (vpc, public),
        with_nat(lab.api, public, vpc, "us-east-1a", cidr) as (closed, nat),
    ):
        hidden = spec(vpc=vpc, private=True).cloud
        found = network.choose_network(api, hidden, 2, name="lab")
        assert found == {"us-east-1a": network.ZoneSubnets(closed, closed, nat)}
        alone = replace(hidden, vpc="", subnet=(public,))
        with pytest.raises(UsageError, match=f"{public} has a route to an internet gateway"):
            network.choose_network(api, alone, 2, name="lab")


def test_bytes_go_both_ways_for_whoever_may(lab: Lab, api: Api) -> None:
    lab.launch("one")
    lab.ec2.wait(1)
    with endpoint(lab, **{TAG: "lab-1"}) as id:
        launcher = behind(lab, id)
        lab.ec2.policy(RIGHTS)
        assert greeting(tunnels.open_tunnel(api, launcher, 20)).startswith(b"SSH-2.0-")
        [call] = [one for one in lab.ec2.calls if one["action"].endswith(":OpenTunnel")]
        assert not call["administrator"]
        lab.ec2.policy({**RIGHTS, "Statement": RIGHTS["Statement"][:1]})
        with pytest.raises(ProviderError, match=f"{tunnels.DENIED} {id}: .*:OpenTunnel") as no:
            tunnels.open_tunnel(api, launcher, 20)
        assert "infra/ec2/policy.json" in no.value.hint
        assert not no.value.transient
        lab.ec2.policy(None)

        with pytest.raises(ProviderError, match="RemotePort is not valid") as other:
            tunnels.open_tunnel(api, replace(launcher, ssh_port=2222), 20)
        assert other.value.transient
        lab.ec2.fault("clock", seconds=200)
        fresh = Api("us-east-1")
        for _ in range(2):
            assert greeting(tunnels.open_tunnel(fresh, launcher, 20)).startswith(b"SSH-2.0-")
        lab.ec2.clear()
        lab.ec2.fault("tunnel", how="refused", calls=1)
        with pytest.raises(ProviderError, match="opens no connection: Try again later"):
            tunnels.open_tunnel(api, launcher, 20)
        assert lab.until(lambda: lab.ec2.tunnels, {1}) == 0, "what was closed is closed there"


def test_what_cannot_be_reached_says_so_within_its_time(lab: Lab, api: Api) -> None:
    lab.launch("one")
    lab.ec2.wait(1)
    with endpoint(lab) as id:
        launcher = behind(lab, id)
        nobody = replace(launcher, private_address="10.77.0.77")
        tunnel = tunnels.open_tunnel(api, nobody, 20)
        assert greeting(tunnel) == b""
        assert tunnel.why() == f"{id} closed the connection: the machine does not answer"
        away = ConnectEndpoint("us-east-1", id, "localhost:9")
        with pytest.raises(ProviderError, match=r"cannot be reached at localhost:9: .*refused"):
            tunnels.open_tunnel(api, replace(launcher, tunnel=str(away)), 20)
        with pytest.raises(ProviderError, match="CERTIFICATE_VERIFY_FAILED") as untrusted:
            tunnels.open_tunnel(untrusting(api), launcher, 20)
        assert "AWS_CA_BUNDLE" in untrusted.value.hint


def test_whoever_gives_credentials_slowly_has_a_time_limit(
    lab: Lab, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile slow]\ncredential_process = sleep 30\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "slow")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    tunnel = str(ConnectEndpoint("us-east-1", "eice-1", "localhost:9"))
    with pytest.raises(TimeoutError):
        tunnels.open_tunnel(Api("us-east-1"), node("launcher", tunnel=tunnel), 1)


def test_authorities_that_are_named_are_added(
    lab: Lab, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.launch("one")
    lab.ec2.wait(1)
    with endpoint(lab) as id:
        launcher = behind(lab, id)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", lab.ec2.trust_tunnels())
        connected = tunnels.open_tunnel(untrusting(api), launcher, 20)
        assert greeting(connected).startswith(b"SSH-2.0-")


class Proxy(BaseHTTPRequestHandler):
    """Of a company: the only way out is CONNECT."""

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        host, _, port = self.path.partition(":")
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            while True:
                for one in select.select([self.connection, there], [], [], 20)[0]:
                    data = one.recv(65536)
                    if not data:
                        return
                    (there if one is self.connection else self.connection).sendall(data)

    def log_message(self, format: str, *words: object) -> None:
        pass


def test_a_proxy_is_the_way_where_one_is_named(
    lab: Lab, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.launch("one")
    lab.ec2.wait(1)
    with endpoint(lab) as id, ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        proxy.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        launcher = behind(lab, id)
        assert greeting(tunnels.open_tunnel(api, launcher, 20)).startswith(b"SSH-2.0-")
        assert proxy.asked == [  # type: ignore[attr-defined]
            ConnectEndpoint.parse(launcher.tunnel).dns_name
        ]
        for other in (f"127.0.0.1:{proxy.server_port}", f"http://me@127.0.0.1:{proxy.server_port}"):
            monkeypatch.setenv("HTTPS_PROXY", other)
            assert greeting(tunnels.open_tunnel(api, launcher, 20)).startswith(b"SSH-2.0-")
        assert len(proxy.asked) == 3  # type: ignore[attr-defined]
        monkeypatch.setenv("HTTPS_PROXY", "socks5://me:secret@127.0.0.1:9")
        with pytest.raises(ProviderError, match="does not name an HTTP proxy") as wrong:
            tunnels.open_tunnel(api, launcher, 20)
        assert not wrong.value.transient
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.server_port}")
        proxy.shutdown()
        proxy.socket.close()
        with pytest.raises(ProviderError, match="cannot be reached"):
            tunnels.open_tunnel(api, launcher, 20)


class Page(BaseHTTPRequestHandler):
    """Of a proxy that looks into TLS and allows nothing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"Blocked: category unknown")

    def log_message(self, format: str, *words: object) -> None:
        pass


def test_a_page_of_a_proxy_is_not_taken_for_aws(lab: Lab, api: Api) -> None:
    authority = lab.ec2.trust_tunnels()
    with ThreadingHTTPServer(("localhost", 0), Page) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority, Path(authority).with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tunnel = str(ConnectEndpoint("us-east-1", "eice-1", f"localhost:{server.server_port}"))
        with pytest.raises(ProviderError, match=r"not AWS, but maybe a proxy.*Blocked") as blocked:
            tunnels.open_tunnel(api, node("launcher", tunnel=tunnel), 20)
        assert blocked.value.transient
        server.shutdown()


def untrusting(api: Api) -> Api:
    """The same, for who trusts the usual authorities alone."""

    class Untrusting(Api):
        def find_ca_bundle(self) -> None:
            return None

    return Untrusting(api.region)
