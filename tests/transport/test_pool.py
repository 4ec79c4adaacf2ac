"""The same on many nodes: results in order, in time, and never half of them."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.core.model import Node, NodeResult, fold
from clusterctl.errors import UsageError
from clusterctl.transport import pool as transport_pool
from clusterctl.transport.pool import Pool
from tests.e2e.cli import wait_for
from tests.transport.lab import Sshd, make_node

pytestmark = pytest.mark.sshd


@pytest.fixture
def nodes(sshd: Sshd) -> list[Node]:
    """One server under six names: six connections."""
    return [make_node(sshd.port, f"worker-{number}") for number in range(1, 7)]


@pytest.fixture
def make_pool(sshd: Sshd) -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []

    def make(nodes: list[Node]) -> Pool:
        pools.append(Pool(nodes, identity=sshd.identity, known_hosts=sshd.known_hosts))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_run_everywhere(make_pool: Callable[..., Pool], nodes: list[Node], sshd: Sshd) -> None:
    earlier = sshd.log_ins
    with make_pool(nodes) as pool:
        pool.connect_ahead([node.name for node in nodes[:3]], timeout=10)
        wait_for(lambda: sshd.log_ins == earlier + 3, 10, "connections that nobody waits for")
        results = pool.run("echo hello; cat", stdin=b"input", timeout=10)
        assert [result.node for result in results] == [node.name for node in nodes]
        assert fold(results) == ("worker-[1-6]: \n  hello\n  input",)
        before = sshd.connections
        assert len(before) == len(nodes)
        assert all(result.ok for result in pool.connect(timeout=10))
        assert sshd.connections == before
    wait_for(lambda: not sshd.connections, 10, "paramiko's threads to close their sockets")


def test_a_command_and_an_input_for_each(make_pool: Callable[..., Pool], nodes: list[Node]) -> None:
    pool = make_pool(nodes)
    commands = {"worker-5": "echo five; cat", "worker-2": "echo two; cat"}
    results = pool.run(commands, stdin={"worker-2": b"2"}, timeout=10)
    assert [(r.node, r.stdout) for r in results] == [
        ("worker-2", b"two\n2"),
        ("worker-5", b"five\n"),
    ]
    results = pool.run("echo", ["worker-6", "worker-1"], timeout=10)
    assert [result.node for result in results] == ["worker-6", "worker-1"]
    assert pool.run("true", [], timeout=10) == ()


def test_what_commands_print_is_heard_as_it_comes(
    make_pool: Callable[..., Pool], nodes: list[Node], tmp_path: Path
) -> None:
    """Each command goes on only after its first line was heard here."""
    said: dict[str, bytes] = {}

    def hear(node: str, data: bytes) -> None:
        said[node] = said.get(node, b"") + data
        (tmp_path / node).touch()

    commands = {
        node.name: f"echo first; until [ -e {tmp_path / node.name} ]; do sleep 0.1; done; echo last"
        for node in nodes
    }
    results = make_pool(nodes).run(commands, timeout=30, on_stdout=hear)
    assert [result.text for result in results] == ["first\nlast\n"] * len(nodes)
    assert said == {node.name: b"first\nlast\n" for node in nodes}


def test_one_node_that_hangs(
    make_pool: Callable[..., Pool],
    nodes: list[Node],
    peer: Callable[..., int],
) -> None:
    others = {2: make_node(peer(), "worker-3"), 4: make_node(1, "worker-5")}
    pool = make_pool([others.get(index, node) for index, node in enumerate(nodes)])
    finished: list[str] = []

    def run(name: str) -> NodeResult:
        result = pool.find_transport(name).run("true", timeout=3 if name == "worker-3" else 60)
        finished.append(name)
        return result

    results = pool.call_each(run)
    assert finished[-1] == "worker-3", "the others have waited for it"
    assert [result.exit_code for result in results] == [0, 0, None, 0, None, 0]
    assert "sshd does not answer" in results[2].error
    assert "nothing listens on port 1" in results[4].error
    assert [result.ok for result in pool.connect(timeout=0.4)] == [r.ok for r in results]


def test_no_more_than_the_limit(
    make_pool: Callable[..., Pool], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_pool, "LIMIT", 2)
    pool = make_pool(nodes)
    lock = threading.Lock()
    busy, most = 0, 0

    def count(name: str) -> NodeResult:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.02)
        with lock:
            busy -= 1
        return NodeResult(node=name, exit_code=0)

    assert len(pool.call_each(count)) == 6
    assert most == 2


def test_a_bug_is_raised_when_all_have_ended(
    make_pool: Callable[..., Pool], nodes: list[Node]
) -> None:
    seen: list[str] = []

    def fail(name: str) -> NodeResult:
        seen.append(name)
        if name == "worker-1":
            raise ZeroDivisionError
        return NodeResult(node=name, exit_code=0)

    with pytest.raises(ZeroDivisionError):
        make_pool(nodes).call_each(fail)
    assert len(seen) == 6


def test_via(make_pool: Callable[..., Pool], sshd: Sshd) -> None:
    nodes = [
        make_node(sshd.port, "worker-1", via="inner"),
        make_node(sshd.port, "inner", via="outer"),
        make_node(sshd.port, "outer"),
    ]
    pool, before = make_pool(nodes), sshd.log_ins
    assert all(result.ok for result in pool.run("true", timeout=10))
    assert sshd.log_ins - before == len(nodes), "each is logged in to once"
    assert len(sshd.connections) == 1, "all go through the outer one's"


@pytest.mark.parametrize("via", ["worker-1", "nobody", "worker-2"])
def test_bad_via(make_pool: Callable[..., Pool], via: str) -> None:
    nodes = [make_node(1, "worker-1", via=via), make_node(1, "worker-2", via="worker-1")]
    with pytest.raises(UsageError, match="which is not another node"):
        make_pool(nodes)


INTERRUPTED = """import sys, time
from pathlib import Path
from clusterctl.core.model import Node, Role
from clusterctl.transport import pool as transport_pool
from clusterctl.transport.pool import Pool
folder, *ports = sys.argv[1:]
nodes = [
    Node(name=f"worker-{i}", role=Role.WORKER, address="127.0.0.1", private_address="127.0.0.1",
         ssh_port=int(port), job_port=int(port), user="", root="")
    for i, port in enumerate(ports)
]
with Pool(nodes, identity=Path(folder, "user"), known_hosts=Path(folder, "known_hosts")) as pool:
    pool.find_transport("worker-0").connect(10)
    print("ready", flush=True)
    pool.run(f"touch {folder}/runs; exec sleep 30", timeout=30)
