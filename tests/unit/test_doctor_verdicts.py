"""The verdicts of `doctor`: what nodes show of broken jobs, and what it has to say first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core.job import JobState
from clusterctl.core.stacks import Stack
from clusterctl.core.text import read_toml
from clusterctl.insight.doctor import causes
from clusterctl.insight.doctor.findings import Evidence, Finding
from clusterctl.insight.node_views import NodeView
from tests.unit.diagnosed import C10D, START, WORK, encoded, process, running, seen, stack, view

FOLDERS = {
    "libc": "/usr/lib/libc.so.6",
    "torch": "/opt/py/lib/libtorch_cpu.so",
    "python": "/usr/lib/libpython3.11.so",
    "c10d": C10D,
}
TABLE = read_toml(Path(__file__).with_name("verdicts.toml"))
CASES: dict[str, dict[str, Any]] = TABLE["cases"]


def make_stack(frames: str | Sequence[str]) -> Stack:
    """Of frames such as `step @ train.py:9`, innermost first, or one by its name."""
    parts = []
    for frame in TABLE["stacks"][frames] if isinstance(frames, str) else frames:
        name, _, place = frame.partition(" @ ")
        file, _, line = place.partition(":")
        parts.append((name, FOLDERS.get(file, f"{WORK}/{file}" if file[0] != "/" else file), line))
    return stack(*((name, file, int(line or 0)) for name, file, line in parts))


def show(number: int, rank: dict[str, Any]) -> NodeView:
    """The node of a rank: it lives, unless it has an exit code or is gone."""
    name = f"worker-{number + 1}"
    if "error" in rank:
        return NodeView(name, error=rank["error"], late=rank.get("late", False))
    lines = [f"rank {number}", *rank.get("node", ())]
    lines += (f"{word} {number} {encoded(rank[word])}" for word in ("err", "out") if word in rank)
    pid = 100 * (number + 1)
    if "exit" in rank:
        code, seconds = rank["exit"]
        lines.append(f"exit {number} {code} {START + seconds} 1")
    elif not rank.get("gone"):
        lines += (process(number, pid, rank.get("state", "S")), f"waits {pid} {rank.get('waits')}")
    return view(name, *lines)


def make_evidence(case: dict[str, Any]) -> Evidence:
    job = running(state=JobState(case.get("state", "running")), reason=case.get("reason", ""))
    views = [show(number, rank) for number, rank in enumerate(case["ranks"])]
    if "launcher" in case:
        views.append(view("launcher", f"launcher {encoded(case['launcher'])}"))
    found = seen(*views, made=job)
    for number, given in enumerate(case["ranks"]):
        if rank := found.ranks.get(number):
            rank.stack = make_stack(given["stack"]) if "stack" in given else None
            if rank.stack and "others" in given:
                others = tuple(map(make_stack, given["others"]))
                rank.stack = replace(rank.stack, others=others)
            rank.usage, rank.moved = given.get("usage", 0.0), given.get("moved")
            rank.running, rank.throttled = "running" in given, given.get("throttled", 0.0)
            rank.no_stack = given.get("no_stack", "")
    return found


def differ(found: Finding, expected: dict[str, Any]) -> list[str]:
    """What of a finding is not as it has to be."""
    said = {"text": found.text, "advice": found.advice, "lines": "\n".join(found.lines)}
    wrong = [
        f"{part!r} in {name}: {said[name]!r}"
        for name in said
        for part in expected.get(name, ())
        if (part.removeprefix("NOT ") in said[name]) == part.startswith("NOT ")
    ]
    for name in ("kind", "ranks", "nodes", "serious"):
        value = getattr(found, name)
        if (
            name in expected
            and (list(value) if isinstance(value, tuple) else value) != (expected[name])
        ):
            wrong.append(f"{name}: {value!r}")
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_a_broken_job(name: str) -> None:
    case = CASES[name]
    found = make_evidence(case)
    findings = causes.judge(found)
    expected = case.get("finds", [])
    assert [item.kind for item in findings][: len(expected) if case.get("more") else None] == [
        item["kind"] for item in expected
    ]
    assert [differ(*pair) for pair in zip(findings, expected, strict=False)] == [[]] * len(expected)
    assert case.get("summary", "") in causes.summarize(found, findings)
