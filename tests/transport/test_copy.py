"""Files and folders, there and back: whole, with their modes and names, or with a clear error."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.jobs.fetch import get_linked
from clusterctl.transport.ssh import SshTransport
from tests.e2e.cli import wait_for
from tests.transport.lab import Relay, Sshd
from tests.unit.tables import read_rows, rows

pytestmark = pytest.mark.sshd

NAMES = [
    "plain",
    "with space",
    " leading and trailing ",
    "quote'and\"quote",
    "$HOME `id` $(id)",
    "new\nline",
    "-rf",
    "back\\slash\\n!",
    "*?[x]",
    "ünïcödé",
    "x" * 200,
]


@pytest.fixture(params=NAMES, ids=range(len(NAMES)))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_file_there_and_back(transport: SshTransport, tmp_path: Path, name: str) -> None:
    source, there, back = tmp_path / "source", tmp_path / "there", tmp_path / "back"
    content = os.urandom(70_000)
    source.write_bytes(content)
    source.chmod(0o751)
    result = transport.put(source, f"{there}/{name}/{name}", timeout=10)
    assert (result.exit_code, result.error, result.stderr) == (0, "", b"")
    assert (there / name / name).read_bytes() == content
    assert (there / name / name).stat().st_mode & 0o7777 == 0o751
    assert os.listdir(there / name) == [name]
    result = transport.get(f"{there}/{name}/{name}", back / name / name, timeout=10)
    assert (result.exit_code, result.error, result.stderr) == (0, "", b"")
    assert (back / name / name).read_bytes() == content
    assert (back / name / name).stat().st_mode & 0o7777 == 0o751
    assert os.listdir(back / name) == [name]


def describe(folder: Path) -> dict[str, object]:
    """Relative path → mode and content, or where a link leads."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else (
            oct(path.stat().st_mode),
            path.read_bytes() if path.is_file() else int(path.stat().st_mtime),
        )
        for path in folder.rglob("*")
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for name in NAMES:
        (folder / name / "sub").mkdir(parents=True)
        (folder / name / "sub" / name).write_bytes(os.urandom(1000))
    (folder / "plain/run").write_text("#!/bin/sh\n")
    (folder / "plain/run").chmod(0o755)
    (folder / "plain/secret").write_text("x")
    (folder / "plain/secret").chmod(0o600)
    (folder / "plain/link").symlink_to("../with space/sub")
    (folder / "empty").mkdir()
    (folder / "nothing").touch()
    (folder / os.fsdecode(b"not \xff utf-8")).touch()
    os.link(folder / "plain/run", folder / "hard")
    return folder


def test_folder_there_and_back(transport: SshTransport, tree: Path, tmp_path: Path) -> None:
    tree.chmod(0o750)
    result = transport.put(tree, f"{tmp_path}/the're/tree", timeout=10)
    assert (result.exit_code, result.error, result.stderr) == (0, "", b"")
    there = tmp_path / "the're/tree"
    assert describe(there) == describe(tree)
    assert there.stat().st_mode & 0o7777 == 0o750
    assert (there / "plain/run").stat().st_mtime == int((tree / "plain/run").stat().st_mtime)
    result = transport.get(str(there), tmp_path / "back/tree", timeout=10)
    assert (result.exit_code, result.error, result.stderr) == (0, "", b"")
    back = tmp_path / "back/tree"
    for path in (tree, there, back):  # folders get the time of their last entry
        for folder in path.rglob("*"):
            if folder.is_dir() and not folder.is_symlink():
                os.utime(folder, (0, 0))
    assert describe(back) == describe(tree)
    assert back.stat().st_mode & 0o7777 == 0o750
    assert os.listdir(tmp_path / "back") == ["tree"]


def test_folders_are_merged(transport: SshTransport, tmp_path: Path) -> None:
    for copy in (
        lambda here, there: transport.put(here, str(there), timeout=10),
        lambda here, there: transport.get(str(here), there, timeout=10),
    ):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        (tmp_path / "a/sub").mkdir(parents=True)
        (tmp_path / "b/sub").mkdir(parents=True)
        (tmp_path / "b").chmod(0o700)
        (tmp_path / "a/sub/both").write_text("new")
        (tmp_path / "b/sub/both").write_text("old")
        (tmp_path / "b/sub/kept").write_text("old")
        assert copy(tmp_path / "a", tmp_path / "b").ok
        texts = {p.name: p.read_text() for p in (tmp_path / "b/sub").iterdir()}
        assert texts == {"both": "new", "kept": "old"}
        assert os.listdir(tmp_path / "b") == ["sub"]
        assert (tmp_path / "b").stat().st_mode & 0o777 == 0o700


