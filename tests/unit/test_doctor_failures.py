"""Why a job has failed, from what its ranks, mpirun and the kernel say."""

from __future__ import annotations

import pytest

from clusterctl.core.job import JobState
from clusterctl.insight.doctor import causes
from tests.unit.diagnosed import (
    C10D,
    START,
    WORK,
    encoded,
    failed,
    kinds,
    process,
    running,
    seen,
    view,
)

GLOO_CLOSED = "[tcp/pair.cc:534] gloo/transport/tcp: Connection closed by peer"


def closed(rank: int, when: float) -> tuple[str, ...]:
    """A rank that failed because another one had gone."""
    return (f"rank {rank}", f"exit {rank} 1 {when} 1", f"err {rank} {encoded(GLOO_CLOSED)}")


TRACE = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n'


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (f"{TRACE}FileNotFoundError: [Errno 2] No such file: 'vocab.txt'\n", "'vocab.txt'"),
        (f"{TRACE}FileNotFoundError: no cache\n{TRACE}ValueError: no words\n", "no words"),
        (f"retrying: No route to host\n{TRACE}KeyError: 'lr'\n", "KeyError: 'lr'"),
        ("loading\nno images in data/train\n", "no images in data/train"),
        ("usage: a.py [-h] --lr LR\na.py: error: --lr is missing\n", "error: --lr is missing"),
    ],
)
def test_what_a_failed_rank_has_printed_is_told_with_the_cause(printed: str, said: str) -> None:
    [finding] = causes.judge(seen(view("worker-2", *failed(1, START + 9, printed))))
    assert finding.text.startswith("rank 1 on worker-2")
    assert said in finding.text


def test_what_mpi_says_of_a_rank_is_in_the_words_of_the_launcher() -> None:
    said = "[w:0] *** An error occurred in MPI_Send\n[w:0] *** MPI_ERR_RANK: invalid rank\n"
    launcher = view("worker-1", f"launcher {encoded(said)}")
    [finding] = causes.judge(seen(launcher, view("worker-2", *failed(6, START + 9))))
    assert "rank 1 on worker-2 failed first: MPI_Send: MPI_ERR_RANK: invalid rank" in finding.text


def test_a_rank_that_ended_early_with_code_0_is_the_cause() -> None:
    """It has no failure of its own: the others tell of its end."""
    gone = view("worker-2", "rank 1", f"exit 1 0 {START + 9.1} 1")
    ended = seen(view("worker-1", *closed(0, START + 9)), gone, made=running(state=JobState.FAILED))
    found = causes.judge(ended)[0]
    assert (found.kind, found.ranks, found.nodes) == ("left", (1,), ("worker-2",))
    assert (
        found.text
        == "rank 1 on worker-2 ended with code 0 while rank 0 on worker-1 still needed it"
    )
    later = view("worker-2", "rank 1", f"exit 1 0 {START + 30} 1")
    found = causes.judge(seen(view("worker-1", *closed(0, START + 9)), later))[0]
    assert found.kind == "message:gloo-closed", "it ended long after"


def test_a_rank_without_an_exit_code_is_the_cause_of_what_the_others_say() -> None:
    """The disk on which its end is written may be full."""
    ended = running(state=JobState.FAILED)
    found = causes.judge(
        seen(view("worker-1", *closed(0, START + 9)), view("worker-2", "rank 1"), made=ended)
    )[0]
    assert (found.kind, found.ranks) == ("gone", (1,))


def test_a_job_that_did_not_start_has_its_reason() -> None:
    why = "staging job 7 failed on worker-2: No space left on device"
    [finding] = causes.judge(
        seen(view("worker-1"), made=running(state=JobState.FAILED, reason=why))
    )
    assert finding.text == f"job 7: {why}"


def test_ranks_of_a_cancelled_job_have_not_failed() -> None:
    cancelled = seen(
        view("worker-1", "rank 0", f"exit 0 143 {START + 9} 1"),
        view("worker-2", "rank 1", f"exit 1 137 {START + 9} 1"),
        made=running(state=JobState.CANCELLED, reason="cancelled"),
    )
    assert causes.judge(cancelled) == ()
    assert causes.summarize(cancelled, ()).startswith("job 7 was cancelled")


