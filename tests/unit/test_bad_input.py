"""Every input can be wrong: one clear line, the right exit code, nothing changed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.cli.main import explain_input
from clusterctl.core.model import Phase
from clusterctl.core.text import read_toml
from clusterctl.options.verbs import VERBS
from clusterctl.state.locks import ClusterLock
from clusterctl.transport import copying
from tests.e2e.cli import ROOT
from tests.unit.calling import Call, clusterctl, judge, state
from tests.unit.making import cluster, job, program, spec
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


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("line", ["up other", "down lab"])
def test_a_cluster_that_another_command_changes(line: str, call: Call) -> None:
    with ClusterLock(open_store().home, line.split()[1], "up"):
        said = call(*line.split())
    assert said.code == 7, said
    assert str(os.getpid()) in said.err
    assert open_store().read_cluster("lab") == cluster()


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


@pytest.mark.usefixtures("lab")
def test_a_script_of_the_tree_is_no_line_of_sh(call: Call) -> None:
    Path("prepare.sh").write_text("make\n")
    for name, said in (("prepare.sh", True), ("true", False)):
        done = call("run", "--dry-run", "--setup", name, "train.py")
        assert (done.code, f"--setup 'sh ./{name}'" in done.out) == (0, said), done


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


# ------------------------------------------------------------------------------------------------
# Files of absurd depth, length and content: one line what is wrong, exit code 2, and no bug.


DEEP = b"a = " + b"[" * 5000 + b"]" * 5000 + b"\n"
CONTENTS = {
    "a NUL": b"one\0 slots=2\n",
    "no end of a line": b"h" * 2_000_000 + b"[\n",
    "UTF-16": "one slots=2\n".encode("utf-16"),
    "not UTF-8": b"one slots=2 # \xff\n",
    "many digits": b"one slots=" + b"9" * 5000 + b"\n",
    "a long range": b"[g]\nnode[1:99999999999999999999]\n",
    "noise": bytes(range(256)) * 64,
    "deep": DEEP,
}
LINES = {
    "hosts": ("attach", "lab", "--hosts", "FILE"),
    "environment": ("run", "--dry-run", "--env-file", "FILE", "t.py"),
    "hostfile": ("run", "--dry-run", "--hostfile", "FILE", "t.py"),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("line", LINES)
def test_a_text_file_is_refused_in_a_line(
    line: str, content: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text("print(1)\n")
    Path("FILE").write_bytes(CONTENTS[content])
    said = call(*LINES[line])
    assert said.code in (2, 7), said  # 7: there is no cluster, and nobody has read it
    assert "bug" not in said.err
    assert len(said.err) < 12_000


def test_a_file_without_an_end_is_refused(call: Call) -> None:
    said = call("attach", "lab", "--hosts", "/dev/zero")
    assert (said.code, "larger than 16 MiB" in said.err) == (2, True)


def test_settings_that_are_nested_too_deeply(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "clusterctl").mkdir()
    (tmp_path / "clusterctl" / "clusterctl.toml").write_bytes(DEEP)
    said = call("list")
    assert (said.code, "nested too deeply" in said.err) == (2, True), said


@pytest.mark.parametrize("line", ["init", "launch x.toml", "status", "run t.py", "data list"])
def test_a_current_folder_that_was_removed(line: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "$1" && rmdir "$1" && exec "$2" -m clusterctl {line}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", gone, sys.executable],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLUSTERCTL_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "bug" not in done.stderr
    assert done.returncode in (0, 2, 7)


def pack(*members: tuple[str, bytes | str]) -> tarfile.TarFile:
    """Files with these contents, and hard links to these names."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.LNKTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    data.seek(0)
    return tarfile.open(fileobj=data)


def test_members_that_no_folder_can_hold_are_named_and_left_out(tmp_path: Path) -> None:
    deep, wide, long = "a/" * 1000 + "f", "b" * 300, "/".join(["c" * 250] * 30)
    members: list[tuple[str, bytes | str]] = [(name, b"x") for name in (deep, wide, long, "kept")]
    archive = pack(*members, ("link", deep), ("d/" * 150 + "f", b"y"))
    (tmp_path / "part").mkdir()
    left_out = copying.unpack(archive, tmp_path / "part")
    assert len(left_out) == 4
    assert all(len(line) < 200 for line in left_out)
    (tmp_path / "target").mkdir()
    copying.move_into(tmp_path / "part", tmp_path / "target")
    assert (tmp_path / "target" / "kept").read_bytes() == b"x"
    assert (tmp_path / "target" / ("d/" * 150 + "f")).read_bytes() == b"y"


def fail(action: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- whatever Python raises
        action()
    return caught.value


def test_what_an_input_did_is_no_bug() -> None:
    nested = "[" * 100_000
    for action in (
        lambda: __import__("json").loads(nested),
        lambda: Path("a\0b").read_bytes(),
        lambda: Path("x" * 5000).read_bytes(),
        lambda: b"\xff".decode(),
        lambda: int("9" * 5000),
    ):
        found = explain_input(fail(action), True)
        assert found is not None
        assert found.hint
        assert len(found.message) < 200
    assert explain_input(FileNotFoundError(2, "No such file"), False) is not None
    for error in (FileNotFoundError(2, "No such file"), KeyError("x"), ValueError("x")):
        assert explain_input(error, True) is None


# ------------------------------------------------------------------------------------------------
# Terminals and locales that are not UTF-8.


C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""The C locale as it is: ASCII. Python would choose UTF-8."""
OTHERS = [
    pytest.param({"PYTHONIOENCODING": "latin-1"}, id="latin-1"),
    pytest.param(C, id="C"),
]


@pytest.mark.parametrize("environment", OTHERS)
def test_messages_are_readable(environment: dict[str, str]) -> None:
    """What a terminal cannot show is escaped, on both streams."""
    where = cluster()
    store = open_store()
    store.save(where)
    store.save_job(job(where, spec(program=program("grün", "x" * 100))))
    done = clusterctl("jobs", **environment)
    assert done.returncode == 0, done
    assert "gr\\xfcn" in done.stdout or "gr\xfcn" in done.stdout or "gr\ufffdn" in done.stdout
    wrong = clusterctl("status", "nope", **environment)
    assert wrong.returncode == 7
    assert "bug" not in wrong.stderr


def test_help_is_ascii(call: Call) -> None:
    for words in ([], *(verb.split() for verb in VERBS)):
        assert call(*words, "--help").out.isascii(), words


def test_files_are_utf_8_in_every_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusterctl.toml").write_bytes("# für später\n[run]\nranks = 2\n".encode())
    (tmp_path / "secrets").write_bytes("NAME=grün\n".encode())
    (tmp_path / "train.py").touch()
    open_store().save(cluster())
    done = clusterctl("run", "--dry-run", "--env-file", "secrets", "train.py", **C)
    assert done.returncode == 0, done
    assert "NAME=***" in done.stdout


def test_an_argument_that_the_locale_cannot_pass_on() -> None:
    done = clusterctl("status", "grün", **C)
    assert done.returncode == 2
    assert "is not ASCII, and the locale is not UTF-8 (ascii)" in done.stderr
    assert "LC_ALL=C.UTF-8" in done.stderr
