"""The instance metadata service, version 2 (and 1 where the instance allows it)."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Tree = Callable[[str], "Document | None"]
"""Private address of who asks → what is to be read there."""


@dataclass(frozen=True)
class Document:
    """The metadata of one instance, as far as nodes read them: path → text."""

    paths: dict[str, str]
    token_required: bool


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
        text = document.paths.get(self.path)
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


def describe(instance: Any, notice: dict[str, str] | None) -> Document:
    """What moto's instance is told about itself. `notice`: the end of a spot instance."""
    root = "/latest/meta-data"
    paths = {f"{root}/": "instance-id", f"{root}/instance-id": str(instance.id)}
    if notice:
        paths[f"{root}/spot/instance-action"] = json.dumps(notice)
    return Document(paths, instance.metadata_options.http_tokens == "required")
