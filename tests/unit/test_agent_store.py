"""What a node keeps by its content, and what it makes of that."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from clusterctl.agent import messages, relay
from clusterctl.agent import store as agent_store
from clusterctl.agent.store import (
    DIRECTORY,
    FILE,
    HARD,
    LINK,
    BadManifest,
    FileStore,
    Missing,
    TreeEntry,
)

TIME = 1_600_000_000_000_000_000


def sum_up(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file(path: str, data: bytes, mode: int = 0o644, modified: int = 0) -> TreeEntry:
    return TreeEntry(FILE, path, mode, len(data), sum_up(data), "", modified)


def put(store: FileStore, data: bytes) -> None:
    assert store.put(Missing(sum_up(data), len(data)), io.BytesIO(data).readinto)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(str(tmp_path / "root"))


def test_a_manifest_survives_whatever_is_in_names() -> None:
    names = ["a b", "it's\n;$x", "-n", "ü\u2028", os.fsdecode(b"\xff\xfe"), "deep/er/one"]
    entries = [file(name, b"x") for name in names]
    assert agent_store.read_manifest(agent_store.pack_manifest(entries)) == entries


@pytest.mark.parametrize(
    "entries",
    [
        [file("../out", b"x")],
        [file("/etc/passwd", b"x")],
        [file("a/./b", b"x")],
        [file("a//b", b"x")],
        [file("", b"x")],
        [file("a\0b", b"x")],
        [TreeEntry(LINK, "a", target="/etc"), file("a/passwd", b"x")],
        [file("a", b"x"), TreeEntry(HARD, "b", target="../../etc/passwd")],
        [TreeEntry(LINK, "a", target="/etc"), TreeEntry(HARD, "b", target="a/passwd")],
        [TreeEntry(FILE, "a", 0o644, 1, "../../../../etc/passwd")],
        [TreeEntry(FILE, "a", 0o644, 1, "")],
    ],
)
def test_a_manifest_that_would_write_elsewhere_is_refused(entries: list[TreeEntry]) -> None:
    with pytest.raises(BadManifest):
        agent_store.read_manifest(agent_store.pack_manifest(entries))


@pytest.mark.parametrize("data", [b"", b"{", b"x\x9c", agent_store.pack_manifest([])[:-3]])
def test_a_damaged_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(BadManifest):
        agent_store.read_manifest(data)


def test_only_what_is_missing_is_asked_for_and_only_once(store: FileStore) -> None:
    entries = [file("a", b"one"), file("b", b"two"), file("c", b"two"), file("empty", b"")]
    put(store, b"one")
    assert store.find_missing(entries) == [Missing(sum_up(b"two"), 3, 0)]
    put(store, b"two")
    assert store.find_missing(entries) == []


def test_a_cut_transfer_goes_on_where_it_stopped(store: FileStore) -> None:
    data = os.urandom(3 * agent_store.STEP + 17)
    wanted = Missing(sum_up(data), len(data))
    with pytest.raises(EOFError):
        store.put(wanted, io.BytesIO(data[: 2 * agent_store.STEP + 5]).readinto)
    [rest] = store.find_missing([file("a", data)])
    assert rest.had == 2 * agent_store.STEP + 5
    assert store.put(rest, io.BytesIO(data[rest.had :]).readinto)
    assert Path(store.locate(wanted.digest)).read_bytes() == data


def test_what_comes_damaged_is_not_kept(store: FileStore) -> None:
    data = b"what it should be"
    assert not store.put(
        Missing(sum_up(data), len(data)), io.BytesIO(b"what it is no more").readinto
    )
    assert store.find_missing([file("a", data)]) == [Missing(sum_up(data), len(data), 0)]


def test_a_damaged_beginning_is_found_at_the_end(store: FileStore) -> None:
    data = os.urandom(100)
    with pytest.raises(EOFError):
        store.put(Missing(sum_up(data), 100), io.BytesIO(b"x" * 50).readinto)
    [rest] = store.find_missing([file("a", data)])
    assert not store.put(rest, io.BytesIO(data[rest.had :]).readinto)
    assert store.find_missing([file("a", data)]) == [Missing(sum_up(data), 100, 0)]


def test_a_beginning_that_is_gone_is_no_whole_file(store: FileStore) -> None:
    data = os.urandom(100)
    with pytest.raises(EOFError):
        store.put(Missing(sum_up(data), 100, 50), io.BytesIO(data[50:]).readinto)


def test_two_writers_at_once_make_one_right_file(store: FileStore) -> None:
    data = os.urandom(1_000_000)
    wanted = Missing(sum_up(data), len(data))
    reader, writer = os.pipe()
    done = []
    with os.fdopen(reader, "rb") as slow, os.fdopen(writer, "wb") as source:
        source.write(data[:1000])
        source.flush()
        thread = threading.Thread(target=lambda: done.append(store.put(wanted, slow.readinto)))
        thread.start()
        put(store, data)
        assert Path(store.locate(wanted.digest)).read_bytes() == data
        source.write(data[1000:])
        source.close()
        thread.join()
    assert done == [True]
    assert Path(store.locate(wanted.digest)).read_bytes() == data
    assert store.find_missing([file("a", data)]) == []


def test_a_reader_gets_a_file_while_it_comes(store: FileStore) -> None:
    data = os.urandom(3 * agent_store.STEP)
    wanted = Missing(sum_up(data), len(data))
    reader, writer = os.pipe()
    got = b""
    with os.fdopen(reader, "rb") as stream, os.fdopen(writer, "wb", 0) as source:
        thread = threading.Thread(target=store.put, args=(wanted, stream.readinto))
        thread.start()
        parts = store.follow(Missing(wanted.digest, wanted.size, 10))
        sent = 0
        for part in parts:
            got += _read(*part)
            if len(got) + 10 >= sent and sent < len(data):
                source.write(data[sent : sent + agent_store.STEP])
                sent += agent_store.STEP
        thread.join()
    assert got == data[10:]


def test_a_reader_of_a_file_that_broke_off_gets_it_from_who_has_it(store: FileStore) -> None:
    data = os.urandom(1000)
    wanted = Missing(sum_up(data), len(data))
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream, os.fdopen(writer, "wb", 0) as source:
        thread = threading.Thread(target=lambda: _put_begun(store, wanted, stream))
        thread.start()
        source.write(data[:400])
        parts = store.follow(wanted)
        while not (got := _read(*next(parts))):
            pass
        put(store, data)
        assert got + b"".join(_read(*part) for part in parts) == data
        source.close()
        thread.join()


def _read(handle: int, offset: int, count: int) -> bytes:
    return os.pread(handle, count, offset) if count else b""


def _put_begun(store: FileStore, wanted: Missing, stream: BinaryIO) -> None:
    with pytest.raises(EOFError):
        store.put(wanted, lambda buffer: stream.readinto(buffer[:400]))


def test_a_tree_is_made_as_it_was_and_is_its_owners_alone(store: FileStore, tmp_path: Path) -> None:
    odd = "dir/it's\n;" + os.fsdecode(b"\xff")
    entries = [
        TreeEntry(DIRECTORY, "private", 0o700),
        file("a", b"one", 0o755),
        file(odd, b"one", 0o600, TIME),
        file("empty", b"", 0o444),
        file("private/x", b"two"),
        TreeEntry(HARD, "again", target="a"),
        TreeEntry(LINK, "link", target="dir"),
        TreeEntry(LINK, "loose", target="../../nowhere"),
    ]
    put(store, b"one")
    put(store, b"two")
    work = tmp_path / "job" / "work"
    for _ in range(2):  # a second time changes nothing
        store.make(str(work), entries)
    assert (work / "a").read_bytes() == (work / odd).read_bytes() == b"one"
    assert (work / "empty").read_bytes() == b""
    assert [stat.S_IMODE((work / name).stat().st_mode) for name in ("a", odd, "private")] == [
        0o755,
        0o600,
        0o700,
    ]
    assert ((work / "a").stat().st_mtime_ns, (work / odd).stat().st_mtime_ns) == (0, TIME)
    assert (work / "a").samefile(work / "again")
    assert (os.readlink(work / "link"), os.readlink(work / "loose")) == ("dir", "../../nowhere")
    (work / "a").write_bytes(b"changed")
    os.chmod(work / "empty", 0o600)
    assert store.find_missing(entries) == []
    assert Path(store.locate(sum_up(b"one"))).read_bytes() == b"one"


def test_data_is_linked_and_a_change_through_a_link_is_noticed(
    store: FileStore, tmp_path: Path
) -> None:
    entries = [file("a", b"one", 0o644, TIME), file("b", b"one", 0o644, TIME + 1)]
    put(store, b"one")
    for _ in range(2):  # a second time changes nothing
        store.make(str(tmp_path / "data"), entries, link=True)
        assert (tmp_path / "data/a").samefile(store.locate(sum_up(b"one")))
        assert (tmp_path / "data/a").stat().st_mtime_ns == TIME
        assert (tmp_path / "data/b").stat().st_mtime_ns == TIME + 1
        assert os.listdir(tmp_path / "data") in (["a", "b"], ["b", "a"])
    assert store.find_missing(entries) == []
    os.chmod(tmp_path / "data/a", 0o644)
    (tmp_path / "data/a").write_bytes(b"two")
    assert store.find_missing(entries) == [Missing(sum_up(b"one"), 3, 0)]
    put(store, b"one")
    store.make(str(tmp_path / "data"), entries, link=True)
    assert (tmp_path / "data/a").read_bytes() == b"one"


@pytest.mark.parametrize("link", [False, True])
def test_what_became_a_folder_or_a_file_is_made_so(
    store: FileStore, tmp_path: Path, link: bool
) -> None:
    """And nothing is written through a link."""
    put(store, b"one")
    work, outside = tmp_path / "work", tmp_path / "outside"
    for place in (work / "empty", outside):
        place.mkdir(parents=True)
    (work / "was-file").write_bytes(b"old")
    (work / "was-link").symlink_to(outside)
    (outside / "mine").write_bytes(b"mine")
    (work / "file-link").symlink_to(outside / "mine")
    names = ("was-file/sub/a", "was-link/a", "empty", "file-link")
    store.make(str(work), [file(name, b"one") for name in names], link)
    assert [(work / name).read_bytes() for name in names] == [b"one"] * 4
    assert [path.read_bytes() for path in outside.iterdir()] == [b"mine"]


def test_a_folder_with_files_stays_where_a_file_would_come(
    store: FileStore, tmp_path: Path
) -> None:
    put(store, b"one")
    (tmp_path / "work/a").mkdir(parents=True)
    (tmp_path / "work/a/result").write_bytes(b"mine")
    with pytest.raises(OSError, match="work/a'"):
        store.make(str(tmp_path / "work"), [file("a", b"one")])
    assert (tmp_path / "work/a/result").read_bytes() == b"mine"


def test_what_the_store_lacks_is_an_error(store: FileStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.make(str(tmp_path / "work"), [file("a", b"one")])


def test_the_oldest_unused_go_first(store: FileStore) -> None:
    data = [bytes([number]) * 100 for number in range(4)]
    for age, item in enumerate(data):
        put(store, item)
        when = int((time.time() - 10 * 86400 * (9 - age)) * 1e9)
        os.utime(store.locate(sum_up(item)), ns=(when, agent_store.UNTOUCHED))
    assert store.find_missing([file("a", data[0])]) == []  # which is a use

    def list_there() -> list[bool]:
        return [os.path.exists(store.locate(sum_up(item))) for item in data]

    store.evict(400)
    assert list_there() == [True, True, True, True]
    store.evict(250)
    assert list_there() == [True, False, False, True]
    store.evict(0)
    assert not any(list_there())


def test_what_is_too_much_goes_when_nobody_uses_the_store(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_store, "LARGEST", 5)
    put(store, b"too much")
    place = store.locate(sum_up(b"too much"))
    with FileStore(str(tmp_path / "root")).use():
        with store.use():
            pass
        assert os.path.exists(place)
    assert not os.path.exists(place)


def test_a_full_disk_gets_back_parts_that_nobody_sends(store: FileStore) -> None:
    """Small programs need its room, too."""
    whole = Missing(sum_up(b"whole"), 5)
    with pytest.raises(EOFError), store.use():
        store.put(whole, io.BytesIO(b"who").readinto)
    assert store.find_missing([file("a", b"whole")])[0].had == 3
    with pytest.raises(OSError, match="full"), store.use():
        raise OSError(errno.ENOSPC, "full")
    assert not os.path.exists(store.locate_part(whole.digest))


def test_stores_of_one_folder_are_one(store: FileStore, tmp_path: Path) -> None:
    assert store.identify() == FileStore(str(tmp_path / "root")).identify()
    assert store.identify() != FileStore(str(tmp_path / "other")).identify()


@pytest.mark.parametrize(
    "words",
    [
        ["unknown"],
        ["manifest"],
        ["manifest", "9"],
        ["data", 1, 2],
        ["make", "f", 0],
        ["feed", "n", ""],
    ],
)
def test_an_order_that_is_none_is_refused_on_both_ends(tmp_path: Path, words: list[Any]) -> None:
    with pytest.raises(ValueError, match="not understood"):
        relay.pack_order(*words)
    out = io.BytesIO()
    stdin = io.BufferedReader(io.BytesIO(json.dumps(words).encode() + b"\n"))  # type: ignore[arg-type]
    relay.StoreServer(FileStore(str(tmp_path)), stdin, out).run()
    (word, why) = relay.read_news(out.getvalue())
    assert word == "error"
    assert why.endswith("not understood")


def test_news_that_are_none_are_refused() -> None:
    assert not relay.read_news(b"Welcome!\n")
    with pytest.raises(ValueError, match="not understood"):
        relay.read_news(messages.MARK + messages.pack("sent", "worker-1", "all"))