def test_paths_relative_to_the_home(
    transport: SshTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"clusterctl-test-{os.getpid()}"
    (tmp_path / "source").write_text("hello")
    try:
        assert transport.put(tmp_path / "source", f"{folder}/x", timeout=10).ok
        assert transport.get(f"{folder}/x", tmp_path / "x", timeout=10).ok
        assert transport.get(folder, tmp_path / "y", timeout=10).ok
    finally:
        transport.run(f"rm -r {folder}", timeout=10)
    assert (tmp_path / "x").read_text() == (tmp_path / "y/x").read_text() == "hello"


def test_replaces_a_file_at_once(transport: SshTransport, tmp_path: Path) -> None:
    """Whoever has the old file open keeps it; links to it do not change what they point to."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    for copy in (
        lambda: transport.put(source, str(target), timeout=10),
        lambda: transport.get(str(source), target, timeout=10),
    ):
        target.write_text("old")
        with target.open() as old:
            assert copy().ok
            assert old.read() == "old"
        assert target.read_text() == "new"


def test_large_file_is_never_in_memory(transport: SshTransport, tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(200 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert transport.put(source, str(tmp_path / "there"), timeout=60).ok
    assert transport.get(str(tmp_path / "there"), tmp_path / "back", timeout=60).ok
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 100 << 10
    assert (tmp_path / "back").stat().st_size == 200 << 20


def test_missing_and_wrong_kinds(transport: SshTransport, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    file, folder, pipe, none = (tmp_path / n for n in ("file", "folder", "pipe", "none"))
    for result, words in (
        (transport.put(none, "/tmp/x", timeout=10), f"{none} cannot be read: No such file"),
        (transport.put(pipe, "/tmp/x", timeout=10), "neither a file nor a folder"),
        (transport.put(file, str(folder), timeout=10), "a folder of that name exists"),
        (transport.put(folder, str(file), timeout=10), "a file of that name exists"),
        (transport.put(file, f"{file}/x", timeout=10), "mkdir: "),
        (transport.get(str(none), tmp_path / "x", timeout=10), "no such file or folder"),
        (transport.get(str(pipe), tmp_path / "x", timeout=10), "neither a file nor a folder"),
        (transport.get(str(file), folder, timeout=10), f"{folder} is a folder here"),
        (transport.get(str(folder), file, timeout=10), f"{file} is a file here"),
        (transport.get(str(file), file / "x", timeout=10), "cannot be written: "),
        (transport.get(str(file), tmp_path / ("x" * 300), timeout=10), "cannot be written: "),
    ):
        assert words in result.error
        assert "copy failed" not in result.error
        assert not result.ok
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "pipe"]


def test_special_files_are_left_out(transport: SshTransport, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("x")
    (folder / "abs").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        assert transport.put(folder, str(tmp_path / "there"), timeout=10).ok
    assert sorted(os.listdir(tmp_path / "there")) == ["abs", "file"]
    result = transport.get(str(folder), tmp_path / "back", timeout=10)
    assert result.ok
    assert b"left out ./abs: leads out of the folder, to /etc/passwd" in result.stderr
    assert b"left out ./pipe: neither" in result.stderr
    assert os.listdir(tmp_path / "back") == ["file"]


def test_file_that_shrinks(transport: SshTransport, tmp_path: Path) -> None:
    """/proc says 0 bytes or more than there are: a file whose size cannot be trusted."""
    sized = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not sized.exists():
        sized = Path("/sys/kernel/uevent_seqnum")
    result = transport.put(sized, str(tmp_path / "x"), timeout=10)
    assert "became shorter while it was read" in result.error
    # The node notices by itself that the connection has ended.
    wait_for(lambda: os.listdir(tmp_path) == [], 10, "the node to remove what is unfinished")


@pytest.fixture
def full_disk(start_sshd: Callable[..., Sshd]) -> Iterator[SshTransport]:
    """A node on which no file can be larger than 32 KiB."""
    limit = """trap "" XFSZ; ulimit -f 32; sh -c "$SSH_ORIGINAL_COMMAND" """
    with closing(start_sshd(extra=f"ForceCommand {limit}\n").transport()) as one:
        yield one


@pytest.mark.parametrize("size", [100_000, 30_000_000])
def test_full_disk_of_the_node(full_disk: SshTransport, tmp_path: Path, size: int) -> None:
    (tmp_path / "source/sub").mkdir(parents=True)
    (tmp_path / "source/sub/file").write_bytes(bytes(size))
    there = tmp_path / "there"
    there.mkdir()
    (there / "old").write_text("old")
    result = full_disk.put(tmp_path / "source/sub/file", str(there / "old"), timeout=10)
    assert result.exit_code not in (0, None)
    assert "File too large" in result.error
    assert os.listdir(there) == ["old"]
    assert (there / "old").read_text() == "old"
    result = full_disk.put(tmp_path / "source", str(there), timeout=10)
    assert result.exit_code not in (0, None)
    assert "File too large" in result.error or "Wrote only" in result.error


def test_full_disk_here(transport: SshTransport, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_bytes(bytes(5_000_000))
    target = tmp_path / "target"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        file = transport.get(str(tmp_path / "source/file"), target, timeout=10)
        folder = transport.get(str(tmp_path / "source"), target, timeout=10)
        part = transport.get(
            str(tmp_path / "source"), tmp_path / "kept", timeout=10, begun=tmp_path / "begun"
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert file.error == folder.error == f"{target} cannot be written: File too large"
    assert file.errno == folder.errno == part.errno == errno.EFBIG
    assert sorted(os.listdir(tmp_path)) == ["begun", "kept", "source"]
    assert 0 < (tmp_path / "begun/file").stat().st_size <= 1_000_000


def test_copy_over_a_connection_that_is_lost(
    relayed: SshTransport, relay: Relay, tmp_path: Path
) -> None:
    source, there, here = (tmp_path / name for name in ("source", "there", "here"))
    with source.open("wb") as file:
        file.truncate(8 << 30)
    for copy in (
        lambda: relayed.put(source, str(there / "x"), timeout=200),
        lambda: relayed.get(str(source), here / "x", timeout=200),
    ):
        timer = threading.Timer(0.4, relay.cut)
        relayed.connect(10)
        timer.start()
        started = time.monotonic()
        assert copy().error == "the connection was lost"
        assert time.monotonic() - started < 100
    deadline = time.monotonic() + 30  # the node cleans up after it has noticed
    while os.listdir(there) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert os.listdir(there) == os.listdir(here) == []


def cut_when(relay: Relay, ready: Callable[[], bool]) -> threading.Thread:
    """Cuts the connections as soon as `ready` says so."""

    def watch() -> None:
        until = time.monotonic() + 100
        while not ready() and time.monotonic() < until:
            time.sleep(0.001)
        relay.cut()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_the_files_that_came_whole_stay(
    relayed: SshTransport, relay: Relay, tmp_path: Path
) -> None:
    source, here, rest = (tmp_path / name for name in ("source", "here", "rest"))
    source.mkdir()
    names = [str(number) for number in range(8)]
    for name in names:
        with (source / name).open("wb") as file:
            file.truncate(20 << 20)
    relayed.connect(10)
    thread = cut_when(relay, lambda: len(list(tmp_path.glob(".clusterctl-*/part/*"))) > 2)
    result = relayed.get(str(source), here, timeout=200, begun=rest)
    thread.join()
    assert (result.error, result.cut) == ("the connection was lost", True)
    begun = [path.stat().st_size for path in rest.iterdir()]
    assert len(begun) == 1
    assert begun[0] < 20 << 20
    sizes = {path.name: path.stat().st_size for path in here.iterdir() if path.is_file()}
    assert len(sizes) >= 2
    assert set(sizes) < set(names)
    assert set(sizes.values()) == {20 << 20}


def begin_again(
    transport: SshTransport, source: Path, begun: dict[str, bytes], folder: Path
) -> tuple[Path, dict[str, int]]:
    """Copies a folder of which some files have begun to come; the inodes of these beginnings."""
    rest, inodes = folder / "rest", {}
    for name, data in begun.items():
        (rest / name).parent.mkdir(parents=True, exist_ok=True)
        (rest / name).write_bytes(data)
        inodes[name] = (rest / name).stat().st_ino
    links, here = folder / "links", folder / "here"
    command = f"cd {source} && mkdir {links} && xargs -0 cp -lP --parents -t {links}"
    paths = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
    got = get_linked(transport, command, str(links), paths, here, rest)
    assert got.ok, got
    assert not rest.exists()
    return here, inodes


def test_a_file_goes_on_only_if_it_still_begins_as_what_has_come(
    transport: SshTransport, tmp_path: Path
) -> None:
    source, data = tmp_path / "source", os.urandom(3_000_000)
    parts = {
        "a  b/it's $a\nname": data[:2_000_000],
        "nothing": b"",
        "all": data,
        "other": b"x" + data[1:2_000_000],
        "shorter": data + b"x",
    }
    for name in parts:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
        (source / name).chmod(0o640)
        os.utime(source / name, (1_700_000_000, 1_700_000_000))
    here, inodes = begin_again(transport, source, parts, tmp_path)
    for name in parts:
        state = (here / name).stat()
        assert (here / name).read_bytes() == data, name
        assert (state.st_mode & 0o777, int(state.st_mtime)) == (0o640, 1_700_000_000), name
    went_on = {name for name, inode in inodes.items() if (here / name).stat().st_ino == inode}
    assert went_on == {"a  b/it's $a\nname", "nothing", "all"}


def test_a_file_that_is_written_to_while_its_rest_is_read_comes_whole(
    start_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    source, bin_ = tmp_path / "source", tmp_path / "bin"
    source.mkdir()
    bin_.mkdir()
    old, new = os.urandom(2_000_000), os.urandom(2_000_000)
    (source / "file").write_bytes(old)
    (tmp_path / "new").write_bytes(new)
    write = f"cat {tmp_path}/new >{source}/file"  # in place, so what is linked changes, too
    (bin_ / "tail").write_text(f'#!/bin/sh\n{write}\nexec /usr/bin/tail "$@"\n')
    (bin_ / "tail").chmod(0o755)
    command = f"""PATH={bin_}:$PATH; export PATH; sh -c "$SSH_ORIGINAL_COMMAND" """
    with closing(start_sshd(extra=f"ForceCommand {command}\n").transport()) as node:
        here, _ = begin_again(node, source, {"file": old[:1_000_000]}, tmp_path)
    assert (here / "file").read_bytes() == new


HOSTILE = """\
import io, os, re, sys, tarfile
mark = re.search(r"clusterctl-[0-9a-f]{16}", os.environ["SSH_ORIGINAL_COMMAND"]).group()
print("Welcome to this node!", flush=True)
print("@@clusterctl-start", flush=True)
print(mark, os.environ.get("HEADER", "folder"), flush=True)
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
    link = tarfile.TarInfo("out")
    link.type, link.linkname = tarfile.SYMTYPE, ".."
    tar.addfile(link)
    for name in sys.argv[1:]:
        tar.addfile(tarfile.TarInfo(name))
"""


@rows("evil, came", "copy.hostile_node")
def test_hostile_node(
    start_sshd: Callable[..., Sshd], tmp_path: Path, evil: str, came: list[str]
) -> None:
    """`out` is a link to the folder above, and then a folder."""
    script = tmp_path / "hostile.py"
    script.write_text(HOSTILE)
    server = start_sshd(extra=f"ForceCommand {sys.executable} {script} {evil}\n")
    target = tmp_path / "here/target"
    with closing(server.transport()) as transport:
        result = transport.get("anything", target, timeout=10)
    assert result.ok == bool(came)
    assert ("bad name" in result.error) == (not came)
    assert os.listdir(tmp_path / "here") == came
    assert not came or os.listdir(target / "out") == ["evil"]
    assert not Path("/tmp/clusterctl-test-evil").exists()


def test_stream_that_is_cut_short(start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    """The node says 5 bytes and sends 3; it says folder and sends no archive; it says no size."""
    script = tmp_path / "short.py"
    for name, header, words in read_rows("copy", "stream_that_is_cut_short"):
        text = re.sub(r"with tarfile.*", "os.write(1, b'abc')", HOSTILE, flags=re.DOTALL)
        script.write_text(text.replace('"folder"', repr(header)))
        server = start_sshd(name, f"ForceCommand {sys.executable} {script}\n")
        with closing(server.transport()) as transport:
            result = transport.get("anything", tmp_path / "here/x", timeout=10)
        assert words in result.error
        assert "copy failed" not in result.error
        assert not result.ok
        assert os.listdir(tmp_path / "here") == []
