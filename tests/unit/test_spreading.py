"""The same files on many nodes, sent once: real processes, whose nodes are folders here."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions.data import require_copied
from clusterctl.agent.store import FILE, TreeEntry
from clusterctl.core import assets
from clusterctl.core.model import NodeResult
from clusterctl.core.progress import COPIED
from clusterctl.errors import NodeUnreachable, UsageError
from clusterctl.jobs.fetch import persist
from clusterctl.transport.pool import Pool
from clusterctl.transport.spreading import Content, Receiver, Spread
from tests.unit.making import node
from tests.unit.staged import lab as make_lab

ROOT = Path(__file__).resolve().parents[2]
AGENT = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from clusterctl.agent.relay import serve;"
    " serve(sys.argv[1])"
)
CHANGE = """
import os
while data := os.read(0, 65536):
    os.write(1, data.replace(b"xx", b"yy"))
"""


@dataclass
class Lab:
    """`connect`: sh that stands for ssh to the node `$1` with the command `$2`."""

    path: Path
    names: Sequence[str] = ("worker-1", "worker-2", "worker-3", "worker-4")
    connect: str = 'exec sh -c "$2"'
    shared: str = ""
    sent: int = 0
    agents: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> Path:
        return self.path / (self.shared or name)

    def command(self, name: str) -> str:
        return self.agents.get(name) or shlex.join(
            [sys.executable, "-I", "-S", "-c", AGENT, str(self.root(name))]
        )

    def receive(self, name: str) -> Receiver:
        script = self.path / "connect"
        script.write_text(f"#!/bin/sh\n{self.connect}\n")
        script.chmod(0o755)
        self.root(name).mkdir(exist_ok=True)
        return Receiver(name, self.command(name), str(script), f"{self.path}/{name}/job")

    def spread(self, data: dict[str, bytes], patience: float = 30) -> tuple[NodeResult, ...]:
        source = self.path / "source"
        source.mkdir(exist_ok=True)
        entries, places = [], {}
        for name, content in data.items():
            digest = hashlib.sha256(content).hexdigest()
            (source / name).write_bytes(b"before" + content)
            entries.append(TreeEntry(FILE, f"work/{name}", 0o644, len(content), digest))
            places[digest] = (source / name, 6)
        nodes = [node(name, address="") for name in self.names]
        before = COPIED.read()
        with Pool(nodes, identity=None, known_hosts=Path("/nowhere")) as pool:
            receivers = [self.receive(name) for name in self.names]
            content = Content(entries, places)
            results = Spread(pool, receivers, content, timeout=60, patience=patience).run()
        self.sent = COPIED.read() - before
        return results

    def has(self, name: str, data: dict[str, bytes]) -> bool:
        work = self.path / name / "job/work"
        return {path.name: path.read_bytes() for path in work.iterdir()} == data


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def data() -> dict[str, bytes]:
    return {"large": os.urandom(3_000_000), **{f"f{n}": os.urandom(900) for n in range(50)}}


def test_each_byte_is_sent_once_and_a_change_alone_the_next_time(
    lab: Lab, data: dict[str, bytes]
) -> None:
    assert all(result.ok for result in lab.spread(data))
    assert all(lab.has(name, data) for name in lab.names)
    assert lab.sent == sum(map(len, data.values()))
    assert all(result.ok for result in lab.spread(data))
    assert lab.sent == 0
    data["f7"] = b"changed"
    assert all(result.ok for result in lab.spread(data))
    assert all(lab.has(name, data) for name in lab.names)
    assert lab.sent == 4 * len(b"changed")


def test_a_new_node_gets_it_from_another_one(lab: Lab, data: dict[str, bytes]) -> None:
    names, lab.names = lab.names, lab.names[1:3]
    assert all(result.ok for result in lab.spread(data))
    lab.names = names
    assert all(result.ok for result in lab.spread(data))
    assert all(lab.has(name, data) for name in lab.names)
    assert lab.sent == 0


def test_nodes_that_share_a_folder_get_it_once(lab: Lab, data: dict[str, bytes]) -> None:
    lab.shared, lab.connect = "shared", "exit 1"
    assert all(result.ok for result in lab.spread(data))
    assert all(lab.has(name, data) for name in lab.names)
    assert lab.sent == sum(map(len, data.values()))


@pytest.mark.parametrize(
    ("fault", "patience"),
    [
        ("echo no route >&2; exit 255", 30.0),
        ("exec sleep 100", 2.0),  # takes nothing
        ('dd bs=65536 count=20 2>&- | sh -c "$2"', 30.0),  # is cut on the way
        (f'{sys.executable} -c {shlex.quote(CHANGE)} | sh -c "$2"', 30.0),
    ],
)
def test_a_node_that_others_do_not_reach_is_gone_around(
    lab: Lab, data: dict[str, bytes], fault: str, patience: float
) -> None:
    lab.connect = f'case $1 in worker-2) {fault} ;; *) exec sh -c "$2" ;; esac'
    assert all(result.ok for result in lab.spread(data, patience))
    assert all(lab.has(name, data) for name in lab.names)


def test_one_connection_that_breaks_costs_nothing_twice(lab: Lab, data: dict[str, bytes]) -> None:
    lab.connect = (
        f'if mkdir {lab.path}/once 2>&-; then dd bs=65536 count=20 2>&-; else cat; fi | sh -c "$2"'
    )
    assert all(result.ok for result in lab.spread(data))
    assert all(lab.has(name, data) for name in lab.names)
    assert lab.sent == sum(map(len, data.values()))


def test_a_node_that_has_it_all_is_not_waited_for_when_it_is_lost(
    lab: Lab, data: dict[str, bytes]
) -> None:
    lab.names = ("worker-1",)
    lab.spread(data)
    lab.names = ("worker-1", "worker-2")
    lab.connect = f'mkdir {lab.path}/once && kill -9 $PPID; exec sh -c "$2"'
    assert all(result.ok for result in lab.spread(data, patience=600))
    assert (lab.path / "once").exists()
    assert lab.has("worker-2", data)


@pytest.mark.parametrize("name", ["worker-1", "worker-3"])
def test_a_node_that_fails_is_named_and_the_others_have_it(
    lab: Lab, data: dict[str, bytes], name: str
) -> None:
    lab.root(name).mkdir()
    (lab.root(name) / "store").touch()
    results = lab.spread(data)
    assert [result.node for result in results if not result.ok] == [name]
    assert "store" in next(result.why for result in results if not result.ok)
    assert all(lab.has(other, data) for other in lab.names if other != name)


def test_what_a_node_without_an_agent_says_is_passed_on(lab: Lab, data: dict[str, bytes]) -> None:
    lab.agents["worker-2"] = "timeout 0.2 cat >/dev/null; echo no Python is here >&2; exit 69"
    [failed] = [result for result in lab.spread(data) if not result.ok]
    assert (failed.node, failed.error) == ("worker-2", "no Python is here")


def test_a_file_that_changes_here_is_an_error(lab: Lab, data: dict[str, bytes]) -> None:
    nodes = [node(name, address="") for name in lab.names]
    (lab.path / "short").write_bytes(b"x")
    digest = "0" * 64
    content = Content([TreeEntry(FILE, "a", 0o644, 9, digest)], {digest: (lab.path / "short", 0)})
    with Pool(nodes, identity=None, known_hosts=Path("/nowhere")) as pool:
        results = Spread(pool, [lab.receive(n) for n in lab.names], content, timeout=60).run()
    assert all("became shorter" in result.error for result in results)
    (lab.path / "short").write_bytes(b"x" * 9)
    with Pool(nodes, identity=None, known_hosts=Path("/nowhere")) as pool:
        results = Spread(pool, [lab.receive(n) for n in lab.names], content, timeout=60).run()
    for result in results:
        assert result.error == f"{lab.path}/short changed while it was read"
    with pytest.raises(UsageError, match="short changed") as ended:
        require_copied(results, "data")
    assert ended.value.hint == "repeat the command when nothing writes to it"


@pytest.mark.parametrize("inside", [False, True])
def test_a_large_tree_is_kept_on_the_nodes_also_where_these_are_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """Those do not reach each other's hosts: each gets it from here, the first time."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path / "home"))
    site = make_lab(tmp_path / "lab")
    ports: dict[str, Any] = {"machine": "i-1", "job_port": 2222} if inside else {}
    nodes = [replace(item, **ports) for item in site.where.nodes]
    site = replace(site, where=replace(site.where, nodes=tuple(nodes)))
    for item in nodes:
        agent = Path(item.root, "bin/clusterctl-ssh")
        agent.write_text('#!/bin/sh\nexec sh -c "$2"\n')
        agent.chmod(0o755)
    tree, data = tmp_path / "tree", os.urandom(9_000_000)
    tree.mkdir()
    (tree / "large").write_bytes(data)
    for number, sent in ((7, len(data) * (len(site.where.workers) if inside else 1)), (8, 0)):
        before = COPIED.read()
        site.job(tree, number)
        assert COPIED.read() - before == sent
        for item in site.where.workers:
            assert (site.work(item.name, number) / "large").read_bytes() == data


