"""`data get s3://`: a bucket of moto's S3, read through signed URLs."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from clusterctl.data import sources
from clusterctl.errors import UsageError
from tests.unit.calling import Call
from tests.unit.staged import Staged
from tests.unit.test_download import CONTENT, HASTY, data, give_python, ok
from tests.unit.test_download import here as here


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame-street")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    client = boto3.client("s3")
    client.create_bucket(Bucket="mine")
    for key in ("train/a.bin", "train/deep/b.bin", "training.bin", "train/"):
        client.put_object(Bucket="mine", Key=key, Body=key.encode())
    try:
        yield client
    finally:
        server.stop()


def test_a_folder_a_file_and_nothing(bucket: Any, call: Call, tmp_path: Path) -> None:
    got = call("data", "get", "s3://mine/train")
    assert got.code == 0, got.err
    folder = Path(got.out.split(": ")[1].strip())
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.bin")}
    assert files == {"a.bin": "train/a.bin", "deep/b.bin": "train/deep/b.bin"}
    one = sources.find_source("s3://mine/train/a.bin")
    assert (one.name, [file.path for file in one.files], one.size) == ("a", ["a.bin"], 11)
    for url, what in (("s3://mine/nothing", "no such object"), ("s3://theirs/x", "no bucket")):
        with pytest.raises(UsageError, match=what):
            sources.find_source(url)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"Signature" not in path.read_bytes(), path


class Cutting:
    """Passes connections on to another port. Of the first answer that is longer than `after` bytes,
    so many arrive; `asked` are the first lines and headers of all requests."""

    def __init__(self, port: int, after: int) -> None:
        self._port, self._after, self.asked = port, after, list[str]()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        passed = 0
        with near, socket.create_connection(("127.0.0.1", self._port)) as far, suppress(OSError):
            while True:
                for source in select.select([near, far], [], [])[0]:
                    if not (piece := source.recv(65536)):
                        return
                    if source is near:
                        self.asked.append(piece.decode(errors="replace"))
                        far.sendall(piece)
                        continue
                    passed += len(piece)
                    if 0 < self._after < passed:
                        self._after = 0
                        return
                    near.sendall(piece)

    def close(self) -> None:
        self._door.close()


def test_a_node_reads_it_through_a_signed_url_and_goes_on_where_it_broke_off(
    bucket: Any, call: Call, here: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no credentials of ours: neither they nor the signature are in any file there."""
    bucket.put_object(Bucket="mine", Key="large/train.bin", Body=CONTENT)
    give_python(here, HASTY)
    cutting = Cutting(int(bucket.meta.endpoint_url.rpartition(":")[2]), after=1_000_000)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{cutting.port}")
    try:
        said = ok(call("data", "get", "s3://mine/large"))
    finally:
        cutting.close()
    assert "trying again" in said.err
    reads = [text for text in cutting.asked if text.startswith("GET /mine/large/train.bin?")]
    assert len(reads) == 2
    assert "\r\nRange: bytes=" in reads[1]
    for name in ("worker-1", "worker-2", "worker-3"):
        assert data(here, name, "large/train.bin").read_bytes() == CONTENT
    for path in here.folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert b"sesame-street" not in content, path
        assert b"Signature" not in content, path
