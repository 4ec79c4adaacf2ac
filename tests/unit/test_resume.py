"""`rerun --resume` of a job whose files are not all where they were: nodes are folders here."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions import rerun as actions_rerun
from clusterctl.actions.rerun import Changes, rerun
from clusterctl.core.job import JobState, Placement
from clusterctl.errors import RecordError, UsageError
from clusterctl.jobs import fetch
from clusterctl.state.home import FETCHED_MARK
from tests.unit.calling import Call
from tests.unit.making import job
from tests.unit.scripts import until
from tests.unit.staged import Staged, lab, note_copies
from tests.unit.tables import rows


def rerun_in_vain(site: Staged, number: int, *, resume: bool) -> tuple[RecordError, list[str]]:
    """That its tree is gone from the state home stops the rerun after all that is of interest."""
    (site.store.home.stages / site.store.read_job(number).stage).unlink()
    said: list[str] = []
    with pytest.raises(RecordError) as caught:
        rerun(
            site.store,
            number,
            Changes(),
            resume=resume,
            where=None,
            on_start=lambda job: None,
            on_output=lambda pieces: None,
            report=said.append,
            detach=True,
        )
    return caught.value, said


BOTH = ("worker-1", "worker-2")


@pytest.mark.parametrize(
    ("lost", "wrote", "size", "said"),
    [
        ("", BOTH, 7, ()),
        ("worker-2", BOTH, 7, ("worker-2: the files of job 7 there are lost",)),
        ("", (), 7, ("job 7 has left no files on worker-1: the program starts from the",)),
        # Only the program knows whether its ranks there need what would take long to copy.
        (
            *("", ("worker-1",), actions_rerun.SPREAD + 1),
            ("worker-2: job 7 has left no files there, as it has on worker-1:",),
        ),
        ("worker-1", BOTH, 7, None),
    ],
)
def test_what_is_resumed_on_the_same_nodes(
    tmp_path: Path, lost: str, wrote: tuple[str, ...], size: int, said: tuple[str, ...] | None
) -> None:
    """None: what rank 0 wrote is gone."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("pass")
    site = lab(tmp_path / "nodes")
    made = site.job(tree)
    for name in wrote:
        (site.work(name) / "snapshot.pt").write_text("epoch 3")
        os.truncate(site.work(name) / "snapshot.pt", size)
    if lost:
        shutil.rmtree(site.work(lost).parent)
    error, lines = rerun_in_vain(site, made.id, resume=True)
    if said is None:
        assert "cannot be resumed: worker-1" in error.message
        assert "from the beginning" in str(error.hint)
        return
    assert "no longer on this machine" in error.message
    assert len(lines) == len(said)
    assert all(line.startswith(begin) for line, begin in zip(lines, said, strict=True))


# ---------------------------------------------------------------------------- on other machines


def write(site: Staged, name: str, **files: str) -> None:
    for path, text in files.items():
        (site.work(name) / path).write_text(text)


def move(old: Staged, new: Staged, tree: Path, ranks_per_node: int = 1) -> list[str]:
    """Resumes job 7 of one cluster as job 8 of the other, as far as its files; what was said."""
    said: list[str] = []
    where, store = new.where, new.store
    planned = job(where, id=8)
    places = [
        Placement(node=place.node, first=index * ranks_per_node, count=ranks_per_node)
        for index, place in enumerate(planned.placement)
    ]
    planned = replace(planned, placement=tuple(places))
    source = actions_rerun.find_earlier_files(store, store.read_job(7), planned, where, said.append)
    with actions_rerun.carry_over(store, source, planned, where, said.append) as carry:
        new.job(tree, number=8, carry=carry)
    return said


def test_every_rank_finds_the_snapshot_of_rank_0_also_on_the_same_nodes(
    tmp_path: Path, tree: Path
) -> None:
    """An ordinary program opens it on each rank."""
    site = lab(tmp_path / "nodes")
    site.job(tree)
    write(site, "worker-1", snapshot="epoch 3")
    move(site, site, tree)
    assert have(site, "worker-1") == have(site, "worker-2") == {"snapshot": "epoch 3"}


