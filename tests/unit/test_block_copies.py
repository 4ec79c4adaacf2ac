"""Large files that are here in an older version: only the blocks that have changed come. Nodes are
folders of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from clusterctl.core.job import Job, JobState
from clusterctl.core.model import NodeResult
from clusterctl.errors import NodeUnreachable
from clusterctl.jobs import mirror, outputs
from clusterctl.jobs.outputs import ATTEMPTS
from clusterctl.transport.pool import LocalTransport, Pool
from clusterctl.transport.protocol import PARTS, OnStdout, Transport
from tests.unit import making
from tests.unit.staged import Staged, lab

MIB = 1 << 20


class Counting(LocalTransport):
    """Counts the bytes that come from nodes and go to them."""

    come: ClassVar[int] = 0
    gone: ClassVar[int] = 0
    cuts: ClassVar[list[int]] = []
    """After so many bytes of the first file that is larger, the connection is lost, once each."""
    before_get: ClassVar[Callable[[str], None]] = staticmethod(lambda source: None)
    """Called with each folder that is about to be copied."""

    def run(
        self, command: str, *, stdin: bytes = b"", timeout: float, on_stdout: OnStdout | None = None
    ) -> NodeResult:
        result = super().run(command, stdin=stdin, timeout=timeout, on_stdout=on_stdout)
        Counting.gone += len(stdin)
        Counting.come += len(result.stdout)
        return result

    def get(self, source: str, target: Path, *, timeout: float, partly: bool = False) -> NodeResult:
        Counting.before_get(source)
        for path in sorted(path for path in Path(source).rglob("*") if path.is_file()):
            size = path.stat().st_size
            if partly and Counting.cuts and size > Counting.cuts[0]:
                return self._break_off(path, target / PARTS / path.relative_to(source))
            Counting.come += size
        return super().get(source, target, timeout=timeout, partly=partly)

    def _break_off(self, path: Path, part: Path) -> NodeResult:
        Counting.come += Counting.cuts[0]
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(path.read_bytes()[: Counting.cuts.pop(0)])
        return NodeResult(node=self.node.name, error="the connection was lost", cut=True)


@dataclass
class Site:
    """Job 7, whose first worker has made something."""

    made: Staged
    ran: Job
    target: Path

    @property
    def work(self) -> Path:
        return self.made.work()

    def pool(self) -> Pool:
        class Counted(Pool):
            def find_transport(self, name: str) -> Transport:
                return Counting(making.node(name, ""))

        known_hosts = self.made.folder / "known_hosts"
        return Counted(self.made.where.nodes, identity=None, known_hosts=known_hosts)

    def fetch(self) -> int:
        """The bytes that came and went."""
        Counting.come = Counting.gone = 0
        with self.pool() as pool:
            what = outputs.find_outputs(self.ran, self.made.where, pool).require_all()
            store = self.made.store
            brought = outputs.fetch(self.ran, self.made.where, pool, what, self.target, store.home)
        assert not brought.failed, brought.failed
        assert {item.path for item in brought.outputs} == {
            str(path.relative_to(self.work)) for path in self.work.rglob("*.pt")
        }
        return Counting.come + Counting.gone

    def bring(self) -> int:
        """The same for the copies of the launcher."""
        Counting.come = Counting.gone = 0
        with self.pool() as pool:
            mirror.bring(self.ran, self.made.where, pool, self.target)
        return Counting.come + Counting.gone


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(Counting, "before_get", staticmethod(lambda source: None))
    monkeypatch.setattr(Counting, "cuts", [])
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("pass")
    made = lab(tmp_path / "nodes")
    return Site(made, made.job(tree), tmp_path / "got")


def replace_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.with_name("new").write_bytes(data)
    path.with_name("new").chmod(0o640)
    path.with_name("new").replace(path)


def change(data: bytes) -> bytes:
    return data[: 3 * MIB] + b"changed" + data[3 * MIB + 7 :]


CHANGES: list[Callable[[bytes], bytes]] = [
    change,
    lambda data: data + os.urandom(100_000),
    lambda data: data[: 6 * MIB + 815],
    lambda data: data[: 5 * MIB],
]


def test_fetch_brings_the_blocks_that_have_changed(site: Site) -> None:
    name = "a  b/it's $a\nsnap=shot.pt"
    data = os.urandom(8 * MIB + 4711)
    replace_file(site.work / name, data)
    site.fetch()
    for step in CHANGES:
        data = step(data)
        replace_file(site.work / name, data)
        replace_file(site.work / "small.pt", os.urandom(1000))
        assert site.fetch() < MIB
        assert (site.target / "worker-1" / name).read_bytes() == data
        state, here = (site.work / name).stat(), (site.target / "worker-1" / name).stat()
        assert (here.st_mode, int(here.st_mtime)) == (state.st_mode, int(state.st_mtime))
    assert {path.name for path in (site.target / "worker-1").iterdir()} == {"a  b", "small.pt"}
    job_folder = site.work.parent
    assert not (job_folder / "outputs.blocks").exists()


def test_a_file_that_has_changed_throughout_comes_whole(site: Site) -> None:
    for _ in range(2):
        data = os.urandom(2 * MIB)
        replace_file(site.work / "weights.pt", data)
        site.fetch()
        assert (site.target / "worker-1/weights.pt").read_bytes() == data


def test_a_file_goes_on_where_its_connection_was_lost(site: Site) -> None:
    """Again and again, also when the next command goes on; nothing of that is left at the end."""
    data = os.urandom(40 * MIB)
    replace_file(site.work / "a" / "weights.pt", data)
    Counting.cuts[:] = [18 * MIB, 6 * MIB, 5 * MIB]
    assert site.fetch() < 50 * MIB
    assert not Counting.cuts
    assert (site.target / "worker-1/a/weights.pt").read_bytes() == data
    assert [path.name for path in (site.target / "worker-1").iterdir()] == ["a"]


def test_the_next_fetch_goes_on_with_a_file_that_was_cut_off(site: Site) -> None:
    """One whose beginning has changed meanwhile is no mixture."""
    data = os.urandom(40 * MIB)
    replace_file(site.work / "weights.pt", data)
    Counting.cuts[:] = [6 * MIB] * ATTEMPTS
    with pytest.raises(AssertionError, match="the connection was lost"):
        site.fetch()
    assert not (site.target / "worker-1/weights.pt").exists()
    data = b"changed" + data[7:]
    replace_file(site.work / "weights.pt", data)
    assert site.fetch() < 26 * MIB
    assert (site.target / "worker-1/weights.pt").read_bytes() == data
    assert [path.name for path in (site.target / "worker-1").iterdir()] == ["weights.pt"]


def test_a_file_that_is_written_to_while_it_is_read_is_no_mixture(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks are not those that were summed up before: it comes again, whole."""
    data = os.urandom(8 * MIB)
    replace_file(site.work / "weights.pt", data)
    site.fetch()
    data = change(data)
    replace_file(site.work / "weights.pt", data)
    came: list[str] = []

    def damage(source: str) -> None:
        came.append(Path(source).name)
        if source.endswith("/blocks"):
            path = Path(source, "weights.pt")
            path.write_bytes(b"x" + path.read_bytes()[1:])

    monkeypatch.setattr(Counting, "before_get", staticmethod(damage))
    site.fetch()
    assert came == ["files", "news", "blocks", "outputs"]
    assert (site.target / "worker-1/weights.pt").read_bytes() == data


