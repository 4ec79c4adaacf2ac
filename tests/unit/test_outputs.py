"""What a job has made: found on its nodes, carried over, and fetched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from clusterctl import api
from clusterctl.actions import jobs
from clusterctl.core.job import Job
from clusterctl.core.model import NodeResult
from clusterctl.errors import NodeUnreachable, RecordError
from clusterctl.jobs import control
from clusterctl.jobs import fetch as jobs_fetch
from clusterctl.transport.pool import LocalTransport, Pool
from clusterctl.transport.protocol import Transport
from tests.conftest import Need
from tests.unit import making
from tests.unit.calling import Call
from tests.unit.making import spec
from tests.unit.staged import Staged, lab, note_copies

OLD = 1_000_000_000
"""A time long before anything is staged."""

SAYS = {"same.txt": "as it was", "changed.txt": "before", "it's $a\nfile": "staged"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    for name, text in SAYS.items():
        (folder / name).write_text(text)
    (folder / "link").symlink_to("same.txt")
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Staged:
    return lab(tmp_path / "nodes")


def found(site: Staged, job: Job) -> list[str]:
    with site.pool() as pool:
        return [item.place for item in jobs_fetch.find_outputs(job, site.where, pool).require_all()]


def test_what_was_staged_is_no_output(here: Staged, tree: Path) -> None:
    job = here.job(tree)
    assert found(here, job) == []
    (here.work() / "same.txt").read_text()
    assert found(here, job) == []


def test_links_of_a_point_that_was_cut_off_are_no_outputs(here: Staged, tree: Path) -> None:
    job = here.job(tree, what=spec(sweep=("lr=1,2",)))
    own = here.work() / "points" / "1"
    own.mkdir(parents=True)
    (own / "same.txt").symlink_to("../../same.txt")
    (own / "best").symlink_to("epoch-3.pt")
    (own / "epoch-3.pt").write_text("weights")
    names = ["best", "epoch-3.pt"]
    assert found(here, job) == [f"worker-1/points/1/{name}" for name in names]


@pytest.mark.parametrize("lost", ["agent.sh", ".staged", "work"])
def test_what_a_damaged_folder_holds_cannot_be_told(here: Staged, tree: Path, lost: str) -> None:
    """Nor that of a job which an older version staged: it is not taken for a job without outputs.
    Before its start, a job has none: its staging may have been interrupted anywhere."""
    job = here.job(tree)
    gone = here.work().parent / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    with pytest.raises(RecordError, match="outputs of job 7 on worker-1 cannot be listed") as told:
        found(here, job)
    assert f"clusterctl cp worker-1:{here.work()} FOLDER" in str(told.value.hint)
    (here.work().parent / ".staged").unlink(missing_ok=True)
    assert found(here, replace(job, started=None)) == []


def test_a_job_that_clusterctl_0_1_has_started(here: Staged, tree: Path) -> None:
    """It has scripts of sh, whose answers are the same."""
    job = here.job(tree)
    (here.work() / "made").touch()
    for name in ("launcher", "worker-1", "worker-2"):
        folder = here.work(name).parent
        script = (folder / "agent.sh").rename(folder / "processes.sh")
        (folder / "outputs.sh").write_bytes(script.read_bytes())
    assert found(here, job) == ["worker-1/made"]
    with here.pool() as pool:
        left = control.kill_processes(job, here.where, pool)
    assert left == {"launcher": 0, "worker-1": 0, "worker-2": 0}


def test_a_machine_that_was_made_anew_has_no_outputs(here: Staged, tree: Path) -> None:
    job = here.job(tree)
    (here.work("worker-2") / "made").touch()
    shutil.rmtree(here.work().parent)
    assert found(here, job) == ["worker-2/made"]


def test_a_disk_that_is_not_mounted_is_not_an_empty_one(here: Staged, tree: Path) -> None:
    job = here.job(tree)
    root = Path(here.where.node("worker-1").root)
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(RecordError, match="on worker-1 cannot be listed"):
        found(here, job)


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(
    here: Staged, tree: Path, need: Need
) -> None:
    """Root may read any, unless that was taken from it."""
    job = here.job(tree)
    (here.work() / "made").touch()
    (here.work() / "own").mkdir(mode=0)
    script = here.work().parent / "agent.sh"
    script.rename(script.with_name("real.sh"))
    limited = f"{need('setpriv')} --bounding-set=-dac_override,-dac_read_search"
    if os.geteuid():
        limited = ""
    script.write_text(f'exec {limited} /bin/sh "${{0%/*}}/real.sh" "$@"\n')
    with here.pool() as pool:
        seen = jobs_fetch.find_outputs(job, here.where, pool)
    (here.work() / "own").chmod(0o700)
    assert [item.place for item in seen.outputs] == ["worker-1/made"]
    [error] = seen.failed
    assert isinstance(error, RecordError)
    assert "on worker-1 cannot be listed" in error.message
    assert "own: Permission denied" in error.message


def by_copy2(work: Path, old: Path) -> None:
    shutil.copy2(old, work / "made")


def by_cp(work: Path, old: Path) -> None:
    subprocess.run(["cp", "-p", old, work / "made"], check=True)


def by_move(work: Path, old: Path) -> None:
    old.rename(work / "made")


def by_tar(work: Path, old: Path) -> None:
    archive = old.with_suffix(".tar")
    subprocess.run(
        ["tar", "-cf", archive, "--transform=s/.*/made/", "-C", old.parent, old.name], check=True
    )
    subprocess.run(["tar", "-xf", archive, "-C", work], check=True)


@pytest.mark.parametrize("way", [by_copy2, by_cp, by_move, by_tar])
def test_a_file_with_an_old_time_is_found(
    way: Callable[[Path, Path], None], here: Staged, tree: Path, tmp_path: Path
) -> None:
    job = here.job(tree)
    old = tmp_path / "old"
    old.write_text("x")
    os.utime(old, (OLD, OLD))
    way(here.work(), old)
    assert (here.work() / "made").stat().st_mtime == OLD
    assert found(here, job) == ["worker-1/made"]


def test_a_file_that_was_changed_in_place_with_its_time_set_back_is_found(
    here: Staged, tree: Path
) -> None:
    """Of the same size, too."""
    job = here.job(tree)
    for name in ("changed.txt", "it's $a\nfile"):
        path = here.work("worker-2") / name
        before = path.stat()
        path.write_text(path.read_text().upper())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert found(here, job) == ["worker-2/changed.txt", "worker-2/it's $a\nfile"]


def test_outputs_with_old_times_are_carried_over(here: Staged, tree: Path) -> None:
    """With links to them. They are outputs of the next job, too, which may leave them as they are:
    the one after that goes on from them."""
    here.job(tree)
    made = here.work() / "-snap shot"
    made.write_text("epoch 3")
    os.utime(made, (OLD, OLD))
    (here.work() / "latest").symlink_to("-snap shot")
    (here.work() / "changed.txt").write_text("after")
    for number in (8, 9):
        job = here.job(tree, number, carry=number - 1)
        assert (here.work(number=number) / "latest").read_text() == "epoch 3"
        assert (here.work(number=number) / "changed.txt").read_text() == "after"
        assert found(here, job) == [
            "worker-1/" + n for n in ("-snap shot", "changed.txt", "latest")
        ]


def fetch(site: Staged, job: Job, target: Path) -> jobs_fetch.Brought:
    with site.pool() as pool:
        what = jobs_fetch.find_outputs(job, site.where, pool).require_all()
        return jobs_fetch.fetch(job, site.where, pool, what, target, site.store.home)


class Broken(LocalTransport):
    """Copies so many files of a folder, then its connection is lost."""

    most = 1
    left = 0
    asked: ClassVar[list[list[str]]] = []

    def get(
        self, source: str, target: Path, *, timeout: float, begun: Path | None = None
    ) -> NodeResult:
        names = sorted(os.listdir(source))
        self.asked.append(names)
        if type(self).left:
            type(self).left -= 1
            for name in names[self.most :]:
                os.remove(Path(source, name))
            super().get(source, target, timeout=timeout)
            return NodeResult(node=self.node.name, error="the connection was lost", cut=True)
        return super().get(source, target, timeout=timeout)


class Breaking(Pool):
    kind: ClassVar[type[Broken]] = Broken

    def find_transport(self, name: str) -> Transport:
        return self.kind(making.node(name, ""))


def fetch_with_losses(
    site: Staged, job: Job, target: Path, losses: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[jobs_fetch.Brought, list[str]]:
    monkeypatch.setattr(Broken, "left", losses)
    monkeypatch.setattr(Broken, "asked", [])
    told: list[str] = []
    known = site.folder / "known_hosts"
    with Breaking(site.where.nodes, identity=None, known_hosts=known) as pool:
        what = [
            o
            for o in jobs_fetch.find_outputs(job, site.where, pool).require_all()
            if o.node == "worker-1"
        ]
        brought = jobs_fetch.fetch(
            job, site.where, pool, what, target, site.store.home, told.append
        )
    return brought, told


def test_fetch_goes_on_after_its_connection_was_lost(
    here: Staged, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the files that have not come yet."""
    job = here.job(tree)
    for name in ("one", "three", "two"):
        (here.work() / name).write_text(name)
    brought, told = fetch_with_losses(here, job, tmp_path / "got", 1, monkeypatch)
    assert [item.path for item in brought.outputs] == ["one", "three", "two"]
    assert not brought.failed
    assert Broken.asked == [["one", "three", "two"], ["three", "two"]]
    assert told == [
        "lost the connection to worker-1: the connection was lost;"
        " continuing if it answers within 5 minutes"
    ]


