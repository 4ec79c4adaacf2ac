"""Following a job whose nodes are folders here: what arrives, when it ends, what stays."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from clusterctl.actions import open_store
from clusterctl.actions.save_logs import save_logs
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError
from clusterctl.job_model import Job, JobState
from clusterctl.jobs import connections, pace, reconnecting
from clusterctl.jobs.follow import Follower
from clusterctl.jobs.interrupts import Interrupts
from clusterctl.jobs.logs import Piece, is_complete, read_stored
from clusterctl.jobs.reconnecting import FindDead
from clusterctl.model import Cluster, NodeResult, Reporter
from clusterctl.transport import Transport
from clusterctl.transport.local import LocalChannel, LocalTransport
from clusterctl.transport.pool import Pool
from tests.unit import making

RUNNING = "running 10.0 1\n"
ENDED = "ended 12.0 state=succeeded code=0\n"


@dataclass
class Site:
    """A job of two ranks on two nodes, and the state home's folder for it."""

    cluster: Cluster
    job: Job
    home: Path

    def folder(self, node: str) -> Path:
        return Path(self.cluster.node(node).root) / "jobs" / str(self.job.id)

    def write(self, node: str, name: str, data: bytes) -> Path:
        path = self.folder(node) / "out" / name
        with path.open("ab") as file:
            file.write(data)
        return path

    def state(self, text: str) -> None:
        with (self.folder("launcher") / "state").open("a") as file:
            file.write(text)

    def copy(self, node: str, name: str) -> Path:
        return self.home / "out" / node / name

    def follow(
        self,
        pool: type[Pool] = Pool,
        report: Reporter = lambda text: None,
        find_dead: FindDead | None = None,
        describe_use: Callable[[], str] = lambda: "",
        **options: object,
    ) -> tuple[Follower, list[Piece]]:
        """All that comes; raises what the follower raises."""
        with (
            pool(self.cluster.nodes, identity=None, known_hosts=self.home / "none") as nodes,
            Interrupts() as interrupts,
            Follower(
                *(self.job, self.cluster, nodes, self.home, interrupts, report),
                *(find_dead, describe_use),
            ) as follower,
        ):
            return follower, [
                piece
                for pieces in follower.batches(**options)  # type: ignore[arg-type]
                for piece in pieces
            ]


def text(pieces: list[Piece], rank: int, stream: str = "stdout") -> bytes:
    return b"".join(p.data for p in pieces if (p.rank, p.stream) == (rank, stream))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    names = ("launcher", "worker-1", "worker-2")
    nodes = [making.node(name, "", root=str(tmp_path / name), slots=1) for name in names]
    cluster = making.cluster(*nodes)
    made = Site(cluster, making.job(cluster, making.spec(ranks=2)), tmp_path / "home")
    for name in names:
        (made.folder(name) / "out").mkdir(parents=True)
    made.state(RUNNING)
    return made


@pytest.fixture
def append_for_ever() -> Iterator[Callable[[Path], None]]:
    """Starts what never stops writing to a file: no look finds nothing new."""
    started: list[subprocess.Popen[bytes]] = []
    program = "import os, time\nwhile True: os.write(1, b'more\\n'); time.sleep(0.0005)"

    def start(path: Path) -> None:
        path.write_bytes(b"first\n")
        with path.open("ab") as file:
            started.append(subprocess.Popen([sys.executable, "-Ic", program], stdout=file))
        until = time.monotonic() + 20
        while path.stat().st_size < 100:
            assert time.monotonic() < until
            time.sleep(0.01)

    yield start
    for process in started:
        process.kill()
        process.wait()


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
    until = time.monotonic() + 2
    looks = 0
    with (
        Pool(site.cluster.nodes, identity=None, known_hosts=site.home / "none") as nodes,
        Interrupts() as interrupts,
        Follower(site.job, site.cluster, nodes, site.home, interrupts) as follower,
    ):
        for pieces in follower.batches():
            looks += bool(pieces)
            if time.monotonic() > until:
                break
    assert 0 < looks <= 20