def test_a_job_that_an_older_clusterctl_has_started_is_fetched_whole(site: Site) -> None:
    (site.work.parent / "blocks.sh").unlink()
    first = os.urandom(8 * MIB)
    for data in (first, change(first)):
        replace_file(site.work / "weights.pt", data)
        assert site.fetch() > 8 * MIB
        assert (site.target / "worker-1/weights.pt").read_bytes() == data


def test_copies_of_the_launcher_come_by_their_blocks(site: Site) -> None:
    site.ran = replace(site.ran, state=JobState.RUNNING)
    kept = site.made.work("launcher").parent / "mirror"
    (kept / "worker-1").mkdir(parents=True)
    (kept / ".worker-1.time").write_text("1800000000\n")
    data = os.urandom(8 * MIB)
    replace_file(kept / "worker-1" / "weights.pt", data)
    assert site.bring() > 8 * MIB
    for number, step in enumerate(CHANGES):
        data = step(data)
        replace_file(kept / "worker-1" / "weights.pt", data)
        os.utime(kept / "worker-1" / "weights.pt", (number, number))
        assert site.bring() < MIB
        assert (site.target / "worker-1/weights.pt").read_bytes() == data
        [(name, size, _)] = mirror.list_stored(site.target)["worker-1"].files
        assert (name, size) == ("weights.pt", len(data))
    assert {path.name for path in kept.iterdir()} == {"worker-1", ".worker-1.time"}


def test_a_copy_of_the_launcher_goes_on_at_the_next_look(site: Site) -> None:
    kept = site.made.work("launcher").parent / "mirror"
    (kept / "worker-1").mkdir(parents=True)
    (kept / ".worker-1.time").write_text("1800000000\n")
    data = os.urandom(20 * MIB)
    replace_file(kept / "worker-1" / "weights.pt", data)
    Counting.cuts[:] = [18 * MIB]
    with pytest.raises(NodeUnreachable, match="the connection was lost"):
        site.bring()
    assert site.bring() < 5 * MIB
    assert (site.target / "worker-1/weights.pt").read_bytes() == data
    left = {path.name for path in site.target.iterdir()}
    assert left == {"worker-1", ".worker-1.json", ".lock"}
