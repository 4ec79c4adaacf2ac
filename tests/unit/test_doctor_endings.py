"""What `doctor` makes of ranks whose program has ended while their process, or another rank, has
not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clusterctl.core import stacks
from clusterctl.insight import node_views
from clusterctl.insight.doctor import causes
from clusterctl.insight.doctor import findings as doctor_findings
from clusterctl.insight.doctor.findings import Evidence
from tests.unit.diagnosed import (
    START,
    WORK,
    encoded,
    process,
    receives,
    reduces,
    seen,
    sleeps,
    stack,
    two_ranks,
    view,
)

LIB = "/opt/py/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so"
NO_PYTHON = "Failed to find a python interpreter in the .data section"
FAILED = (
    f'Traceback (most recent call last):\n  File "{WORK}/train.py", line 10, in <module>\n'
    "    print(labels[7])\nKeyError: 7\n"
)


def destroys(waits: str = "pthread_mutex_lock") -> stacks.Stack:
    """As py-spy shows it at the end of a program: no line of Python is left."""
    return stack(
        (waits, "/usr/lib/libc.so.6", 0),
        ("c10d::ProcessGroupGloo::~ProcessGroupGloo", LIB, 0),
        ("c10d::ProcessGroup::~ProcessGroup", LIB, 0),
        ("pybind11_object_dealloc", LIB.replace("cpu", "python"), 0),
        ("gc_collect_main", "/usr/lib/libpython3.11.so.1.0", 0),
    )


def without_python(found: Evidence, number: int, err: str = "") -> Evidence:
    rank = found.ranks[number]
    rank.stack, rank.no_stack, rank.err = None, NO_PYTHON, err
    return found


def joins(function: str, file: str) -> stacks.Stack:
    """A rank whose program has ended while a thread of its own runs on."""
    frames = [
        ("PyThread_acquire_lock_timed", "/usr/lib/libpython3.11.so.1.0", 0),
        (function, f"/opt/py/lib/python3.11/{file}", 1590),
    ]
    thread = [("wait", "/opt/py/lib/python3.11/threading.py", 327), ("log", f"{WORK}/log.py", 5)]
    dump = [
        {
            "pid": 9,
            "os_thread_id": number,
            "thread_name": name,
            "frames": [{"name": n, "filename": f, "line": line} for n, f, line in rows],
        }
        for number, name, rows in ((9, "MainThread", frames), (12, "logger", thread))
    ]
    found = stacks.parse_stacks(json.dumps(dump), WORK)
    assert found
    return found


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("_shutdown", "threading.py"),
        ("_python_exit", "concurrent/futures/thread.py"),
        ("_exit_function", "multiprocessing/util.py"),
    ],
)
def test_a_rank_that_has_failed_and_waits_for_a_thread_of_its_own(function: str, file: str) -> None:
    """The exception is the cause, and not the lock in which Python waits for the thread."""
    found = two_ranks(reduces(), joins(function, file))
    found.ranks[1].err = FAILED
    [finding] = causes.judge(found)
    assert (finding.kind, finding.ranks, finding.nodes) == ("error", (1,), ("worker-2",))
    assert finding.text == (
        "rank 1 on worker-2 has failed, but its process has not ended: KeyError: 7,"
        " while rank 0 waits in all_reduce at train.py:12"
    )
    assert "daemon=True" in finding.advice
    assert "mpi4py" not in finding.advice
    assert "its thread logger is at log, log.py:5: waiting for another thread" in finding.lines


def test_a_rank_that_has_come_to_its_end_early_and_waits_for_a_thread() -> None:
    [finding] = causes.judge(two_ranks(reduces(), joins("_shutdown", "threading.py")))
    assert (finding.kind, finding.ranks, finding.serious) == ("left", (1,), True)
    assert "waits for its threads or processes as it exits" in finding.text


@pytest.mark.parametrize(
    ("second", "serious"), [(f"exit 1 0 {START + 5} 1", True), (process(1, 200), False)]
)
def test_a_thread_that_keeps_a_job_alive_is_its_cause(second: str, serious: bool) -> None:
    """A rank that still does something else may be what it waits for."""
    found = seen(view("worker-1", "rank 0", process(0, 100)), view("worker-2", "rank 1", second))
    found.ranks[0].stack = joins("_shutdown", "threading.py")
    if found.ranks[1].alive:
        found.ranks[1].stack = sleeps()
    finding = next(item for item in causes.judge(found) if item.ranks == (0,))
    assert (finding.kind, finding.serious) == ("left", serious)
    assert "its thread logger is at log, log.py:5: waiting for another thread" in finding.lines


def test_a_process_that_a_rank_waits_for_at_its_end_is_named() -> None:
    reads = stack(
        ("sem_wait", "/usr/lib/libc.so.6", 0),
        ("get", "/usr/lib/python3.11/multiprocessing/queues.py", 103),
        ("watch", f"{WORK}/log.py", 6),
    )
    ended = view("worker-1", "rank 0", f"exit 0 0 {START + 5} 1")
    lives = (
        process(1, 200),
        process(1, 201, parent=200),
        process(1, 202, name="wandb", parent=200),
    )
    found = seen(ended, view("worker-2", "rank 1", *lives))
    found.ranks[1].stack = joins("_exit_function", "multiprocessing/util.py")
    found.ranks[1].helpers = {"its process 201": reads}
    finding = causes.judge(found)[0]
    assert finding.kind == "left"
    assert "its process 201 is at watch, log.py:6: waiting for a queue" in finding.lines
    assert "its process 202 runs wandb" in finding.lines


GONE = "Failed to get process executable name. Check that the process is running."


@pytest.mark.parametrize("seen_alive", [True, False])
def test_ranks_that_end_while_they_are_looked_at(seen_alive: bool) -> None:
    """A second look shows how; what the first one saw of a rank that lives still counts."""
    lines = ["rank 1", process(1, 200)] if seen_alive else ["rank 1"]
    before = seen(view("worker-1", "rank 0", process(0, 100)), view("worker-2", *lines))
    before.nodes["worker-1"].peers = {"worker-2": "ok"}
    before.ranks[0].stack = reduces()
    if seen_alive:
        before.ranks[1].no_stack = GONE
    assert doctor_findings.is_ending(before)

    ended = ("rank 1", f"err 1 {encoded(FAILED)}", f"exit 1 1 {START + 5} 1")
    after = seen(view("worker-1", "rank 0", process(0, 100)), view("worker-2", *ended))
    found = doctor_findings.keep_stacks(before, after)
    assert not doctor_findings.is_ending(found)
    assert found.ranks[0].stack == before.ranks[0].stack
    assert found.nodes["worker-1"].peers == {"worker-2": "ok"}
    cause = causes.judge(found)[0]
    assert (cause.kind, cause.ranks) == ("error", (1,))
    assert "KeyError: 7" in cause.text


def test_a_rank_without_a_line_of_python_is_ending() -> None:
    """What it has printed since the first look may say why."""
    cleans = stack(("gc_collect_main", "/usr/lib/libpython3.11.so.1.0", 0))
    assert doctor_findings.is_ending(two_ranks(reduces(), cleans))
    assert doctor_findings.is_ending(without_python(two_ranks(reduces(), sleeps()), 1))
    assert not doctor_findings.is_ending(two_ranks(reduces(), sleeps()))
    assert not doctor_findings.is_ending(two_ranks(destroys(), destroys()))


def test_ranks_without_stacks_are_not_ending() -> None:
    found = two_ranks(reduces(), sleeps())
    found.ranks[1].stack, found.ranks[1].no_stack = None, "solver is not a Python program"
    assert not doctor_findings.is_ending(found)


def test_ranks_that_were_not_watched_are_named_with_their_node() -> None:
    """Where a busy machine left no time for it: the judgement does not say that they hang."""
    found = replace(two_ranks(reduces(), sleeps()), missed={"watch": ("worker-1", "worker-2")})
    cause, note = causes.judge(found)
    assert (cause.kind, note.kind, note.serious) == ("missing", "time", False)
    assert "no time to watch the ranks on worker-1, worker-2" in note.text


def test_only_the_seconds_of_the_watch_are_told() -> None:
    found = replace(two_ranks(reduces(), reduces()), watched=2)
    for rank in found.ranks.values():
        rank.moved = False
    findings = causes.judge(found)
    assert "for 2 s" in causes.summarize(found, findings) + "".join(f.text for f in findings)


def backward(active: bool, line: int = 17) -> stacks.Stack:
    """A later look at DDP's all-reduce of gradients, without C frames."""
    frames = [
        {"name": "backward", "filename": "/py/site-packages/torch/autograd/graph.py", "line": 7},
        {"name": "<module>", "filename": f"{WORK}/train.py", "line": line},
    ]
    dump = [{"pid": 9, "os_thread_id": 9, "active": active, "frames": frames}]
    found = stacks.parse_stacks(json.dumps(dump), WORK)
    assert found
    return found