@pytest.mark.parametrize(("ranks", "name"), [(1, "a.pt"), (2, "a.pt"), (2, "rank.log")])
def test_all_nodes_get_the_snapshots_of_ranks_that_run_elsewhere_now(
    tmp_path: Path, tree: Path, ranks: int, name: str
) -> None:
    site = lab(tmp_path / "nodes")
    site.job(tree)
    write(site, "worker-1", **{f"0-{name}": "0"})
    write(site, "worker-2", **{f"1-{name}": "1"})
    move(site, site, tree, ranks)
    both = {f"0-{name}": "0", f"1-{name}": "1"}
    moved = ranks == 2 and name == "a.pt"
    assert have(site, "worker-1") == (both if moved else {f"0-{name}": "0"})
    assert have(site, "worker-2") == (both if moved else {f"1-{name}": "1"})


@pytest.mark.parametrize(("modified", "found"), [(1, "rank 0's"), (50, "its own")])
def test_a_snapshot_that_the_job_began_with_does_not_replace_that_of_rank_0(
    tmp_path: Path, tree: Path, modified: int, found: str
) -> None:
    """Job 7 started at second 2: a file of worker-2 that is older was carried over to it, and only
    rank 0 has saved since. What its ranks save on their own nodes stays theirs."""
    site, elsewhere = lab(tmp_path / "nodes"), lab(tmp_path / "others", name="other")
    site.job(tree)
    write(site, "worker-1", snapshot="rank 0's")
    write(site, "worker-2", snapshot="its own")
    os.utime(site.work("worker-1") / "snapshot", (60, 60))
    os.utime(site.work("worker-2") / "snapshot", (modified, modified))
    for there in (site, elsewhere):
        move(site, there, tree)
        assert have(there, "worker-1") == {"snapshot": "rank 0's"}
        assert have(there, "worker-2") == {"snapshot": found}
        shutil.rmtree(there.work("worker-1", 8).parent)
        shutil.rmtree(there.work("worker-2", 8).parent)


def test_old_files_that_are_too_large_to_replace_are_named(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions_rerun, "SPREAD", 3)
    site = lab(tmp_path / "nodes")
    site.job(tree)
    for name, modified in (("worker-1", 60), ("worker-2", 1)):
        write(site, name, snapshot="epoch")
        os.utime(site.work(name) / "snapshot", (modified, modified))
    [said] = move(site, site, tree)
    assert "older than those on worker-1" in said


def have(site: Staged, name: str) -> dict[str, str]:
    """The files of job 8 there, less what was staged."""
    work = site.work(name, 8)
    return {
        str(path.relative_to(work)): path.read_text()
        for path in work.rglob("*")
        if path.is_file() and path.name != "train.py"
    }


@pytest.fixture
def old(tmp_path: Path, tree: Path) -> Staged:
    """Job 7, whose two ranks have left a file of the same name each, and one of their own. No ssh
    leads from its launcher to its workers, which are none that could be started again."""
    site = lab(tmp_path / "old")
    made = site.job(tree)
    site.store.save_job(replace(made, spec=replace(made.spec, on_node_loss="fail")))
    write(site, "worker-1", snapshot="epoch 3", rank0="a")
    write(site, "worker-2", snapshot="epoch 2", rank1="b")
    return site


@pytest.mark.parametrize("workers", [("node-a",), ("node-a", "node-b"), ("a", "b", "c")], ids=len)
def test_another_cluster_gets_the_files_from_the_nodes(
    workers: tuple[str, ...], old: Staged, tree: Path, tmp_path: Path
) -> None:
    new = lab(tmp_path / "new", name="other", workers=workers)
    said = move(old, new, tree)
    assert said == ["copying the files of job 7 from worker-1, worker-2"]
    own = ["epoch 3", "epoch 2", "epoch 3"]  # of the old node in the same place, else rank 0's
    for name, snapshot in zip(workers, own, strict=False):
        assert have(new, name) == {"snapshot": snapshot, "rank0": "a", "rank1": "b"}
    assert not (new.store.locate_job_folder(8) / "carry").exists()


