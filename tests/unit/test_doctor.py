"""What `doctor` makes of what nodes show: planted causes, in the words that the nodes use."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from clusterctl.core import stacks
from clusterctl.core.job import Hang, HungRanks, JobState, Placement
from clusterctl.insight import node_views
from clusterctl.insight.doctor import causes, findings
from clusterctl.insight.doctor import waits as doctor_waits
from tests.unit.diagnosed import (
    C10D,
    START,
    WORK,
    encoded,
    encoded_bytes,
    failed,
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

# ---------------------------------------------------------------------------------------- hangs


def test_programs_without_stacks_may_wait_for_each_other() -> None:
    found = two_ranks(reduces(), sleeps())
    for rank in found.ranks.values():
        rank.stack, rank.no_stack, rank.usage = None, "solver is not a Python program", 0.3
        rank.processes = tuple(replace(item, command="solver") for item in rank.processes)
    [note] = causes.judge(found)
    assert "ssh worker-1 -- gdb -p 100" in note.advice
    assert "no rank is in" not in causes.summarize(found, [note])


def test_who_holds_a_lock_on_a_file_is_named() -> None:
    flock = stack(("flock", "/usr/lib/libc.so.6", 0), ("cache", f"{WORK}/train.py", 9))
    found = seen(
        view("worker-1", "rank 0", process(0, 50)),
        view("worker-2", "rank 1", process(1, 100), "rank 2", process(2, 200), "lock 200 100"),
        made=running(
            placement=(
                Placement(node="worker-1", first=0, count=1),
                Placement(node="worker-2", first=1, count=2),
            )
        ),
    )
    for number, place in enumerate((flock, reduces(), flock)):
        found.ranks[number].stack = place
    [finding] = causes.judge(found)
    assert finding.lines == ("process 100 on worker-2 (rank 1) holds the lock",)
    assert "release it before" in finding.advice


@pytest.mark.parametrize("second", [6, 9])
@pytest.mark.parametrize(
    ("call", "kind", "advice"),
    [("MPI_Recv", "receive", "one of two partners send first"), ("MPI_Send", "send", "Sendrecv")],
)
def test_messages_that_all_send_or_all_receive(
    second: int, call: str, kind: str, advice: str
) -> None:
    found = two_ranks(receives(6, f"P{call}"), receives(second, f"P{call}"))
    assert doctor_waits.find_watchable(found) == {0: "polls", 1: "polls"}
    found.ranks[0].moved = False
    [finding] = causes.judge(found)
    assert finding.kind == kind
    assert f"{call} at train.py:6" in finding.text
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("looks", "counted", "moved"),
    [
        ([receives(6), receives(6)], False, False),
        ([receives(6), receives(6)], True, True),
        ([receives(6, "PMPI_Send"), receives(6)], False, True),
        ([receives(6), receives(7)], False, True),
        ([], False, None),
        ([], True, True),
    ],
)
def test_two_looks_show_whether_a_rank_that_polls_goes_on(
    looks: list[stacks.Stack], counted: bool | None, moved: bool | None
) -> None:
    rank = two_ranks(receives(6), receives(9)).ranks[0]
    node_views.compare_looks(rank, "polls", counted, looks)
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
    assert finding.text.startswith("rank 1 on worker-2 cannot connect to localhost:29400 in")
    assert finding.text.endswith("while rank 0 waits at 198.18.0.2:29400")
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


@pytest.mark.parametrize(
    ("moved", "usage", "kind", "said"),
    [
        (True, 0.0, "straggler", "the others make progress from time to time"),
        (False, 0.0, "missing", "no rank has made progress for 5 s"),
        (False, 1.0, "straggler", "no rank has made progress for 5 s"),
    ],
)
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


def test_a_rank_that_gets_little_of_a_busy_processor_computes() -> None:
    process_line = process(1, 200, "R").removeprefix("process 1 ")
    text = f"time before 1\nbefore 200 {process_line}\ntime after 2\nafter 200 {process_line}\n"
    found = two_ranks(reduces(), sleeps())
    found.ranks[1].running = node_views.read_dumps(text)[200].running
    [finding] = causes.judge(found)
    assert "computing" in finding.text


def test_whether_a_process_has_woken() -> None:
    found = node_views.read_moves("moved 7 10 10\nmoved 8 10 11\nmoved 9 0 \nx\n")
    assert {pid: moves.moved for pid, moves in found.items()} == {7: False, 8: True}


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


def test_ranks_of_a_batch_system_are_seen_from_its_login_node() -> None:
    queued = running(placement=(Placement(node="c1", first=0, count=2),))
    found = seen(view("login", "rank 0", "rank 1", *failed(1, START)), made=queued)
    assert list(found.ranks) == [0, 1]


def test_the_python_of_a_rank_is_chosen() -> None:
    """A shell that starts it, and a loader that it has started, are not what a rank waits in."""
    shell, python = process(0, 100, name="sh"), process(0, 101, name="train (x) y", parent=100)
    child = process(0, 102, name="pt_data_worker", parent=101)
    found = view(
        "worker-1", "rank 0", shell, python, child, "exe 101 /usr/bin/python3.11", "exe 102 /bin/x"
    )
    main = found.ranks[0].main
    assert main
    assert main.pid == 101


def test_use_of_the_processor_is_measured() -> None:
    before = process(0, 100).removeprefix("process 0 ")
    after = before.replace(" 94 37 ", " 114 67 ")
    text = f"time before 10.0\nbefore 100 {before}\ntime after 11.0\nafter 100 {after}\ndone\n"
    assert node_views.read_dumps(text)[100].usage == 0.5


@pytest.mark.parametrize(
    ("frames", "collective"),
    [
        ([("PMPI_Allreduce", "/opt/libmpi.so", 0)], "MPI_Allreduce"),
        ([("Allreduce", "mpi4py/MPI.src/Comm.pyx", 1200)], "MPI Allreduce"),
        ([("c10d::Reducer::finalize_backward", "/x/libtorch_cpu.so", 0)], "the all-reduce of"),
        ([("barrier", C10D, 10)], "barrier"),
        ([("is_initialized", C10D, 10)], ""),
        ([("forward", "model.py", 3)], ""),
    ],
)
def test_where_a_rank_waits_for_others(frames: list[tuple[str, str, int]], collective: str) -> None:
    assert stack(*frames).collective.startswith(collective)
    assert bool(stack(*frames).collective) == bool(collective)


@pytest.mark.parametrize("text", ["", "Error: no such process", "[]", '[{"frames": 3}]'])
def test_what_is_no_stack(text: str) -> None:
    assert stacks.parse_stacks(text, WORK) is None


def test_equal_stacks_are_folded() -> None:
    found = stacks.fold({0: reduces(), 1: sleeps(), 2: reduces(), 3: reduces()})
    assert [item.ranks for item in found] == [(0, 2, 3), (1,)]
    assert stacks.name_ranks((0, 2, 3, 4, 7)) == "ranks 0, 2-4, 7"


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


@pytest.mark.parametrize(("deep", "depth"), [(True, 100), (False, 3)])
def test_a_recursion_without_an_end(deep: bool, depth: int) -> None:
    lines = [f'  File "{WORK}/tree.py", line 6 in walk'] * depth
    lines.append(f'  File "{WORK}/tree.py", line 9 in <module>')
    head = ["Fatal Python error: Segmentation fault", ""]
    head.append("Current thread 0x00007f16c1a8c740 (most recent call first):")
    said = "\n".join([*head, *lines, "  ..." if deep else "", "Extension modules: numpy"])
    [finding] = causes.judge(seen(view("worker-2", "rank 1", *failed(139, START, said))))
    assert ("recursion deeper than its stack" in finding.text) == deep
    assert ("bug in native code" in finding.advice) == (not deep)
    assert finding.lines == ('File "tree.py", line 6, in walk',)


def test_stacks_are_shown_apart_where_their_callers_differ() -> None:
    there = {
        rank: stack(
            ("all_reduce", C10D, 3252),
            ("sync", f"{WORK}/comm.py", 7),
            ("step", f"{WORK}/train.py", 12 + rank % 2),
        )
        for rank in range(4)
    }
    assert [item.ranks for item in stacks.fold(there)] == [(0, 1, 2, 3)]
    assert [item.ranks for item in stacks.fold(there, callers=True)] == [(0, 2), (1, 3)]


def test_what_a_node_prints_of_limits() -> None:
    text = "periods-before 200 40 38\nperiods-before 100 0 0\nperiods-before 300 x\n"
    text += "periods-after 200 50 47\nperiods-after 100 0 0\n"
    found = node_views.read_dumps(text)
    assert {pid: dump.throttled for pid, dump in found.items()} == {200: 0.9, 100: 0.0}
