"""What is asked before a cluster with a job goes, on a batch system that fakes stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.actions import down
from clusterctl.actions.common import Unfetched, open_store
from clusterctl.core.job import JobState
from tests.unit import batch_here
from tests.unit.calling import Call


@pytest.mark.parametrize("system", ["slurm", "sge"])
def test_a_job_that_has_not_ended_is_not_ended_unasked(
    system: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = batch_here.install(system, tmp_path / "queue", monkeypatch)
    assert call("attach", "lab", f"--{system}", "--workdir", str(tmp_path / "work")).code == 0
    assert call("run", "--detach", "train.py").code == 0
    queue.forget()
    store, asked = open_store(), list[str]()

    def no(question: str) -> bool:
        asked.append(question)
        return False

    asks = Unfetched(ask=no)
    assert down.take_down(store, "lab", lambda line: None, no, asks, verb="detach") is None
    [question] = asked
    assert "job 1 is still running" in question
    assert [line for line in queue.calls() if line.startswith(("scancel", "qdel"))] == []
    assert store.read_job(1).state is JobState.QUEUED
    assert store.list_names() == ("lab",)
    assert list((tmp_path / "work").glob("lab-*/jobs/1/job.sh"))
