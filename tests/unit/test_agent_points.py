"""The points of a sweep: which slot runs which, and what becomes of those whose node is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.agent.points import PointQueue, Sweep
from clusterctl.agent.supervise import State
from tests.unit.scripts import start_locally


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "todo").write_text("0\n2\n5\n")
    return tmp_path


def test_each_point_is_taken_once(job: Path) -> None:
    """Also by a sweep that begins again where another one broke off."""
    queue = PointQueue(str(job))
    assert (queue.take(), queue.is_empty()) == ("0", False)
    again = PointQueue(str(job))
    assert [again.take(), again.take(), again.take()] == ["2", "5", None]
    assert again.is_empty()


def test_a_point_whose_node_was_lost_is_taken_once_more(job: Path) -> None:
    queue = PointQueue(str(job))
    assert [queue.take() for _ in range(3)] == ["0", "2", "5"]
    for _ in range(2):
        queue.give_back("2")
    assert [queue.take(), queue.take()] == ["2", None]


def test_a_sweep_that_is_to_stop_begins_no_point(job: Path) -> None:
    queue = PointQueue(str(job))
    (job / "stopping").touch()
    assert queue.take() is None
    assert not queue.is_empty()


def test_a_point_that_cannot_be_noted_is_not_run(job: Path) -> None:
    (job / "taken.new").mkdir()
    assert PointQueue(str(job)).take() is None


@pytest.mark.parametrize(("code", "well"), [("0", True), ("3", False)])
def test_points_are_noted_as_they_end(job: Path, code: str, well: bool) -> None:
    """What a login shell says first is no answer."""
    answer = f'echo Welcome; while read -r n; do echo "@@point $n {code}"; done'
    (job / "slot.sh").write_text(f"{answer}\n")
    slots = [("worker-1", str(job), 0)]
    assert Sweep(str(job), start_locally, State(str(job)).note).run(slots) is well
    lines = [line.split() for line in (job / "state").read_text().splitlines()]
    assert [[word, *rest] for word, _, *rest in lines] == [
        [*fact]
        for number in "025"
        for fact in (("point", number, "worker-1"), ("exit", number, code, "1"))
    ]


def test_a_sweep_whose_slots_are_all_lost_has_failed(job: Path) -> None:
    (job / "slot.sh").write_text("read -r n\n")
    slots = [("worker-1", str(job), 0)]
    assert not Sweep(str(job), start_locally, State(str(job)).note).run(slots)