def test_the_last_exception_of_a_rank_that_is_about_to_end_is_the_cause() -> None:
    """Without an exception, a known message of a running job is a note."""
    error = "OSError: [Errno 98] EADDRINUSE: address already in use"
    trace = f'Traceback (most recent call last):\n  File "{WORK}/train.py", line 3\n{error}'
    for text, serious in ((trace, True), (error, False)):
        living = ("rank 0", process(0, 100), f"err 0 {encoded(text)}")
        [finding] = causes.judge(seen(view("worker-1", *living)))
        assert (finding.kind, finding.serious) == ("message:port-used", serious)


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


def test_a_rank_whose_peer_has_gone_is_not_the_cause() -> None:
    closed = "[tcp/pair.cc:534] gloo/transport/tcp: Connection closed by peer"
    found = causes.judge(
        seen(
            view("worker-1", "rank 0", f"exit 0 1 {START + 9} 1", f"err 0 {encoded(closed)}"),
            view("worker-2", "rank 1", *failed(1, START + 10, "CUDA out of memory. Tried 2 GiB")),
        )
    )
    assert found[0].kind == "message:cuda-memory"
    assert found[0].ranks == (1,)


def test_an_exception_is_shown_with_the_line_of_the_program() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 12, in <module>\n    step()\n'
        '  File "/opt/py/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in f\n'
        "    return F.linear(input)\n"
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 7x2)\n"
    )
    [finding] = causes.judge(seen(view("worker-1", "rank 1", *failed(1, START + 10, trace))))
    assert "shapes cannot be multiplied" in finding.text
    assert finding.lines[0].endswith('train.py", line 12, in <module>')


def test_an_exception_behind_the_prefix_of_pytorch() -> None:
    said = (
        "[rank1]: Traceback (most recent call last):\n"
        f'[rank1]:   File "{WORK}/train.py", line 7, in <module>\n'
        "[rank1]:     load(path)\n"
        "[rank1]: KeyError: 'weights'\n"
    )
    found = seen(view("worker-1", *failed(1, START + 5, said)))
    [finding] = causes.judge(found)
    assert finding.kind == "error"
    assert "KeyError: 'weights'" in finding.text
    assert finding.lines[0] == 'File "train.py", line 7, in <module>'


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


@pytest.mark.parametrize(
    ("code", "said"), [(139, "signal 11 (SIGSEGV)"), (135, "signal 7 (SIGBUS)"), (192, "signal 64")]
)
def test_the_signal_that_ended_a_rank_has_a_name(code: int, said: str) -> None:
    [finding] = causes.judge(seen(view("worker-1", *failed(code, START + 5))))
    assert said in finding.text
    assert ("segmentation fault" in finding.advice) == (code == 139)


def test_the_last_words_of_a_rank_may_be_on_stdout() -> None:
    words = ("rank 0", f"exit 0 3 {START} 1", f"out 0 {encoded('loss is nan, stopping')}")
    [finding] = causes.judge(seen(view("worker-1", *words)))
    assert finding.lines == ("loss is nan, stopping",)


def test_an_oom_kill_is_found_in_the_kernels_log() -> None:
    """Nodes of one machine share its log: the line counts for the rank that ended with it."""
    line = (
        "kernel [ 5000.50] Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB"
    )
    killed = view("worker-2", "rank 1", *failed(137, START + 61), line)
    other = view("worker-1", "rank 0", f"exit 0 143 {START + 62} 1", line)
    found = causes.judge(seen(other, killed))
    assert kinds(found) == ["memory"]
    assert found[0].ranks == (1,)
    assert "4711" in found[0].lines[0]


def test_an_old_oom_kill_is_not_taken_for_the_cause() -> None:
    line = "kernel [   12.50] Out of memory: Killed process 4711 (python) total-vm:1kB"
    [finding] = causes.judge(seen(view("worker-2", "rank 1", *failed(137, START + 61), line)))
    assert finding.kind == "exit"
    assert "SIGKILL" in finding.text


def test_what_mpirun_says_counts_where_no_rank_failed() -> None:
    said = "There are not enough slots available in the system to satisfy the 8"
    [finding] = causes.judge(seen(view("launcher", f"launcher {encoded(said)}")))
    assert finding.kind == "message:mpi-slots"
