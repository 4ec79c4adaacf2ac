"""`rerun` starts a job again as it was, but for what is said anew, and records what it started."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clusterctl.actions import run
from clusterctl.actions.common import open_store
from clusterctl.core.job import JobSpec
from clusterctl.core.model import Cluster
from clusterctl.options.verbs import Run
from clusterctl.project.program import Resolved
from tests.unit import batch_here
from tests.unit.calling import Call
from tests.unit.making import cluster

Rows = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def jobs(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Slurm on this machine, with job 1 in its queue; returns the records of all jobs."""
    batch_here.install("slurm", tmp_path / "slurm", monkeypatch)
    attached = call("attach", "--slurm", "--workdir", str(tmp_path / "work"))
    assert attached.code == 0, attached
    Path("mine.env").write_text("OLD=hunter-old\n")
    Path("more.env").write_text("NEW=hunter-new\n")
    words = ["-e", "MODE=short", "-e", "KEPT=as it was", "--env-file", "mine.env", "train.py"]
    started = call("run", "--detach", *words)
    assert started.code == 0, started
    return lambda: call("jobs", "--json").document["jobs"]


def variables(work: Path, number: int) -> str:
    """What the ranks of that job get, as it lies on the login node."""
    [path] = work.glob(f"*/jobs/{number}/env")
    return path.read_text()


def test_the_record_has_the_variables_that_the_job_got(
    jobs: Rows, call: Call, tmp_path: Path
) -> None:
    again = call("rerun", "--detach", "1", "-e", "MODE=long", "-e", "MY_TOKEN=hunter-token")
    assert again.code == 0, again
    first, second = jobs()
    assert first["env"] == {"MODE": "short", "KEPT": "as it was"}
    assert second["env"] == {"MODE": "long", "KEPT": "as it was"}
    assert set(second["secrets"]) == {"OLD", "MY_TOKEN"}
    given = variables(tmp_path / "work", 2)
    assert "MODE=long" in given
    assert "MODE=short" not in given
    assert "hunter-token" in given
    assert "hunter" not in "".join(path.read_text() for path in records())


def test_the_last_job_is_run_again_without_a_number(jobs: Rows, call: Call) -> None:
    assert call("rerun", "--detach", "1", "-e", "MODE=long").code == 0
    again = call("rerun", "--detach", "--", "--lr", "0.1")
    assert "job 2: train.py" in again.err
    first, second, third = jobs()
    assert third["env"] == second["env"] != first["env"]
    assert third["args"] == ["--lr", "0.1"]


def test_a_script_that_ran_in_its_folder_runs_there_again_and_nowhere_else(
    jobs: Rows, call: Call
) -> None:
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH --nodes=2\ntrue\n")
    assert call("run", "--detach", "job.sh").code == 0
    again = call("rerun", "--detach", "--resume", "2")
    assert again.code == 0, again
    assert "from the beginning" not in again.err
    assert call("attach", "other", "--slurm").code == 0
    said = call("rerun", "-c", "other", "2")
    assert said.code == 7, said
    assert "no file of it was copied" in said.err


def test_another_cluster_is_named_where_that_of_the_job_is_gone(jobs: Rows, call: Call) -> None:
    assert call("detach", "--yes").code == 0
    assert call("attach", "other", "--slurm").code == 0
    said = call("rerun", "1")
    assert said.code == 7
    assert "`clusterctl rerun 1 -c other`" in said.err


def test_the_next_rerun_has_them_too(jobs: Rows, call: Call, tmp_path: Path) -> None:
    words = ["-e", "MODE=long", "--env-file", "more.env"]
    assert call("rerun", "--detach", "1", *words).code == 0
    assert call("rerun", "--detach", "2").code == 0
    third = jobs()[2]
    assert third["env"] == {"MODE": "long", "KEPT": "as it was"}
    assert set(third["secrets"]) == {"OLD", "NEW"}
    given = variables(tmp_path / "work", 3)
    assert all(value in given for value in ("MODE=long", "hunter-old", "hunter-new"))


def test_a_secret_stays_one(jobs: Rows, call: Call) -> None:
    """Whose file is gone is given again by hand, and is a secret still."""
    Path("mine.env").unlink()
    refused = call("rerun", "--detach", "1")
    assert refused.code == 7
    assert "OLD" in refused.err
    assert call("rerun", "--detach", "1", "-e", "OLD=hunter-again").code == 0
    second = jobs()[1]
    assert "OLD" not in second["env"]
    assert set(second["secrets"]) == {"OLD"}
    assert "hunter" not in "".join(path.read_text() for path in records())


def test_a_variable_can_become_a_secret(jobs: Rows, call: Call) -> None:
    Path("late.env").write_text("MODE=hunter-mode\n")
    assert call("rerun", "--detach", "1", "--env-file", "late.env").code == 0
    second = jobs()[1]
    assert second["env"] == {"KEPT": "as it was"}
    assert set(second["secrets"]) == {"OLD", "MODE"}
    assert "hunter" not in "".join(path.read_text() for path in records())


def records() -> list[Path]:
    found = [*Path(os.environ["CLUSTERCTL_HOME"]).rglob("job.json")]
    assert all(json.loads(path.read_text()) for path in found)
    return found


def test_a_queue_that_refuses_a_job_names_the_verb_that_shows_what_there_is(
    jobs: Rows, call: Call, tmp_path: Path
) -> None:
    sbatch = tmp_path / "slurm" / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition: nope' >&2; exit 1\n")
    refused = call("run", "--partition", "nope", "train.py")
    assert refused.code == 2
    assert "invalid partition: nope" in refused.err
    assert "`clusterctl status default --live` shows partitions" in refused.err
    assert "--verbose" not in refused.err


def test_a_detached_job_asks_the_queue_nothing_but_to_take_it(call: Call, tmp_path: Path) -> None:
    """Where another one like it was found to be possible. Of a script of the user's own, where its
    output goes has to be asked while it is known."""
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH -n 1\n")
    with pytest.MonkeyPatch.context() as patch:
        queue = batch_here.install("slurm", tmp_path / "slurm", patch)
        assert call("attach", "--slurm", "--workdir", str(tmp_path / "work")).code == 0
        calls = []
        for program in ("train.py", "job.sh"):
            for _ in range(2):
                queue.forget()
                assert call("run", "--detach", program).code == 0
            calls += queue.calls()
    assert calls == [
        "sbatch --parsable job.sh",
        "sbatch --parsable --open-mode=append job.sh",
        "scontrol show job -o 41",
    ]


def test_a_job_whose_number_another_command_has_taken_is_planned_anew() -> None:
    """Its number is in the paths of its plan."""
    store, where = open_store(), cluster()
    resolved = run.resolve_run(Run({"command": ("reduce_all.py",)}))
    plan = partial(_prepare, where, resolved)
    assert run.claim_number(store, plan(store.read_next_job_id()), plan).job.id == 1
    planned = plan(store.read_next_job_id())
    assert store.reserve_job_id() == planned.job.id == 2
    claimed = run.claim_number(store, planned, plan)
    assert claimed.job.id == 3
    assert any("/jobs/3/" in word for word in claimed.plan.argv)
    assert store.read_next_job_id() == 4


def _prepare(where: Cluster, resolved: Resolved, number: int) -> run.Prepared:
    what = JobSpec(program=resolved.program, allow_cpu=True)
    return run.prepare(where, what, resolved, {}, number=number)
