"""What a folder is made of, and which of its files are read again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.project import contents
from clusterctl.project.contents import read_folder
from clusterctl.project.tree import find_tree, write_archive
from clusterctl.state.home import Home

LONG_AGO = 1_000_000_000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def test_a_folder_is_read_as_it_is(folder: Path, home: Home) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a").write_bytes(b"x")
    (folder / "in" / "a").chmod(0o640)
    (folder / "link").symlink_to("in/a")
    (folder / "away").symlink_to("/nowhere")
    os.mkfifo(folder / "pipe")
    content = read_folder(folder, home)
    found = {entry.path: (entry.kind, entry.target) for entry in content.entries}
    assert found == {
        "in": ("d", ""),
        "in/a": ("f", ""),
        "link": ("l", "in/a"),
        "away": ("l", "/nowhere"),
    }
    [(path, offset)] = content.places.values()
    assert (path, offset) == (folder / "in" / "a", 0)
    assert {entry.path: entry.mode for entry in content.entries}["in/a"] == 0o640


def count_read() -> int:
    """Bytes that this process has asked for from files."""
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar: ")[1].split()[0])


def test_a_file_that_stayed_as_it_was_is_not_read_again(
    folder: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "SETTLED", -60.0)
    data = os.urandom(1_000_000)
    (folder / "large").write_bytes(data)
    for limit in (2_000_000, 500_000):
        before = count_read()
        assert list(read_folder(folder, home).places) == [hashlib.sha256(data).hexdigest()]
        assert count_read() - before < limit
    names = []
    for limit in (3_000_000, 500_000):
        before = count_read()
        names.append(write_archive(find_tree(folder), home))
        assert count_read() - before < limit
    assert names[0] == names[1]


@pytest.mark.parametrize("settled", [True, False])
def test_a_file_that_was_changed_is_read_whatever_its_times_say(
    folder: Path, home: Home, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    if settled:
        monkeypatch.setattr(contents, "SETTLED", -60.0)
    names = []
    for data in (b"one", b"two"):
        (folder / "a").write_bytes(data)
        os.utime(folder / "a", (LONG_AGO, LONG_AGO))
        assert list(read_folder(folder, home).places) == [hashlib.sha256(data).hexdigest()]
        names.append(write_archive(find_tree(folder), home))
        assert data in (home.stages / names[-1]).read_bytes()
    assert names[0] != names[1]


def test_a_file_that_becomes_shorter_while_it_is_copied_is_named(
    folder: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text("stays")
    (folder / "log.txt").write_text("is written anew")
    send = os.sendfile

    def write_anew(target: int, source: int, offset: int, size: int) -> int:
        (folder / "log.txt").write_text("")
        return send(target, source, offset, size)

    monkeypatch.setattr(os, "sendfile", write_anew)
    with pytest.raises(UsageError, match=r"folder: log\.txt became shorter while it was copied"):
        write_archive(find_tree(folder), home)
