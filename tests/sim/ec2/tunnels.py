"""Connections through EC2 Instance Connect Endpoints, and an `aws` that opens them: `aws
ec2-instance-connect open-tunnel`, whose options come here, and from here on TCP inside the VPC, as
far as rights and security groups let it.

Sources: AWS CLI Command Reference, `open-tunnel`; Service Authorization Reference, "… for Amazon
EC2 Instance Connect" (what OpenTunnel is asked about); aidansteele/rdsconn issue 5 (how a refusal
looks, and the ports); EC2 User Guide, "Quotas for EC2 Instance Connect Endpoint";
gravitational/teleport pull request 32899 (a machine that does not answer shows only after the
tunnel is open).
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.sim.ec2 import gaps
from tests.sim.ec2.endpoints import CONNECTIONS, READY, Endpoint
from tests.sim.ec2.faults import Where
from tests.sim.ec2.firewall import leaves, members
from tests.sim.ec2.server import ADMINISTRATOR, Layer

SERVICE = "ec2-instance-connect"
LONGEST = 3600.0
ANSWER = 3.0
"""Seconds that a machine has to answer; on AWS it is about ten."""

Connect = Callable[[str, str, str, int, float], socket.socket]
"""VPC, source, address, port, seconds → a connection inside the VPC."""

AWS = """\
import json, os, socket, sys, threading

if sys.argv[1:] == ["--version"]:
    sys.exit(print("aws-cli/2.15.0 Python/3.11.6 Linux/6.1 exe/x86_64"))
assert sys.argv[1:3] == ["ec2-instance-connect", "open-tunnel"], sys.argv
said = {name[2:]: value for name, value in zip(sys.argv[3::2], sys.argv[4::2])}
host, _, port = said["instance-connect-endpoint-dns-name"].rpartition(":")
there = socket.create_connection((host, int(port)))
said["key"] = os.environ["AWS_ACCESS_KEY_ID"]
there.sendall(json.dumps(said).encode() + b"\\n")
answer = b""
while not answer.endswith(b"\\n"):
    answer += there.recv(1) or b"closed\\n"
if answer != b"\\n":
    sys.exit("awscli.customizations.ec2instanceconnect.websocket - ERROR - " + answer.decode())


def send():
    while data := os.read(0, 65536):
        there.sendall(data)
    there.shutdown(socket.SHUT_WR)


threading.Thread(target=send, daemon=True).start()
while data := there.recv(65536):
    os.write(1, data)
"""


class Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Tunnels:
    """Begins with the first question where it is."""

    def __init__(self, folder: Path, layer: Layer, connect: Connect) -> None:
        self._folder, self._layer, self._connect = folder, layer, connect
        self._server: socket.socket | None = None
        self._open: dict[socket.socket, str] = {}
        """Each with the id of its endpoint."""
        self.longest = LONGEST

    def start(self) -> str:
        """The folder of the `aws` that opens tunnels."""
        folder = self._folder / "aws-cli"
        if self._server is None:
            self._server = socket.create_server(("127.0.0.1", 0))
            self._layer.world.endpoints.dns_name = f"localhost:{self._server.getsockname()[1]}"
            threading.Thread(target=self._serve, args=(self._server,), daemon=True).start()
            folder.mkdir()
            program = folder / "aws"
            program.write_text(f"#!{sys.executable} -IS\n{AWS}")
            program.chmod(0o755)
        return str(folder)

    def count(self) -> int:
        return len(self._open)

    def cut(self) -> int:
        found = list(self._open)
        for connection in found:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return len(found)

    def _serve(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            line = b""
            while not line.endswith(b"\n"):
                line += connection.recv(1)
            said = json.loads(line)
            try:
                self._admit(said)
            except Refused as no:
                answer = json.dumps({"ErrorCode": no.code, "Message": str(no)})
                connection.sendall(answer.encode() + b"\n")
                return
            connection.sendall(b"\n")
            self._open[connection] = said["instance-connect-endpoint-id"]
            try:
                self._relay(connection, said)
            finally:
                del self._open[connection]

    def _admit(self, said: dict[str, str]) -> None:
        one = self._layer.world.endpoints.all.get(said["instance-connect-endpoint-id"])
        if one is None or one.state != READY:
            raise Refused("InvalidParameter", "The specified endpoint is not valid.")
        self._authorize(said, one)
        if said["remote-port"] not in ("22", "3389"):
            raise Refused("InvalidParameter", "The specified RemotePort is not valid.")
        if list(self._open.values()).count(one.id) >= CONNECTIONS:
            raise Refused("TooManyConnections", f"{one.id} has {CONNECTIONS} connections")
        if self._layer.faults.take("tunnel", where=Where()):
            raise Refused("ServiceUnavailable", "Try again later.")

    def _authorize(self, said: dict[str, str], one: Endpoint) -> None:
        key = said["key"]
        names = {
            "remotePort": "remote-port",
            "privateIpAddress": "private-ip-address",
            "maxTunnelDuration": "max-tunnel-duration",
        }
        ask: dict[str, Any] = {
            "action": f"{SERVICE}:OpenTunnel",
            "resource": one.arn,
            "context": {
                **{f"{SERVICE}:{name}": said[option] for name, option in names.items()},
                **{f"aws:ResourceTag/{name}": value for name, value in one.tags.items()},
            },
        }
        call = {"action": ask["action"], "region": one.region, "key": key, "asks": [ask]}
        self._layer.calls.append({**call, "administrator": key == ADMINISTRATOR})
        if not self._layer.allows(key, ask):
            raise Refused(
                "AccessDenied",
                f"User: arn:aws:iam::{gaps.ACCOUNT}:user/simulated is not authorized to perform:"
                f" {ask['action']} on resource: {one.arn}",
            )

    def _relay(self, connection: socket.socket, said: dict[str, str]) -> None:
        limit = min(float(said["max-tunnel-duration"]), self.longest)
        over = threading.Timer(limit, connection.shutdown, (socket.SHUT_RDWR,))
        over.daemon = True
        over.start()
        try:
            with self._reach(said) as machine:
                answering = threading.Thread(target=_hand_on, args=(machine, connection))
                answering.start()
                _hand_on(connection, machine)
                answering.join()
        finally:
            over.cancel()

    def _reach(self, said: dict[str, str]) -> socket.socket:
        """As its groups let it out; those of the machine are that machine's. OSError."""
        world = self._layer.world
        one = world.endpoints.all[said["instance-connect-endpoint-id"]]
        there = gaps.backend(one.region)
        groups = [there.get_security_group_from_id(id) for id in one.groups]
        known = members(item for item in there.all_instances() if item.state == "running")
        address, port = said["private-ip-address"], int(said["remote-port"])
        if not leaves(groups, known, address, port):
            time.sleep(ANSWER)
            raise TimeoutError
        made = self._connect(one.vpc, one.address, address, port, ANSWER)
        made.settimeout(None)
        return made


def _hand_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