"""


def test_interrupt(sshd: Sshd, peer: Callable[..., int], deaf: int) -> None:
    """Ctrl-C while a command runs on one node and others hang, in two ways."""
    argv = [
        sys.executable,
        "-c",
        INTERRUPTED,
        str(sshd.folder),
        *map(str, (sshd.port, peer(), deaf)),
    ]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    runs, until = sshd.folder / "runs", time.monotonic() + 30
    while not runs.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode  # Python chooses it: mostly -SIGINT, now and then 1
    assert err.strip().endswith(b"KeyboardInterrupt")


def test_after_ctrl_c_no_further_node_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_pool, "LIMIT", 3)
    nodes = [make_node(22, f"worker-{number}") for number in range(5)]
    asked: list[str] = []
    answered: list[str] = []
    go_on = threading.Event()

    def ask(name: str) -> NodeResult:
        asked.append(name)
        if len(asked) == 3:
            _thread.interrupt_main()
        go_on.wait(20)
        answered.append(name)
        return NodeResult(node=name, exit_code=0)

    with Pool(nodes, identity=None, known_hosts=Path(os.devnull)) as pool:
        with pytest.raises(KeyboardInterrupt):
            pool.call_each(ask)
        go_on.set()
        wait_for(lambda: len(answered) >= 3, 20, "three answers")
        time.sleep(0.1)  # for who would go on
    assert len(asked) == 3


def test_looks_at_many_nodes_share_one_connection_to_their_gateway(tmp_path: Path) -> None:
    """An endpoint of AWS has 20 at a time: it would refuse some of 30 connections."""
    log = tmp_path / "log"
    command = f"sh -c 'echo begins >>{log}; sleep 0.2; echo ends >>{log}; echo no >&2; exit 1'"
    launcher = make_node(22, "launcher", tunnel=command)
    workers = [make_node(22, f"worker-{number}", via="launcher") for number in range(1, 31)]
    with Pool([launcher, *workers], identity=None, known_hosts=Path(os.devnull)) as pool:
        found = pool.probe([node.name for node in workers], timeout=5)
    assert [one.node for one in found] == [node.name for node in workers]
    assert not any(one.ok for one in found)
    assert found[0].error.endswith("launcher: no")
    said = log.read_text().split()
    assert said == ["begins", "ends"] * (len(said) // 2)