def test_a_rank_that_has_written_all_the_time_for_an_hour() -> None:
    """However many looks in a row have brought something, the next one comes soon."""
    pauses: list[float] = []
    clock = pace.Pace(1.0, pauses.append)
    for _ in range(20_000):
        clock.rest(moved=5)
    assert pauses[0] == pace.FASTEST
    assert pauses == sorted(pauses)
    assert pauses[-1] == pace.STREAMING
    for _ in range(20):
        clock.rest(moved=0)
    assert pauses[-1] == pace.SLOWEST
    clock.rest(moved=5)
    assert pauses[-1] == pace.FASTEST


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
    (site.folder("worker-1") / "out" / "rank-0.out").symlink_to("pipe.out")
    subprocess.run(["mkfifo", site.folder("worker-1") / "out" / "pipe.out"], check=True)
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
    hung = site.folder("worker-1").with_name("8") / "out"
    subprocess.run(["mkfifo", hung / "pipe"], check=True)
    (hung / "rank-0.out").symlink_to("pipe")
    (hung.parents[1] / "9" / "out" / "rank-0.out").write_bytes(b"small\n")
    said: list[str] = []
    with Pool(site.cluster.nodes, identity=None, known_hosts=site.home / "none") as pool:
        save_logs(store, store.jobs(), site.cluster, pool, said.append, limit=8.0)
    assert said == ["the logs of job 8 are incomplete: 8 s were not enough"]
    copy = Path("out", "worker-1", "rank-0.out")
    assert (store.job_folder(9) / copy).read_bytes() == b"small\n"
    assert (store.job_folder(7) / copy).read_bytes().startswith(b"first\nmore\n")


@pytest.mark.timeout(30)
def test_a_dead_supervisor_is_noticed_while_a_rank_goes_on_writing(
    site: Site, append_for_ever: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "STEADY", 0.2)
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


def test_a_file_that_is_cut_off_meanwhile(site: Site) -> None:
    path = site.write("worker-1", "rank-0.out", bytes(9_000_000))
    site.state(ENDED)
    with (
        Pool(site.cluster.nodes, identity=None, known_hosts=site.home / "none") as pool,
        Interrupts() as interrupts,
        Follower(site.job, site.cluster, pool, site.home, interrupts) as follower,
    ):
        for pieces in follower.batches():
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
        with (
            Pool(site.cluster.nodes, identity=None, known_hosts=site.home / "none") as pool,
            Interrupts() as interrupts,
            Follower(site.job, site.cluster, pool, site.home, interrupts) as follower,
        ):
            for pieces in follower.batches():
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
    def transport(self, name: str) -> Transport:
        return _Welcoming(making.node(name, ""))


def test_what_a_login_shell_says_is_no_answer(site: Site) -> None:
    site.write("worker-1", "rank-0.out", b"one\n")
    site.state(ENDED)
    follower, pieces = site.follow(pool=_Welcome)
    assert follower.job.state is JobState.SUCCEEDED
    assert text(pieces, 0) == b"one\n"


class Unreachable(LocalTransport):
    """A node whose machine is gone."""

    def open(self, command: str, *, timeout: float) -> LocalChannel:
        raise OSError("no route to host")


class Dying(LocalTransport):
    """A node that is gone when it is asked."""

    def open(self, command: str, *, timeout: float) -> LocalChannel:
        return super().open("exit 0", timeout=timeout)


