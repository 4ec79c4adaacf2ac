"""Downloads from a mirror on this machine: resumed, checked, unpacked, refused."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clusterctl.actions import data
from clusterctl.data import datasets
from clusterctl.data.datasets import Dataset, File
from clusterctl.errors import ProviderError, UsageError

CONTENT = bytes(range(256)) * 4000


@dataclass
class Mirror:
    """A web server of a few files that can break off, and may not know ranges."""

    files: dict[str, bytes]
    ranges: bool = True
    break_after: int | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    served = Mirror({})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.rsplit("/", 1)[1], self.headers.get("Range")
            served.asked.append((name, wanted))
            content = served.files.get(name)
            if content is None:
                self.send_error(404)
                return
            first = 0
            if wanted and served.ranges:
                first = int(wanted.removeprefix("bytes=").removesuffix("-"))
                self.send_response(206)
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            end = len(content) if served.break_after is None else first + served.break_after
            self.wfile.write(content[first:end])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}/folder"
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


def dataset(**files: bytes) -> Dataset:
    described = tuple(
        File(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )
    return Dataset("some", "Some data", "http://nowhere.invalid", described)


def quietly(name: str, done: int, size: int) -> None:
    pass


def test_a_data_set_is_downloaded_once(tmp_path: Path, mirror: Mirror) -> None:
    mirror.files = {"a": CONTENT, "b": b"b"}
    some = dataset(**mirror.files)
    seen: list[tuple[str, int, int]] = []
    path = datasets.get(some, tmp_path, mirror.url, lambda *what: seen.append(what))
    assert path == tmp_path / "some"
    assert {p.name: p.read_bytes() for p in path.iterdir()} == mirror.files
    assert datasets.is_here(some, tmp_path)
    assert seen[0] == ("a", 0, len(CONTENT))
    assert [what for what in seen if what[0] == "a"][-1] == ("a", len(CONTENT), len(CONTENT))
    asked = len(mirror.asked)
    datasets.get(some, tmp_path, mirror.url, quietly)
    assert len(mirror.asked) == asked, "it was downloaded twice"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".some.complete", "some"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_goes_on_where_it_broke_off(
    tmp_path: Path, mirror: Mirror, ranges: bool
) -> None:
    mirror.files, mirror.break_after = {"a": CONTENT}, 300_000
    some = dataset(a=CONTENT)
    with pytest.raises(ProviderError, match="300,000") as caught:
        datasets.get(some, tmp_path, mirror.url, quietly)
    assert caught.value.transient
    assert not datasets.is_here(some, tmp_path)
    mirror.break_after, mirror.ranges = None, ranges
    path = datasets.get(some, tmp_path, mirror.url, quietly)
    assert (path / "a").read_bytes() == CONTENT
    assert mirror.asked == [("a", None), ("a", "bytes=300000-")]


def test_another_file_is_refused_and_not_kept(tmp_path: Path, mirror: Mirror) -> None:
    some = dataset(a=CONTENT)
    for wrong in (CONTENT[::-1], CONTENT + b"more"):
        mirror.files = {"a": wrong}
        with pytest.raises(ProviderError, match="/a is not a: its checksum"):
            datasets.get(some, tmp_path, mirror.url, quietly)
        assert not (tmp_path / "some").exists()
    mirror.files = {"a": CONTENT}
    datasets.get(some, tmp_path, mirror.url, quietly)
    assert datasets.is_here(some, tmp_path)
    # A new edition of the data set is another one.
    assert not datasets.is_here(dataset(a=b"new"), tmp_path)


def test_a_mirror_that_fails_is_named(tmp_path: Path, mirror: Mirror) -> None:
    some = dataset(a=CONTENT)
    with pytest.raises(ProviderError, match=rf"{mirror.url}/a: the mirror answered 404") as caught:
        datasets.get(some, tmp_path, mirror.url, quietly)
    assert caught.value.exit_code == 3
    with pytest.raises(ProviderError, match="refused"):
        datasets.get(some, tmp_path, "http://127.0.0.1:9", quietly)
    with pytest.raises(UsageError, match="is not a URL"):
        datasets.get(some, tmp_path, "file:///etc", quietly)


def test_archives_are_unpacked_without_their_outermost_folder(
    tmp_path: Path, mirror: Mirror
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("outer/train/x/1.png", "outer/val/x/2.png"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"png"))
    mirror.files = {"a.tgz": packed.getvalue()}
    some = replace(dataset(**mirror.files), archive=True)
    path = datasets.get(some, tmp_path, mirror.url, quietly)
    assert (path / "train" / "x" / "1.png").read_bytes() == b"png"
    assert sorted(p.name for p in path.iterdir()) == ["train", "val"]
    # What is no archive, and what leads out of the folder.
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../../escaped"))
    for content in (b"no archive", evil.getvalue()):
        mirror.files = {"a.tgz": content}
        other = replace(dataset(**mirror.files), archive=True, name="other")
        with pytest.raises(ProviderError, match="cannot be unpacked"):
            datasets.get(other, tmp_path / "deep" / "er", mirror.url, quietly)
        assert not datasets.is_here(other, tmp_path)
    assert not list(tmp_path.rglob("escaped"))


def test_the_data_sets_of_the_programs_are_known() -> None:
    assert set(datasets.DATASETS) == {"mnist", "cifar10", "imagenette"}
    for known in datasets.DATASETS.values():
        assert known.url.startswith("https://")
        assert all(len(file.sha256) == 64 and file.size for file in known.files)
    with pytest.raises(UsageError) as caught:
        data.find_data("mnsit")
    assert caught.value.hint == "did you mean mnist?"
