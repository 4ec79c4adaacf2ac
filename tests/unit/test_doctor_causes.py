"""What `doctor` says where the usual cause is not it: a lock that a rank holds itself, a stopped
process, memory that a limit refuses, a recursion without an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.core import stacks
from clusterctl.insight import node_views
from clusterctl.insight.doctor import causes
from clusterctl.insight.doctor.findings import Evidence
from tests.unit.diagnosed import (
    C10D,
    START,
    WORK,
    encoded,
    failed,
    process,
    reduces,
    seen,
    sleeps,
    stack,
    two_ranks,
    view,
)


def with_child(found: Evidence, state: str = "S", name: str = "python") -> Evidence:
    """Rank 1 has started one more process."""
    more = node_views.read_look("worker-2", process(1, 201, state, name, parent=200))
    found.ranks[1].processes += more.ranks[1].processes
    return found


def locks(**others: stacks.Stack) -> stacks.Stack:
    """A thread that waits for a threading.Lock, with its `others`."""
    made = stack(
        ("lock_PyThread_acquire_lock", "/usr/lib/libpython3.11.so", 0), ("log", f"{WORK}/a.py", 4)
    )
    return replace(made, others=tuple(others.values()))


def test_a_lock_that_nobody_else_can_hold() -> None:
    [finding] = causes.judge(two_ranks(reduces(), locks()))
    assert "while no other thread or process of it runs at log, a.py:4" in finding.text
    assert "threading.RLock" in finding.advice


@pytest.mark.parametrize("holder", ["thread", "process"])
def test_a_lock_that_another_thread_or_process_may_hold(holder: str) -> None:
    other = stack(("clock_nanosleep", "/libc.so.6", 0), ("work", f"{WORK}/a.py", 9))
    found = two_ranks(reduces(), locks(other=other) if holder == "thread" else locks())
    [finding] = causes.judge(with_child(found) if holder == "process" else found)
    assert "waiting for a lock that another thread holds" in finding.text
    assert "RLock" not in finding.advice


def test_a_stopped_child_comes_before_the_rank_that_waits_for_it() -> None:
    waits = stack(
        ("poll", "/libc.so.6", 0),
        ("_next_data", "/opt/py/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1448),
        ("<module>", f"{WORK}/train.py", 9),
    )
    found = causes.judge(with_child(two_ranks(reduces(), waits), "T"))
    assert [finding.kind for finding in found] == ["stopped", "missing"]
    assert "process 201 (python), started by rank 1 on worker-2, is stopped" in found[0].text
    assert "ssh worker-2 -- kill -CONT 201" in found[0].advice


def test_a_stopped_child_of_a_rank_that_waits_for_others_is_only_noted() -> None:
    found = causes.judge(with_child(two_ranks(locks(), reduces()), "T"))
    assert [(finding.kind, finding.serious) for finding in found] == [
        ("missing", True),
        ("stopped", False),
    ]


def test_processes_that_are_each_others_parents_are_looked_at_once() -> None:
    """No kernel says so, but numbers are given again between one look and the next."""
    found = two_ranks(reduces(), locks())
    text = f"{process(1, 201, parent=200)}\n{process(1, 200, parent=201)}"
    found.ranks[1].processes = node_views.read_look("worker-2", text).ranks[1].processes
    assert len(found.ranks[1].descendants) == 1


def test_a_stopped_grandchild_is_found_behind_a_child_that_has_ended() -> None:
    found = with_child(two_ranks(reduces(), locks()), "Z")
    more = node_views.read_look("worker-2", process(1, 202, "T", "tar", parent=201))
    found.ranks[1].processes += more.ranks[1].processes
    assert (
        "process 202 (tar), started by rank 1 on worker-2, is stopped"
        in causes.judge(found)[0].text
    )


REFUSED = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 268435456 bytes."


@pytest.mark.parametrize("free", [20_000_000, 3_000_000])
def test_memory_that_a_limit_refuses(free: int) -> None:
    """The node has enough of it, which the rank may have filled itself."""
    node = (f"memory MemTotal: {24 << 20}", f"memory MemAvailable: {free}")
    cause = causes.judge(seen(view("worker-2", *node, "rank 1", *failed(1, START, REFUSED))))[0]
    assert cause.kind == "message:host-memory"
    assert ("was refused memory; worker-2 has 19.1 of 24.0 GiB" in cause.text) == (
        free > 10_000_000
    )
    assert ("too little memory" in cause.text) == (free < 10_000_000)
    assert ("`ulimit -v`" in cause.advice) == (free > 10_000_000)


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


@pytest.mark.parametrize("free", [9_000_000, 100])
def test_a_file_that_could_not_be_written_with_and_without_space(free: int) -> None:
    said = "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"
    node = (f"disk {free} 10000000 /home", "rank 1", *failed(1, START, said))
    found = causes.judge(seen(view("worker-2", *node)))
    cause = next(finding for finding in found if finding.kind == "message:torch-file")
    assert ("no disk of worker-2 is full now" in cause.text) == (free > 1024)
    assert ("`ulimit -f`" in cause.advice) == (free > 1024)
    assert ("most likely because a disk is full" in cause.text) == (free < 1024)


@pytest.mark.parametrize(
    "error",
    [
        "bdb.BdbQuit",
        "_queue.Empty",
        "struct.error: unpack requires a buffer of 4 bytes",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated"
        " abruptly while the future was running or pending.",
        "StopTraining: loss is NaN",
    ],
)
def test_an_exception_whose_name_does_not_say_that_it_is_one(error: str) -> None:
    said = (
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 11, in <module>\n    step(batch)\n'
        f'  File "{WORK}/train.py", line 9, in step\n    return loss_of(batch)\n           ^^^^^\n'
        f'  File "/usr/lib/python3.11/bdb.py", line 115, in dispatch\n    raise it\n{error}\n'
        "wandb: Synced 3 files"
    )
    [finding] = causes.judge(seen(view("worker-2", "rank 1", *failed(1, START, said))))
    assert error in (finding.text.partition("first: ")[2], *finding.lines)
    assert 'File "train.py", line 9, in step' in finding.lines


def test_the_source_of_the_line_that_failed_is_shown() -> None:
    """An exception of the system may say nothing of what it was about."""
    said = (
        "[rank1]: Traceback (most recent call last):\n"
        f'[rank1]:   File "{WORK}/train.py", line 12, in resume\n'
        "[rank1]:     net.load_state_dict(torch.load(path))\n"
        '[rank1]:   File "/opt/py/lib/python3.11/site-packages/torch/store.py", line 8, in f\n'
        "[rank1]:     super().__init__(torch._C.PyTorchFileReader(name))\n"
        "[rank1]: OSError: [Errno 22] Invalid argument"
    )
    [finding] = causes.judge(seen(view("worker-2", "rank 1", *failed(1, START, said))))
    assert finding.lines == (
        'File "train.py", line 12, in resume',
        "    net.load_state_dict(torch.load(path))",
        "OSError: [Errno 22] Invalid argument",
    )


TIMED_OUT = (
    "Traceback (most recent call last):\n"
    f'  File "{WORK}/train.py", line 12, in <module>\n    dist.all_reduce(t)\n'
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv"
)


@pytest.mark.parametrize("both", [False, True])
def test_a_rank_that_has_reported_no_timeout_was_the_late_one(both: bool) -> None:
    found = seen(
        view("worker-1", "rank 0", f"exit 0 1 {START + 10} 1", f"err 0 {encoded(TIMED_OUT)}"),
        view("worker-2", "rank 1", *failed(143, START + 11, TIMED_OUT if both else "")),
    )
    cause = causes.judge(found)[0]
    assert cause.kind == "message:gloo-timeout"
    late = "most likely for rank 1 on worker-2, which has reported none"
    assert cause.text.endswith(late) != both
    assert cause.ranks == ((0,) if both else (1,))


def test_the_line_of_the_rank_for_which_another_one_has_waited_too_long() -> None:
    found = seen(
        view("worker-1", "rank 0", f"exit 0 1 {START + 10} 1", f"err 0 {encoded(TIMED_OUT)}"),
        view("worker-2", "rank 1", process(1, 200), "waits 200 hrtimer_nanosleep"),
    )
    found.ranks[1].stack = sleeps()
    cause = causes.judge(found)[0]
    assert "for rank 1 on worker-2 (sleeping at skip, train.py:9)" in cause.text
    assert "download" in cause.advice


def test_a_file_of_the_project_that_hides_a_package() -> None:
    """The package is there: its submodule is looked for in that file."""
    said = "ModuleNotFoundError: No module named 'torch.distributed'; 'torch' is not a package"
    cause = causes.judge(seen(view("worker-2", "rank 1", *failed(1, START, said))))[0]
    assert cause.kind == "message:shadowed"
    assert "torch.py" in cause.advice


def test_a_rank_with_fewer_batches() -> None:
    """It waits behind the loop in which the others still average gradients."""
    ddp = ("c10d::Reducer::finalize_backward", "/opt/py/lib/libtorch_cpu.so", 0)
    train = ("main", f"{WORK}/a.py", 17)
    start = ("<module>", f"{WORK}/a.py", 30)
    behind = stack(("barrier", C10D, 4822), ("main", f"{WORK}/a.py", 21), start)
    [finding] = causes.judge(two_ranks(stack(ddp, train, start), behind))
    assert "rank 1 is already at a.py:21 of main" in finding.lines
    assert "drop_last" in finding.advice
    before = stack(("barrier", C10D, 4822), ("main", f"{WORK}/a.py", 12), start)
    elsewhere = stack(("barrier", C10D, 4822), ("save", f"{WORK}/b.py", 21))
    for other in (before, elsewhere):
        [finding] = causes.judge(two_ranks(stack(ddp, train, start), other))
        assert "drop_last" not in finding.advice


def test_a_lock_file_that_nobody_removes() -> None:
    """As one that is left from a build of an extension that was killed."""
    baton = stack(
        ("clock_nanosleep", "/libc.so.6", 0),
        ("wait", "/opt/py/lib/python3.11/site-packages/torch/utils/file_baton.py", 62),
        ("build", f"{WORK}/a.py", 18),
    )
    [finding] = causes.judge(two_ranks(reduces(), baton))
    assert "waiting for a lock file to be removed at build, a.py:18" in finding.text
    assert "torch_extensions" in finding.advice
