"""`launch --detach`: the next command after the program's end brings its outputs and removes the
cluster, and nothing is lost where that cannot be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import launch
from clusterctl.actions.common import open_store
from clusterctl.core.model import Phase
from clusterctl.machines.local.provider import LocalProvider
from clusterctl.state.store import mark_launch
from tests.unit.calling import Call
from tests.unit.making import charge, cluster
from tests.unit.provided import provide
from tests.unit.staged import Staged, lab
from tests.unit.tables import rows


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Where `launch` was called, which is not where the next command is."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def here(tmp_path: Path, project: Path) -> Staged:
    """A detached launch whose program has written a file."""
    made = lab(tmp_path / "nodes")
    mark_launch(made.store, "lab", project)
    (project / "train.py").touch()
    made.job(project)
    (made.work() / "model.pt").write_text("weights")
    return made


def test_the_next_command_brings_outputs_and_removes_the_cluster(
    call: Call, here: Staged, project: Path
) -> None:
    assert f"copies its outputs to {project}" in call("status").out
    assert (project / "job-7/worker-1/model.pt").read_text() == "weights"
    assert here.store.list_names() == ()
    assert here.store.read_job(7).fetched


def test_the_shared_folder_comes_with_the_outputs(
    call: Call, here: Staged, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "best.pt").write_text("weights")
    here.store.save(replace(here.where, shared=str(tmp_path / "shared")))
    assert call("status").code == 0
    assert (project / "shared-lab/best.pt").read_text() == "weights"
    assert here.store.list_names() == ()


def test_the_answer_comes_first_and_is_still_one_document(call: Call, here: Staged) -> None:
    said = call("jobs", "--json")
    assert [job["id"] for job in said.document["jobs"]] == [7]
    assert "cluster lab was removed" in said.err


def test_a_program_that_runs_keeps_its_cluster(call: Call, here: Staged, project: Path) -> None:
    with here.running(here.store.read_job(7)):
        assert call("list").code == 0
    assert here.store.list_names() == ("lab",)
    assert not (project / "job-7").exists()


@pytest.mark.parametrize("words", [("check",), ("down", "--help"), ("ssh-config", "--print")])
def test_commands_about_other_things_leave_it_alone(
    words: tuple[str, ...], call: Call, here: Staged
) -> None:
    call(*words)
    assert here.store.list_names() == ("lab",)


def test_before_its_job_is_on_record_nothing_is_removed(call: Call, tmp_path: Path) -> None:
    """`launch` may still be at it, or was killed: then the cluster is one as any other."""
    made = lab(tmp_path / "nodes")
    mark_launch(made.store, "lab", tmp_path)
    assert call("list").code == 0
    assert made.store.list_names() == ("lab",)


def test_a_removal_that_was_cut_off_goes_on(call: Call, here: Staged) -> None:
    here.store.save(replace(here.where, phase=Phase.DELETING))
    call("list")
    assert here.store.list_names() == ()


def test_a_file_that_was_changed_here_is_kept_and_so_is_the_cluster(
    call: Call, here: Staged, project: Path
) -> None:
    mine = project / "job-7/worker-1/model.pt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    said = call("list")
    assert said.code == 0, "the command itself has done what it was asked"
    assert "cluster lab was not removed" in said.err
    assert mine.read_text() == "mine"
    assert here.store.list_names() == ("lab",)
    mine.unlink()
    call("list")
    assert mine.read_text() == "weights"
    assert here.store.list_names() == ()


def test_at_the_deadline_it_is_said_what_is_lost(call: Call, here: Staged) -> None:
    here.store.save(replace(here.where, deadline=2.0, charges=(charge("launcher").end_at(2.0),)))
    said: list[str] = []
    assert launch.bring(here.store, "lab", said.append)
    assert "job 7" in said[0]
    assert "were not fetched" in said[0]


@pytest.mark.parametrize("option", [(), ("--json",), ("--detach",), ("--keep",)], ids=str)
def test_a_dry_run_shows_the_plan_of_the_cluster_and_makes_nothing(
    option: tuple[str, ...], call: Call
) -> None:
    said = call("launch", "--dry-run", *option, "train.py")
    assert said.code == 0, said.err
    assert ('"dry_run": true' if option == ("--json",) else "mode: ") in said.out
    assert open_store().list_names() == ()


@rows("words", "detached_launches.a_new_cluster_has_the_name_of_the_program")
def test_a_new_cluster_has_the_name_of_the_program(words: tuple[str, ...], call: Call) -> None:
    Path("train.py").touch()
    assert call("launch", "--dry-run", "--json", *words).document["cluster"] == "train"


def test_what_stays_on_and_what_it_costs_is_said(here: Staged, project: Path) -> None:
    charges = (charge("launcher", 0.25), charge("worker-1", 0.25))
    here.store.save(replace(here.where, deadline=4e9, charges=charges))
    [what, price] = launch.describe_launch(here.store, "lab")
    assert str(project) in what
    assert "launcher" in price
    assert "costs $0.2500/h" in price
    assert "not fetched by then are lost" in price


@rows("words, says", "detached_launches.what_is_refused_costs_no_cluster")
def test_what_is_refused_costs_no_cluster(words: tuple[str, ...], says: str, call: Call) -> None:
    Path("train.py").touch()
    Path("odd.txt").write_text("-e ./other\n")
    said = call("launch", *words, "train.py")
    assert (said.code, says in said.err) == (2, True), said.err
    assert open_store().list_names() == ()


def test_machines_that_exist_get_no_options_of_new_ones(call: Call) -> None:
    Path("train.py").touch()
    open_store().save(cluster(provider="hosts", identity=""))
    said = call("launch", "-c", "lab", "--gpu", "g5", "train.py")
    assert said.code == 2
    assert "--gpu works only for a new cluster: 'lab' is attached" in said.err


@pytest.mark.parametrize("verb", ["launch", "up"])
def test_ctrl_c_before_anything_was_created_speaks_of_nothing_to_remove(
    verb: str, call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(LocalProvider):
        def plan(self, *words: Any, **more: Any) -> Any:
            raise KeyboardInterrupt

    provide(monkeypatch, "local", Interrupted())
    Path("train.py").touch()
    said = call(verb, *["train.py"] * (verb == "launch"))
    assert (said.code, "stopped by Ctrl-C" in said.err) == (130, True)
    assert "what was created is kept" not in said.err
