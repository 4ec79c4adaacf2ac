"""Following a job whose nodes are folders here: what arrives, when it ends, what stays."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import Connected, open_store
from clusterctl.actions.jobs import save_logs
from clusterctl.core.job import JobState
from clusterctl.errors import UsageError
from clusterctl.jobs.records import is_complete, read_stored
from clusterctl.transport.pool import LocalChannel, LocalTransport, Pool
from clusterctl.transport.protocol import Transport
from tests.unit import making
from tests.unit.followed import ENDED, Site, agent, site, text
from tests.unit.scripts import until

__all__ = ["agent", "site"]


@pytest.fixture
def append_for_ever() -> Iterator[Callable[[Path], None]]:
    """Starts what never stops writing to a file: no look finds nothing new."""
    started: list[subprocess.Popen[bytes]] = []
    program = "import os, time\nwhile True: os.write(1, b'more\\n'); time.sleep(0.0005)"

    def start(path: Path) -> None:
        path.write_bytes(b"first\n")
        with path.open("ab") as file:
            started.append(subprocess.Popen([sys.executable, "-Ic", program], stdout=file))
        until(lambda: path.stat().st_size >= 100)

    yield start
    for process in started:
        process.kill()
        process.wait()


def hang(path: Path) -> None:
    """Whoever reads the file waits for ever."""
    subprocess.run(["mkfifo", f"{path}.cut"], check=True)


def test_to_the_end_of_the_job(site: Site) -> None:
    data = bytes(range(256)) * 50_000  # some rounds
    site.write("worker-1", "rank-0.out", data)
    site.write("worker-2", "rank-1.err", b"no end")
    site.write("worker-2", "rank-1.notes", b"of somebody else")
    site.state(ENDED)
    follower, pieces = site.follow()
    assert follower.job.state is JobState.SUCCEEDED
    assert not follower.cut_short
    assert text(pieces, 0) == data == site.copy("worker-1", "rank-0.out").read_bytes()
    assert text(pieces, 1, "stderr") == b"no end"
    assert {piece.stream for piece in pieces} == {"stdout", "stderr"}
    assert is_complete(site.home)
    again = [piece for pieces in read_stored(site.home) for piece in pieces]
    assert text(again, 0) == data


@pytest.mark.timeout(30)
def test_a_rank_that_writes_all_the_time_is_not_asked_all_the_time(
    site: Site, append_for_ever: Callable[[Path], None]
) -> None:
    """Polls cost processor time on its node: a rank that prints a line now and then must not pay
    more for them than one that prints none."""
    append_for_ever(site.folder("worker-1") / "out" / "rank-0.out")
    end = time.monotonic() + 2
    looks = 0
    with site.open() as follower:
        for pieces in follower.read_batches():
            looks += bool(pieces)
            if time.monotonic() > end:
                break
    assert 0 < looks <= 20


def test_a_job_with_more_files_than_may_be_open(site: Site) -> None:
    """A sweep has two for each of its points."""
    for number in range(200):
        site.write("worker-1", f"rank-{number}.out", b"%d\n" % number)
    site.state(ENDED)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, limit[1]))
    try:
        _, pieces = site.follow()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert sorted(int(piece.data) for piece in pieces) == list(range(200))
    assert site.copy("worker-1", "rank-199.out").read_bytes() == b"199\n"


@pytest.mark.timeout(30)
def test_a_job_that_ended_while_something_goes_on_writing(
    site: Site, append_for_ever: Callable[[Path], None]
) -> None:
    append_for_ever(site.folder("worker-1") / "out" / "rank-0.out")
    site.state(ENDED)
    follower, pieces = site.follow()
    assert follower.job.state is JobState.SUCCEEDED
    assert text(pieces, 0).startswith(b"first\n")


@pytest.mark.timeout(30)
def test_what_is_there_now_of_a_file_that_grows(
    site: Site, append_for_ever: Callable[[Path], None]
) -> None:
    append_for_ever(site.folder("worker-1") / "out" / "rank-0.out")
    site.write("worker-2", "rank-1.out", b"whole\n")
    follower, pieces = site.follow(until_ended=False)
    assert follower.job.state is JobState.RUNNING
    assert text(pieces, 0).startswith(b"first\n")
    assert text(pieces, 1) == b"whole\n"
    assert not is_complete(site.home)


def test_no_time_is_left(site: Site) -> None:
    site.write("worker-1", "rank-0.out", b"too late\n")
    follower, pieces = site.follow(until_ended=False, limit=0.0)
    assert (follower.cut_short, pieces) == (True, [])
    assert not is_complete(site.home)


@pytest.mark.timeout(30)
def test_a_node_that_answers_no_more_has_no_longer_than_is_left(site: Site) -> None:
    site.state(ENDED)
    hang(site.write("worker-1", "rank-0.out", b"on a disk that hangs\n"))
    site.write("worker-2", "rank-1.out", b"whole\n")
    follower, _ = site.follow(until_ended=False, limit=1.0)
    assert follower.cut_short


@pytest.mark.timeout(30)
def test_down_saves_logs_and_goes_on(site: Site, append_for_ever: Callable[[Path], None]) -> None:
    """A process that escaped the job's end keeps writing, and a disk of a node hangs: that costs no
    other job its logs."""
    store = open_store()
    for number in (7, 8, 9):
        store.save_job(replace(site.job, id=number, state=JobState.CANCELLED))
    append_for_ever(site.folder("worker-1") / "out" / "rank-0.out")
    for number in ("8", "9"):
        for node in ("launcher", "worker-1", "worker-2"):
            (site.folder(node).with_name(number) / "out").mkdir(parents=True)
    jobs = site.folder("worker-1").parent
    (jobs / "8" / "out" / "rank-0.out").write_bytes(b"on a disk that hangs\n")
    hang(jobs / "8" / "out" / "rank-0.out")
    (jobs / "9" / "out" / "rank-0.out").write_bytes(b"small\n")
    said: list[str] = []
    with Pool(site.cluster.nodes, identity=None, known_hosts=site.home / "none") as pool:
        at = Connected(store, site.cluster, pool, said.append)
        save_logs(at, store.list_jobs(), limit=8.0)
    assert said == ["the logs of job 8 are incomplete: 8 s were not enough"]
    copy = Path("out", "worker-1", "rank-0.out")
    assert (store.locate_job_folder(9) / copy).read_bytes() == b"small\n"
    assert (store.locate_job_folder(7) / copy).read_bytes().startswith(b"first\nmore\n")


@pytest.mark.timeout(30)
def test_a_dead_supervisor_is_noticed_while_a_rank_goes_on_writing(
    site: Site, append_for_ever: Callable[[Path], None]
) -> None:
    site.supervisor.close()
    append_for_ever(site.folder("worker-1") / "out" / "rank-0.out")
    follower, _ = site.follow()
    assert follower.job.state is JobState.LOST


def test_a_full_disk_here_is_no_lost_node(site: Site) -> None:
    site.write("worker-1", "rank-0.out", bytes(3_000_000))
    site.state(ENDED)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, limit[1]))
    try:
        with pytest.raises(UsageError, match=r"cannot write .*rank-0.out: File too large"):
            site.follow()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not is_complete(site.home)


@pytest.mark.timeout(30)
def test_a_file_that_is_cut_off_meanwhile(site: Site) -> None:
    path = site.write("worker-1", "rank-0.out", bytes(9_000_000))
    site.state(ENDED)
    with site.open() as follower:
        for pieces in follower.read_batches():
            if pieces:
                path.write_bytes(b"")
    assert follower.job.state is JobState.SUCCEEDED


def test_memory_does_not_grow_with_a_log(site: Site) -> None:
    """A line of 100 MB, which has no end either."""
    with site.write("worker-1", "rank-0.out", b"").open("r+b") as file:
        file.truncate(100_000_000)
    site.state(ENDED)
    site.home.mkdir()
    size = 0
    tracemalloc.start()
    try:
        with site.open() as follower:
            for pieces in follower.read_batches():
                size += sum(len(piece.data) for piece in pieces)
        for pieces in read_stored(site.home):
            size += sum(len(piece.data) for piece in pieces)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 200_000_000
    assert peak < 40_000_000


def test_following_again_goes_on_where_it_stopped(site: Site) -> None:
    site.write("worker-1", "rank-0.out", b"one\ntw")
    _, pieces = site.follow(until_ended=False)
    assert text(pieces, 0) == b"one\ntw"
    site.write("worker-1", "rank-0.out", b"o\n")
    site.state(ENDED)
    _, pieces = site.follow(replay=False)
    assert text(pieces, 0) == b"o\n"
    assert site.copy("worker-1", "rank-0.out").read_bytes() == b"one\ntwo\n"


class _Welcoming(LocalTransport):
    """A node whose login shell has something to say first."""

    def open(self, command: str, *, timeout: float = 30.0) -> LocalChannel:
        return super().open(f"echo Welcome; echo; echo F is for fun; {command}", timeout=timeout)


class _Welcome(Pool):
    def find_transport(self, name: str) -> Transport:
        return _Welcoming(making.node(name, ""))


def test_what_a_login_shell_says_is_no_answer(site: Site) -> None:
    site.write("worker-1", "rank-0.out", b"one\n")
    site.state(ENDED)
    follower, pieces = site.follow(pool=_Welcome)
    assert follower.job.state is JobState.SUCCEEDED
    assert text(pieces, 0) == b"one\n"


def test_a_node_that_an_older_clusterctl_has_made_ready(site: Site) -> None:
    root = Path(site.cluster.node("worker-2").root)
    (root / "agent").unlink()
    site.write("worker-2", "rank-1.out", b"one\n")
    site.state(ENDED)
    follower, pieces = site.follow()
    assert text(pieces, 1) == b"one\n"
    assert not follower.lost
    assert (root / "agent").is_dir()