def test_two_at_once_do_not_fetch_to_one_folder(
    here: Staged, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second says so, and nothing of what the first brings is touched."""
    job = here.job(tree)
    (here.work() / "made").write_text("made")

    class Meanwhile(Broken):
        def get(
            self, source: str, target: Path, *, timeout: float, begun: Path | None = None
        ) -> NodeResult:
            with pytest.raises(RecordError, match="another clusterctl is fetching to"):
                fetch(here, job, tmp_path / "got")
            fetch(here, job, tmp_path / "other")
            return super().get(source, target, timeout=timeout)

    monkeypatch.setattr(Breaking, "kind", Meanwhile)
    brought, _ = fetch_with_losses(here, job, tmp_path / "got", 0, monkeypatch)
    assert [item.place for item in brought.outputs] == ["worker-1/made"]


def test_fetch_does_not_go_on_for_ever(
    here: Staged, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has come stays, and the next one brings the rest."""
    job = here.job(tree)
    for number in range(8):
        (here.work() / str(number)).write_text("made")
    target = tmp_path / "got"
    brought, told = fetch_with_losses(here, job, target, 100, monkeypatch)
    assert [error.message for error in brought.failed] == [
        "fetching outputs of job 7: worker-1: the connection was lost"
    ]
    assert len(told) == jobs_fetch.ATTEMPTS - 1
    assert len(os.listdir(target / "worker-1")) == jobs_fetch.ATTEMPTS
    brought, _ = fetch_with_losses(here, job, target, 0, monkeypatch)
    assert len(brought.outputs) == len(os.listdir(target / "worker-1")) == 8


def test_a_worker_that_is_gone_does_not_keep_what_the_others_made(
    here: Staged, tree: Path, tmp_path: Path
) -> None:
    job = here.job(tree)
    for name in ("worker-1", "worker-2"):
        (here.work(name) / "made").write_text(name)
    gone = {"address": "127.0.0.1", "ssh_port": 1, "user": "nobody"}
    *others, last = here.where.nodes
    here.store.save(replace(here.where, nodes=(*others, replace(last, **gone))))
    said: list[str] = []
    got = jobs.fetch(here.store, job.id, None, tmp_path / "got", said.append)
    assert [item.place for item in got.brought.outputs] == ["worker-1/made"]
    assert list(got.missing) == ["worker-2"]
    of_api = api.Cluster(here.store, here.where.name, created=False, report=said.append)
    with pytest.raises(NodeUnreachable, match="outputs of job 7 are on worker-2"):
        of_api.fetch(job.id, tmp_path / "got")
    assert any("worker-2 does not answer; its files were not copied" in line for line in said)
    assert not here.store.read_job(job.id).fetched
    dead = tuple(replace(item, **gone) for item in (others[1], last))
    here.store.save(replace(here.where, nodes=(others[0], *dead)))
    with pytest.raises(NodeUnreachable, match="no node with outputs of job 7 answers"):
        jobs.fetch(here.store, job.id, None, tmp_path / "got", said.append)


def test_a_node_that_has_lost_the_folder_of_the_job_is_named(
    here: Staged, tree: Path, call: Call
) -> None:
    job = here.job(tree)
    (here.work("worker-2") / "made").write_text("made")
    folder = here.work().parent
    moved = folder.rename(folder.with_name("elsewhere"))
    said = call("fetch", "7")
    assert said.code == 4
    assert "worker-1 no longer has the job's folder: it was removed, or the machine" in said.err
    assert "job-7/worker-2/made" in said.out
    found = call("fetch", "7", "--json").document["missing"]
    assert list(found) == ["worker-1"]
    of_api = api.Cluster(here.store, here.where.name, created=False, report=print)
    with pytest.raises(RecordError, match="job 7: worker-1 no longer has the job's folder"):
        of_api.fetch(job.id)
    here.store.save_job(replace(job, started=None))  # nothing is staged before
    assert call("fetch", "7").code == 0
    here.store.save_job(job)
    moved.rename(folder)
    assert call("fetch", "7").code == 0, "it has made nothing"


def test_what_a_launcher_has_copies_of_is_not_missing(here: Staged, tree: Path, call: Call) -> None:
    """Also of a node where the job has made nothing."""
    here.job(tree)
    here.store.save(replace(here.where, spec=replace(here.where.spec, provider="static")))
    shutil.rmtree(here.work().parent)
    mirror = here.work("launcher").with_name("mirror")
    (mirror / "worker-1").mkdir(parents=True)
    note_copies(mirror, "worker-1")
    said = call("fetch", "7")
    assert (said.code, "no longer has" in said.err) == (0, False), said.err


def test_pipes_and_sockets_are_left_out_and_named(here: Staged, tree: Path, call: Call) -> None:
    here.job(tree)
    os.mkfifo(here.work() / "pipe\nline")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(here.work("worker-2") / "s"))
    said = call("fetch", "7")
    assert said.code == 0
    why = "neither a file, a folder nor a link"
    assert f"worker-1: left out ./pipe?line: {why}" in said.err
    assert f"worker-2: left out ./s: {why}" in said.err
    assert "wrote no files" not in said.err


