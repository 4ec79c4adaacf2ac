"""Two jobs compared: records, files, and how they ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clusterctl.actions import compare
from clusterctl.actions.common import open_store
from clusterctl.core.job import Job, JobState, RankFailure
from clusterctl.insight import compare as insight_compare
from clusterctl.project import tree
from tests.unit.calling import Call
from tests.unit.making import cluster, job, program, spec


def made(number: int, folder: Path, **files: str | bytes) -> Job:
    """A job on record, with its staged tree."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    names = tuple(sorted(path.name for path in folder.iterdir()))
    store = open_store()
    found = job(
        id=number,
        stage=tree.write_archive(tree.Tree(folder, names, 0, False), store.home),
        state=JobState.SUCCEEDED,
        started=100.0,
        finished=112.0,
        program_exit_code=0,
    )
    store.save_job(found)
    return found


def test_what_changed_between_two_jobs(tmp_path: Path, call: Call) -> None:
    made(7, tmp_path / "a", train__py="lr = 0.1\nstep()\n", old__py="x\n", same__py="y\n")
    second = made(
        9, tmp_path / "b", train__py="lr = 0.5\nstep()\n", new__bin=b"\0\1", same__py="y\n"
    )
    what = spec(program=program("2000"), env={"LR": "0.5"}, secret_names=("API_TOKEN",), ranks=4)
    failure = RankFailure(rank=1, node="worker-2", exit_code=3)
    changed = replace(
        second,
        spec=what,
        state=JobState.FAILED,
        program_exit_code=3,
        failure=failure,
        finished=102.302,
    )
    open_store().save_job(changed)
    found = call("diff", "7", "9", "--json").document
    assert {c["what"]: (c["first"], c["second"]) for c in found["changes"]} == {
        "arguments": ("1000 1000", "2000"),
        "variable LR": ("", "0.5"),
        "variable API_TOKEN": ("", "***"),
        "state": ("succeeded", "failed"),
        "exit code": ("0", "3"),
        "failed first": ("", "rank 1 on worker-2"),
        "took": ("12 s", "2.3 s"),  # as `jobs` says it
    }
    files = {item["path"]: (item["how"], item["lines"]) for item in found["files"]}
    assert files["new.bin"] == ("added", [])
    assert files["old.py"][0] == "removed"
    assert files["train.py"][1][-3:] == ["-lr = 0.1", "+lr = 0.5", " step()"]
    assert "same.py" not in files
    shown = call("diff", "7", "9").out
    assert "changed train.py" in shown
    assert "+lr = 0.5" in shown


def test_equal_jobs(tmp_path: Path, call: Call) -> None:
    made(7, tmp_path / "a", train__py="x\n")
    made(9, tmp_path / "b", train__py="x\n")
    assert call("diff", "7", "9").out == "no difference\n"


def test_a_tree_that_is_no_longer_stored(tmp_path: Path) -> None:
    made(7, tmp_path / "a", train__py="x\n")
    gone = made(9, tmp_path / "b", train__py="y\n")
    store = open_store()
    (store.home.stages / gone.stage).unlink()
    told: list[str] = []
    assert compare.compare_jobs(store, 7, 9, None, told.append).files == ()
    assert told == ["the files of job 9 are not stored: only the records are compared"]


def test_a_long_difference_is_cut() -> None:
    lines = insight_compare.compare_texts("x", b"", b"line\n" * 1000)
    assert len(lines) == insight_compare.MOST + 1
    assert lines[-1].endswith("more lines")


def test_jobs_of_other_clusters_differ_by_that() -> None:
    one = job(cluster())
    other = replace(one, cluster="lab-2", cluster_id="lab-2-1")
    [change] = insight_compare.compare(one, other)
    assert change.what == "cluster"
