"""`run --notify`: who is told how a job has ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from clusterctl.actions.notify import notify

TEXT = "job 7 on lab failed after 3 s: rank 1 on worker-2 exited 3 (train.py)"


@pytest.fixture
def posts() -> Iterator[tuple[str, list[bytes]]]:
    """An address, and what it gets; it refuses /no."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(403 if self.path == "/no" else 200)
            self.end_headers()

        def log_message(self, *words: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def test_an_address_gets_the_job(posts: tuple[str, list[bytes]]) -> None:
    address, got = posts
    assert notify(f"{address}/hook", TEXT, {"id": 7, "state": "failed"}) == ""
    assert json.loads(got[0]) == {"schema": 1, "text": TEXT, "id": 7, "state": "failed"}
    assert "403" in notify(f"{address}/no", TEXT, {})


def test_a_command_gets_the_job(tmp_path: Path) -> None:
    target = f'cat >{tmp_path}/json; echo "$CLUSTERCTL_NOTE" >{tmp_path}/note'
    assert notify(target, TEXT, {"id": 7}) == ""
    assert json.loads((tmp_path / "json").read_text())["id"] == 7
    assert (tmp_path / "note").read_text() == f"{TEXT}\n"
    assert "broken" in notify("echo broken >&2; exit 3", TEXT, {})
