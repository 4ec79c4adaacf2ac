"""What `doctor` makes of what nodes show: planted causes, in the words that the nodes use."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core import stacks
from clusterctl.core.job import Hang, HungRanks, JobState, Placement
from clusterctl.insight import node_views
from clusterctl.insight.doctor import causes, findings
from clusterctl.insight.doctor import findings as doctor_findings
from clusterctl.insight.doctor import waits as doctor_waits
from clusterctl.insight.doctor.findings import Evidence
from tests.unit.diagnosed import (
    C10D,
    START,
    WORK,
    encoded,
    encoded_bytes,
    failed,
    kinds,
    meets,
    process,
    receives,
    reduces,
    running,
    seen,
    sleeps,
    stack,
    two_ranks,
    view,
)
from tests.unit.tables import rows

# ---------------------------------------------------------------------------------------- hangs


def test_programs_without_stacks_may_wait_for_each_other() -> None:
    found = two_ranks(reduces(), sleeps())
    for rank in found.ranks.values():
        rank.stack, rank.no_stack, rank.usage = None, "solver is not a Python program", 0.3
        rank.processes = tuple(replace(item, command="solver") for item in rank.processes)
    [note] = causes.judge(found)
    assert "ssh worker-1 -- gdb -p 100" in note.advice
    assert "no rank is in" not in causes.summarize(found, [note])


@rows("looks, counted, moved", "doctor.two_looks_show_whether_a_rank_that_polls_goes_on")
def test_two_looks_show_whether_a_rank_that_polls_goes_on(
    looks: list[Any], counted: bool | None, moved: bool | None
) -> None:
    rank = two_ranks(receives(6), receives(9)).ranks[0]
    node_views.compare_looks(rank, "polls", counted, [receives(*look) for look in looks])
    assert rank.moved is moved


def test_a_stack_that_misses_the_call_is_replaced_by_later_ones() -> None:
    rank = two_ranks(receives(6, "abort"), receives(9)).ranks[0]
    node_views.compare_looks(rank, "late", None, [receives(6), receives(6)])
    assert (rank.stack and rank.stack.collective, rank.moved) == ("MPI_Recv", None)


WAITS, CONNECTS = "c10d::TCPStore::waitForWorkers", "c10d::detail::SocketConnectOp::run"


def test_what_ranks_that_do_not_find_each_other_were_given() -> None:
    """As their programs have set it, which the environment of a process does not show."""
    first = replace(meets(WAITS), meeting=stacks.Meeting("198.18.0.2", 29400, 0, 2))
    second = replace(meets(CONNECTS), meeting=stacks.Meeting("localhost", 29400, 1, 2))
    [finding] = causes.judge(two_ranks(first, second))
    assert finding.ranks == (1,)
    assert finding.advice.startswith("each node is its own localhost")
    assert finding.lines == (
        "rank 0: MASTER_ADDR:MASTER_PORT 198.18.0.2:29400, WORLD_SIZE 2",
        "rank 1: MASTER_ADDR:MASTER_PORT localhost:29400, WORLD_SIZE 2",
    )
    again = replace(meets(WAITS), meeting=stacks.Meeting("198.18.0.2", 29400, 0, 2))
    [finding] = causes.judge(two_ranks(first, again))
    assert finding.lines == (
        "ranks 0, 1: MASTER_ADDR:MASTER_PORT 198.18.0.2:29400, WORLD_SIZE 2",
        "rank 1: RANK 0",
    )


def test_another_thread_and_a_loader_process_are_named_with_their_lines() -> None:
    """A forked process has the frames of its parent; an idle one has no others."""
    read = ("__getitem__", f"{WORK}/data.py", 30)
    loop = ("_worker_loop", "/opt/py/lib/python3.11/site-packages/torch/utils/worker.py", 300)
    main = ("<module>", f"{WORK}/train.py", 11)
    threads = [
        {"pid": 9, "os_thread_id": 9, "thread_name": "MainThread", "frames": [main]},
        {"pid": 9, "os_thread_id": 11, "thread_name": "prefetch", "frames": [read]},
        {"pid": 9, "os_thread_id": 12, "thread_name": "pin", "frames": [loop]},
    ]
    names = ("name", "filename", "line")
    for thread in threads:
        thread["frames"] = [dict(zip(names, frame, strict=True)) for frame in thread["frames"]]
    odd = stacks.parse_stacks(json.dumps(threads), WORK)
    assert odd
    found = two_ranks(reduces(), odd)
    found.ranks[1].helpers = {
        "its process 41": stack(loop, main),
        "its process 42": stack(("read", "/usr/lib/libc.so.6", 0), read, loop, main),
    }
    [finding] = causes.judge(found)
    assert finding.lines == (
        "its thread prefetch is at __getitem__, data.py:30",
        "its process 42 is at __getitem__, data.py:30: waiting to read or write",
    )


@rows("moved, usage, kind, said", "doctor.a_slow_rank_and_one_that_hangs_are_told_apart")
def test_a_slow_rank_and_one_that_hangs_are_told_apart(
    moved: bool, usage: float, kind: str, said: str
) -> None:
    found = two_ranks(reduces(), sleeps())
    assert doctor_waits.find_watchable(found) == {0: "sleeps", 1: "late"}
    found.ranks[0].moved, found.ranks[1].usage = moved, usage
    found.ranks[0].looks, found.ranks[1].looks = (reduces(),), (sleeps(),)
    [finding] = causes.judge(found)
    assert (finding.kind, finding.lines) == (kind, (finding.lines[0],))
    assert said in finding.lines[0]
    assert ("endless loop" in finding.advice) == (usage > 0 and not moved)


def test_ranks_that_poll_are_watched_in_another_way() -> None:
    """They wake all the time."""
    polls = stack(("PMPI_Allreduce", "/opt/libmpi.so", 0), ("step", f"{WORK}/train.py", 3))
    found = two_ranks(polls, sleeps())
    assert doctor_waits.find_watchable(found) == {0: "polls", 1: "late"}
    found = two_ranks(sleeps(), sleeps())
    found.ranks[1].usage = 1.0
    assert doctor_waits.find_watchable(found) == {}


@pytest.mark.parametrize(("moved", "said"), [(True, "make progress"), (None, "only be slow")])
def test_ranks_in_one_call_at_one_line(moved: bool | None, said: str) -> None:
    found = two_ranks(reduces(), reduces())
    assert doctor_waits.find_watchable(found) == {0: "sleeps", 1: "sleeps"}
    found.ranks[0].moved = moved
    assert said in causes.summarize(found, causes.judge(found))


def test_a_rank_that_is_late_once_is_no_straggler() -> None:
    """In any job, some rank comes first to each collective."""
    found = two_ranks(reduces(), sleeps())
    found.ranks[0].moved = True
    assert [item.serious for item in causes.judge(found)] == [False], "without another look"
    found.ranks[0].looks, found.ranks[1].looks = (reduces(),), (sleeps(),)
    assert [item.serious for item in causes.judge(found)] == [True]
    found.ranks[0].looks, found.ranks[1].looks = (reduces(), sleeps()), (sleeps(), reduces())
    [finding] = causes.judge(found)
    assert (finding.kind, finding.serious) == ("straggler", False)
    assert "one moment of a healthy job" in finding.lines[0]
    assert "make progress" in causes.summarize(found, [finding])


def test_ranks_in_the_rendezvous_without_c_frames() -> None:
    """A busy machine may not give them in time."""
    found = two_ranks(meets(WAITS), meets())
    found.ranks[1].stack = stack(*[(f.name, f.file, f.line) for f in meets().frames[1:]])
    assert doctor_waits.find_watchable(found) == {}
    [finding] = causes.judge(found)
    assert finding.kind == "rendezvous"
    assert "world_size that the program passes, is larger than 2" in finding.text


def test_whether_a_process_has_woken() -> None:
    found = node_views.read_spied("moved 7 0\nmoved 8 1\nmoved 9\nx\n")
    assert {pid: seen.moved for pid, seen in found.items()} == {7: False, 8: True, 9: None}


# -------------------------------------------------------------------------------------- parsing


def test_nodes_of_one_host_see_each_others_processes() -> None:
    """In loopback mode; the files of a rank are with its own node."""
    both = (process(0, 100), process(1, 200))
    found = seen(
        view("worker-1", *both, "rank 0", f"err 0 {encoded('mine')}"),
        view("worker-2", *both, "rank 1", f"err 1 {encoded('mine')}"),
    )
    assert {n: (rank.node, rank.err) for n, rank in found.ranks.items()} == {
        0: ("worker-1", "mine"),
        1: ("worker-2", "mine"),
    }


def test_the_python_of_a_rank_is_chosen() -> None:
    """A shell that starts it, and a loader that it has started, are not what a rank waits in."""
    shell, python = process(0, 100, name="sh"), process(0, 101, parent=100)
    child = process(0, 102, name="pt (data) worker", parent=101)
    found = view("worker-1", "rank 0", shell, python, child)
    main = found.ranks[0].main
    assert main
    assert main.pid == 101


def test_use_of_the_processor_is_read() -> None:
    found = node_views.read_spied("use 100 0.5 0 0.9\nuse 300 x\ndone\n")
    assert (found[100].usage, found[100].running, found[100].throttled) == (0.5, False, 0.9)
    assert found[300].usage is None


@rows("frame, collective", "doctor.where_a_rank_waits_for_others")
def test_where_a_rank_waits_for_others(frame: tuple[str, str, int], collective: str) -> None:
    assert stack(frame).collective.startswith(collective)
    assert bool(stack(frame).collective) == bool(collective)


@pytest.mark.parametrize("text", ["", "Error: no such process", "[]", '[{"frames": 3}]'])
def test_what_is_no_stack(text: str) -> None:
    assert stacks.parse_stacks(text, WORK) is None


def test_equal_stacks_are_folded() -> None:
    found = stacks.fold({0: reduces(), 1: sleeps(), 2: reduces(), 3: reduces()})
    assert [item.ranks for item in found] == [(0, 2, 3), (1,)]
    assert stacks.name_ranks((0, 2, 3, 4, 7)) == "ranks 0, 2-4, 7"
    frames = (("all_reduce", C10D, 3252), ("sync", f"{WORK}/comm.py", 7))
    there = {n: stack(*frames, ("step", f"{WORK}/train.py", 12 + n % 2)) for n in range(4)}
    assert [item.ranks for item in stacks.fold(there)] == [(0, 1, 2, 3)]
    assert [item.ranks for item in stacks.fold(there, callers=True)] == [(0, 2), (1, 3)]


def test_the_stacks_of_an_attempt_that_was_ended_are_judged_as_if_it_ran() -> None:
    """Its ranks have ended by a signal by now: that is not the cause."""
    frames = (
        (("skip", f"{WORK}/train.py", 9),),
        (("all_reduce", C10D, 1), ("run", f"{WORK}/a.py", 2)),
    )
    notes = []
    for one in frames:
        dump = [{"name": name, "filename": file, "line": line} for name, file, line in one]
        text = f"folder {WORK}\nprocess 9 (python) S 1\npython yes\n"
        text += json.dumps([{"pid": 9, "os_thread_id": 9, "frames": dump}])
        notes.append(encoded_bytes(gzip.compress(text.encode())))
    places = tuple(HungRanks(ranks=(rank,), note=note) for rank, note in enumerate(notes))
    hang = Hang(attempt=1, seconds=600, places=places)
    ended = running(state=JobState.FAILED, hangs=(hang,))
    found = seen(
        view("worker-1", "rank 0", "exit 0 137 1 1"),
        view("worker-2", "rank 1", "exit 1 143 1 1"),
        made=ended,
    )
    [cause] = causes.judge(findings.restore_stacks(found, hang))
    assert cause.text == (
        "rank 1 waits in all_reduce at a.py:2 for rank 0 on worker-1: blocked at skip, train.py:9"
    )
    assert "600 s" in causes.describe_hang(seen(), hang).text


def test_processes_that_are_each_others_parents_are_looked_at_once() -> None:
    """No kernel says so, but numbers are given again between one look and the next."""
    found = two_ranks(reduces(), sleeps())
    text = f"{process(1, 201, parent=200)}\n{process(1, 200, parent=201)}"
    found.ranks[1].processes = node_views.read_look("worker-2", text).ranks[1].processes
    assert len(found.ranks[1].descendants) == 1


# ------------------------------------------------------------------------------------------------
# What `doctor` says of ranks that all wait for something else than each other, as for a download
# that does not come.


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


# ------------------------------------------------------------------------------------------------
# What `doctor` makes of ranks whose program has ended while their process, or another rank, has
# not.


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


@rows("function, file", "doctor.a_rank_that_has_failed_and_waits_for_a_thread_of_its_own")
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
    native = two_ranks(reduces(), sleeps())
    native.ranks[1].stack, native.ranks[1].no_stack = None, "solver is not a Python program"
    assert not doctor_findings.is_ending(native)


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


# ------------------------------------------------------------------------------------------------
# Why a job has failed, from what its ranks, mpirun and the kernel say.


def test_the_first_failure_counts_by_one_clock() -> None:
    """worker-2 is a minute behind: its rank seems to have failed first, and did not."""
    first = view(
        "worker-1", "rank 0", f"exit 0 1 {START + 10} 1", f"err 0 {encoded('ValueError: x')}"
    )
    later = view("worker-2", "rank 1", *failed(1, START + 12 - 60, "KeyError: y"))
    later.offset = -60.0
    found = causes.judge(seen(first, later, made=running(state=JobState.FAILED)))
    assert kinds(found) == ["exit", "clock"]
    assert "rank 0 on worker-1" in found[0].text
    assert found[1].text == "the clock of worker-2 is 60.0 s behind"


def test_a_rank_is_where_it_was_placed() -> None:
    """On a batch system, its output is on the login node, which is all that is asked."""
    login = view("login", "rank 1", *failed(7, START + 10))
    placed = Placement(node="c2", first=1, count=1)
    job = running(state=JobState.FAILED, placement=(placed,))
    [finding] = causes.judge(seen(login, made=job))
    assert "rank 1 on c2 ended with code 7" in finding.text
    assert finding.nodes == ("c2",)


MET = "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes"


def crash(line: int, *others: str) -> str:
    """What Python's fault handler prints of a rank that gloo has ended."""
    return "\n".join(
        [
            *("terminate called after throwing an instance of 'gloo::EnforceNotMet'", MET),
            *("Fatal Python error: Aborted", ""),
            *(("Thread 0x00007f (most recent call first):", *others, "") if others else ()),
            "Thread 0x00007f1f31fece40 (most recent call first):",
            f'  File "{C10D}", line 3252 in all_reduce',
            f'  File "{WORK}/train.py", line {line} in average',
            f'  File "{WORK}/train.py", line 90 in <module>',
            *("", "Extension modules: numpy._core (total: 1)"),
        ]
    )


