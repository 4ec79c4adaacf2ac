"""`down` and outputs that were never fetched: they go only with consent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions import down, outputs
from clusterctl.actions.common import Unfetched
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster, Phase
from tests.unit.calling import Call, judge
from tests.unit.making import charge
from tests.unit.provided import NothingLeft, provide
from tests.unit.staged import Staged, lab


@pytest.fixture
def here(tmp_path: Path) -> Staged:
    return lab(tmp_path / "nodes")


@pytest.fixture
def unfetched(here: Staged, tmp_path: Path) -> Path:
    """A job's output that is on its node alone."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").touch()
    here.job(tree)
    made = here.work() / "model.pt"
    made.write_text("weights")
    return made


def stays(here: Staged) -> bool:
    """Whether the cluster is still on record."""
    return bool(here.store.list_names())


@pytest.mark.parametrize("option", [(), ("--yes",), ("--json",)], ids=str)
@pytest.mark.parametrize("what", ["job", "folder"])
def test_down_loses_nothing_unasked(
    what: str, option: tuple[str, ...], call: Call, request: pytest.FixtureRequest
) -> None:
    """Without a terminal there is nobody to ask, and --yes speaks of other questions."""
    here: Staged = request.getfixturevalue("here" if what == "job" else "sharing")
    kept: Path = request.getfixturevalue("unfetched" if what == "job" else "shared")
    said = call("down", *option)
    assert said.code == 2
    lost = {
        "job": "job 7 has unfetched outputs: 7 B",
        "folder": f"the shared folder {kept} has 1 file: 7 B; keeping cluster lab",
    }
    assert lost[what] in said.err
    assert "--fetch saves them first, --discard deletes them" in said.err
    assert kept.exists()
    assert stays(here)


def test_down_that_is_refused_names_what_runs(call: Call, here: Staged, unfetched: Path) -> None:
    with here.running(here.store.read_job(7)):
        said = call("down", "--yes")
    assert said.code == 2
    assert "--discard deletes them; both end job 7, which is still running" in said.err
    assert stays(here)


def test_down_brings_outputs_first(call: Call, here: Staged, unfetched: Path) -> None:
    said = call("down", "--fetch")
    assert said.code == 0, said.err
    assert Path("job-7/worker-1/model.pt").read_text() == "weights"
    assert "in job-7" in said.err
    assert "unfetched" not in said.err
    assert not stays(here)
    assert here.store.read_job(7).fetched
    again = call("fetch", "7")
    assert again.code == 7
    assert f"its files were fetched to {Path('job-7').absolute()}" in again.err


@pytest.mark.parametrize("record", ["clusters/lab/cluster.json", "jobs/7/job.json"])
def test_down_removes_nothing_that_a_later_clusterctl_knows_more_of(
    record: str, call: Call, here: Staged, unfetched: Path
) -> None:
    path = here.store.home.path / record
    later = json.dumps({**json.loads(path.read_text()), "record_version": 99})
    path.write_text(later)
    said = call("down", "lab", "--yes", "--discard")
    judge(said, 7, f"the record {path} has version 99", "upgrade clusterctl")
    assert path.read_text() == later
    assert unfetched.exists()
    assert stays(here)


def test_down_stays_where_outputs_cannot_be_brought(
    call: Call, here: Staged, unfetched: Path
) -> None:
    Path("job-7").write_text("a file in the way")
    assert call("down", "--fetch").code == 2
    assert unfetched.exists()
    assert stays(here)
    said = call("down", "--fetch", "--discard")
    assert said.code == 0, said.err
    assert "the outputs of job 7 cannot be fetched: job-7 is a file" in said.err
    assert not stays(here)


def test_down_needs_no_word_when_all_is_fetched(call: Call, here: Staged, unfetched: Path) -> None:
    said = call("fetch", "7")
    assert said.out == "job-7/worker-1/model.pt\n"
    assert call("down").code == 0
    assert not stays(here)


@pytest.mark.parametrize("damage", ["exit 3\n", None])
def test_an_output_that_cannot_be_looked_at_counts(
    damage: str | None, call: Call, here: Staged, unfetched: Path
) -> None:
    script = unfetched.parents[1] / "agent.sh"
    script.unlink()
    if damage is not None:
        script.write_text(damage)
    said = call("down")
    assert said.code == 2
    assert "job 7 may have unfetched outputs: the outputs of job 7" in said.err
    assert "on worker-1 cannot be listed" in said.err
    assert unfetched.exists()
    fetched = call("fetch", "7")
    assert fetched.code == 7
    assert "cannot be listed" in fetched.err
    assert not here.store.read_job(7).fetched
    assert call("down", "--discard").code == 0


