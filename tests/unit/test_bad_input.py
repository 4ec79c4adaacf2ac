"""Every input can be wrong: one clear line, the right exit code, nothing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.core.model import Phase
from clusterctl.core.text import read_toml
from tests.unit.calling import Call, judge, state
from tests.unit.making import cluster
from tests.unit.tables import rows

Row = tuple[str, int, str, str]
ROWS: dict[str, list[Row]] = read_toml(Path(__file__).with_name("bad_input.toml"))


@pytest.mark.parametrize("row", ROWS["bad"], ids=lambda row: row[0])
def test_bad_input(row: Row, call: Call) -> None:
    judge(call(*row[0].split("|")), *row[1:])
    assert state() == []


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("row", ROWS["with_a_cluster"], ids=lambda row: row[0])
def test_bad_input_with_a_cluster(row: Row, call: Call) -> None:
    before = [name for name in state() if "lock" not in name]
    judge(call(*row[0].split("|")), *row[1:])
    after = [name for name in state() if "lock" not in name and name != "clusterctl.log"]
    assert after == before
    assert open_store().read_cluster("lab") == cluster()


@rows("line, code", "bad_input.errors_are_json_too")
def test_errors_are_json_too(line: str, code: int, call: Call) -> None:
    said = call(*line.split("|"))
    assert said.code == code
    document = said.document
    assert document["schema"] == 1
    assert document["error"]["code"] == code
    assert document["error"]["message"] in said.err
    assert document["error"]["hint"]


def test_several_clusters(call: Call) -> None:
    store = open_store()
    for name in ("one", "two"):
        store.save(cluster(name=name))
    said = call("status")
    judge(said, 2, "one, two", "--cluster")


@pytest.mark.parametrize(
    "line", ["ssh", "ssh|worker-1|--|hostname", "ssh|--json|--|true", "cp|train.py|worker-1:"]
)
def test_a_cluster_whose_keys_are_lost(line: str, call: Call) -> None:
    """As `gc --adopt` finds it: machines by their tags, and nothing else."""
    open_store().save(cluster(phase=Phase.CREATING, mode_reason="us-east-1, adopted"))
    said = call(*line.split("|"))
    assert said.code == 4
    assert "the SSH keys of cluster 'lab' are lost" in said.err
    assert "clusterctl down lab" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_a_cluster_of_which_only_the_tags_are_left(option: str, call: Call) -> None:
    """`up` would record an end that no machine has, before it found that it cannot go on."""
    open_store().save(cluster(phase=Phase.CREATING, mode_reason="us-east-1, adopted"))
    before, there = open_store().read_cluster("lab"), state()
    said = call("up", "lab", option)
    judge(said, 3, "cluster lab was adopted", "clusterctl down lab")
    assert open_store().read_cluster("lab") == before
    assert set(state()) - set(there) <= {"clusterctl.log"}


def test_a_cluster_that_is_not_ready(call: Call) -> None:
    open_store().save(cluster(phase=Phase.CREATING))
    judge(call("run", "train.py"), 7, "creating", "clusterctl up lab")


@pytest.mark.parametrize(
    "line", ["up|lab|--workers|3", "up|lab|--provider|docker", "extend|--ttl|4h"]
)
@pytest.mark.parametrize("provider", ["hosts", "slurm", "sge"])
def test_what_means_nothing_for_an_attached_cluster(provider: str, line: str, call: Call) -> None:
    open_store().save(cluster(provider=provider, identity=""))
    said = call(*line.split("|"))
    judge(said, 2, "'lab' was attached", "clusterctl detach lab")
    assert f"clusterctl attach lab --{provider}" in said.err


def test_an_attached_cluster_that_is_not_ready(call: Call) -> None:
    open_store().save(cluster(provider="hosts", identity="", phase=Phase.DELETING))
    judge(call("run", "train.py"), 7, "deleting", "clusterctl detach lab")


@pytest.mark.usefixtures("lab")
def test_a_damaged_record(call: Call) -> None:
    path = open_store().locate_folder("lab") / "cluster.json"
    path.write_text("{")
    for verb in (["status"], ["run", "train.py"], ["ssh"], ["up", "lab"]):
        judge(call(*verb), 7, str(path), "clusterctl down lab")
        assert path.read_text() == "{"


@pytest.mark.parametrize(
    "line", ["up", "down", "status", "jobs", "list", "run|train.py", "check"], ids=str
)
def test_a_home_that_cannot_be_written(line: str, call: Call, tmp_path: Path) -> None:
    """Verbs that only read find nothing there; the others say one line."""
    (tmp_path / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTERCTL_HOME", str(tmp_path / "file" / "state"))
        said = call(*line.split("|"))
    assert "Traceback" not in said.err
    assert said.code in ({2} if line in ("up", "down") else {0, 2, 3, 7}), said


def test_a_mistake_in_the_settings(call: Call) -> None:
    Path("clusterctl.toml").write_text('[run]\nbakend = "mpi"\n')
    judge(call("status"), 2, "clusterctl.toml", "run.backend")
    assert call("--help").code == call("--version").code == 0


@pytest.mark.parametrize("where", ["file", "variable"])
def test_a_name_on_the_command_line_goes_before_one_in_the_settings(
    where: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        open_store().save(cluster(name=name))
    if where == "file":
        Path("clusterctl.toml").write_text('cluster = "one"\n')
    else:
        monkeypatch.setenv("CLUSTERCTL_CLUSTER", "one")
    assert call("status", "--json").document["cluster"] == "one"
    assert call("status", "two", "--json").document["cluster"] == "two"


@pytest.mark.parametrize("name", ["com,ma", "co:lon", "new\nline", "bell\x07"])
def test_a_state_home_that_nodes_cannot_use_is_refused_before_anything_is_there(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home = tmp_path / name
    monkeypatch.setenv("CLUSTERCTL_HOME", str(home))
    said = call("up")
    assert said.code == 2
    assert "set CLUSTERCTL_HOME to another folder" in said.err
    assert not home.exists()
