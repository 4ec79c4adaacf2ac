"""What `doctor` says of ranks that all wait for something else than each other, as for a download
that does not come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.core import stacks
from clusterctl.insight.doctor import causes
from clusterctl.insight.doctor import waits as doctor_waits
from clusterctl.insight.doctor.findings import Evidence
from tests.unit.diagnosed import (
    WORK,
    kinds,
    sleeps,
    stack,
    two_ranks,
)

MAIN = ("<module>", f"{WORK}/train.py", 11)


def all_sleep() -> Evidence:
    return two_ranks(sleeps(), sleeps())


LOCKS = (
    ("lock_PyThread_acquire_lock", "/usr/lib/libpython3.11.so", 0),
    ("log", f"{WORK}/a.py", 4),
)
LOADS = (
    ("poll", "/usr/lib/libc.so.6", 0),
    ("_next_data", "/opt/py/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1448),
    ("train", f"{WORK}/train.py", 18),
)


@pytest.mark.parametrize(
    ("waits", "kind"), [(sleeps(), "late"), (stack(*LOCKS), "sleeps"), (stack(*LOADS), "reads")]
)
def test_ranks_that_are_asleep_are_looked_at_again(waits: stacks.Stack, kind: str) -> None:
    """What a healthy job waits for comes: data of a loader, or an item of a queue."""
    found = two_ranks(waits, waits)
    assert doctor_waits.find_watchable(found) == {0: kind, 1: kind}
    for rank in found.ranks.values():
        rank.moved = False if kind != "late" else None
    [finding] = causes.judge(found)
    assert ("no rank has made progress for 5 s" in finding.lines) == (kind != "late")
    found.ranks[1].moved = True
    assert causes.judge(found) == ()
    assert causes.summarize(found, ()).startswith("the ranks make progress, and nothing is wrong")


@pytest.mark.parametrize(("line", "function", "hangs"), [(11, "skip", True), (9, "step", False)])
def test_a_later_look_at_ranks_that_sleep(line: int, function: str, hangs: bool) -> None:
    """A loop that tries again and again has several lines, and stays in its function."""
    found = all_sleep()
    later = stack(("connect", "/usr/lib/libc.so.6", 0), (function, f"{WORK}/train.py", line), MAIN)
    found.ranks[1].looks = (sleeps(), later)
    assert kinds(causes.judge(found)) == ["asleep"] * hangs


def test_a_thread_that_sleeps_too_is_named() -> None:
    other = replace(stack(("read", f"{WORK}/data.py", 30)), thread="prefetch", active=False)
    found = two_ranks(replace(sleeps(), others=(other,)), sleeps())
    [finding] = causes.judge(found)
    assert finding.lines == ("its thread prefetch is at read, data.py:30",)


def test_ranks_that_all_compute_are_told_with_their_line() -> None:
    """On a busy machine they get less than half of a processor."""
    loop = stack(("pack", f"{WORK}/data.py", 7))
    found = two_ranks(loop, loop)
    for rank in found.ranks.values():
        rank.usage, rank.running = 0.3, True
    assert causes.judge(found) == ()
    assert causes.summarize(found, ()) == (
        "2 of 2 ranks compute, and nothing is wrong with the nodes: ranks 0, 1 at pack, data.py:7"
    )
