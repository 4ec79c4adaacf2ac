"""`data get hf://`: a server that answers as the Hugging Face hub does, with its large files on
another one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.unit.calling import Call
from tests.unit.staged import Staged
from tests.unit.test_download import CONTENT, HASTY, SHA256, Server, data, give_python, ok
from tests.unit.test_download import here as here
from tests.unit.test_download import server as server
from tests.unit.test_download import storage as storage

LISTING = "/api/datasets/me/reviews/tree/main?recursive=true"
AT = "/datasets/me/reviews/resolve/main"
SMALL = b"label,text\n"
GIT = hashlib.sha1(b"blob %d\0" % len(SMALL) + SMALL).hexdigest()
URL = "hf://datasets/me/reviews"

LABELS: dict[str, Any] = {"type": "file", "path": "labels.csv", "size": len(SMALL), "oid": GIT}
LARGE: dict[str, Any] = {
    "type": "file",
    "path": "train.bin",
    "size": len(CONTENT),
    "oid": "0" * 40,
    "lfs": {"oid": SHA256, "size": len(CONTENT)},
}


@pytest.fixture
def hub(here: Staged, server: Server, storage: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Two files, of which the larger one is at the storage: another name is another server."""
    server.files = {LISTING: json.dumps([LABELS, LARGE]).encode(), f"{AT}/labels.csv": SMALL}
    server.redirects[f"{AT}/train.bin"] = f"{storage.url}/blob"
    server.token = "hf_sesame"
    monkeypatch.setenv("HF_ENDPOINT", server.url.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("HF_TOKEN", server.token)
    monkeypatch.setenv("HF_HOME", str(here.folder))
    give_python(here, HASTY)
    return server


@pytest.mark.parametrize("place", ["{hub}", "https://huggingface.co"])
def test_all_pages_of_a_listing_are_read_from_the_server_that_was_asked(
    place: str, call: Call, here: Staged, hub: Server
) -> None:
    """A mirror passes on the addresses of the hub, which must not get the token, or be asked."""
    second = f"{LISTING}&cursor=abc"
    hub.files[LISTING] = json.dumps([LABELS]).encode()
    hub.files[second] = json.dumps([LARGE]).encode()
    hub.following[LISTING] = place.format(hub=hub.url) + second
    ok(call("data", "get", URL))
    assert [path for path, *_ in hub.asked][:2] == [LISTING, second]
    assert data(here, "worker-3", "reviews/train.bin").read_bytes() == CONTENT


def test_a_large_file_that_breaks_off_goes_on_without_the_token(
    call: Call, here: Staged, hub: Server, storage: Server
) -> None:
    storage.break_after = [1_000_000]
    ok(call("data", "get", URL))
    assert [(wanted, token) for _, wanted, token in storage.asked] == [
        ("", ""),
        ("bytes=1000000-", ""),
    ]
    assert data(here, "worker-2", "reviews/train.bin").read_bytes() == CONTENT
    for path in here.folder.rglob("*"):
        assert not path.is_file() or hub.token.encode() not in path.read_bytes(), path


def test_a_hub_that_is_asked_too_often_is_asked_again(
    call: Call, here: Staged, hub: Server
) -> None:
    hub.refusals[f"{AT}/labels.csv"] = [429, 503]
    said = ok(call("data", "get", URL))
    assert "trying again" in said.err
    assert data(here, "worker-1", "reviews/labels.csv").read_bytes() == SMALL


@pytest.mark.parametrize(
    ("code", "says", "hint"),
    [
        (401, "me/reviews, or you may not read it (401)", "HF_TOKEN"),
        (403, "me/reviews, or you may not read it (403)", "accept its terms"),
        (404, "me/reviews, or you may not read it (404)", "correct its name"),
        (429, "the Hugging Face hub answered 429", "try again later"),
    ],
)
def test_what_the_hub_refuses(
    code: int, says: str, hint: str, call: Call, here: Staged, hub: Server
) -> None:
    hub.refusals[LISTING] = [code]
    said = call("data", "get", URL)
    assert (said.code, says in said.err, hint in said.err) == (3, True, True), said.err
    assert hub.token not in said.err
    assert not data(here, "worker-1", "reviews").exists()


def test_a_pointer_is_not_taken_for_the_file(call: Call, here: Staged, hub: Server) -> None:
    """What a server without git-lfs has in place of a large file."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{SHA256}\nsize 1\n"
    del hub.redirects[f"{AT}/train.bin"]
    hub.files[f"{AT}/train.bin"] = pointer.encode()
    said = call("data", "get", URL)
    assert said.code == 3
    assert f"it has {len(pointer)} bytes there, and should have {len(CONTENT):,}" in said.err
    assert not data(here, "worker-1", "reviews").exists()


def test_a_small_file_has_to_be_the_one_that_git_knows(
    call: Call, here: Staged, hub: Server
) -> None:
    hub.files[f"{AT}/labels.csv"] = SMALL[::-1]
    said = call("data", "get", URL)
    assert (said.code, f"and should be {GIT}" in said.err) == (3, True)
    assert not data(here, "worker-1", "reviews").exists()