def test_down_brings_what_is_not_damaged_before_it_stays(
    call: Call, here: Staged, unfetched: Path
) -> None:
    """From the other nodes, and of the other jobs."""
    here.job(unfetched.parents[1] / "work", 8)
    for number, name in ((7, "worker-2"), (8, "worker-1")):
        (here.work(name, number) / "made").write_text(name)
    (here.work().parent / "agent.sh").unlink()
    fetched = call("fetch", "7", "--to", "by-hand")
    assert fetched.code == 7
    assert fetched.out == "by-hand/worker-2/made\n"
    assert "outputs of job 7 on worker-1 cannot be listed" in fetched.err
    assert len(call("fetch", "7", "--to", "by-hand", "--json").document["failed"]) == 1
    said = call("down", "--fetch")
    assert said.code == 7
    assert "outputs of job 7 on worker-1 cannot be listed" in said.err
    assert stays(here)
    assert Path("job-7/worker-2/made").read_text() == "worker-2"
    assert Path("job-8/worker-1/made").read_text() == "worker-1"
    assert [here.store.read_job(number).fetched for number in (7, 8)] == [False, True]
    said = call("down", "--fetch", "--discard")
    assert said.code == 0, said.err
    assert "the outputs of job 7 cannot be fetched" in said.err
    assert not stays(here)


@pytest.mark.timeout(30)
def test_a_disk_that_hangs_does_not_keep_machines(
    call: Call, here: Staged, unfetched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for outputs has one deadline for all jobs; what was not looked at in it counts."""
    monkeypatch.setattr(outputs, "LOOK_LIMIT", 1.0)
    for number in (8, 9):
        here.job(unfetched.parents[1] / "work", number)
    for number in (7, 8, 9):
        (here.work(number=number).parent / "agent.sh").write_text("exec sleep 600\n")
    said = call("down")
    assert said.code == 2
    assert "job 7 may have unfetched outputs: looking for" in said.err
    assert "job 8, 9 may have unfetched outputs: not checked within 1 s" in said.err
    assert stays(here)
    assert call("down", "--discard").code == 0
    assert not stays(here)


@pytest.fixture
def stuck(here: Staged, tmp_path: Path) -> Iterator[list[Job]]:
    """Running jobs whose supervisors are alive and end nothing."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").touch()
    with ExitStack() as stack:
        yield [stack.enter_context(here.running(here.job(tree, number))) for number in range(7, 12)]