class Cut(LocalChannel):
    """Ends in the middle of an answer."""

    received = False

    def receive(self, timeout: float) -> bytes:
        if self.received:
            raise ConnectionResetError("the connection was lost")
        self.received = True
        data = super().receive(timeout)
        return data[: len(data) // 2]


class CutOff(LocalTransport):
    """A node that works, and whose first connections are cut off."""

    left: ClassVar[list[None]] = []

    def open(self, command: str, *, timeout: float = 30.0) -> LocalChannel:
        if self.left:
            self.left.pop()
            return Cut(command)
        return super().open(command, timeout=timeout)


def without(node: str, kind: type[LocalTransport]) -> type[Pool]:
    class Without(Pool):
        def transport(self, name: str) -> Transport:
            return kind(making.node(name, "")) if name == node else super().transport(name)

    return Without


@pytest.mark.parametrize("kind", [Unreachable, Dying])
def test_a_worker_that_is_gone_is_named_and_the_rest_is_read(
    kind: type[LocalTransport], site: Site
) -> None:
    site.write("worker-1", "rank-0.out", b"here\n")
    copy = site.copy("worker-2", "rank-1.out")
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"what came before\n")
    site.state("ended 12.0 state=failed code=1 mpirun=1 started=2 survivors=worker-2:?,\n")
    follower, pieces = site.follow(without("worker-2", kind))
    assert text(pieces, 0) == b"here\n"
    assert text(pieces, 1) == b"what came before\n"
    assert list(follower.lost) == ["worker-2"]
    assert follower.job.reason.startswith("lost worker-2")
    assert not is_complete(site.home)


@pytest.mark.parametrize("node", ["launcher", "worker-2"])
def test_a_node_that_restarted_is_read_on_and_named_with_that(
    node: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CutOff, "left", [None])
    lines = b"".join(b"line %d\n" % number for number in range(100))
    site.write("worker-2", "rank-1.out", lines)
    site.state(ENDED)

    class Restarted(without(node, CutOff)):  # type: ignore[misc]
        def probe(self, names: Sequence[str], *, timeout: float) -> tuple[NodeResult, ...]:
            ups = dict.fromkeys(names, b"99999.5 1.0\n") | {node: b"0.00 0.00\n"}
            return tuple(NodeResult(node=name, exit_code=0, stdout=ups[name]) for name in names)

    told: list[str] = []
    follower, pieces = site.follow(Restarted, report=told.append)
    assert told[-1] == f"reconnected to {node}: it restarted 0 s ago"
    assert not [line for line in told if "does not answer" in line]
    assert text(pieces, 1) == lines
    assert not follower.lost


@pytest.mark.parametrize("node", ["launcher", "worker-2"])
def test_a_connection_that_is_cut_off_is_made_again(
    node: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CutOff, "left", [None] * 3)
    lines = b"".join(b"line %d\n" % number for number in range(100))
    site.write("worker-2", "rank-1.out", lines)
    site.state(ENDED)
    told: list[str] = []
    follower, pieces = site.follow(without(node, CutOff), report=told.append)
    assert text(pieces, 1) == lines
    assert site.copy("worker-2", "rank-1.out").read_bytes() == lines
    again = [line for line in told if line.startswith("reconnected")]
    assert again == [f"reconnected to {node}: the connection was lost"] * 3
    assert follower.job.state is JobState.SUCCEEDED
    assert not follower.lost
    assert is_complete(site.home)


def test_a_node_that_cuts_off_each_connection_is_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CutOff, "left", [None] * 50)
    site.write("worker-2", "rank-1.out", b"here\n")
    site.state(ENDED)
    follower, _ = site.follow(without("worker-2", CutOff))
    assert list(follower.lost) == ["worker-2"]
    assert len(CutOff.left) == 50 - 1 - connections.RECONNECTIONS
    assert not is_complete(site.home)


def test_without_the_launcher_nobody_knows_how_the_job_goes(site: Site) -> None:
    with pytest.raises(NodeUnreachable, match="lost launcher"):
        site.follow(without("launcher", Unreachable))