@pytest.mark.parametrize("damage", ["listing", "copying"])
def test_a_damaged_node_does_not_keep_what_the_others_made(
    damage: str, here: Staged, tree: Path, tmp_path: Path
) -> None:
    job = here.job(tree)
    for name in ("worker-1", "worker-2"):
        (here.work(name) / "made").write_text(name)
    script = here.work().parent / "agent.sh"
    if damage == "listing":
        (here.work().parent / ".staged").unlink()
    else:
        script.write_text(f'[ "$1" != link ] || exit 3\n{script.read_text()}')
    got = jobs.fetch(here.store, job.id, None, tmp_path / "got", print)
    assert [item.place for item in got.brought.outputs] == ["worker-2/made"]
    assert (tmp_path / "got/worker-2/made").read_text() == "worker-2"
    [error] = got.failed
    assert "worker-1" in error.message
    assert not here.store.read_job(job.id).fetched


def test_a_file_that_was_edited_here_is_kept(here: Staged, tree: Path, tmp_path: Path) -> None:
    job = here.job(tree)
    for name in ("a", "b"):
        (here.work() / name).write_text("first")
    target = tmp_path / "got"
    assert [item.place for item in fetch(here, job, target).outputs] == ["worker-1/a", "worker-1/b"]
    for name in ("a", "b"):
        (here.work() / name).write_text("second")
    (target / "worker-1" / "a").write_text("mine!")  # of the same size
    brought = fetch(here, job, target)
    assert brought.kept == ("worker-1/a",)
    assert [item.place for item in brought.outputs] == ["worker-1/b"]
    assert (target / "worker-1" / "a").read_text() == "mine!"
    assert (target / "worker-1" / "b").read_text() == "second"
    (target / "worker-1" / "a").rename(target / "mine")
    assert fetch(here, job, target).kept == ()
    assert (target / "worker-1" / "a").read_text() == "second"


def test_a_file_that_was_there_before_is_kept(here: Staged, tree: Path, tmp_path: Path) -> None:
    job = here.job(tree)
    (here.work() / "a").write_text("theirs")
    (tmp_path / "got" / "worker-1").mkdir(parents=True)
    (tmp_path / "got" / "worker-1" / "a").write_text("mine")
    assert fetch(here, job, tmp_path / "got").kept == ("worker-1/a",)
    assert (tmp_path / "got" / "worker-1" / "a").read_text() == "mine"


def test_core_dumps_are_named(here: Staged, tree: Path, tmp_path: Path) -> None:
    """They hold the environment of the program, and with it its secrets."""
    job = here.job(tree)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    (here.work() / "core.4711").write_bytes(head + b"\4\0" + bytes(40))
    (here.work() / "core").write_bytes(head + b"\2\0" + bytes(40))  # a program of that name
    (here.work() / "score.txt").write_text("x")
    assert fetch(here, job, tmp_path / "got").core_dumps == ("worker-1/core.4711",)
