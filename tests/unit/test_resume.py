"""`rerun --resume` of a job whose files are not all where they were: nodes are folders here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.actions import open_store
from clusterctl.actions.jobs import Variables, rerun
from clusterctl.errors import RecordError
from clusterctl.model import JobState
from tests.unit.making import cluster, job, node, spec


def resume(tmp_path: Path, *staged: str, outputs: bool = True) -> tuple[RecordError, list[str]]:
    """Resumes job 7, which ran on both workers and is still staged on these. That its tree is not
    in the state home stops the rerun after all that is of interest here."""
    names = ("launcher", "worker-1", "worker-2")
    where = cluster(*(node(name, "", root=str(tmp_path / name), slots=1) for name in names))
    for name in staged:
        folder = tmp_path / name / "jobs" / "7"
        (folder / "work").mkdir(parents=True)
        (folder / ".staged").touch()
        if outputs:
            (folder / "work" / "snapshot.pt").write_text("epoch 3")
    store = open_store()
    store.save(where)
    store.save_job(replace(job(where, spec(ranks=2)), state=JobState.FAILED, stage="nowhere"))
    said: list[str] = []
    with pytest.raises(RecordError) as caught:
        rerun(
            store,
            7,
            Variables({}, {}),
            resume=True,
            where=None,
            on_start=lambda job: None,
            on_output=lambda pieces: None,
            tell=said.append,
            detach=True,
        )
    return caught.value, said


def test_all_files_are_there(tmp_path: Path) -> None:
    error, said = resume(tmp_path, "launcher", "worker-1", "worker-2")
    assert "never staged" in error.message
    assert said == []


def test_the_files_of_rank_0_are_gone(tmp_path: Path) -> None:
    error, _ = resume(tmp_path, "launcher", "worker-2")
    assert "cannot be resumed: worker-1" in error.message
    assert "from the beginning" in str(error.hint)


def test_the_files_of_another_rank_are_gone(tmp_path: Path) -> None:
    error, said = resume(tmp_path, "launcher", "worker-1")
    assert "never staged" in error.message
    assert said == ["worker-2: what job 7 wrote there is gone, and not carried over"]


def test_a_job_that_wrote_nothing_starts_from_the_beginning_and_says_so(tmp_path: Path) -> None:
    _, said = resume(tmp_path, "launcher", "worker-1", "worker-2", outputs=False)
    assert said == ["job 7 has left no files on worker-1: the program starts from the beginning"]