def test_what_the_workers_have_is_read_without_the_launcher(site: Site) -> None:
    site.write("worker-1", "rank-0.out", b"zero\n")
    site.write("worker-2", "rank-1.out", b"one\n")
    follower, pieces = site.follow(without("launcher", Unreachable), until_ended=False)
    assert (text(pieces, 0), text(pieces, 1)) == (b"zero\n", b"one\n")
    assert list(follower.lost) == ["launcher"]
    assert not is_complete(site.home)


class Mute(LocalChannel):
    """Says nothing, as long as `silence` is open: TCP on a connection that was cut off."""

    silence: ClassVar[list[None]] = []

    def receive(self, timeout: float) -> bytes:
        if self.silence:
            self.silence.pop()
            time.sleep(timeout)
            raise TimeoutError("no answer")
        return super().receive(timeout)


class Hanging(LocalTransport):
    def open(self, command: str, *, timeout: float = 30.0) -> LocalChannel:
        return Mute(command)


class Silent(LocalTransport):
    """A node that works, and whose first connection never hears anything again."""

    old: ClassVar[list[None]] = []
    closed: ClassVar[list[str]] = []

    def open(self, command: str, *, timeout: float = 30.0) -> LocalChannel:
        if self.old:
            self.old.pop()
            return Deaf(command)
        return super().open(command, timeout=timeout)

    def close(self) -> None:
        self.closed.append(self.node.name)


class Deaf(LocalChannel):
    def receive(self, timeout: float) -> bytes:
        time.sleep(timeout)
        raise TimeoutError("no answer")


def probing(answers: dict[str, NodeResult]) -> type[Pool]:
    """worker-2 hangs; a new connection shows what there is to know of it."""

    class Probing(without("worker-2", Hanging)):  # type: ignore[misc]
        def probe(self, names: Sequence[str], *, timeout: float) -> tuple[NodeResult, ...]:
            up = NodeResult(node="", exit_code=0, stdout=b"99999.5 1.0\n")
            return tuple(replace(answers.get(name, up), node=name) for name in names)

    return Probing


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (NodeResult(node="", error="no route to it"), "no route to it"),
        (NodeResult(node="", exit_code=0, stdout=b"0.00 0.00\n"), "it restarted 0 s ago"),
    ],
)
def test_a_node_that_falls_silent_is_told_long_before_it_is_given_up(
    answer: NodeResult, said: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "NOTICE", 0.1)
    monkeypatch.setattr(connections, "GLANCE", 0.05)
    monkeypatch.setattr(Mute, "silence", [None] * 6)
    site.write("worker-2", "rank-1.out", b"after the outage\n")
    site.state(ENDED)
    told: list[str] = []
    follower, pieces = site.follow(probing({"worker-2": answer}), report=told.append)
    assert told[-2:] == [f"worker-2 has not answered for 0.1 s: {said}", "worker-2 answers again"]
    assert text(pieces, 1) == b"after the outage\n"
    assert not follower.lost


def test_a_node_that_is_only_slow_is_not_reported(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "NOTICE", 0.1)
    monkeypatch.setattr(connections, "GLANCE", 0.05)
    monkeypatch.setattr(Mute, "silence", [None] * 6)
    site.state(ENDED)
    told: list[str] = []
    site.follow(probing({}), report=told.append)
    assert not [line for line in told if "worker-2" in line]


def test_a_node_that_is_frozen_is_told_and_given_up_though_it_can_be_reached(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "NOTICE", 0.1)
    monkeypatch.setattr(connections, "GLANCE", 0.05)
    monkeypatch.setattr(connections, "FROZEN", 0.2)
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(Mute, "silence", [None] * 1000)
    site.state(ENDED)
    told: list[str] = []
    follower, _ = site.follow(probing({}), report=told.append)
    why = "new connections work, but its earlier processes are frozen or very slow"
    assert f"worker-2 has not answered for 0.2 s: {why}" in told
    assert follower.lost == {"worker-2": why}


