"""Outputs of a job on its node, and copies of them on the launcher, in the agent's own words."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.agent import mirror, outputs, resume
from clusterctl.agent.messages import MirrorNote, MirrorWish
from tests.unit.scripts import note_staged
from tests.unit.test_agent_snapshots import make_zip


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's folder with a file and a folder that were staged."""
    place = tmp_path / "job"
    (place / "work" / "src").mkdir(parents=True)
    (place / "work" / "src" / "train.py").write_text("pass\n")
    (place / "work" / "data.txt").write_text("1\n")
    note_staged(place)
    return place


def names(job: Path) -> list[str]:
    return [entry.path for entry in outputs.list_outputs(str(job))]


def test_what_is_new_or_changed_is_an_output(job: Path) -> None:
    work = job / "work"
    assert names(job) == []
    (work / "new\nname").write_text("x")
    (work / "link").symlink_to("data.txt")
    (work / "src" / "__pycache__").mkdir()
    (work / "src" / "__pycache__" / "train.pyc").write_text("x")
    (work / ".clusterctl-call").mkdir()
    (work / ".clusterctl-call" / "results").write_text("x")
    status = (work / "data.txt").stat()
    (work / "data.txt").write_text("2\n")
    os.utime(work / "data.txt", ns=(status.st_atime_ns, status.st_mtime_ns))  # as `cp -p` does
    assert names(job) == ["data.txt", "link", "new\nname"]


def test_a_built_program_and_links_of_points_are_no_outputs(job: Path) -> None:
    (job / "work" / "main").write_text("binary")
    (job / "work" / "mesh.mod").write_text("module")
    (job / "work" / "points" / "1").mkdir(parents=True)
    (job / "work" / "points" / "1" / "data.txt").symlink_to("../../data.txt")
    (job / "work" / "points" / "1" / "out").symlink_to("data.txt")
    outputs.note_built(str(job), "main")
    assert names(job) == ["points/1/out"]


def test_without_its_note_nothing_is_listed(job: Path) -> None:
    (job / outputs.STAGED).unlink()
    with pytest.raises(FileNotFoundError):
        outputs.list_outputs(str(job))


def test_an_archive_holds_what_is_there(job: Path, tmp_path: Path) -> None:
    (job / "work" / "a b").write_text("x" * 100000)
    out = io.BytesIO()
    outputs.pack(str(job / "work"), ["a b", "gone"], out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        assert archive.getnames() == ["a b"]


def test_links_keep_what_a_program_replaces(job: Path) -> None:
    work = job / "work"
    (work / "model.pt").write_text("one")
    outputs.link_outputs(str(job), ["model.pt", "gone"])
    (work / "model.new").write_text("two")
    (work / "model.new").replace(work / "model.pt")
    assert (job / "outputs" / "model.pt").read_text() == "one"


# ------------------------------------------------------------------------------------- copies


class Copier:
    """Brings copies as a launcher does, and knows what it has."""

    def __init__(self, job: Path, kept: Path) -> None:
        self.job, self.kept, self.files = job, kept, {}  # type: ignore[var-annotated]

    def bring(self, cut: int | None = None, **changes: object) -> MirrorNote:
        given = {"room": 1 << 40, "largest": 1 << 40, "patterns": (), "reserve": 0, **changes}
        stream = io.BytesIO()
        mirror.send(str(self.job), MirrorWish(self.files, **given), stream)  # type: ignore[arg-type]
        data = io.BytesIO(stream.getvalue()[:cut])
        note = mirror.receive(data, str(self.kept), str(self.kept.parent / "part"))
        self.files = note.files
        return note

    @property
    def there(self) -> dict[str, str]:
        paths = (path for path in self.kept.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.kept)): path.read_text(errors="replace") for path in paths
        }


@pytest.fixture
def copier(job: Path, tmp_path: Path) -> Copier:
    return Copier(job, tmp_path / "kept")


def test_only_what_is_new_comes_and_what_has_gone_goes(job: Path, copier: Copier) -> None:
    work = job / "work"
    (work / "run").mkdir()
    (work / "run" / "a").write_text("1")
    (work / "b").write_text("2")
    copier.bring()
    assert copier.there == {"run/a": "1", "b": "2"}
    shutil.rmtree(work / "run")
    (work / "c").write_text("3")
    (copier.kept / "b").write_text("not sent again")
    note = copier.bring()
    assert copier.there == {"b": "not sent again", "c": "3"}
    assert note.paths == ("b", "c")
    assert not (copier.kept / "run").exists()


