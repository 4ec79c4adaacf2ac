"""`data get`: downloads from servers on this machine, by one node or by this machine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import shutil
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from clusterctl.actions import data as actions_data
from clusterctl.core.model import NodeResult
from clusterctl.data import datasets, sources
from clusterctl.data.datasets import Dataset, File
from clusterctl.errors import ClusterctlError, ProviderError, UsageError
from tests.unit.calling import Call, Said
from tests.unit.scripts import write_program
from tests.unit.staged import Staged, lab
from tests.unit.tables import rows

CONTENT = bytes(range(256)) * 12_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()

SSH = """#!/bin/sh
# What clusterctl-ssh does, where all nodes are folders of this machine: clusterctl-ssh NODE COMMAND
echo "$1" >>"${0%/*}/asked"
exec /bin/sh -c "$2"
"""

ALONE = """#!/bin/sh
# A Python that reaches no server: it reads the program and its order, and says so.
while IFS= read -r line; do case $line in '{'*) break ;; esac; done
echo '{"error": "no route to host", "unreachable": true}'
"""

HASTY = f"""#!/bin/sh
# A Python for which no time passes while it sleeps.
exec {shlex.quote(sys.executable)} "$1" "$2" "import time; time.sleep = lambda seconds: None; $3"
"""


@dataclass
class Server:
    """Files by path. `break_after`: bytes after which an answer breaks off, so many times."""

    files: dict[str, bytes]
    token: str = ""
    break_after: list[int] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, list[int]] = field(default_factory=dict)
    """By path: what the next requests are answered with instead."""
    etags: bool = True
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Path, Range and Authorization of each request."""
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path, wanted = request.path, request.headers.get("Range", "")
        self.asked.append((path, wanted, request.headers.get("Authorization", "")))
        if self.token and self.asked[-1][2] != f"Bearer {self.token}":
            request.send_error(401)
        elif self.refusals.get(path):
            request.send_error(self.refusals[path].pop(0))
        elif path in self.redirects:
            request.send_response(302)
            request.send_header("Location", self.redirects[path])
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif path not in self.files:
            request.send_error(404)
        else:
            self._send(request, self.files[path], wanted)

    def _send(self, request: BaseHTTPRequestHandler, content: bytes, wanted: str) -> None:
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        if request.headers.get("If-None-Match") == etag:
            request.send_response(304)
            request.end_headers()
            return
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if request.headers.get("If-Range", etag) != etag:
            first = 0
        request.send_response(206 if first else 200)
        if self.etags:
            request.send_header("ETag", etag)
        request.send_header("Content-Length", str(len(content) - first))
        request.end_headers()
        end = first + self.break_after.pop(0) if self.break_after else len(content)
        request.wfile.write(content[first:end])


