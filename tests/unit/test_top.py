"""`top`: two looks at the nodes, and the lines that they make."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from clusterctl.cli.top import render
from clusterctl.insight import top
from clusterctl.insight.top import Frame, Look


def stat(pid: int, ticks: int, state: str = "R") -> str:
    """A line of /proc/PID/stat, of a command with blanks and parentheses."""
    numbers = [state, "1", *["0"] * 9, str(ticks), "0", *["0"] * 30]
    return f"{pid} (a (b) c) {' '.join(numbers)}"


def said(time: float, *lines: str, cpu: str = "1000 500", net: str = "1000 2000") -> str:
    head = f"Welcome\ntime {time} 100\ncpu {cpu}\nmemory MemTotal: 1000\nmemory MemAvailable: 250"
    return "\n".join((head, f"net {net}", *lines, "done\n"))


def metrics_line(rank: int, *values: dict[str, float]) -> str:
    text = "".join(json.dumps({"clusterctl": item}) + "\n" for item in values)
    return f"metrics {rank} {b64encode(text.encode()).decode()}"


BEFORE = {"w": top.read("w", said(100.0, f"process 0 {stat(7, 100)}", f"process 0 {stat(8, 50)}"))}
AFTER = {
    "w": top.read(
        "w",
        said(
            102.0,
            f"process 0 {stat(7, 300)}",
            f"process 0 {stat(9, 9999)}",
            "resident 0 2048",
            "resident 0 1024",
            metrics_line(
                0,
                {"step": 10, "steps": 100, "loss": 0.5, "time": 90},
                {"step": 20, "steps": 100, "loss": 0.25, "time": 100},
            ),
            "process 1",
            "metrics 1 ",
            cpu="1400 600",
            net="5000 2000",
        ),
    )
}


def test_ranks() -> None:
    first, second = top.rank_lines(BEFORE, AFTER)
    assert first.cpu == pytest.approx(1.0), "of the process that both looks have"
    assert first.memory == 3 << 20
    assert (first.step, first.loss, first.step_seconds) == (20, 0.25, 1.0)
    assert first.left == pytest.approx(78)
    assert first.alive
    assert (second.alive, second.cpu, second.step) == (False, None, None)
    assert top.slowest((first, second)) == first.left


def test_nodes() -> None:
    [line] = top.node_lines(BEFORE, AFTER)
    assert line.cpu == pytest.approx(0.75)
    assert (line.memory, line.total) == (750 * 1024, 1000 * 1024)
    assert (line.received, line.sent) == (2000, 0)


def test_a_node_that_does_not_answer() -> None:
    gone = {"w": Look("w", error="no route to host")}
    [line] = top.node_lines(AFTER, gone)
    assert (line.error, line.cpu) == ("no route to host", None)
    assert top.rank_lines(AFTER, gone) == ()
    assert top.read("w", "time 5 100\n").error == ""
    assert top.read("w", "Permission denied\n").error


def test_as_text() -> None:
    ranks, nodes = top.rank_lines(BEFORE, AFTER), top.node_lines(BEFORE, AFTER)
    frame = Frame(102.0, 7, "running", 42.0, 0.5, 78.0, ranks, nodes)
    assert render(frame).splitlines() == [
        "job 7: running, for 42 s, $0.5000 so far, about 78 s left",
        "",
        "rank  node       step  s/step  loss  cores  memory",
        "0     w          20    1       0.25  1.00   3 MB",
        "1     w (ended)  -     -       -     -      0 B",
        "",
        "node  CPU  memory          received/s  sent/s",
        "w     75%  768 kB of 1 MB  2 kB        0 B",
    ]
