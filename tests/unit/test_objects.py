"""`data get s3://`: a bucket of moto's S3, read through signed URLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from clusterctl import data_sources
from clusterctl.errors import UsageError
from clusterctl.s3.objects import list_objects
from tests.unit.calling import Call


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
    one = data_sources.find("s3://mine/train/a.bin", list_objects)
    assert (one.name, [file.path for file in one.files], one.size) == ("a", ["a.bin"], 11)
    for url, what in (("s3://mine/nothing", "no such object"), ("s3://theirs/x", "no bucket")):
        with pytest.raises(UsageError, match=what):
            data_sources.find(url, list_objects)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"Signature" not in path.read_bytes(), path