def raised(line: int) -> str:
    """What the others print, because it has gone."""
    where = f'  File "{WORK}/train.py", line {line}, in average\n'
    return f"Traceback (most recent call last):\n{where}RuntimeError: Connection closed by peer\n"


def test_ranks_that_met_in_a_collective_from_different_lines() -> None:
    loader = '  File "/opt/py/lib/python3.11/threading.py", line 359 in wait'
    found = seen(
        view("worker-1", "rank 0", f"exit 0 1 {START + 11} 1", f"err 0 {encoded(raised(22))}"),
        view("worker-2", "rank 1", *failed(134, START + 10, crash(40, loader))),
    )
    cause = causes.judge(found)[0]
    assert (cause.kind, cause.ranks) == ("mismatch", (1,))
    assert 'rank 0 in File "train.py", line 22, in average' in cause.text
    assert 'rank 1 in File "train.py", line 40, in average' in cause.text
    assert "exception" in cause.advice


def test_ranks_that_met_in_one_line_with_different_sizes() -> None:
    found = seen(view("worker-2", "rank 1", *failed(134, START + 10, crash(40))))
    cause = causes.judge(found)[0]
    assert cause.kind == "message:gloo-size"
    assert cause.lines[0] == 'File "train.py", line 40, in average'


def test_the_line_of_a_rank_that_crashed_in_a_library() -> None:
    said = crash(40).partition(MET)[2]
    [finding] = causes.judge(seen(view("worker-2", "rank 1", *failed(139, START + 10, said))))
    assert finding.lines == ('File "train.py", line 40, in average',)


