"""`top`: two looks at the nodes, and the lines that they make."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from clusterctl.actions import top as actions_top
from clusterctl.agent import views
from clusterctl.cli.insight import render
from clusterctl.core.job import UNPLACED, JobState, Placement
from clusterctl.insight import top
from clusterctl.insight.metrics import list_marks
from clusterctl.insight.top import Look, TopFrame
from tests.unit.making import cluster, job, spec
from tests.unit.staged import lab


def said(time: float, *lines: str, cpu: str = "1000 500", net: str = "1000 2000") -> str:
    head = f"Welcome\ntime {time}\ncpu {cpu}\nmemory MemTotal: 1000\nmemory MemAvailable: 250"
    return "\n".join((head, f"net {net}", *lines, "done\n"))


def metrics_line(rank: int, *values: dict[str, float]) -> str:
    return "\n".join(f"metrics {rank} {json.dumps({'clusterctl': item})}" for item in values)


BEFORE = {"w": top.read_top("w", said(100.0, "process 0 7 1.0", "process 0 8 0.5"))}
AFTER = {
    "w": top.read_top(
        "w",
        said(
            102.0,
            "process 0 7 3.0",
            "process 0 9 99.99",
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
    first, second = top.make_rank_lines(BEFORE, AFTER)
    assert first.cpu == pytest.approx(1.0), "of the process that both looks have"
    assert first.memory == 3 << 20
    assert (first.step, first.loss, first.step_seconds) == (20, 0.25, 1.0)
    assert first.left == pytest.approx(78)
    assert first.alive
    assert (second.alive, second.cpu, second.step) == (False, None, None)


@pytest.mark.parametrize(
    ("where", "state", "shown"),
    [
        ("c1", JobState.RUNNING, ["0 c1 20", "1 c1 -"]),
        ("c1", JobState.FAILED, ["0 c1 (ended) 20", "1 c1 (ended) -"]),
        (UNPLACED, JobState.RUNNING, ["0 w 20", "1 w -"]),
        ("w", JobState.RUNNING, ["0 w 20", "1 w (ended) -"]),
    ],
)
def test_ranks_on_nodes_that_cannot_be_asked(where: str, state: JobState, shown: list[str]) -> None:
    """Of a batch system, only the login node is seen: nothing is said of processes elsewhere."""
    placed = Placement(node=where, first=0, count=2)
    made = job(cluster(), spec(ranks=2), state=state, placement=(placed,))
    lines = tuple(top.place_unseen(made, top.make_rank_lines(BEFORE, AFTER), AFTER))
    frame = TopFrame(100.0, 7, state.value, None, None, None, lines, ())
    _, _, _, first, second = (" ".join(line.split()) for line in render(frame).splitlines())
    assert [first[: len(shown[0])], second[: len(shown[1])]] == shown
    assert second.endswith("0 B") == (where == "w")


def test_a_node_that_does_not_answer() -> None:
    gone = {"w": Look("w", error="no route to host")}
    [line] = top.make_node_lines(AFTER, gone)
    assert (line.error, line.cpu) == ("no route to host", None)
    assert top.make_rank_lines(AFTER, gone) == ()
    assert top.read_top("w", "time 5\n").error == ""
    assert top.read_top("w", "Permission denied\n").error


def test_the_time_of_a_job_that_has_ended_is_not_counted_on() -> None:
    frame = TopFrame(102.0, 7, "cancelled", 42.0, None, 0.0, (), ())
    assert render(frame).splitlines()[0] == "job 7: cancelled after 42 s"


def test_as_text() -> None:
    ranks, nodes = top.make_rank_lines(BEFORE, AFTER), top.make_node_lines(BEFORE, AFTER)
    frame = TopFrame(102.0, 7, "running", 42.0, 0.5, 78.0, ranks, nodes)
    assert render(frame).splitlines() == [
        "job 7: running for 42 s, $0.5000 so far, about 78 s left",
        "",
        "rank  node       step  s/step  loss  cores  memory",
        "0     w          20    1       0.25  1.00   3.1 MB",
        "1     w (ended)  -     -       -     -      0 B",
        "",
        "node  CPU  memory              received/s  sent/s",
        "w     75%  768.0 kB of 1.0 MB  2.0 kB      0 B",
    ]


ROCM = {
    "card1": {"GPU use (%)": "5", "VRAM Total Memory (B)": "16", "VRAM Total Used Memory (B)": "4"},
    "card0": {"GPU use (%)": "N/A"},
    "system": {"Driver version": "6.1"},
}


@pytest.mark.parametrize(
    ("lines", "used", "memory"),
    [
        (("gpu 0, 97, 10, 15", "gpu 1, [N/A], 2, 15"), [0.97, None], (12 << 20, 30 << 20)),
        ((f"rocm {json.dumps(ROCM)}",), [None, 0.05], (4, 16)),
        (("rocm ", "gpu Unable to determine the device handle"), [], (0, 0)),
    ],
    ids=("nvidia", "amd", "silent"),
)
def test_gpus(lines: tuple[str, ...], used: list[float], memory: tuple[int, int]) -> None:
    [line] = top.make_node_lines(BEFORE, {"w": top.read_top("w", said(102.0, *lines))})
    assert [gpu.used for gpu in line.gpus] == used
    sums = (sum(gpu.memory for gpu in line.gpus), sum(gpu.total for gpu in line.gpus))
    assert sums == memory
    assert line.error == ""


def test_gpus_and_network_as_text() -> None:
    after = {"w": top.read_top("w", said(102.0, "gpu 0, 97, 1000, 15360", net="5000 2000"))}
    nodes = top.make_node_lines(BEFORE, after)
    text = render(TopFrame(102.0, 7, "running", None, None, None, (), nodes))
    assert text.splitlines()[-2].split("  ")[0] == "node"
    assert "GPU memory" in text
    assert " 97% " in text
    assert "1.0 GB of 16.1 GB" in text


@pytest.mark.parametrize("tool", ["nvidia-smi", "rocm-smi"])
def test_what_a_node_shows(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tool of that vendor on PATH."""
    printed = "0, 50, 1, 2" if tool == "nvidia-smi" else json.dumps(ROCM)
    fake = tmp_path / tool
    fake.write_text(f"#!/bin/sh\necho '{printed}'\n")
    fake.chmod(0o755)
    out = tmp_path / "a b" / "jobs" / "1" / "out"
    out.mkdir(parents=True)
    (out / "rank-0.out").write_text("iter 3: loss 2.5, time 12.00ms\nsaved\n")
    (out / "rank-1.err").write_bytes(b" 3/9 [00:01<00:09, 9it/s, loss=0.5]\r")
    progress = "".join(f"step {step}: loss {step}\n" for step in range(200))
    meant = json.dumps({"clusterctl": {"step": 7, "loss": 0.25}})
    (out / "rank-2.out").write_text(f"{progress}{meant}\n{progress}")
    (out / "rank-2.err").write_text(progress)
    (out / "rank-3.out").write_text(f"{progress}{{'eval_loss': 0.5, 'epoch': 1.0}}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    marks = "|".join(mark.decode() for mark in list_marks())
    facts = views.show_use(str(out.parent), "CLUSTERCTL_JOB=x/1;", "lo", marks)
    look = top.read_top("w", "\n".join(" ".join(map(str, fact)) for fact in facts))
    assert look.error == ""
    assert [gpu.used for gpu in look.gpus] == ([0.5] if tool == "nvidia-smi" else [None, 0.05])
    ranks = top.make_rank_lines({}, {"w": look})
    assert [(rank.step, rank.loss) for rank in ranks] == [
        *((3, 2.5), (3, 0.5), (7, 0.25), (199, 199)),
    ]


def test_a_node_of_an_older_clusterctl_is_given_the_agent_that_looks(tmp_path: Path) -> None:
    site = lab(tmp_path / "nodes")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "train.py").touch()
    made = site.job(tmp_path / "tree")
    shutil.rmtree(Path(site.where.node("worker-1").root) / "agent")
    with site.pool() as pool:
        found = actions_top.look(made, site.where, pool)
    assert {name: look.error for name, look in found.items()} == {"worker-1": "", "worker-2": ""}
    assert found["worker-1"].memory == found["worker-2"].memory
