"""A container registry that answers questions about manifests: no engine, no blobs.

It gives tokens as Docker Hub does, or asks for a password itself, keeps repositories to those who
may see them, and fails on request. What was asked is in `asked`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from clusterctl.machines import registry

LIST = "application/vnd.oci.image.index.v1+json"
SINGLE = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass
class Hub:
    """`tokens`: it hands out tokens; else it wants the password with each question."""

    url: str
    tokens: bool = True
    failure: int = 0
    """An HTTP status for all questions."""
    pause: float = 0.0
    """Seconds between the bytes that it sends of a manifest."""
    garbage: bytes = b""
    """What it sends instead of a manifest."""
    realm: str = ""
    """Another server that gives the tokens."""
    asked: list[str] = field(default_factory=list)
    heads: int = 0
    """How many of them want no manifest: Docker Hub does not count those as pulls."""
    _manifests: dict[tuple[str, str], tuple[str, str, bytes]] = field(default_factory=dict)
    _private: dict[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return urllib.parse.urlsplit(self.url).netloc

    def serve(
        self,
        repository: str,
        *names: str,
        size: int = 5_000_000,
        platforms: tuple[str, ...] = (),
        digest: str = "",
        login: str = "",
    ) -> str:
        """Offers an image under tags or digests; returns its digest. `login`: `user:password` that
        it takes to see it."""
        layers = [{"digest": f"sha256:{'1' * 64}", "size": size - 1000}]
        manifest: dict[str, Any] = {"config": {"size": 1000}, "layers": layers}
        kind = SINGLE
        if platforms:
            inner = [self.serve(repository, size=size + n) for n, _ in enumerate(platforms)]
            rows = zip(inner, (name.split("/") for name in platforms), strict=True)
            manifest = {
                "manifests": [
                    {"digest": one, "platform": {"os": os, "architecture": architecture}}
                    for one, (os, architecture) in rows
                ]
            }
            kind = LIST
        data = json.dumps({"schemaVersion": 2, "mediaType": kind, **manifest}).encode()
        digest = digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
        for name in (*names, digest):
            self._manifests[repository, name] = (digest, kind, data)
        if login:
            self._private[repository] = login
        return digest

    def serve_bases(self) -> None:
        """All that the recipes are built on, under the digests that they name."""
        base = registry.list_arguments(registry.read_downloads())["BASE"]
        tagged, _, digest = base.partition("@")
        path, _, tag = tagged.partition(":")
        repository = path if "/" in path else f"library/{path}"
        self.serve(repository, tag, size=28_200_000, digest=digest)

    def may_see(self, repository: str, login: str) -> bool:
        return self._private.get(repository, login) == login

    def manifest(self, repository: str, name: str) -> tuple[str, str, bytes] | None:
        return self._manifests.get((repository, name))


@contextlib.contextmanager
def running(*, tokens: bool = True) -> Iterator[Hub]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, code: int, data: bytes, **headers: str) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            data = b"" if self.command == "HEAD" else data
            with contextlib.suppress(ConnectionError):
                for byte in data if hub.pause else ():
                    time.sleep(hub.pause)
                    self.wfile.write(bytes([byte]))
                self.wfile.write(b"" if hub.pause else data)

        def do_GET(self) -> None:
            hub.asked.append(self.path)
            given = self.headers.get("Authorization", "")
            parts = urllib.parse.urlsplit(self.path)
            if parts.path == "/token":
                self.give_token(given, dict(urllib.parse.parse_qsl(parts.query)))
            elif hub.failure:
                self.answer(hub.failure, b"{}")
            else:
                repository, _, name = parts.path.removeprefix("/v2/").partition("/manifests/")
                self.show(given, repository, name)

        def do_HEAD(self) -> None:
            hub.heads += 1
            self.do_GET()

        def give_token(self, given: str, query: dict[str, str]) -> None:
            scope = query["scope"].removeprefix("repository:").removesuffix(":pull")
            login = _password(given)
            if given and login not in hub._private.values():
                self.answer(401, b'{"details": "incorrect username or password"}')
                return
            token = base64.b64encode(f"{scope} {login}".encode()).decode()
            self.answer(200, json.dumps({"token": token}).encode())

        def show(self, given: str, repository: str, name: str) -> None:
            if hub.tokens:
                realm = f'Bearer realm="{hub.realm or hub.url}/token",service="hub"'
                challenge = f'{realm},scope="repository:{repository}:pull"'
                scheme, _, token = given.partition(" ")
                scope, _, login = base64.b64decode(token).decode().partition(" ")
                known = scheme == "Bearer" and scope == repository
            else:
                challenge, login = 'Basic realm="hub"', _password(given)
                known = bool(login)
            found = hub.manifest(repository, name)
            if not known or not hub.may_see(repository, login):
                self.answer(401, b"{}", WWW_Authenticate=challenge)
            elif hub.garbage:
                self.answer(200, hub.garbage)
            elif found is None:
                self.answer(404, b"{}")
            else:
                digest, kind, data = found
                self.answer(200, data, Content_Type=kind, Docker_Content_Digest=digest)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = Hub(f"http://127.0.0.1:{server.server_port}", tokens)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def _password(given: str) -> str:
    scheme, _, text = given.partition(" ")
    return base64.b64decode(text).decode() if scheme == "Basic" else ""
