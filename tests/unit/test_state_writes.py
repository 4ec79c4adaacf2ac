"""What is on the disk while a record is written and after a crash; a full disk, and homes that
cannot be written to."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.state.home import Home, replace_file, write_atomic
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store
from tests.unit.calling import Call
from tests.unit.making import cluster, job
from tests.unit.tables import rows
from tests.unit.test_state import ROOT, start, store

__all__ = ["start", "store"]


def test_a_record_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the power fails, a name that is renamed first may be all that there is of it."""
    path = tmp_path / "record"
    write_atomic(path, b"old")
    flushed: list[tuple[Path | bytes, bytes]] = []

    def fsync(fd: int) -> None:
        what = Path(os.readlink(f"/proc/self/fd/{fd}"))
        flushed.append((what if what.is_dir() else what.read_bytes(), path.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(path, b"new")
    assert flushed == [(b"new", b"old"), (tmp_path, b"new")]  # the new name is the folder's
    assert path.read_bytes() == b"new"


def test_the_folders_of_the_first_record_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    home = Home(tmp_path / "home")
    folder = home.make(home.clusters / "lab")
    assert flushed == [str(tmp_path), str(home.path), str(home.clusters)]
    assert folder.is_dir()


def test_a_file_system_that_cannot_flush_a_folder_holds_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(tmp_path / "record", b"new")
    assert (tmp_path / "record").read_bytes() == b"new"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])
def test_a_full_disk_is_no_mistake_in_the_command_line(
    number: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    said = call("up")
    assert said.code == 3
    assert os.strerror(number) in said.err
    assert "free some space there" in said.err


def test_a_full_disk_without_a_state_home_is_one_clear_error(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log cannot be written either, which must not hide why."""

    def mkdir(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", mkdir)
    said = call("up")
    assert said.code == 3
    assert "the state home" in said.err
    assert "free some space there" in said.err
    assert "log:" not in said.err


def test_a_writer_that_is_killed_leaves_a_whole_record(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from clusterctl.state.home import write_atomic\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1; write_atomic(Path(sys.argv[1]), b'%d' % (n % 10) * 200_000)\n"
        "    if n == 1: print('on', flush=True)\n"
    )
    path = tmp_path / "record"
    for _ in range(3):
        process = start(code, path)
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.wait()
        data = path.read_bytes()
        assert data == data[:1] * 200_000


LIMITED = """
import resource, sys
from clusterctl.errors import ClusterctlError
from clusterctl.state.home import Home
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store
from clusterctl.core.model import Phase
from dataclasses import replace
from pathlib import Path
store = Store(Home(Path(sys.argv[1])))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as a full disk: nothing can be written
try:
    exec(sys.argv[2])
except ClusterctlError as error:
    print(error.exit_code, "|", error.message, "|", error.hint)
"""


@rows("action", "state_writes.a_full_disk_is_one_clear_error_and_loses_nothing")
def test_a_full_disk_is_one_clear_error_and_loses_nothing(
    action: str, store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    store.save(cluster())
    store.save_job(job())
    assert store.reserve_job_id() == 8
    process = start(LIMITED, store.home.path, action)
    out, err = process.communicate(timeout=30)
    assert store.read_cluster("lab") == cluster()
    assert store.read_job(7) == job()
    assert (store.home.jobs / "last-id").read_text() == "8"
    assert not list(store.home.path.rglob("*.new"))
    assert "Traceback" not in err, err
    # An event that is not noted, or a lock without its holder's name, is no reason to stop.
    small = action.startswith(("store.add_event", "ClusterLock"))
    assert out.startswith("2 |") or (small and out == "")


def test_a_cluster_retires_on_a_full_disk_too(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """What was to be kept for the past is lost, and it is said; the folder goes all the same."""
    store.save(cluster())
    action = "store.retire(store.read_cluster('lab'))"
    out, err = start(LIMITED, store.home.path, action).communicate(timeout=30)
    assert out.startswith("2 |")
    assert "Traceback" not in err
    assert not store.locate_folder("lab").exists()


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "state"
    with pytest.raises(UsageError) as caught:
        Home(place)
    assert str(place) in caught.value.message
    assert "CLUSTERCTL_HOME" in caught.value.hint


@pytest.mark.netns  # the right to mount
@rows("action", "state_writes.a_home_that_became_read_only")
def test_a_home_that_became_read_only(
    action: str, store: Store, need: Callable[[str], str]
) -> None:
    store.save(cluster())
    store.save_job(job())
    store.reserve_job_id()
    with ClusterLock(store.home, "lab", "up"):
        pass
    code = LIMITED.replace("resource.setrlimit(", "(lambda *_: 0)(")
    done = subprocess.run(
        [
            *(need("unshare"), "--mount", "/bin/sh", "-c"),
            'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"',
            *("sh", str(store.home.path), sys.executable, "-c", code),
            *(str(store.home.path), action),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.startswith("2 |")


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path) -> None:
    old = tmp_path / "page.html"
    old.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            replace_file(old, b"new page")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
    replace_file(old, b"new page")
    assert old.read_bytes() == b"new page"
