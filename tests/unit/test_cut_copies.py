"""Copies that break off within a file, and go on there. Nodes are folders of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from clusterctl.core.job import Job
from clusterctl.core.model import NodeResult
from clusterctl.errors import NodeUnreachable
from clusterctl.jobs import fetch as jobs_fetch
from clusterctl.jobs.fetch import ATTEMPTS
from clusterctl.transport.pool import LocalTransport, Pool
from clusterctl.transport.protocol import Transport
from tests.unit import making
from tests.unit.staged import Staged, lab, note_copies


class Cutting(LocalTransport):
    """Loses its connection within a file."""

    cuts: ClassVar[int] = 0
    """How often it is lost: 100,000 bytes of the file have come each time."""
    come: ClassVar[int] = 0
    """The bytes that came."""

    def get(
        self, source: str, target: Path, *, timeout: float, begun: Path | None = None
    ) -> NodeResult:
        there = Path(source)
        for path in [there] if there.is_file() else there.rglob("*.pt"):
            part = begun / path.relative_to(there) if begun else Path()
            old, data = part.read_bytes() if part.is_file() else b"", path.read_bytes()
            if not data.startswith(old):
                return NodeResult(node=self.node.name, exit_code=66, error="it has changed")
            if begun and Cutting.cuts:
                Cutting.cuts -= 1
                Cutting.come += 100_000
                part.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(data[: len(old) + 100_000])
                return NodeResult(node=self.node.name, error="the connection was lost", cut=True)
            Cutting.come += len(data) - len(old)
        return super().get(source, target, timeout=timeout)


class Dropping(Staged):
    """Its connections are lost once, while a job is sent to a node."""

    @contextmanager
    def pool(self) -> Iterator[Pool]:
        lost: set[str] = set()

        class Dropped(LocalTransport):
            def run(self, command: str, *, stdin: bytes = b"", **how: Any) -> NodeResult:
                if not stdin or self.node.name in lost:
                    return super().run(command, stdin=stdin, **how)
                lost.add(self.node.name)
                super().run(command, stdin=stdin[: len(stdin) // 2], **how)
                return NodeResult(node=self.node.name, error="the connection was lost", cut=True)

        class Cut(Pool):
            def find_transport(self, name: str) -> Transport:
                return Dropped(making.node(name, ""))

        with Cut(self.where.nodes, identity=None, known_hosts=self.folder / "known_hosts") as pool:
            yield pool


def test_a_job_is_sent_again_where_its_connection_is_lost(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("pass")
    made = Dropping(tmp_path / "nodes", lab(tmp_path / "nodes").where)
    made.job(tree)
    assert (made.work("worker-2") / "train.py").read_text() == "pass"


@dataclass
class Site:
    """Job 7, whose first worker has made something."""

    made: Staged
    ran: Job
    target: Path

    def pool(self) -> Pool:
        class Cut(Pool):
            def find_transport(self, name: str) -> Transport:
                return Cutting(making.node(name, ""))

        known_hosts = self.made.folder / "known_hosts"
        return Cut(self.made.where.nodes, identity=None, known_hosts=known_hosts)

    def fetch(self) -> jobs_fetch.Brought:
        with self.pool() as pool:
            what = jobs_fetch.find_outputs(self.ran, self.made.where, pool).require_all()
            home = self.made.store.home
            return jobs_fetch.fetch(self.ran, self.made.where, pool, what, self.target, home)

    def bring(self) -> None:
        with self.pool() as pool:
            jobs_fetch.bring(self.ran, self.made.where, pool, self.target)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(Cutting, "cuts", 0)
    monkeypatch.setattr(Cutting, "come", 0)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("pass")
    made = lab(tmp_path / "nodes")
    return Site(made, made.job(tree), tmp_path / "got")


def test_fetch_goes_on_within_a_file(site: Site) -> None:
    """Again and again, also the next command. One that has changed meanwhile is no mixture."""
    name = "a  b/it's $a\nsnap=shot.pt"
    data = os.urandom(1_000_000)
    there, here = site.made.work() / name, site.target / "worker-1" / name
    there.parent.mkdir()
    there.write_bytes(data)
    Cutting.cuts = ATTEMPTS
    assert site.fetch().failed
    assert not here.exists()
    Cutting.cuts = 2
    assert not site.fetch().failed
    assert here.read_bytes() == data
    assert Cutting.come == len(data)
    assert os.listdir(site.target / "worker-1") == ["a  b"]

    for changed in (b"changed" + data[7:], b"short"):
        there.write_bytes(data[::-1])
        Cutting.cuts = ATTEMPTS
        assert site.fetch().failed
        there.write_bytes(changed)
        assert not site.fetch().failed
        assert here.read_bytes() == changed


def test_a_copy_of_the_launcher_goes_on_at_the_next_look(site: Site) -> None:
    kept = site.made.work("launcher").parent / "mirror"
    (kept / "worker-1").mkdir(parents=True)
    note_copies(kept, "worker-1")
    data = os.urandom(1_000_000)
    (kept / "worker-1" / "weights.pt").write_bytes(data)
    Cutting.cuts = 1
    with pytest.raises(NodeUnreachable, match="the connection was lost"):
        site.bring()
    assert not (site.target / "worker-1").exists()
    site.bring()
    assert Cutting.come == len(data)
    assert (site.target / "worker-1/weights.pt").read_bytes() == data
    assert set(os.listdir(site.target)) == {"worker-1", ".worker-1.json", ".lock"}
