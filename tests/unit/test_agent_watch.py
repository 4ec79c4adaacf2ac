"""What a follower gets from a node: all that is written, once, and nothing while there is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.agent.watch import FASTEST, MUCH, STREAMING, Pace, follow
from tests.unit.tables import read_rows

ROOT = Path(__file__).resolve().parents[2]


class Follower:
    """The agent's `follow`, asked as clusterctl does."""

    def __init__(self, job: Path, *words: str, before: str = "pass") -> None:
        code = (
            f"import sys; from clusterctl.agent import messages, watch; {before};"
            " watch.follow(*sys.argv[1:])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(job), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self.said: dict[str, bytes] = {}

    def ask(
        self, seconds: float = 0, known: dict[str, int] | None = None, most: int = 1 << 20
    ) -> list[str]:
        """The files with news."""
        self.send(seconds, known, most)
        return self.read()

    def send(
        self, seconds: float, known: dict[str, int] | None = None, most: int = 1 << 20
    ) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([known or {}, seconds, most]).encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> list[str]:
        assert self.process.stdout
        names = []
        while (line := self.process.stdout.readline()) != b"E\n":
            _, name, _, length, _ = line.decode().split()
            self.said[name] = self.said.get(name, b"") + self.process.stdout.read(int(length))
            names.append(name)
        return names

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        assert self.wait() == 0

    def wait(self) -> int:
        with self.process:
            return self.process.wait(10)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.fixture
def follower(job: Path) -> Iterator[Follower]:
    made = Follower(job)
    yield made
    made.close()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_news_come_once_and_as_soon_as_there_are_any(job: Path, follower: Follower) -> None:
    assert follower.ask(0) == []
    (job / "state").write_text("running 1 1\n")
    (job / "out" / "rank-0.out").write_bytes(b"one\n")
    (job / "out" / "rank-0.pid").write_bytes(b"1\n")
    assert follower.ask(30) == ["state", "out/rank-0.out"] or follower.ask(30)
    writer = subprocess.Popen(
        ["/bin/sh", "-c", 'sleep 0.3; echo two >>"$0"', str(job / "out" / "rank-0.out")]
    )
    assert follower.ask(60) == ["out/rank-0.out"]
    assert writer.wait() == 0
    assert follower.ask(0) == []
    assert follower.said["out/rank-0.out"] == b"one\ntwo\n"


def test_nothing_is_done_while_nothing_is_written(job: Path, follower: Follower) -> None:
    follower.ask(0)
    before = read_switches(follower.process.pid)
    assert follower.ask(1) == []
    assert read_switches(follower.process.pid) - before < 8


def read_switches(pid: int) -> int:
    """How often a process has gone to sleep by itself."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("voluntary_ctxt_switches:")[2].split()[0])


def test_what_was_left_out_of_a_file_is_passed_over(job: Path, follower: Follower) -> None:
    path = job / "out" / "rank-0.out"
    path.write_bytes(b"a" * 10 + b"\0" * 80 + b"b" * 10)
    Path(f"{path}.cut").write_text("10 90\n")
    follower.ask(0)
    follower.ask(0)
    assert follower.said["out/rank-0.out"] == b"a" * 10 + b"b" * 10


def test_much_output_of_many_ranks_comes_in_parts(job: Path, follower: Follower) -> None:
    """Files with news share an answer: none of them has to wait until another is read."""
    content = {f"out/rank-{rank}.out": os.urandom(70_000) for rank in range(8)}
    for name, data in content.items():
        (job / name).write_bytes(data)
    assert follower.ask(most=100_000) == sorted(content)
    assert sum(map(len, follower.said.values())) <= 100_000 + len(content)
    while follower.ask(most=100_000):
        pass
    assert follower.said == content


def test_where_it_goes_on_and_what_is_none_of_its_files(job: Path, follower: Follower) -> None:
    for name in read_rows("agent_watch", "where_it_goes_on_and_what_is_none_of_its_files"):
        (job / "out" / name).write_text("0123456789")
    (job / "out" / "rank-2.out").write_text("cut off")
    follower.ask(0, {"out/rank-11.out": 9, "out/rank-1.out": 4, "out/rank-2.out": 500})
    assert follower.said == {
        "out/rank-1.out": b"456789",
        "out/rank-11.out": b"9",
        "out/rank-1.err": b"0123456789",
        "out/agent-1.out": b"0123456789",
    }


@pytest.mark.parametrize("words", [(), ("shared",)])
def test_a_question_that_waits_is_answered_when_the_next_one_comes(
    job: Path, words: tuple[str, ...]
) -> None:
    follower = Follower(job, *words)
    follower.send(60)
    follower.send(0)
    assert [follower.read(), follower.read()] == [[], []]
    follower.send(60)
    append(job / "out" / "rank-0.out", b"E\nF x 0 9\n")
    assert follower.read() == ["out/rank-0.out"]
    follower.close()
    assert follower.said == {"out/rank-0.out": b"E\nF x 0 9\n"}


def test_output_that_never_pauses_is_sent_the_less_often_and_the_end_at_once() -> None:
    pace, at = Pace(), 100.0
    pauses = []
    for _ in range(20_000):
        pace.note(5, at)
        pauses.append(pace.due - at)
        at = pace.due
    assert pauses[0] == pytest.approx(FASTEST)
    assert pauses[-1] == pytest.approx(STREAMING)
    pace.note(MUCH, at)
    assert pace.due == at  # there is more
    pace.note(0, at + 10)
    pace.note(5, at + 10)
    assert pace.due == pytest.approx(at + 10 + FASTEST)


def test_the_end_of_a_job_does_not_wait_for_its_turn(job: Path) -> None:
    (job / "state").write_text("running 1 1\n")
    follower = Follower(job)
    rank = job / "out" / "rank-0.out"
    for _ in range(20):
        append(rank, b"more\n")
        follower.ask(60)
    append(rank, b"the last\n")
    append(job / "state", b"ended 2\n")
    assert follower.ask(60) == ["state", "out/rank-0.out"]
    follower.close()


def test_it_ends_with_the_connection_that_asks(job: Path) -> None:
    """Whether that is closed while a question waits for its answer, or is silent for ever."""
    follower = Follower(job)
    follower.send(600)
    follower.close()
    silent = Follower(job, before="messages.PATIENCE = 1")
    silent.ask(0)
    assert silent.wait() == -signal.SIGALRM


def test_a_job_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        follow(str(tmp_path / "gone"))


def test_without_the_kernels_word_it_looks(job: Path) -> None:
    """As where there is no folder yet, or no watch is left."""
    (job / "out").rmdir()
    follower = Follower(job)
    follower.ask(0)
    (job / "out").mkdir()
    (job / "out" / "rank-0.err").write_text("it\n")
    assert follower.ask(30) == ["out/rank-0.err"]
    follower.close()
