"""The script that follows the output of a job on a node, run here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.core import assets


class Follow:
    """The other end of a follower."""

    def __init__(self, folder: Path, answer: int) -> None:
        text = assets.render("job/follow.sh.j2", folder=folder, answer=answer)
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ask(self, known: dict[str, int] | None = None) -> dict[str, tuple[int, bytes]]:
        """What is new, by name: its offset and its bytes."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        text = "".join(f" {name}={at}" for name, at in (known or {}).items())
        process.stdin.write(f"{text} \n".encode())
        process.stdin.flush()
        found = {}
        while (header := process.stdout.readline()) != b"E\n":
            kind, name, offset, length, size = header.decode().split()
            assert (kind, int(offset) + int(length) <= int(size)) == ("F", True)
            found[name] = (int(offset), process.stdout.read(int(length)))
        return found


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Follow]]:
    made: list[Follow] = []

    def start(answer: int = 1 << 20) -> Follow:
        made.append(Follow(tmp_path, answer))
        return made[-1]

    (tmp_path / "out").mkdir()
    yield start
    for one in made:
        assert one.process.communicate(timeout=10) == (b"", b"")
        assert one.process.returncode == 0  # it ends with its stdin


def test_follow_nothing_yet(follow: Callable[..., Follow]) -> None:
    assert follow().ask() == {}


def test_follow_a_growing_file(follow: Callable[..., Follow], tmp_path: Path) -> None:
    one, out = follow(), tmp_path / "out" / "rank-1.out"
    (tmp_path / "state").write_text("running 1 1\n")
    out.write_bytes(b"a\n")
    assert one.ask() == {"state": (0, b"running 1 1\n"), "out/rank-1.out": (0, b"a\n")}
    at = {"state": 12, "out/rank-1.out": 2}
    assert one.ask(at) == {}
    with out.open("ab") as file:
        file.write(b"b\xff\0\n E\nF x 0 9\n")
    assert one.ask(at) == {"out/rank-1.out": (2, b"b\xff\0\n E\nF x 0 9\n")}


def test_follow_knows_names_apart(follow: Callable[..., Follow], tmp_path: Path) -> None:
    one = follow()
    for name in ("rank-1.out", "rank-11.out", "rank-1.err", "agent-1.out"):
        (tmp_path / "out" / name).write_text("0123456789")
    (tmp_path / "out" / "rank-1.pid").write_text("77")
    found = one.ask({"out/rank-11.out": 9, "out/rank-1.out": 4})
    assert found == {
        "out/rank-1.out": (4, b"456789"),
        "out/rank-11.out": (9, b"9"),
        "out/rank-1.err": (0, b"0123456789"),
        "out/agent-1.out": (0, b"0123456789"),
    }


def test_follow_in_parts(follow: Callable[..., Follow], tmp_path: Path) -> None:
    """Files with news share an answer: none of them has to wait until another is read."""
    one, data = follow(answer=1000), os.urandom(2500)
    (tmp_path / "out" / "rank-1.out").write_bytes(data)
    (tmp_path / "out" / "rank-2.out").write_bytes(data[:600])
    (tmp_path / "out" / "rank-2.err").write_bytes(b"")
    got = {"out/rank-1.out": b"", "out/rank-2.out": b""}
    rounds = 0
    while found := one.ask({name: len(text) for name, text in got.items()}):
        rounds += 1
        assert sum(len(part) for _, part in found.values()) <= 1000 + len(found)
        for name, (offset, part) in found.items():
            assert offset == len(got[name])
            got[name] += part
    assert got == {"out/rank-1.out": data, "out/rank-2.out": data[:600]}
    assert rounds == 4


def test_follow_a_file_that_shrank(follow: Callable[..., Follow], tmp_path: Path) -> None:
    (tmp_path / "out" / "rank-1.out").write_bytes(b"short")
    assert follow().ask({"out/rank-1.out": 500}) == {}


def test_follow_without_a_folder(tmp_path: Path) -> None:
    text = assets.render("job/follow.sh.j2", folder=tmp_path / "gone", answer=1)
    done = subprocess.run(["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 1