def test_a_connection_that_hears_nothing_any_more_is_made_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine has got another address."""
    monkeypatch.setattr(connections, "NOTICE", 0.1)
    monkeypatch.setattr(connections, "GLANCE", 0.05)
    monkeypatch.setattr(connections, "FROZEN", 0.2)
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(Silent, "old", [None])
    monkeypatch.setattr(Silent, "closed", [])
    site.write("worker-2", "rank-1.out", b"all of it\n")
    site.state(ENDED)
    told: list[str] = []
    follower, pieces = site.follow(without("worker-2", Silent), report=told.append)
    assert told[-1].startswith("reconnected to worker-2")
    assert Silent.closed[:1] == ["worker-2"]  # all else on that connection would hear nothing, too
    assert text(pieces, 1) == b"all of it\n"
    assert not follower.lost


def test_a_launcher_that_restarted_is_named_with_that(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Restarted(without("launcher", Dying)):  # type: ignore[misc]
        def probe(self, names: Sequence[str], *, timeout: float) -> tuple[NodeResult, ...]:
            return (NodeResult(node="launcher", exit_code=0, stdout=b"0.00 0.00\n"),)

    with pytest.raises(NodeUnreachable, match=r"lost launcher .*: it restarted 0 s ago"):
        site.follow(Restarted)


class Network:
    """What all connections of a pool go through: it can be cut."""

    def __init__(self) -> None:
        self.works = True

    def check(self) -> None:
        if not self.works:
            raise ConnectionResetError("no route to it")

    def pool(self, cut: Sequence[str]) -> type[Pool]:
        """Connections to the nodes `cut` end with the network; those to others do not."""
        network = self

        class Line(LocalChannel):
            def receive(self, timeout: float) -> bytes:
                network.check()
                return super().receive(timeout)

        class Reached(LocalTransport):
            def connect(self, timeout: float) -> None:
                network.check()

            def open(self, command: str, *, timeout: float = 30.0) -> LocalChannel:
                network.check()
                return Line(command)

        class Through(Pool):
            def transport(self, name: str) -> Transport:
                return Reached(making.node(name, "")) if name in cut else super().transport(name)

            def probe(self, names: Sequence[str], *, timeout: float) -> tuple[NodeResult, ...]:
                down = NodeResult(node="", error="no route to it")
                up = NodeResult(node="", exit_code=0, stdout=b"99999.5 1.0\n")
                lost = () if network.works else cut
                return tuple(replace(down if name in lost else up, node=name) for name in names)

        return Through


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setattr(reconnecting, "PAUSE", 0.05)
    return Network()


ALL_NODES = ("launcher", "worker-1", "worker-2")


@pytest.mark.timeout(60)
def test_an_outage_of_our_own_network_ends_nothing_and_costs_no_line(
    site: Site, network: Network
) -> None:
    """It is told in one line, for how long we go on trying, and that it is over. The job has ended
    in the meantime."""
    site.write("worker-1", "rank-0.out", b"before\n")
    site.write("worker-2", "rank-1.out", b"before\n")
    told: list[str] = []

    def pass_on(line: str) -> None:
        told.append(line)
        if line.startswith("lost the connection"):
            site.write("worker-1", "rank-0.out", b"meanwhile\n")
            site.write("worker-2", "rank-1.out", b"meanwhile\n")
            site.state(ENDED)
            threading.Timer(0.5, setattr, [network, "works", True]).start()

    threading.Timer(0.5, setattr, [network, "works", False]).start()
    follower, pieces = site.follow(network.pool(ALL_NODES), report=pass_on)
    assert text(pieces, 0) == text(pieces, 1) == b"before\nmeanwhile\n"
    assert follower.job.state is JobState.SUCCEEDED
    assert not follower.lost
    assert is_complete(site.home)
    assert [line for line in told if "lost" in line] == [
        "lost the connection to launcher,worker-[1-2]: no route to it; job 7 keeps running."
        " Trying to reconnect for 10 minutes; press Ctrl-C to stop trying"
    ]
    assert any(line.startswith("reconnected to ") for line in told)


@pytest.mark.timeout(60)
def test_a_worker_that_was_cut_off_from_us_is_read_on_when_it_answers_again(
    site: Site, network: Network
) -> None:
    site.write("worker-2", "rank-1.out", b"before\n")
    told: list[str] = []

    def pass_on(line: str) -> None:
        told.append(line)
        if "does not answer" in line:
            site.write("worker-2", "rank-1.out", b"meanwhile\n")
            network.works = True
        if line.startswith("reconnected"):
            site.state(ENDED)

    network.works = False
    follower, pieces = site.follow(network.pool(("worker-2",)), report=pass_on)
    assert text(pieces, 1) == b"before\nmeanwhile\n"
    assert "worker-2 does not answer, its output is missing: no route to it" in told
    assert not follower.lost
    assert is_complete(site.home)


@pytest.mark.timeout(60)
def test_a_launcher_that_stays_away_is_given_up_in_the_end(
    site: Site, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GIVE_UP", 0.3)
    threading.Timer(0.5, setattr, [network, "works", False]).start()
    with pytest.raises(NodeUnreachable, match=r"lost launcher while .*: no route to it") as caught:
        site.follow(network.pool(ALL_NODES))
    assert "`clusterctl logs 7 -f` reconnects" in caught.value.hint


@pytest.mark.timeout(60)
def test_a_launcher_that_is_known_to_be_gone_is_not_waited_for(
    site: Site, network: Network
) -> None:
    told: list[str] = []
    threading.Timer(0.5, setattr, [network, "works", False]).start()
    with pytest.raises(NodeUnreachable, match=r"lost launcher while .*: terminated"):
        site.follow(
            network.pool(ALL_NODES),
            report=told.append,
            find_dead=lambda: {"launcher": "terminated: EC2 reclaimed the spot instance"},
        )
    assert not [line for line in told if line.startswith("lost the connection")]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("answers", [True, False])
def test_a_launcher_of_which_nothing_is_known_is_waited_for(
    answers: bool, site: Site, network: Network
) -> None:
    """Whoever has made the machines knows nothing, or cannot be reached either."""

    def find_dead() -> dict[str, str]:
        if answers:
            return {"worker-1": "gone"}
        raise ProviderError("AWS does not answer")

    def pass_on(line: str) -> None:
        if line.startswith("lost the connection"):
            network.works = True
            site.state(ENDED)

    threading.Timer(0.5, setattr, [network, "works", False]).start()
    follower, _ = site.follow(network.pool(ALL_NODES), report=pass_on, find_dead=find_dead)
    assert follower.job.state is JobState.SUCCEEDED


@pytest.mark.timeout(60)
def test_ctrl_c_while_nothing_answers(site: Site, network: Network) -> None:
    def pass_on(line: str) -> None:
        if line.startswith("lost the connection"):
            signal.raise_signal(signal.SIGINT)

    threading.Timer(0.5, setattr, [network, "works", False]).start()
    with pytest.raises(KeyboardInterrupt):
        site.follow(network.pool(ALL_NODES), report=pass_on)


def test_a_job_that_has_written_nothing_for_long_is_told_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "STILL", 0.6)
    told: list[str] = []

    def report(line: str) -> None:
        told.append(line)
        if "has written nothing" in line:
            threading.Timer(1.0, site.state, [ENDED]).start()

    follower, _ = site.follow(report=report, describe_use=lambda: ", and its ranks use no CPU")
    assert follower.job.state is JobState.SUCCEEDED
    silent = [line for line in told if "has written nothing" in line]
    assert silent == [
        "job 7 has written nothing for 0.01 minutes, and its ranks use no CPU;"
        " `clusterctl doctor 7` shows what its ranks are doing"
    ]
