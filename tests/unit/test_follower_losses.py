"""Following a job whose nodes do not answer, fall silent or come back: who is named, who is read
on, and when the follower gives up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

import pytest
from msgspec.structs import replace

from clusterctl.core.job import JobState
from clusterctl.core.model import NodeResult
from clusterctl.errors import NodeUnreachable, ProviderError
from clusterctl.jobs import follow
from clusterctl.jobs.records import is_complete
from clusterctl.transport.pool import LocalChannel, LocalTransport, Pool
from clusterctl.transport.protocol import Transport
from tests.unit import making
from tests.unit.followed import ENDED, Site, agent, site, text

__all__ = ["agent", "site"]


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
        def find_transport(self, name: str) -> Transport:
            return kind(making.node(name, "")) if name == node else super().find_transport(name)

    return Without


@pytest.mark.parametrize("kind", [Unreachable, Dying])
def test_a_worker_that_is_gone_is_named_and_the_rest_is_read(
    kind: type[LocalTransport], site: Site
) -> None:
    site.write("worker-1", "rank-0.out", b"here\n")
    copy = site.copy("worker-2", "rank-1.out")
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"what came before\n")
    site.state("launcher 12 1\nstarted 12 2\nsurvivors 12 worker-2 ?\nended 12.0\n")
    follower, pieces = site.follow(without("worker-2", kind))
    assert text(pieces, 0) == b"here\n"
    assert text(pieces, 1) == b"what came before\n"
    assert list(follower.lost) == ["worker-2"]
    assert follower.job.reason.startswith("lost worker-2")
    assert not is_complete(site.home)


@pytest.mark.parametrize("node", ["launcher", "worker-2"])
def test_a_connection_that_is_cut_off_is_made_again(
    node: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CutOff, "left", [None] * 3)
    monkeypatch.setattr(follow, "GLANCE", 0.05)
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
    monkeypatch.setattr(follow, "GLANCE", 0.05)
    site.write("worker-2", "rank-1.out", b"here\n")
    site.state(ENDED)
    follower, _ = site.follow(without("worker-2", CutOff))
    assert list(follower.lost) == ["worker-2"]
    assert len(CutOff.left) == 50 - 1 - follow.RECONNECTIONS
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
    closed: ClassVar[list[str]] = []

    def open(self, command: str, *, timeout: float = 30.0) -> LocalChannel:
        return Mute(command)

    def close(self) -> None:
        self.closed.append(self.node.name)
        super().close()


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence is noticed at once."""
    monkeypatch.setattr(follow, "NOTICE", 0.1)
    monkeypatch.setattr(follow, "GLANCE", 0.05)
    monkeypatch.setattr(follow, "WAIT", 0.05)


def freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a connection is given up soon."""
    hurry(monkeypatch)
    monkeypatch.setattr(follow, "FROZEN", 0.2)
    monkeypatch.setattr(follow, "ANSWER_TIMEOUT", 0.5)


def probing(answers: dict[str, NodeResult]) -> type[Pool]:
    """worker-2 hangs; a new connection shows what there is to know of it."""

    class Probing(without("worker-2", Hanging)):  # type: ignore[misc]
        def probe(self, names: Sequence[str], *, timeout: float) -> tuple[NodeResult, ...]:
            up = NodeResult(node="", exit_code=0)
            return tuple(replace(answers.get(name, up), node=name) for name in names)

    return Probing


@pytest.mark.timeout(30)
def test_a_node_that_falls_silent_and_cannot_be_reached_is_told_soon(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read on when it answers again."""
    hurry(monkeypatch)
    monkeypatch.setattr(follow, "FROZEN", 60)
    monkeypatch.setattr(follow, "PAUSE", 0.05)
    monkeypatch.setattr(Mute, "silence", [None] * 6)
    site.write("worker-2", "rank-1.out", b"after the outage\n")
    answers = {"worker-2": NodeResult(node="", error="no route to it")}
    told: list[str] = []

    def pass_on(line: str) -> None:
        told.append(line)
        if line.startswith("no answer"):
            Mute.silence.clear()
            answers.clear()  # it may be slow from now on
        if line.startswith("reconnected"):
            site.state(ENDED)

    follower, pieces = site.follow(probing(answers), report=pass_on)
    assert "no answer from worker-2, showing what came before: no route to it" in told
    assert text(pieces, 1) == b"after the outage\n"
    assert not follower.lost


def test_a_node_that_is_only_slow_is_not_reported(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(Mute, "silence", [None] * 6)
    site.state(ENDED)
    told: list[str] = []
    site.follow(probing({}), report=told.append)
    assert not [line for line in told if "worker-2" in line]


def test_a_node_that_is_frozen_is_told_and_given_up_though_it_can_be_reached(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(monkeypatch)
    monkeypatch.setattr(Mute, "silence", [None] * 1000)
    site.state(ENDED)
    told: list[str] = []
    follower, _ = site.follow(probing({}), report=told.append)
    assert "reconnected to worker-2: no answer for 0.2 s" in told
    assert follower.lost == {"worker-2": "no answer for 0.5 s"}


def test_a_connection_that_hears_nothing_any_more_is_made_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine has got another address."""
    freeze(monkeypatch)
    monkeypatch.setattr(Mute, "silence", [None] * 1000)
    monkeypatch.setattr(Hanging, "closed", [])
    site.write("worker-2", "rank-1.out", b"all of it\n")
    site.state(ENDED)

    def pass_on(line: str) -> None:
        if line.startswith("reconnected to worker-2"):
            Mute.silence.clear()

    follower, pieces = site.follow(without("worker-2", Hanging), report=pass_on)
    assert Hanging.closed[:1] == ["worker-2"]  # all else on that connection would hear nothing, too
    assert text(pieces, 1) == b"all of it\n"
    assert not follower.lost


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
            def find_transport(self, name: str) -> Transport:
                if name in cut:
                    return Reached(making.node(name, ""))
                return super().find_transport(name)

            def probe(self, names: Sequence[str], *, timeout: float) -> tuple[NodeResult, ...]:
                down = NodeResult(node="", error="no route to it")
                up = NodeResult(node="", exit_code=0)
                lost = () if network.works else cut
                return tuple(replace(down if name in lost else up, node=name) for name in names)

        return Through


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setattr(follow, "PAUSE", 0.05)
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
        if line.startswith("no answer"):
            site.write("worker-2", "rank-1.out", b"meanwhile\n")
            network.works = True
        if line.startswith("reconnected"):
            site.state(ENDED)

    network.works = False
    follower, pieces = site.follow(network.pool(("worker-2",)), report=pass_on)
    assert text(pieces, 1) == b"before\nmeanwhile\n"
    assert "no answer from worker-2, showing what came before: no route to it" in told
    assert not follower.lost
    assert is_complete(site.home)


@pytest.mark.timeout(60)
def test_a_launcher_that_stays_away_is_given_up_in_the_end(
    site: Site, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "GIVE_UP", 0.3)
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
    monkeypatch.setattr(follow, "STILL", 0.6)
    told: list[str] = []

    def report(line: str) -> None:
        told.append(line)
        if "has written nothing" in line:
            threading.Timer(1.0, site.state, [ENDED]).start()

    follower, _ = site.follow(report=report)
    assert follower.job.state is JobState.SUCCEEDED
    silent = [line for line in told if "has written nothing" in line]
    assert len(silent) == 1