@pytest.mark.parametrize("always", [False, True])
def test_a_node_whose_agent_is_killed_gets_its_files_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path / "home"))
    site = make_lab(tmp_path / "lab")
    python, killed, tree = (tmp_path / name for name in ("python", "killed", "tree"))
    test = ":" if always else f"mkdir {killed} 2>/dev/null"
    python.write_text(
        f'#!/bin/sh\ncase " $* " in *" store "*) {test} && kill -9 $$ ;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    for item in site.where.nodes:
        agent = Path(item.root, "bin/clusterctl-ssh")
        agent.write_text('#!/bin/sh\nexec sh -c "$2"\n')
        agent.chmod(0o755)
    script = assets.render_agent(str(python)).encode()
    subprocess.run(["/bin/sh"], cwd=site.where.workers[0].root, input=script, check=True)
    data = os.urandom(5_000_000)
    tree.mkdir()
    (tree / "large").write_bytes(data)
    if always:
        with pytest.raises(NodeUnreachable, match="worker-1: the program that takes files there"):
            site.job(tree)
        return
    site.job(tree)
    assert killed.exists()
    for item in site.where.workers:
        assert (site.work(item.name) / "large").read_bytes() == data


def test_what_was_lost_on_the_way_is_tried_again(tmp_path: Path) -> None:
    """Not what the node has refused."""
    asked: list[list[str]] = []

    def attempt(names: Sequence[str]) -> list[NodeResult]:
        asked.append(list(names))
        lost = NodeResult(node="worker-2", error="reset", cut=len(asked) < 3)
        results = [
            NodeResult(node="worker-1", exit_code=0),
            NodeResult(node="worker-3", exit_code=1),
        ]
        return [result for result in (*results, lost) if result.node in names]

    told: list[str] = []
    nodes = [node(name, address="") for name in ("worker-1", "worker-2", "worker-3")]
    with Pool(nodes, identity=None, known_hosts=tmp_path / "none") as pool:
        found = persist(pool, attempt, [one.name for one in nodes], told.append)
    assert asked == [["worker-1", "worker-2", "worker-3"], ["worker-2"], ["worker-2"]]
    assert {result.node: result.exit_code for result in found}["worker-3"] == 1
    assert len(told) == 2
    assert "lost the connection to worker-2: reset" in told[0]