def test_a_copy_that_broke_off_changes_nothing(job: Path, copier: Copier) -> None:
    (job / "work" / "a").write_text("1")
    copier.bring()
    (job / "work" / "a").write_text("22222")
    (job / "work" / "b").write_bytes(os.urandom(100000))
    with pytest.raises(EOFError):
        copier.bring(cut=50000)
    assert copier.there == {"a": "1"}
    copier.bring()
    assert copier.there["a"] == "22222"


def test_a_whole_copy_is_not_replaced_by_one_that_was_cut(job: Path, copier: Copier) -> None:
    content = make_zip()
    (job / "work" / "model.pt").write_bytes(content)
    copier.bring()
    (job / "work" / "model.pt").write_bytes(content[:1000])
    copier.bring()
    assert (copier.kept / "model.pt").read_bytes() == content


def test_a_file_that_grows_is_copied_as_far_as_it_has_come(job: Path, copier: Copier) -> None:
    end = threading.Event()

    def write() -> None:
        with (job / "work" / "busy").open("a", buffering=1) as file:
            number = 0
            while not end.wait(0.05):
                number += 1
                file.write(f"{number}\n")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(0.3)
        copier.bring()
    finally:
        end.set()
        writer.join()
    lines = copier.there["busy"].split()
    assert lines == [str(number + 1) for number in range(len(lines))]
    assert lines


def test_what_is_too_large_or_has_no_room_is_left_out_and_told(job: Path, copier: Copier) -> None:
    for size, name in ((10, "small"), (200, "middle.h5"), (300, "model.pt"), (900, "big.h5")):
        (job / "work" / name).write_bytes(bytes(size))
    note = copier.bring(largest=500, patterns=("*.pt",), room=320)
    assert set(copier.there) == {"small", "middle.h5"}
    assert note.left == (2, 1200)


def test_what_has_changed_is_news_and_what_was_told_is_none(job: Path, copier: Copier) -> None:
    work = job / "work"
    for size, name in ((10, "small"), (300, "model.pt"), (900, "big.h5")):
        (work / name).write_bytes(bytes(size))

    def is_news(change: Callable[[], object]) -> bool:
        """Before, there is none."""
        left = copier.bring(largest=500, room=250).left
        wish = MirrorWish(copier.files, 250, 500, (), 0, left)
        assert not mirror.has_news(str(job), wish)
        change()
        return mirror.has_news(str(job), wish)

    assert is_news(lambda: (work / "new").touch())
    assert is_news((work / "new").unlink)
    assert is_news(lambda: (work / "small").write_text("0123456789"))
    assert is_news(lambda: (work / "big.h5").write_bytes(bytes(901)))
    assert is_news((work / "model.pt").unlink)


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out"])
def test_nothing_is_written_outside(tmp_path: Path, name: str) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    data.seek(0)
    with pytest.raises(EOFError):
        mirror.receive(data, str(tmp_path / "kept" / "deep"), str(tmp_path / "part" / "deep"))
    assert not list(tmp_path.rglob("out"))


def test_what_a_lost_node_has_left_replaces_nothing_newer(job: Path, tmp_path: Path) -> None:
    """The nodes that go on get the launcher's copies of its outputs."""
    copies, work = tmp_path / "copies", job / "work"
    (copies / "runs").mkdir(parents=True)
    for name in ("old.pt", "runs/new.pt", "missing.pt"):
        (copies / name).write_text("lost")
    (work / "runs").mkdir()
    for name, time_there in (("old.pt", 1.0), ("runs/new.pt", time.time() + 60)):
        (work / name).write_text("own")
        os.utime(work / name, (time_there, time_there))
    archive = io.BytesIO()
    outputs.pack(str(copies), ["old.pt", "runs/new.pt", "missing.pt"], archive)
    archive.seek(0)
    resume.inherit(str(job), archive)
    texts = {name: (work / name).read_text() for name in ("old.pt", "runs/new.pt", "missing.pt")}
    assert texts == {"old.pt": "lost", "runs/new.pt": "own", "missing.pt": "lost"}
    assert not (job / "inheriting").exists()