@pytest.mark.parametrize(
    ("first", "late", "serious"),
    [
        (backward(active=False), sleeps(), True),
        (backward(active=True), sleeps(), False),
        (backward(active=False, line=18), sleeps(), True),
        (backward(active=False), backward(active=False), False),
    ],
)
def test_ranks_that_keep_waiting_for_gradients(
    first: stacks.Stack, late: stacks.Stack, serious: bool
) -> None:
    found = two_ranks(
        stack(
            ("pthread_cond_wait", "/usr/lib/libc.so.6", 0),
            ("c10d::Reducer::finalize_backward", LIB, 0),
            ("backward", "/py/site-packages/torch/autograd/graph.py", 7),
            ("<module>", f"{WORK}/train.py", 17),
        ),
        sleeps(),
    )
    node_views.compare_looks(found.ranks[0], "sleeps", True, [first, first])
    node_views.compare_looks(found.ranks[1], "late", None, [late, late])
    [finding] = causes.judge(found)
    assert (finding.kind, finding.ranks, finding.serious) == ("straggler", (1,), serious)


def test_collectives_of_mpi4py_that_take_objects_have_mpis_names() -> None:
    assert receives(3, "MPI_PyMPI_gather").collective == "MPI_gather"


def test_a_disk_is_told_once() -> None:
    read = node_views.read_look("worker-1", "disk 12 9000 /\nelsewhere 12 9000 /")
    assert [disk.elsewhere for disk in read.disks] == [False]


def test_a_rank_that_sleeps_in_ddp_waits_in_a_collective_also_without_c_frames() -> None:
    file = "/py/site-packages/torch/nn/parallel/distributed.py"
    inside = replace(
        stack(("_pre_forward", file, 1775), ("<module>", f"{WORK}/train.py", 19)), active=False
    )
    [finding] = causes.judge(two_ranks(reduces(21), inside))
    assert finding.kind == "mismatch"
    assert "rank 1 in the all-reduce of gradients (DDP) at train.py:19" in finding.text