def serve(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
    thread.start()
    server.url = f"http://127.0.0.1:{listening.server_port}"
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    yield from serve(Server({"/some/train.bin": CONTENT}))


@pytest.fixture
def storage() -> Iterator[Server]:
    """Another server, to which the first one sends us on."""
    yield from serve(Server({"/blob": CONTENT}))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staged:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = lab(tmp_path / "nodes", workers=("worker-1", "worker-2", "worker-3"))
    for node in made.where.nodes:
        write_program(Path(node.root) / "bin" / "clusterctl-ssh", SSH)
    return made


def give_python(here: Staged, script: str) -> None:
    """The nodes' Python is this script of sh."""
    python = write_program(here.folder / "python", script)
    record = here.store.locate_folder("lab") / "cluster.json"
    known = json.loads(record.read_text())
    for node in known["nodes"]:
        node["facts"]["python"] = {"executable": str(python), "version": "3.11"}
    record.write_text(json.dumps(known))


def data(here: Staged, node: str, place: str) -> Path:
    return Path(here.where.node(node).root) / "data" / place


def ok(said: Said) -> Said:
    assert said.code == 0, said.err
    return said


def test_one_node_downloads_and_the_others_get_it_from_there(
    call: Call, here: Staged, server: Server
) -> None:
    said = ok(call("data", "get", f"{server.url}/some/train.bin", "--json"))
    [copy] = said.document["data"]
    assert (copy["name"], copy["pushed"]) == ("train", ["worker-1", "worker-2", "worker-3"])
    for name in copy["pushed"]:
        assert data(here, name, "train/train.bin").read_bytes() == CONTENT
    assert len(server.asked) == 1
    asked = [(Path(n.root) / "bin/asked") for n in here.where.workers]
    assert [path.exists() and set(path.read_text().split()) for path in asked] == [
        {"worker-2", "worker-3"},
        False,
        False,
    ]
    assert not list(data(here, "worker-2", "").glob(".*.new"))


def test_a_copy_that_its_source_cannot_read_to_the_end_is_none(
    call: Call, here: Staged, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tar does on a disk with errors: the archive is whole, and not right."""
    write_program(here.folder / "tar", f'{shutil.which("tar")} "$@" || exit\n[ "$3" != -cf ]')
    monkeypatch.setenv("PATH", str(here.folder), prepend=os.pathsep)
    said = call("data", "get", f"{server.url}/some/train.bin")
    assert (said.code, "train is not on worker-2" in said.err) == (3, True)
    assert not data(here, "worker-2", "train").exists()
    assert not data(here, "worker-2", ".train.complete").exists()


def test_what_is_there_is_not_downloaded_again(call: Call, here: Staged, server: Server) -> None:
    url = f"{server.url}/some/train.bin"
    ok(call("data", "get", url))
    data(here, "worker-3", ".train.complete").unlink()
    again = ok(call("data", "get", url, "--json"))
    assert again.document["data"][0]["pushed"] == ["worker-1", "worker-3"]
    server.files["/some/train.bin"] = b"new"
    ok(call("data", "get", url))
    assert data(here, "worker-2", "train/train.bin").read_bytes() == b"new"


def test_a_download_that_breaks_off_goes_on(call: Call, here: Staged, server: Server) -> None:
    """Also from a server that is asked too often."""
    give_python(here, HASTY)
    server.refusals["/some/train.bin"] = [429, 503]
    server.break_after = [1_000_000, 500_000]
    said = ok(call("data", "get", f"{server.url}/some/train.bin", "--sha256", SHA256))
    ranges = [wanted for _, wanted, _ in server.asked]
    assert ranges == ["", "", "", "bytes=1000000-", "bytes=1500000-"]
    assert "trying again" in said.err
    assert data(here, "worker-2", "train/train.bin").read_bytes() == CONTENT


def test_another_file_is_not_mixed_with_what_is_here(
    call: Call, here: Staged, server: Server
) -> None:
    """The file was changed on its server between two commands."""
    give_python(here, HASTY)
    server.break_after = [1_000_000, 0, 0, 0, 0, 0, 0]
    broken = call("data", "get", f"{server.url}/some/train.bin")
    assert broken.code == 3
    assert "repeat the command" in broken.err
    server.files["/some/train.bin"] = changed = CONTENT[::-1]
    server.break_after = []
    ok(call("data", "get", f"{server.url}/some/train.bin"))
    assert data(here, "worker-1", "train/train.bin").read_bytes() == changed


def test_a_wrong_checksum_leaves_nothing(call: Call, here: Staged, server: Server) -> None:
    said = call("data", "get", f"{server.url}/some/train.bin", "--sha256", "0" * 64)
    assert said.code == 3
    assert f"its checksum is {SHA256}, and should be {'0' * 64}" in said.err
    assert not data(here, "worker-1", "train").exists()
    assert not list(data(here, "worker-1", "").rglob("*.part"))


def test_a_node_without_internet_is_sent_it_from_here(
    call: Call, here: Staged, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python finds no server; the one here does."""
    where = here.store.read_cluster("lab")
    give_python(here, ALONE)
    said = ok(call("data", "get", f"{server.url}/some/train.bin"))
    assert "downloading on this machine instead" in said.err
    for node in where.workers:
        assert data(here, node.name, "train/train.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("words", [("--no-push",), ()])
def test_without_a_cluster_it_comes_here(
    words: tuple[str, ...], call: Call, server: Server, tmp_path: Path
) -> None:
    said = ok(call("data", "get", f"{server.url}/some/train.bin", *words, "--name", "mine"))
    assert (Path(said.out.split(": ")[1].strip()) / "train.bin").read_bytes() == CONTENT


def test_a_token_is_in_no_message_file_or_record(
    call: Call, here: Staged, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.token = "sesame-street"
    refused = call("data", "get", f"{server.url}/some/train.bin?signature=hidden")
    assert (refused.code, "401" in refused.err, "hidden" in refused.err) == (3, True, False)
    monkeypatch.setenv("CLUSTERCTL_HTTPS_TOKEN", server.token)
    said = ok(call("data", "get", f"{server.url}/some/train.bin"))
    assert server.token not in said.out + said.err
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or server.token.encode() not in path.read_bytes(), path


@rows("url, sends", "download.a_token_goes_nowhere_unencrypted")
def test_a_token_goes_nowhere_unencrypted(
    url: str, sends: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_HTTPS_TOKEN", "sesame-street")
    if sends is None:
        with pytest.raises(UsageError):
            sources.find_source(url)
        return
    [file] = sources.find_source(url).files
    assert ("sesame-street" in str(file.headers)) is sends


@pytest.fixture
def moved(here: Staged, server: Server, storage: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a file that needs a token, and lies on another server: another name."""
    server.redirects["/some/train.bin"] = f"{storage.url}/blob"
    server.token = "sesame-street"
    monkeypatch.setenv("CLUSTERCTL_HTTPS_TOKEN", server.token)
    give_python(here, HASTY)
    return server.url.replace("127.0.0.1", "localhost") + "/some/train.bin"


def test_a_token_stays_with_the_server_that_was_asked(
    call: Call, here: Staged, storage: Server, moved: str
) -> None:
    """Also where the download breaks off and goes on."""
    storage.break_after = [1_000_000]
    ok(call("data", "get", moved))
    assert [(wanted, token) for _, wanted, token in storage.asked] == [
        ("", ""),
        ("bytes=1000000-", ""),
    ]
    assert data(here, "worker-2", "train/train.bin").read_bytes() == CONTENT
    storage.files["/blob"] = CONTENT[:-1] + b"?"
    spoiled = call("data", "get", moved, "--sha256", SHA256[::-1])
    assert (spoiled.code, SHA256[::-1] in spoiled.err) == (3, True)
    assert data(here, "worker-1", "train/train.bin").read_bytes() == CONTENT


@rows("url, what", "download.what_names_no_file_is_refused")
def test_what_names_no_file_is_refused(url: str, what: str, call: Call) -> None:
    said = call("data", "get", url)
    assert (said.code, what in said.err) == (2, True), said.err


def test_a_checksum_is_one_files(call: Call) -> None:
    assert call("data", "get", "mnist", "--sha256", "0" * 64).code == 2
    assert "SHA-256" in call("data", "get", "https://host/x", "--sha256", "abc").err


@rows("ended, code, hint", "download.a_node_that_was_lost_is_not_taken_for_a_full_one")
def test_a_node_that_was_lost_is_not_taken_for_a_full_one(
    ended: dict[str, Any], code: int, hint: str
) -> None:
    stderr = ended.get("stderr", "").encode()
    results = [NodeResult(node="worker-2", **{**ended, "stderr": stderr})]
    with pytest.raises(ClusterctlError, match="digits is not on worker-2: ") as raised:
        actions_data.require_copied([NodeResult(node="worker-1", exit_code=0), *results], "digits")
    assert raised.value.exit_code == code
    assert hint in raised.value.hint


# -------------------------------------------------------------------------------------------------
# Data sets that are known by name.


def describe(archive: bool = False, **files: bytes) -> Dataset:
    rows = tuple(File(n, len(c), hashlib.sha256(c).hexdigest()) for n, c in files.items())
    return Dataset(name="some", title="", url="http://nowhere.invalid", files=rows, archive=archive)


def download(
    some: Dataset, folder: Path, server: Server, **files: bytes
) -> list[tuple[str, int, int]]:
    """The progress that was told."""
    seen: list[tuple[str, int, int]] = []
    server.files = {f"/folder/{name}": content for name, content in files.items()}
    mirror = f"{server.url}/folder/"
    actions_data.download(some, folder, mirror, lambda *told: seen.append(told), print)
    return seen


def test_a_data_set_is_whole_or_not_there(tmp_path: Path, server: Server) -> None:
    files = {"a": CONTENT, "b": b"b"}
    some = describe(**files)
    for wrong in (CONTENT[::-1], CONTENT + b"more"):
        with pytest.raises(ProviderError):
            download(some, tmp_path, server, a=wrong, b=b"b")
        assert not datasets.is_here(some, tmp_path)
        assert not (tmp_path / "some").exists()
    seen = download(some, tmp_path, server, **files)
    assert {p.name: p.read_bytes() for p in (tmp_path / "some").iterdir()} == files
    assert sorted(p.name for p in tmp_path.iterdir()) == [".some.complete", "some"]
    assert ("a", len(CONTENT), len(CONTENT)) in seen
    assert datasets.is_here(some, tmp_path)
    assert not datasets.is_here(describe(a=b"a new edition", b=b"b"), tmp_path)


def test_a_mirror_that_has_not_all_is_named(tmp_path: Path, server: Server) -> None:
    with pytest.raises(ProviderError, match=r"/folder/b: .*404"):
        download(describe(a=b"a", b=b"b"), tmp_path, server, a=b"a")
    with pytest.raises(UsageError, match="is not a URL"):
        actions_data.download(describe(), tmp_path, "file:///etc", lambda *told: None, print)


def pack(*names: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return packed.getvalue()


def test_archives_are_unpacked_without_their_outermost_folder(
    tmp_path: Path, server: Server
) -> None:
    good = pack("outer/train/x/1.png", "outer/val/x/2.png")
    download(describe(archive=True, a=good), tmp_path, server, a=good)
    assert sorted(p.name for p in (tmp_path / "some").iterdir()) == ["train", "val"]
    for bad in (b"no archive", pack("../../escaped")):
        other, folder = describe(archive=True, a=bad), tmp_path / "deep" / "er"
        with pytest.raises(ProviderError, match="cannot be unpacked"):
            download(other, folder, server, a=bad)
        assert not datasets.is_here(other, folder)
    assert not list(tmp_path.rglob("escaped"))


def test_the_data_sets_of_the_programs_are_known() -> None:
    known = datasets.load_datasets()
    assert set(known) == {"mnist", "cifar10", "imagenette"}
    for some in known.values():
        assert some.url.startswith("https://")
        assert all(len(file.sha256) == 64 and file.size for file in some.files)
    with pytest.raises(UsageError) as caught:
        actions_data.find_data("mnsit")
    assert caught.value.hint == "did you mean mnist?"