# ------------------------------------------------------------------------------------------------
# What `doctor` makes of connections that get no answer.


WORKER_1 = "0200000A"
"""10.0.0.2, as /proc/net/tcp has it."""


def cut(line: str, *more: str) -> Evidence:
    found = seen(
        view("worker-1", "rank 0", process(0, 100)),
        view("worker-2", "rank 1", process(1, 200), line, *more),
    )
    found.nodes["worker-1"].address, found.nodes["worker-2"].address = "10.0.0.2", "10.0.0.3"
    found.ranks[0].stack, found.ranks[1].stack = reduces(), reduces()
    return found


@rows("line, said", "doctor.a_firewall_that_lets_only_ssh_pass")
def test_a_firewall_that_lets_only_ssh_pass(line: str, said: str) -> None:
    found = cut(line.format(worker=WORKER_1), "peer worker-1 ok")
    [finding] = causes.judge(found)
    assert (finding.kind, finding.ranks, finding.serious) == ("network", (1,), True)
    assert finding.nodes == ("worker-2", "worker-1")
    assert finding.text == f"rank 1 on worker-2 gets no answer: {said}"
    assert "security group" in finding.advice


def test_a_server_that_does_not_answer_is_told_beside_the_rank_that_waits_for_it() -> None:
    """Something in the background may try that, too."""
    found = cut("silent 1 0000000000000000000000000100007F:01BB 02 00000002", "silent 1 nonsense")
    found.ranks[1].stack = sleeps()
    cause, note = causes.judge(found)
    assert (cause.kind, note.kind, note.serious) == ("missing", "network", False)
    assert note.text.endswith("it tries to connect to port 443 of ::7f00:1")


def test_nodes_that_cannot_reach_each_other_are_told_once() -> None:
    found = cut(f"silent 1 {WORKER_1}:7530 02 00000003", "peer worker-1 no answer in 5 s")
    [finding] = causes.judge(found)
    assert finding.text == "worker-2 cannot reach worker-1: no answer in 5 s"
