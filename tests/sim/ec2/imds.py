"""The instance metadata service, version 2 (and 1 where the instance allows it)."""

from __future__ import annotations

import base64
import gzip
import json
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Tree = Callable[[str], "Document | None"]
"""Private address of who asks → what is to be read there."""


class Document:
    """The metadata of one instance."""

    def __init__(self, paths: Mapping[str, str], token_required: bool) -> None:
        self.paths = dict(paths)
        self.token_required = token_required

    def read(self, path: str) -> str | None:
        path = path.rstrip("/")
        if path in self.paths:
            return self.paths[path]
        below = {
            name.removeprefix(path + "/").partition("/")[0]
            + ("/" if "/" in name.removeprefix(path + "/") else "")
            for name in self.paths
            if name.startswith(path + "/")
        }
        return "\n".join(sorted(below)) or None


class Service(ThreadingHTTPServer):
    """Serves one VPC, told apart by where the questions come from."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, tree: Tree) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.tree = tree
        self.tokens: set[str] = set()
        # Looks at its own stop flag that often: a long time is spent in poll() and nowhere else.
        threading.Thread(target=self.serve_forever, args=(0.2,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of our business."""


class _Handler(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        if self.path != "/latest/api/token":
            return self._send(404, "")
        if not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
            return self._send(400, "")
        token = secrets.token_urlsafe(40)
        self.server.tokens.add(token)
        return self._send(200, token)

    def do_GET(self) -> None:
        document = self.server.tree(self.client_address[0])
        if document is None:
            return self._send(404, "")
        token = self.headers.get("X-aws-ec2-metadata-token")
        if token not in self.server.tokens and (token or document.token_required):
            return self._send(401, "")
        text = document.read(self.path.partition("?")[0])
        return self._send(404, "") if text is None else self._send(200, text)

    def _send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Not every poll is worth a line."""


def document(instance: Any, image: Any, keys: list[str], notice: dict[str, str] | None) -> Document:
    """What moto's instance is told about itself. `notice`: the end of a spot instance."""
    zone = instance.placement.zone
    root = "/latest/meta-data"
    paths = {
        f"{root}/ami-id": instance.image_id,
        f"{root}/instance-id": instance.id,
        f"{root}/instance-type": instance.instance_type,
        f"{root}/instance-life-cycle": "spot" if instance.lifecycle == "spot" else "on-demand",
        f"{root}/local-ipv4": instance.private_ip_address,
        f"{root}/hostname": instance.private_dns_name,
        f"{root}/local-hostname": instance.private_dns_name,
        f"{root}/placement/availability-zone": zone,
        f"{root}/placement/region": zone[:-1],
        f"{root}/mac": instance.nics[0].mac_address,
        "/latest/user-data": text_of(instance.user_data),
        "/latest/dynamic/instance-identity/document": json.dumps(
            {"instanceId": instance.id, "region": zone[:-1], "accountId": instance.owner_id}
        ),
    }
    for number, key in enumerate(keys):
        paths[f"{root}/public-keys/{number}/openssh-key"] = key
    if instance.public_ip_address:
        paths[f"{root}/public-ipv4"] = instance.public_ip_address
    if notice:
        paths[f"{root}/spot/instance-action"] = json.dumps(notice)
        paths[f"{root}/spot/termination-time"] = notice["time"]
    if instance.metadata_options.instance_metadata_tags == "enabled":
        for tag in instance.get_tags():
            paths[f"{root}/tags/instance/{tag['key']}"] = tag["value"]
    return Document(paths, instance.metadata_options.http_tokens == "required")


def text_of(user_data: Any) -> str:
    """The text of moto's user data; packed with gzip is allowed, as cloud-init allows it."""
    if user_data is None:
        return ""
    raw = base64.b64decode(str(user_data))
    return (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode()
