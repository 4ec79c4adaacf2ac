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
    START,
    WORK,
    kinds,
    process,
    reduces,
    seen,
    sleeps,
    stack,
    two_ranks,
    view,
)
from tests.unit.test_doctor_causes import locks, with_child

MAIN = ("<module>", f"{WORK}/train.py", 11)


def all_sleep() -> Evidence:
    return two_ranks(sleeps(), sleeps())


def test_ranks_that_all_sleep_in_a_loop_are_named_with_their_line() -> None:
    [finding] = causes.judge(all_sleep())
    assert (finding.kind, finding.serious, finding.ranks) == ("asleep", True, (0, 1))
    assert finding.text == (
        "no rank computes, and none waits for the others: ranks 0, 1 are each sleeping at skip,"
        " train.py:9"
    )
    assert "without internet" in finding.advice


def test_ranks_that_wait_at_different_lines() -> None:
    [finding] = causes.judge(two_ranks(sleeps(), locks()))
    assert "rank 0 is sleeping at skip, train.py:9; rank 1 is waiting for a lock" in finding.text


def test_the_exception_of_a_thread_that_fed_the_only_rank() -> None:
    found = seen(view("worker-1", "rank 0", process(0, 100)))
    found.ranks[0].stack = locks()
    found.ranks[0].err = (
        "Exception in thread prefetch:\nTraceback (most recent call last):\n"
        f'  File "{WORK}/data.py", line 8, in prefetch\nOSError: shard 3 cannot be read\n'
    )
    [finding] = causes.judge(found)
    assert finding.text.startswith("no rank computes")
    assert "rank 0 on worker-1 is" in finding.text
    assert any("shard 3 cannot be read" in line for line in finding.lines)


def test_the_last_rank_that_has_not_ended() -> None:
    """Not the ranks that have ended are the cause."""
    found = seen(
        view("worker-1", "rank 0", f"exit 0 0 {START + 5} 1"),
        view("worker-2", "rank 1", process(1, 200)),
    )
    found.ranks[1].stack = locks()
    assert kinds(causes.judge(found)) == ["asleep", "left"]


@pytest.mark.parametrize("how", ["computes", "runs", "collective", "thread", "child", "no stack"])
def test_a_job_in_which_something_goes_on(how: str) -> None:
    works = stack(("work", f"{WORK}/data.py", 30))
    found = all_sleep()
    rank = found.ranks[1]
    if how == "computes":
        rank.usage = 0.9
    elif how == "runs":
        rank.running = True
    elif how == "collective":
        rank.stack = reduces()
    elif how == "thread":
        rank.stack = replace(sleeps(), others=(works,))
    elif how == "child":
        with_child(found, "R", "nvcc")
    else:
        rank.stack = None
    assert "asleep" not in kinds(causes.judge(found))


LOADS = (
    ("poll", "/usr/lib/libc.so.6", 0),
    ("_next_data", "/opt/py/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1448),
    ("train", f"{WORK}/train.py", 18),
)


@pytest.mark.parametrize(
    ("waits", "kind"), [(sleeps(), "late"), (locks(), "sleeps"), (stack(*LOADS), "reads")]
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


def test_a_rank_that_waits_for_a_key_of_the_store() -> None:
    waits = stack(
        ("poll", "/usr/lib/libc.so.6", 0),
        ("c10d::detail::SocketImpl::waitForInput", "/opt/py/lib/libtorch_cpu.so", 0),
        ("c10d::TCPStore::doGet", "/opt/py/lib/libtorch_cpu.so", 0),
        ("run_id", f"{WORK}/train.py", 10),
    )
    [finding] = causes.judge(two_ranks(reduces(), waits))
    assert "waiting for a key of PyTorch's store at run_id, train.py:10" in finding.text
    assert "the same name" in finding.advice


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


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        (("sigtimedwait", "sigwait"), "waiting for a signal"),
        (("pause",), "waiting for a signal"),
        (
            ("clock_nanosleep", "usleep", "sqlite3InvokeBusyHandler"),
            "waiting for a lock of an SQLite database",
        ),
    ],
)
def test_what_a_rank_waits_for_in_a_library(functions: tuple[str, ...], said: str) -> None:
    frames = ((name, "/usr/lib/libc.so.6", 0) for name in functions)
    waits = stack(*frames, ("save", f"{WORK}/train.py", 10))
    [finding] = causes.judge(two_ranks(reduces(), waits))
    assert f"for rank 1 on worker-2: {said} at save, train.py:10" in finding.text


def test_a_rank_that_has_locked_a_file_twice() -> None:
    locks_file = stack(("flock", "/usr/lib/libc.so.6", 0), ("lock", f"{WORK}/a.py", 4))
    found = two_ranks(reduces(), locks_file)
    found.nodes["worker-2"].locks = {200: 200}
    [finding] = causes.judge(found)
    assert finding.lines == (
        "process 200 on worker-2 (rank 1) holds the lock, the same that waits: it has opened the"
        " file twice",
    )


def test_ranks_of_which_nothing_is_known_are_told_with_their_lines() -> None:
    """Threads of a library may use a processor while all ranks wait, as those of torch's RPC."""
    found = all_sleep()
    for rank in found.ranks.values():
        rank.usage = 0.8
    assert causes.judge(found) == ()
    said = causes.summarize(found, ())
    assert "no rank is in a collective of PyTorch or MPI" in said
    assert said.endswith(": ranks 0, 1 at skip, train.py:9")
