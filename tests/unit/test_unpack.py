"""Archives of a hostile node write nothing outside the folder."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from clusterctl.transport.copying import UnsafeArchive, move_into, open_reader, stays_inside, unpack
from tests.unit.tables import rows

Member = tuple[str, str, str]
"""Name, type, and content or target."""
F, D, S, H, PIPE, DEVICE = "FDSHPC"
TYPES = {
    F: tarfile.REGTYPE,
    D: tarfile.DIRTYPE,
    S: tarfile.SYMTYPE,
    H: tarfile.LNKTYPE,
    PIPE: tarfile.FIFOTYPE,
    DEVICE: tarfile.CHRTYPE,
}


def archive(*members: Member) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type = TYPES[kind]
            info.mode = 0o4775
            if kind == F:
                info.size = len(text.encode())
            else:
                info.linkname = text
            tar.addfile(info, io.BytesIO(text.encode()))
    buffer.seek(0)
    return buffer


@pytest.fixture
def inner(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    return folder


def outside(inner: Path) -> list[str]:
    return sorted(path.name for path in inner.parent.iterdir())


def do(inner: Path, *members: Member) -> list[str]:
    with open_reader(archive(*members)) as tar:
        return unpack(tar, inner)


def test_a_tree(inner: Path) -> None:
    names = ["./a/b/file", "./ sp 'q\" $x", "./new\nline", "./-dash", "./é"]
    left_out = do(
        inner,
        ("./", D, ""),
        *((name, F, name) for name in names),
        ("./a/link", S, "b/file"),
        ("./up", S, "a/../a"),
        ("./a/up", S, "../-dash"),
        ("./hard", H, "./a/b/file"),
    )
    assert left_out == ["./up: leads out of the folder, to a/../a"]
    for name in names:
        assert (inner / name).read_text() == name
        assert (inner / name).stat().st_mode & 0o7777 == 0o775
    assert (inner / "a/link").read_text() == "./a/b/file"
    assert (inner / "a/up").read_text() == "./-dash"
    assert (inner / "hard").samefile(inner / "a/b/file")


@rows("members", "unpack.bad_names_are_refused")
def test_bad_names_are_refused(inner: Path, members: list[Member]) -> None:
    with pytest.raises(UnsafeArchive, match="bad name"):
        do(inner, *members)
    assert outside(inner) == ["inner"]


@rows("members", "unpack.links_lead_nowhere")
def test_links_lead_nowhere(inner: Path, members: list[Member]) -> None:
    with suppress(FileExistsError, FileNotFoundError):
        do(inner, *members)
    assert outside(inner) == ["inner"]
    assert all(path.resolve().is_relative_to(inner) for path in inner.rglob("*"))
    assert not (inner / "hard").exists()


def test_links_that_lead_out_and_devices_are_left_out(inner: Path) -> None:
    left_out = do(
        inner,
        ("abs", S, "/etc/passwd"),
        ("up", S, "../x"),
        ("pipe", PIPE, ""),
        ("null", DEVICE, ""),
        ("good", F, "x"),
    )
    assert [line.partition(":")[0] for line in left_out] == ["abs", "up", "pipe", "null"]
    assert [path.name for path in inner.iterdir()] == ["good"]


@rows("parts, target, inside", "unpack.stays_inside")
def test_stays_inside(parts: list[str], target: str, inside: bool) -> None:
    assert stays_inside(parts, target) is inside


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, **files: str) -> Path:
        folder = tmp_path / name
        for path, text in files.items():
            file = folder / path.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return folder

    return make


def test_move_into_merges(tree: Callable[..., Path]) -> None:
    source, target = tree("s", a__x="new", a__y="new", b="new"), tree("t", a__x="old", a__z="old")
    move_into(source, target)
    texts = {str(p.relative_to(target)): p.read_text() for p in target.rglob("*") if p.is_file()}
    assert texts == {"a/x": "new", "a/y": "new", "a/z": "old", "b": "new"}


def test_move_into_follows_no_link(tree: Callable[..., Path]) -> None:
    """One copy leaves a link, the next one would write through it."""
    source, target, victim = tree("s", a__x="new"), tree("t", b="old"), tree("v", x="precious")
    (target / "a").symlink_to(victim)
    move_into(source, target)
    assert (victim / "x").read_text() == "precious"
    assert (target / "a/x").read_text() == "new"


def test_move_into_keeps_a_folder_that_would_become_a_file(tree: Callable[..., Path]) -> None:
    source, target = tree("s", a="new"), tree("t", a__x="old")
    with pytest.raises(UnsafeArchive, match="is a folder here, but not in the source"):
        move_into(source, target)
    assert (target / "a/x").read_text() == "old"
