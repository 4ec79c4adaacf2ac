"""`rerun --resume` of a job whose files are not all where they were: nodes are folders here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clusterctl.actions.jobs import Variables, rerun
from clusterctl.errors import RecordError
from tests.unit.staged import lab


def resume(
    tmp_path: Path, *, lost: str = "", wrote: tuple[str, ...] = ("worker-1", "worker-2")
) -> tuple[RecordError, list[str]]:
    """Resumes job 7, which ran on both workers. That its tree is gone from the state home stops the
    rerun after all that is of interest here."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("pass")
    site = lab(tmp_path / "nodes")
    job = site.job(tree)
    for name in wrote:
        (site.work(name) / "snapshot.pt").write_text("epoch 3")
    if lost:
        shutil.rmtree(site.work(lost).parent)
    (site.store.home.stages / job.stage).unlink()
    said: list[str] = []
    with pytest.raises(RecordError) as caught:
        rerun(
            site.store,
            job.id,
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
    error, said = resume(tmp_path)
    assert "never staged" in error.message
    assert said == []


def test_the_files_of_rank_0_are_gone(tmp_path: Path) -> None:
    error, _ = resume(tmp_path, lost="worker-1")
    assert "cannot be resumed: worker-1" in error.message
    assert "from the beginning" in str(error.hint)


def test_the_files_of_another_rank_are_gone(tmp_path: Path) -> None:
    error, said = resume(tmp_path, lost="worker-2")
    assert "never staged" in error.message
    assert said == ["worker-2: the files of job 7 there are lost and will not be carried over"]


def test_a_job_that_wrote_nothing_starts_from_the_beginning_and_says_so(tmp_path: Path) -> None:
    _, said = resume(tmp_path, wrote=())
    assert said == ["job 7 has left no files on worker-1: the program starts from the beginning"]


def test_a_worker_without_files_where_others_have_some_is_named(tmp_path: Path) -> None:
    """Only the program knows whether its ranks there need files of their own."""
    _, said = resume(tmp_path, wrote=("worker-1",))
    assert said == [
        "worker-2: job 7 has left no files there, as it has on worker-1:"
        " ranks there that read files of their own start from the beginning"
    ]
