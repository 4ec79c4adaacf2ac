"""What a drill plans, whom it refuses to break, and how it says what was lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from clusterctl.actions import drill, drill_faults, drill_judge
from clusterctl.actions.common import open_store
from clusterctl.cli.console import Console
from clusterctl.cli.drill import report
from clusterctl.core.errors import UsageError
from clusterctl.core.job import JobState, Program, ProgramKind
from clusterctl.core.model import Cluster
from clusterctl.machines.local.provider import LocalProvider
from clusterctl.machines.protocol import Harm
from tests.unit.calling import Call
from tests.unit.making import cluster, job, spec

WORKERS = ("worker-1", "worker-2", "worker-3")


def recorded(provider: str) -> Cluster:
    made = cluster(provider=provider)
    open_store().save(made)
    return made


def test_the_same_seed_makes_the_same_plan_and_another_one_another() -> None:
    first = drill_faults.plan((), 2, 7, WORKERS, 450)
    assert first == drill_faults.plan((), 2, 7, WORKERS, 450)
    assert first != drill_faults.plan((), 2, 8, WORKERS, 450)
    assert [item.fault for item in first] == [*drill_faults.FAULTS] * 2
    assert all(90 <= item.step <= 360 for item in first)
    launcher = {item.fault for item in first if item.node == "launcher"}
    assert launcher == {name for name, fault in drill_faults.FAULTS.items() if fault.launcher}


def test_an_unknown_fault_is_refused_with_those_there_are(call: Call) -> None:
    said = call("drill", "--faults", "kill-rank,earthquake", "--dry-run")
    assert said.code == 2
    assert "unknown fault 'earthquake'" in said.err
    assert "kill-node" in said.err


@pytest.mark.parametrize("provider", ["ec2", "hosts"])
def test_machines_that_a_drill_has_not_made_are_not_broken(provider: str, call: Call) -> None:
    recorded(provider)
    said = call("drill", "lab", "--yes")
    assert said.code == 2
    assert f"cluster 'lab' is {provider}" in said.err


def test_a_cluster_with_a_job_is_not_broken(call: Call) -> None:
    made = recorded("local")
    running = job(made, state=JobState.RUNNING, started=1.0)
    open_store().save_job(running)
    said = call("drill", "lab", "--yes")
    assert said.code == 7
    assert f"may be running job {running.id}" in said.err


def test_a_cluster_that_exists_is_not_broken_unasked(call: Call) -> None:
    recorded("local")
    said = call("drill", "lab")
    assert said.code == 2
    assert "--yes" in said.err


def test_nodes_that_share_the_machine_are_not_broken() -> None:
    made = replace(recorded("local"), mode="loopback")
    with pytest.raises(UsageError, match="share this machine's processes"):
        LocalProvider().inject(made, Path("nowhere"), "worker-1", Harm.KILL)


def outputs(*words: str) -> str:
    """A rank that prints `1-3` (steps), `from 2`, or other lines."""
    text = ""
    for word in words:
        first, dash, last = word.partition("-")
        steps = range(int(first), int(last) + 1) if dash else ()
        text += "".join(f"step {number}\n" for number in steps) or f"{word}\n"
    return text


def seen(fault: str, texts: list[str], **changes: Any) -> drill_judge.Round:
    """A round of ten steps in which worker-1 was struck; a text for each job, by both ranks."""
    (strike,) = drill_faults.plan((fault,), 1, 0, ("worker-1",), 10)
    made = [job(cluster(), spec(), state=JobState.SUCCEEDED) for _ in texts]
    made = [replace(item, id=number) for number, item in enumerate(made, 1)]
    ranks = [{"rank-0": text, "rank-1": text} for text in texts]
    given: dict[str, Any] = {"reported": 4.0, "said": "lost worker-1", "outcome": "replaced"}
    given |= {"pace": 0.5, "steps": 10, "jobs": made, "outputs": ranks, **changes}
    return drill_judge.judge(strike, drill_judge.Seen(**given))


RIGHT = f"weights {drill_judge.compute_weights(10, 2)}"


def test_a_job_that_goes_on_elsewhere_has_no_misses() -> None:
    found = seen("kill-node", [outputs("from 0", "1-7"), outputs("from 4", "5-10", RIGHT)])
    assert found.misses == ()
    assert (found.lost, found.reason, found.reported) == (1.5, "lost worker-1", 4.0)


@pytest.mark.parametrize(
    ("texts", "changes", "miss"),
    [
        (["1-2"], {"said": "something broke"}, "wrong reason: none"),
        (["1-2"], {"reported": None}, "not reported"),
        (["1-2"], {"left": ("worker-1: process x",)}, "left behind: worker-1: process x"),
        (["1-2", "4-10"], {}, "job 1, rank-0: lines 3 to 4 were lost"),
        (["1-10", "weights 0"], {}, "the weights are not those of an undisturbed run"),
        (["1-10", RIGHT], {"outputs": [{}]}, "the weights are not those of an undisturbed run"),
        (["1-9", "from 0", "1-10", RIGHT], {"pace": 9.0}, "81 s of work were lost"),
    ],
)
def test_what_is_a_miss(texts: list[str], changes: dict[str, Any], miss: str) -> None:
    assert miss in seen("kill-node", [outputs("from 0", *texts)], **changes).misses


def test_a_job_that_does_not_end_well_is_a_miss() -> None:
    failed = replace(job(cluster(), spec(), state=JobState.FAILED), reason="it broke", id=3)
    found = seen("kill-node", [outputs("from 0", "1-2")], jobs=[failed])
    assert "job 3 is failed: it broke" in found.misses


def test_how_soon_a_loss_is_reported_is_a_figure_and_no_miss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A machine that is busy makes clusterctl late, and loses nothing."""
    whole = [outputs("from 0", "1-10", RIGHT)]
    soon, late = (seen("kill-node", whole, reported=after) for after in (4.0, 31.5))
    assert late.misses == ()
    report(Console(), "drill", 0, [soon, late, seen("kill-client", whole, said="")])
    said = capsys.readouterr().out
    assert "lost nodes were reported after at most 31.5 s, 1 of 2 within 15 s" in said


def test_the_test_job_of_up_is_not_the_program_of_a_drill() -> None:
    """On Docker, `up` runs one to show that a repaired cluster works."""
    mine = spec(program=Program(kind=ProgramKind.PYTHON, target="train/train.py"))
    other = spec(program=Program(kind=ProgramKind.PYTHON, target="reduce_all.py"))
    found = [job(cluster(), what, id=number) for number, what in enumerate((mine, mine, other), 1)]
    assert [item.id for item in drill.choose_jobs(found, 1, "train.py")] == [2]


def test_misses_are_shown_and_end_with_8(capsys: pytest.CaptureFixture[str]) -> None:
    well = seen("kill-node", [outputs("from 0", "1-10", RIGHT)])
    bad = seen("kill-node", [outputs("from 0", "1-9")], reported=None)
    report(Console(), "drill", 0, [well])
    assert "kill-node  worker-1" in capsys.readouterr().out
    with pytest.raises(typer.Exit) as ended:
        report(Console(), "drill", 0, [well, bad])
    assert ended.value.exit_code == 8
    said = capsys.readouterr()
    assert "miss: kill-node: not reported; the weights" in said.out
    assert "2 rounds, 1 with misses" in said.err