@pytest.mark.timeout(30)
def test_jobs_that_do_not_end_do_not_keep_machines(
    call: Call, here: Staged, stuck: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending jobs has one deadline for all, and each is told to end before the first is awaited."""
    monkeypatch.setattr(outputs, "END_LIMIT", 3.0)
    said = call("down", "--yes")
    assert said.code == 0, said.err
    folders = [here.work("launcher", job.id).parent for job in stuck]
    assert [(folder / "stop").read_text() for folder in folders] == ["cancelled\n"] * len(stuck)
    assert "job 7, 8, 9, 10, 11 did not end within 3 s: removing the machines" in said.err
    assert not stays(here)
    assert all(here.store.read_job(job.id).state is JobState.LOST for job in stuck)


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("what", ["job", "folder"])
def test_a_person_is_asked(what: str, answer: bool, request: pytest.FixtureRequest) -> None:
    here: Staged = request.getfixturevalue("here" if what == "job" else "sharing")
    kept: Path = request.getfixturevalue("unfetched" if what == "job" else "shared")
    asked, told = list[str](), list[str]()

    def ask(question: str) -> bool:
        asked.append(question)
        return answer

    done = down.take_down(here.store, "lab", told.append, ask, Unfetched(ask=ask))
    assert len(asked) == 1
    assert what == "job" or f"the shared folder {kept} has 1 file: 7 B" in told
    assert (done is not None) is answer
    assert stays(here) is not answer


@pytest.fixture
def silent(here: Staged, unfetched: Path) -> Cluster:
    """The cluster with nodes that do not answer any more."""
    nodes = (replace(node, address="127.0.0.1", ssh_port=1) for node in here.where.nodes)
    where = replace(here.where, nodes=tuple(nodes))
    here.store.save(where)
    return where


def test_outputs_on_nodes_that_do_not_answer_count(
    call: Call, here: Staged, silent: Cluster
) -> None:
    """The network between may be what is broken."""
    said = call("down")
    assert said.code == 2
    assert "cannot check the outputs of job 7; keeping cluster lab" in said.err
    assert stays(here)
    assert call("down", "--discard").code == 0


class Gone(NothingLeft):
    """A provider whose machines are gone, and with them what they had."""

    def destroy(self, *what: object) -> None:
        pass


def test_detach_by_force_says_what_stays_on_hosts(call: Call, tmp_path: Path) -> None:
    hosts = lab(tmp_path, provider="hosts", identity="")
    *others, last = hosts.where.nodes
    dead = replace(last, address="127.0.0.1", ssh_port=1)
    hosts.store.save(replace(hosts.where, nodes=(*others, dead)))
    said = call("detach", "--force", "--json")
    assert said.code == 0, said.err
    assert f"worker-2 (127.0.0.1) keeps {dead.root}, and any key of clusterctl" in said.err
    [left] = said.document["left"]
    assert (left["node"], left["folder"]) == ("worker-2", dead.root)
    assert "nothing listens" in left["why"]


def test_what_a_silent_worker_keeps_is_not_lost_unasked(
    call: Call, here: Staged, unfetched: Path
) -> None:
    """The others' outputs are brought; the job does not count as fetched."""
    *others, last = here.where.nodes
    dead = replace(last, address="127.0.0.1", ssh_port=1)
    here.store.save(replace(here.where, nodes=(*others, dead)))
    said = call("down")
    assert said.code == 2
    assert "job 7 may have unfetched outputs: worker-2 did not answer" in said.err
    said = call("down", "--fetch")
    assert said.code == 4
    assert "outputs of job 7 are on worker-2, which did not answer: nothing listens" in said.err
    assert "`clusterctl down --discard` removes the cluster without them" in said.err
    assert Path("job-7/worker-1/model.pt").exists()
    assert not here.store.read_job(7).fetched
    assert stays(here)
    said = call("down", "--fetch", "--discard")
    assert said.code == 0, said.err
    assert "the outputs of job 7 cannot be fetched: outputs of job 7 are on worker-2" in said.err


@pytest.mark.parametrize("is_there", [True, False])
def test_a_job_whose_record_here_was_removed_may_have_outputs(
    is_there: bool, call: Call, here: Staged, unfetched: Path
) -> None:
    here.store.add_event("lab", "job", id=7)
    record = here.store.locate_job_folder(7) / "job.json"
    record.write_text("{") if is_there else shutil.rmtree(record.parent)
    judge(call("down"), 2, "job 7 may have unfetched outputs: it has no record here", "--discard")
    hint = f"clusterctl cp worker-1:{unfetched.parent} FOLDER"
    judge(call("down", "--fetch"), 7, "job 7 has no record here that can be read", hint)
    assert unfetched.exists()
    assert stays(here)
    assert call("down", "--discard").code == 0


def test_a_folder_that_a_node_has_lost_is_named(call: Call, here: Staged, unfetched: Path) -> None:
    shutil.rmtree(unfetched.parents[1])
    said = call("down")
    assert said.code == 0, said.err
    assert "job 7: worker-1 no longer has the job's folder: it was removed, or" in said.err


def test_machines_that_are_gone_have_no_outputs(
    call: Call, here: Staged, silent: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that ended themselves at their deadline, or that AWS has taken back."""
    here.store.save(replace(silent, charges=(charge(),)))
    provide(monkeypatch, "local", Gone())
    assert call("down").code == 0
    assert not stays(here)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The folder that the nodes of `sharing` have in common, with a file in a folder of it."""
    folder = tmp_path / "shared"
    (folder / "run 1").mkdir(parents=True)
    (folder / "run 1" / "model.pt").write_text("weights")
    return folder


@pytest.fixture
def sharing(shared: Path, tmp_path: Path) -> Staged:
    """A cluster with that folder, which has run no job."""
    return lab(tmp_path / "nodes", shared=str(shared))


def test_down_brings_the_shared_folder_first(call: Call, sharing: Staged, shared: Path) -> None:
    """Beside an earlier copy, which is kept."""
    Path("shared-lab").mkdir()
    said = call("down", "--fetch", "--json")
    assert said.code == 0, said.err
    assert Path("shared-lab-2/run 1/model.pt").read_text() == "weights"
    assert list(Path("shared-lab").iterdir()) == []
    brought = json.loads(said.out)["shared"]
    assert (brought["folder"], brought["files"]) == ("shared-lab-2", 1)
    assert not stays(sharing)


def test_down_stays_where_the_shared_folder_cannot_be_brought(
    call: Call, sharing: Staged, shared: Path
) -> None:
    shared.rename(shared.with_name("away"))
    assert f"the shared folder {shared} may have files" in call("down").err
    said = call("down", "--fetch")
    assert said.code == 4
    assert stays(sharing)
    said = call("down", "--fetch", "--discard")
    assert said.code == 0, said.err
    assert not stays(sharing)


def test_an_empty_shared_folder_asks_nothing(call: Call, sharing: Staged, shared: Path) -> None:
    (shared / "run 1" / "model.pt").unlink()
    said = call("down")
    assert said.code == 0, said.err
    assert "shared" not in said.err


def test_a_shared_folder_on_nodes_that_do_not_answer_counts(call: Call, sharing: Staged) -> None:
    nodes = (replace(node, address="127.0.0.1", ssh_port=1) for node in sharing.where.nodes)
    silent = replace(sharing.where, nodes=tuple(nodes))
    sharing.store.save(silent)
    said = call("down")
    assert said.code == 2
    assert "the files in the shared folder" in said.err
    # An `up` that never finished has let nobody write into it.
    sharing.store.save(replace(silent, phase=Phase.CREATING))
    assert call("down").code == 0
    assert not stays(sharing)


@pytest.mark.parametrize("what", ["here", "sharing"])
def test_force_saves_nothing(what: str, call: Call, request: pytest.FixtureRequest) -> None:
    here: Staged = request.getfixturevalue(what)
    request.getfixturevalue("unfetched" if what == "here" else "shared")
    assert call("down", "--force", "--fetch").code == 2
    assert call("down", "--force").code == 0
    assert not stays(here)
