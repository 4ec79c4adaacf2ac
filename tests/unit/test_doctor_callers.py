"""What `doctor` says of ranks that are at one line, to which they have come in different ways."""

from __future__ import annotations

import pytest

from clusterctl.core import stacks
from clusterctl.insight.doctor import causes
from tests.unit.diagnosed import C10D, WORK, kinds, meets, reduces, stack, two_ranks


def syncs(*callers: tuple[str, int], call: str = "all_reduce") -> stacks.Stack:
    """A function of the program calls a collective for others: these call it, innermost first."""
    return stack(
        ("c10d::Work::wait", "/opt/py/lib/libtorch_cpu.so", 0),
        (call, C10D, 3252),
        ("sync", f"{WORK}/comm.py", 7),
        *((name, f"{WORK}/train.py", line) for name, line in callers),
    )


MAIN = ("<module>", 30)


def test_ranks_that_have_come_to_one_line_from_different_ones() -> None:
    found = two_ranks(syncs(("step", 12), MAIN), syncs(("step", 15), MAIN))
    found.ranks[0].moved = found.ranks[1].moved = False
    [finding] = causes.judge(found)
    assert (finding.kind, finding.serious) == ("mismatch", True)
    assert finding.text == (
        "ranks wait in all_reduce at comm.py:7, and have come there from different lines:"
        " rank 0 from step, train.py:12; rank 1 from step, train.py:15"
    )
    assert "no rank has made progress" in finding.lines[0]


def test_ranks_whose_calls_differ_further_out() -> None:
    found = two_ranks(syncs(("step", 12), ("train", 20), MAIN), syncs(("step", 12), MAIN))
    [finding] = causes.judge(found)
    assert "rank 0 from train, train.py:20; rank 1 from <module>, train.py:30" in finding.text


@pytest.mark.parametrize("moved", [True, None])
def test_ranks_on_the_same_way_or_that_go_on(moved: bool | None) -> None:
    second = syncs(("step", 15), MAIN) if moved else syncs(("step", 12), MAIN)
    found = two_ranks(syncs(("step", 12), MAIN), second)
    found.ranks[0].moved = moved
    assert causes.judge(found) == ()


def test_ranks_that_hang_in_one_call_at_one_line() -> None:
    found = two_ranks(syncs(MAIN, call="gather"), syncs(MAIN, call="gather"))
    found.ranks[0].moved = found.ranks[1].moved = False
    [finding] = causes.judge(found)
    assert (finding.kind, finding.serious, finding.ranks) == ("mismatch", True, (0, 1))
    assert finding.text == (
        "all ranks wait in gather at comm.py:7, and none has made progress for 5 s: they may have"
        " different sizes, groups or roots there"
    )
    assert "the root (src, dst)" in finding.advice
    assert "skipped a step" in finding.advice


def test_groups_that_are_made_in_another_order() -> None:
    found = two_ranks(syncs(MAIN, call="new_group"), syncs(MAIN, call="new_group"))
    found.ranks[0].moved = found.ranks[1].moved = False
    [finding] = causes.judge(found)
    assert "the same groups in the same order" in finding.advice


def test_ranks_that_all_look_for_a_message() -> None:
    calls = [("serve", 12), ("serve", 15)]
    found = two_ranks(*(syncs(item, MAIN, call="PyMPI_Iprobe") for item in calls))
    found.ranks[0].moved = found.ranks[1].moved = False
    [finding] = causes.judge(found)
    assert (finding.kind, finding.serious) == ("receive", True)
    assert "MPI_Iprobe at comm.py:7 (rank 0 from serve, train.py:12; rank 1 from" in finding.text


def test_stacks_are_shown_apart_where_their_callers_differ() -> None:
    there = {rank: syncs(("step", 12 + rank % 2), MAIN) for rank in range(4)}
    assert [item.ranks for item in stacks.fold(there)] == [(0, 1, 2, 3)]
    assert [item.ranks for item in stacks.fold(there, callers=True)] == [(0, 2), (1, 3)]


def test_two_ranks_with_one_number() -> None:
    """Their store has seen both; then each waits for the address of a rank that is not there."""
    native = ("c10d::TCPStore::doWait", "gloo::rendezvous::Context::connectFullMesh")
    [finding] = causes.judge(two_ranks(meets(*native), meets(*native)))
    assert kinds([finding]) == ["rendezvous"]
    assert "two use the same RANK" in finding.text


def test_an_exception_that_a_rank_has_caught_and_printed() -> None:
    """It has skipped a collective since, and meets the others in another one."""
    found = two_ranks(reduces(12), reduces(14, "broadcast"))
    found.ranks[1].out = "step 8"
    found.ranks[1].err = (
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 8, in loss_of\n    raise ValueError(name)\n'
        "ValueError: image 7 is truncated\n"
    )
    [finding] = causes.judge(found)
    assert finding.lines == (
        'rank 1 has printed: File "train.py", line 8, in loss_of raise ValueError(name)'
        " ValueError: image 7 is truncated",
    )
    assert "caught an exception" in finding.advice
