"""What every launcher promises: a plan that is a value, complete, with its reasons."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from clusterctl.batch.direct import Direct, render_command_line
from clusterctl.core.job import UNPLACED, LaunchPlan, Placement, ProgramKind
from clusterctl.core.model import Role
from clusterctl.launch import launcher
from clusterctl.launch.launcher import LAUNCHERS, Request
from tests.unit.making import cluster, node, program, request, spec

WEIRD = ("two words", "it's", 'a "b" $HOME `id` \\', "-dash", "line\nbreak", "", "--json")


@pytest.fixture(params=LAUNCHERS)
def any_name(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(params=Direct.launchers)
def name(request: pytest.FixtureRequest) -> str:
    """One that knows the nodes before the job starts."""
    kind: str = request.param
    return kind


def plan(name: str, where: Any = None, **changes: Any) -> LaunchPlan:
    of_sweeps = {"array": "0-3"} if name == "points" else {}
    what = spec(**{"program": program(*WEIRD), "launcher": name, **of_sweeps, **changes})
    if name in (*Direct.launchers, "points"):
        return launcher.plan_launch(name, request(where, what))
    login = cluster(node("login", role=Role.LOGIN), provider="slurm")
    placement = (Placement(node=UNPLACED, first=0, count=2),)
    return launcher.plan_launch(name, Request(id=7, spec=what, cluster=login, placement=placement))


def test_it_is_pure(any_name: str) -> None:
    assert plan(any_name) == plan(any_name)


@pytest.mark.parametrize("kind", ProgramKind)
def test_arguments_reach_the_program_unchanged(any_name: str, kind: ProgramKind) -> None:
    made = plan(any_name, program=program(*WEIRD, kind=kind))
    assert set(made.programs) in ({"worker-1", "worker-2"}, {"login"})
    for argv in made.programs.values():
        assert argv[-len(WEIRD) :] == WEIRD
    # They are read from a file on the node, not from a command line that all can see.
    assert not any(word in text for text in made.argv for word in WEIRD if len(word) > 6)


def test_every_rank_is_told_who_it_meets(name: str) -> None:
    made = plan(name, ranks_per_node=2)
    assert made.env["CLUSTERCTL_WORLD_SIZE"] == "4"
    assert made.env["MASTER_ADDR"] == "10.0.0.11"
    assert int(made.env["OMP_NUM_THREADS"]) == 4
    for worker in ("worker-1", "worker-2"):
        assert made.node_env[worker]["GLOO_SOCKET_IFNAME"] == "eth0"


def test_everything_has_a_reason(any_name: str) -> None:
    made = plan(any_name, backend="gloo", allow_cpu=True)
    assert made.reasons
    assert all(reason.item and reason.why for reason in made.reasons)
    items = " ".join(reason.item for reason in made.reasons)
    assert all(variable in items for variable in made.env)


def test_what_the_user_asked_for_is_passed_on(any_name: str) -> None:
    made = plan(any_name, backend="gloo", allow_cpu=True, env={"MINE": "1", "OMP_NUM_THREADS": "9"})
    assert made.env["CLUSTERCTL_BACKEND"] == "gloo"
    assert made.env["CLUSTERCTL_ALLOW_CPU"] == "1"
    assert (made.env["MINE"], made.env["OMP_NUM_THREADS"]) == ("1", "9")
    assert not any("MINE" in word for word in made.argv)


def test_the_command_is_sound_sh(name: str) -> None:
    for where in (None, cluster(one_host=True, provider="local", mode="loopback")):
        made = plan(name, where)
        done = subprocess.run(
            ["/bin/sh", "-nc", render_command_line(made.argv)], capture_output=True
        )
        assert (done.returncode, done.stderr) == (0, b"")
        for agent in made.agents.values():
            done = subprocess.run(["/bin/sh", "-nc", f"exec {agent} true"], capture_output=True)
            assert (done.returncode, done.stderr) == (0, b"")


def test_one_host_is_said(name: str) -> None:
    where = cluster(one_host=True, provider="local", mode="loopback")
    made = plan(name, where)
    assert made.env["MASTER_ADDR"] == "127.0.0.1"
    assert any("one host" in note for note in made.notes)


def test_too_many_ranks_are_said_where_they_are_allowed(name: str) -> None:
    nodes = [node("launcher", "10.0.0.10"), node(slots=1), node("worker-2", "10.0.0.12", slots=1)]
    made = plan(name, cluster(*nodes, provider="local"), ranks_per_node=3)
    assert any("oversubscribed" in note for note in made.notes)