def test_what_a_killed_clusterctl_has_copied_goes_and_what_a_living_one_copies_stays(
    old: Staged, tree: Path, tmp_path: Path
) -> None:
    abandoned, busy = (old.store.locate_job_folder(number) / "carry" for number in (20, 21))
    for folder in (abandoned, busy):
        folder.mkdir(parents=True)
        (folder / "0.tar").touch()
    lock = os.open(busy, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    move(old, lab(tmp_path / "new", name="other"), tree)
    os.close(lock)
    assert not abandoned.parent.exists()
    assert [path.name for path in busy.iterdir()] == ["0.tar"]


def test_what_was_fetched_outlives_the_cluster(
    old: Staged, tree: Path, tmp_path: Path, call: Call
) -> None:
    assert call("fetch", "7").code == 0
    old.store.retire(old.where)
    shutil.rmtree(old.folder)
    new = lab(tmp_path / "new", name="other", workers=("only",))
    said = move(old, new, tree)
    assert said == ["using the files of job 7 that were fetched from worker-1, worker-2"]
    assert have(new, "only") == {"snapshot": "epoch 3", "rank0": "a", "rank1": "b"}


def test_a_machine_that_was_made_anew_gets_what_was_fetched(
    old: Staged, tree: Path, call: Call
) -> None:
    """On the same cluster, whose other node still has its files."""
    assert call("fetch", "7").code == 0
    shutil.rmtree(old.work("worker-1").parent)
    write(old, "worker-2", later="c")
    said = move(old, old, tree)
    assert "fetched from worker-1" in said[0]
    assert have(old, "worker-1") == {
        "snapshot": "epoch 3",
        "rank0": "a",
        "rank1": "b",
        "later": "c",
    }
    assert have(old, "worker-2")["snapshot"] == "epoch 2"


def copy_to_launcher(site: Staged, *names: str, when: int = 1_800_000_000) -> None:
    """As the supervisor of job 7 does."""
    mirror = site.work("launcher").parent / "mirror"
    for name in names:
        shutil.copytree(site.work(name), mirror / name, ignore=lambda *_: ["train.py"])
        note_copies(mirror, name, when)


SINCE = "using the launcher's copies of the files of worker-1, as of 2027-01-15 "


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_lost_node_is_replaced_by_the_launchers_copies(
    elsewhere: bool, old: Staged, tree: Path, tmp_path: Path
) -> None:
    copy_to_launcher(old, "worker-1", "worker-2")
    write(old, "worker-2", snapshot="epoch 4")
    shutil.rmtree(old.work("worker-1").parent)
    new = lab(tmp_path / "new", name="other") if elsewhere else old
    said = move(old, new, tree)
    assert said[0].startswith(SINCE)
    assert have(new, "worker-1") == {"snapshot": "epoch 3", "rank0": "a", "rank1": "b"}
    assert have(new, "worker-2")["snapshot"] == "epoch 4", "what is there is newer than its copy"


def test_copies_are_used_also_where_the_rest_is_too_large_to_be_copied(
    old: Staged, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions_rerun, "SPREAD", 3)
    copy_to_launcher(old, "worker-2")
    shutil.rmtree(old.work("worker-2").parent)
    move(old, old, tree)
    assert have(old, "worker-2") == {"snapshot": "epoch 2", "rank0": "a", "rank1": "b"}


def test_what_the_launcher_has_no_copies_of_is_said(old: Staged, tree: Path) -> None:
    copy_to_launcher(old, "worker-1", "worker-2")
    mirror = old.work("launcher").parent / "mirror"
    note_copies(mirror, "worker-1", left=(4, 480000000))
    for name in ("worker-1", "worker-2"):
        shutil.rmtree(old.work(name).parent)
    said = move(old, old, tree)
    assert said[0].startswith(SINCE)
    assert said[1].startswith("4 more files of worker-1 (480.0 MB) were not copied to the launcher")
    assert "of worker-2" in said[2]
    assert have(old, "worker-1")["snapshot"] == "epoch 3"


def test_a_job_whose_launcher_was_made_anew_is_lost_and_goes_on(
    old: Staged, tree: Path, call: Call
) -> None:
    with old.running(old.store.read_job(7)) as job:
        folder = old.work("launcher").parent
        shutil.move(folder, folder.with_name("elsewhere"))
        folder.mkdir()
        with subprocess.Popen(["sleep", "60"], cwd=folder) as supervisor:
            folder.rmdir()
            assert call("jobs", "--json").document["jobs"][0]["state"] == "running"
            supervisor.kill()
    [row] = call("jobs", "--json").document["jobs"]
    assert (row["state"], row["survivors"]) == ("lost", dict.fromkeys(row["survivors"], 0))
    assert old.store.read_job(job.id).reason.startswith(
        "the launcher no longer has the job's files"
    )
    move(old, old, tree)
    assert have(old, "worker-1")["snapshot"] == "epoch 3"


def test_a_job_whose_launcher_was_made_anew_can_be_cancelled(old: Staged, call: Call) -> None:
    with old.running(old.store.read_job(7)):
        shutil.rmtree(old.work("launcher").parent)
    said = call("cancel", "7")
    assert (said.code, "did not answer" in said.out) == (0, False), said


def test_copies_are_newer_than_what_was_fetched_while_the_job_ran(
    old: Staged, tree: Path, call: Call
) -> None:
    with old.running(old.store.read_job(7)):
        assert call("fetch", "7").code == 0
    write(old, "worker-1", snapshot="epoch 5")
    copy_to_launcher(old, "worker-1")
    shutil.rmtree(old.work("worker-1").parent)
    (old.work("launcher").parent / "state").write_text("running 2.0 1\nended 3.0\n")
    move(old, old, tree)
    assert have(old, "worker-1")["snapshot"] == "epoch 5"


def test_fetch_takes_the_copies_of_a_lost_node(old: Staged, call: Call) -> None:
    write(old, "worker-1", **{"it's": "odd"})
    copy_to_launcher(old, "worker-1")
    shutil.rmtree(old.work("worker-1").parent)
    said = call("fetch", "7")
    assert said.code == 0, said
    assert SINCE in said.err
    assert Path("job-7/worker-1/snapshot").read_text() == "epoch 3"
    assert Path("job-7/worker-1/it's").read_text() == "odd"
    assert Path("job-7/worker-2/snapshot").read_text() == "epoch 2"


def test_down_does_not_lose_the_copies_of_lost_nodes(old: Staged, call: Call) -> None:
    """They are on the launcher alone."""
    copy_to_launcher(old, "worker-1", "worker-2")
    for name in ("worker-1", "worker-2"):
        shutil.rmtree(old.work(name).parent)
    said = call("down")
    assert said.code == 2
    assert "job 7 has unfetched outputs" in said.err
    said = call("down", "--fetch")
    assert said.code == 0, said.err
    assert Path("job-7/worker-1/snapshot").read_text() == "epoch 3"


def bring(site: Staged) -> Path:
    """What comes to this machine while somebody follows job 7."""
    target = fetch.locate_copies(site.store.locate_job_folder(7))
    with site.pool() as pool:
        fetch.bring(site.store.read_job(7), site.where, pool, target)
    return target


def test_copies_on_this_machine_outlive_the_launcher(
    old: Staged, tree: Path, tmp_path: Path
) -> None:
    copy_to_launcher(old, "worker-1", "worker-2")
    bring(old)
    old.store.retire(old.where)
    shutil.rmtree(old.folder)
    new = lab(tmp_path / "new", name="other", workers=("only",))
    said = move(old, new, tree)
    assert said[0].startswith("using copies of the files of worker-1 on this machine, as of 2027-")
    assert have(new, "only") == {"snapshot": "epoch 3", "rank0": "a", "rank1": "b"}


def test_copies_on_this_machine_follow_those_on_the_launcher(old: Staged) -> None:
    """Changed files alone; what the program has removed goes; what broke off is cleaned up."""
    copy_to_launcher(old, "worker-1")
    target = bring(old)
    (target / ".part-killed").mkdir()
    there = old.work("launcher").parent / "mirror" / "worker-1"
    (there / "rank0").rename(there / "renamed")
    (there / "new").write_text("epoch 4")
    (there / "new").rename(there / "snapshot")
    (there / "large").write_bytes(b"")
    os.truncate(there / "large", fetch.LARGEST + 1)
    assert bring(old) == target
    kept = {path.name: path.read_text() for path in (target / "worker-1").iterdir()}
    assert kept == {"snapshot": "epoch 4", "renamed": "a"}
    assert not list(target.glob(".part-*"))
    assert sorted(path.name for path in there.parent.iterdir()) == [".worker-1.json", "worker-1"]
    before = (target / "worker-1" / "snapshot").stat().st_ino
    bring(old)
    assert (target / "worker-1" / "snapshot").stat().st_ino == before


def test_copies_come_while_somebody_follows(old: Staged) -> None:
    copy_to_launcher(old, "worker-1")
    folder, made = old.store.locate_job_folder(7), old.store.read_job(7)
    where = replace(old.where, shares_machine=False)
    with old.pool() as pool, fetch.Keeper(made, where, pool, folder, interval=0.05):
        until(lambda: (fetch.locate_copies(folder) / "worker-1" / "snapshot").exists())


def test_outputs_come_to_the_folder_that_sync_names(old: Staged, tmp_path: Path) -> None:
    """From this machine's nodes, too; at the end all that there are, whatever their size."""
    made = old.store.read_job(7)
    made = replace(made, spec=replace(made.spec, sync=str(tmp_path / "there")))
    folder = old.store.locate_job_folder(7)
    fetch.claim(made, folder)
    target = fetch.locate_copies(folder).resolve()
    assert target == tmp_path / "there" / "job-7"
    assert (target / FETCHED_MARK).exists(), "the next job's program would have it"
    copy_to_launcher(old, "worker-1")
    copy_to_launcher(old, "worker-2")
    large = old.work("launcher").parent / "mirror" / "worker-1" / "large"
    large.touch()
    os.truncate(large, fetch.LARGEST + 1)
    with old.pool() as pool, fetch.Keeper(made, old.where, pool, folder) as keeper:
        said = keeper.finish(replace(made, state=JobState.SUCCEEDED))
    assert said == f"the outputs of job 7 are in {target}"
    assert (target / "worker-1" / "snapshot").read_text() == "epoch 3"
    assert (target / "worker-1" / "large").stat().st_size == fetch.LARGEST + 1
    with pytest.raises(UsageError, match="job-7 is not empty"):
        fetch.claim(made, old.store.locate_job_folder(7))


def test_who_follows_a_job_later_gets_its_outputs_too(
    old: Staged, tmp_path: Path, call: Call
) -> None:
    """The `run` that was given --sync was killed; another clusterctl is copying just now."""
    made = old.store.read_job(7)
    made = replace(made, spec=replace(made.spec, sync=str(tmp_path / "there")))
    fetch.claim(made, old.store.locate_job_folder(7))
    for name in ("worker-1", "worker-2"):
        copy_to_launcher(old, name)
    with old.running(made):
        (old.work("launcher").parent / "state").write_text("running 2.0 1\nended 3.0\n")
    target = tmp_path / "there" / "job-7"
    with (target / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(1, fcntl.flock, (lock.fileno(), fcntl.LOCK_UN)).start()
        said = call("logs", "7", "-f")
    assert f"the outputs of job 7 are in {target}" in said.err, said
    assert (target / "worker-1" / "snapshot").read_text() == "epoch 3"


def test_what_sync_has_not_brought_is_said(old: Staged, tmp_path: Path) -> None:
    made = old.store.read_job(7)
    made = replace(made, spec=replace(made.spec, sync=str(tmp_path / "there")))
    folder = old.store.locate_job_folder(7)
    fetch.claim(made, folder)
    target = tmp_path / "there" / "job-7"
    nothing = f"job 7 has no outputs that --sync copies to {target}"
    assert fetch.describe_synced(made, folder) == nothing
    copy_to_launcher(old, "worker-1")
    (target / "worker-1").touch()  # where a folder has to be
    with old.pool() as pool, fetch.Keeper(made, old.where, pool, folder) as keeper:
        said = keeper.finish(replace(made, state=JobState.SUCCEEDED))
    assert said.startswith(f"{target} lacks the last outputs of job 7: ")
    assert said.endswith("; `clusterctl fetch 7` copies everything that the nodes still have")
    (target / "worker-1").unlink()
    with old.pool() as pool, fetch.Keeper(made, old.where, pool, folder) as keeper:
        said = keeper.finish(replace(made, state=JobState.SUCCEEDED))
    assert "lacks the last outputs of job 7: worker-2 did not answer when it had ended;" in said
    assert (target / "worker-1" / "snapshot").read_text() == "epoch 3"


def test_a_rerun_that_nobody_follows_says_that_sync_is_left_out(
    old: Staged, tmp_path: Path
) -> None:
    made = old.store.read_job(7)
    old.store.save_job(replace(made, spec=replace(made.spec, sync=str(tmp_path / "there"))))
    _, said = rerun_in_vain(old, 7, resume=False)
    assert said == [f"--sync {tmp_path / 'there'} is left out: clusterctl does not follow the job"]


def test_carried_files_are_outputs_of_the_new_job(
    old: Staged, tree: Path, tmp_path: Path, call: Call
) -> None:
    new = lab(tmp_path / "new", name="other", workers=("only",))
    move(old, new, tree)
    assert call("fetch", "8").code == 0
    assert Path("job-8/only/snapshot").read_text() == "epoch 3"


@pytest.mark.parametrize(
    "change", [Path.unlink, lambda path: path.write_text("mine")], ids=["gone", "edited"]
)
def test_what_was_changed_since_it_was_fetched_is_not_taken_for_the_jobs(
    change: Callable[[Path], object], old: Staged, tree: Path, tmp_path: Path, call: Call
) -> None:
    assert call("fetch", "7", "--to", "got").code == 0
    old.store.retire(old.where)
    change(Path("got/worker-1/snapshot"))
    with pytest.raises(RecordError, match="snapshot is not as it was fetched from job 7"):
        move(old, lab(tmp_path / "new", name="other"), tree)


def test_what_was_changed_since_it_was_fetched_does_not_matter_while_the_nodes_have_it(
    old: Staged, tree: Path, tmp_path: Path, call: Call
) -> None:
    assert call("fetch", "7", "--to", "got").code == 0
    shutil.rmtree("got")
    new = lab(tmp_path / "new", name="other", workers=("only",))
    assert move(old, new, tree) == ["copying the files of job 7 from worker-1, worker-2"]
    assert have(new, "only")["snapshot"] == "epoch 3"


def test_a_cluster_that_is_gone_with_its_files_is_said(
    old: Staged, tree: Path, tmp_path: Path
) -> None:
    old.store.retire(old.where)
    with pytest.raises(RecordError, match="gone, and none of its files were fetched") as caught:
        move(old, lab(tmp_path / "new", name="other"), tree)
    assert "from the beginning" in caught.value.hint


def test_a_job_that_runs_is_not_resumed_elsewhere(old: Staged, tree: Path, tmp_path: Path) -> None:
    running = replace(old.store.read_job(7), state=JobState.RUNNING, finished=None)
    old.store.save_job(running)
    (old.folder / "launcher" / "jobs" / "7" / "state").write_text("running 2.0 1\n")
    new = lab(tmp_path / "new", name="other")
    alive = old.folder / "launcher" / "jobs" / "7" / "alive"
    with alive.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RecordError, match="job 7 is running"):
            move(old, new, tree)


def test_a_rerun_has_further_arguments_and_another_number_of_ranks(old: Staged, call: Call) -> None:
    """An ordinary script has a --resume of its own."""
    said = call("rerun", "7", "--resume", "-n", "1", "--", "--resume", "a b.pt", "-q")
    assert "job 8 could not be started" in said.err
    again = old.store.read_job(8)
    assert again.spec.program.args == ("1000", "1000", "--resume", "a b.pt", "-q")
    assert again.ranks == 1
    assert "a b.pt" in (old.work(number=8).parent / "rank.sh").read_text()


def test_a_node_without_files_that_runs_no_rank_is_not_named(old: Staged, call: Call) -> None:
    shutil.rmtree(old.work("worker-2"))
    old.work("worker-2").mkdir()
    assert "worker-2" not in call("rerun", "7", "--resume", "-n", "1").err


@rows(
    "words, resumes",
    "resume.a_rerun_has_the_option_that_was_given_once_unless_it_names_another_snapshot",
)
def test_a_rerun_has_the_option_that_was_given_once_unless_it_names_another_snapshot(
    old: Staged, call: Call, words: tuple[str, ...], resumes: bool
) -> None:
    job = old.store.read_job(7)
    asked = replace(job.spec, resume_args="--resume {snapshot}")
    old.store.save_job(replace(job, spec=asked))
    call("rerun", "7", "--resume", *words)
    assert old.store.read_job(8).resumes is resumes
    assert old.store.read_job(8).spec.resume_args == asked.resume_args, "for the next attempt"
