"""Why a job has failed, from what its ranks, mpirun and the kernel say."""

from __future__ import annotations

from clusterctl.core.job import JobState, Placement
from clusterctl.insight.doctor import causes
from tests.unit.diagnosed import (
    C10D,
    START,
    WORK,
    encoded,
    failed,
    kinds,
    running,
    seen,
    view,
)


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
