"""The Python API without a network: what is sent, what a rank makes of it, and what comes back."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import clusterctl
from clusterctl.actions import call
from clusterctl.actions.common import open_store
from clusterctl.api import Cluster
from clusterctl.core.job import Job, JobState, Program, ProgramKind, RankFailure
from clusterctl.core.model import Python
from clusterctl.errors import JobError, RecordError, UsageError
from clusterctl.jobs import submit
from clusterctl.project import tree as project_tree
from tests.unit import making
from tests.unit.provided import provide
from tests.unit.staged import Staged, lab
from tests.unit.tables import rows
from tests.unit.test_up import Regions


def local(code: str) -> Any:
    """A function of a notebook: its module has no file."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(code, names)
    return names["f"]


@pytest.fixture
def here(tmp_path: Path) -> Staged:
    return lab(tmp_path / "nodes")


Answer = Callable[..., dict[str, Any]]


@pytest.fixture
def answer(tmp_path: Path) -> Answer:
    """What a rank writes down of a call, in a working tree that has been staged."""

    def one(function: Any, *args: Any, python: str = "", most: int = 0) -> dict[str, Any]:
        program, tree = submit.resolve_call(function, args)
        for name, data in tree.written:
            path = tmp_path / "work" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        limits = tmp_path / "work/.clusterctl-call/limits.json"
        usual = json.loads(limits.read_text())
        limits.write_text(json.dumps([python or usual[0], most or usual[1]]))
        done = subprocess.run(
            [sys.executable, "-I", ".clusterctl-call/call.py", *program.args],
            cwd=tmp_path / "work",
            env={**os.environ, "RANK": "3"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        written = (tmp_path / "work/.clusterctl-call/results/3").read_bytes()
        outcome: dict[str, Any] = pickle.loads(written)
        return {**outcome, "code": done.returncode, "err": done.stderr}

    return one


# ----------------------------------------------------------------------------------- what is sent


def test_a_function_of_a_notebook_travels_alone() -> None:
    program, tree = submit.resolve_call(local("def f(): return 1"), ())
    assert tree.files == ()
    assert program.args == ("f",), "what `jobs` shows of it"
    assert program.target == ".clusterctl-call/call.py"


def test_a_function_of_a_module_brings_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs where its package can be imported."""
    source = tmp_path / "tree" / "source"
    (source / "api_of_a_test").mkdir(parents=True)
    (source / "api_of_a_test" / "__init__.py").touch()
    (source / "api_of_a_test" / "inner.py").write_text("def f(): return 1\n")
    monkeypatch.syspath_prepend(source)
    from api_of_a_test.inner import f  # type: ignore[import-not-found]

    for function in (f, functools.partial(f)):
        program, tree = submit.resolve_call(function, (), chosen=tmp_path / "tree")
        assert "source/api_of_a_test/inner.py" in tree.files
        assert program.folder == "source"
        assert program.target == "../.clusterctl-call/call.py"


def test_a_function_of_a_library_brings_no_library() -> None:
    assert submit.resolve_call(os.path.join, ("a", "b"))[1].files == ()


def test_equal_calls_have_one_archive() -> None:
    _, tree = submit.resolve_call(local("def f(): return 1"), ())
    name = project_tree.write_archive(tree, open_store().home)
    assert project_tree.write_archive(tree, open_store().home) == name
    assert (open_store().home.stages / name).stat().st_size > 1000


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(UsageError, match="f cannot be sent to the nodes: cannot pickle"):
        submit.resolve_call(local("def f(lock): pass"), (threading.Lock(),))
    with pytest.raises(UsageError, match=r"f and its arguments are too large: 1\.0 MB"):
        submit.resolve_call(local("def f(data): pass"), (bytes(1_000_000),), limit=500_000)


def test_a_node_with_another_python_is_refused() -> None:
    node = making.node(python=Python(executable="/usr/bin/python3", version="3.4.1", packages={}))
    with pytest.raises(UsageError, match=r"worker-1 has Python 3\.4\.1, and this process runs"):
        call.resolve(making.cluster(node), os.path.join, ())


# -------------------------------------------------------------------------------------- on a rank


def test_a_rank_returns_what_the_function_does(answer: Answer) -> None:
    found = answer(local("import os\ndef f(x): return x, os.environ['RANK']"), 7)
    assert (found["ok"], found["code"]) == (True, 0)
    assert pickle.loads(found["data"]) == (7, "3")


def test_a_rank_that_exits_with_code_0_returns_nothing(answer: Answer) -> None:
    found = answer(local("import sys\ndef f(): sys.exit()"))
    assert found["ok"]
    assert pickle.loads(found["data"]) is None


@rows("code, said", "api.what_a_rank_raises_comes_back")
def test_what_a_rank_raises_comes_back(code: str, said: str, answer: Answer) -> None:
    found = answer(local(code), most=1000)
    assert (found["ok"], found["code"]) == (False, 1)
    assert said in found["said"]
    assert found["traceback"] in found["err"], "it is in the job's output, too"
    assert said in found["traceback"]


def test_an_exception_that_cannot_be_pickled_comes_back_as_text(answer: Answer) -> None:
    code = "class Odd(Exception):\n    def __init__(self, a, b): super().__init__(a)\n"
    found = answer(local(code + "def f(): raise Odd(1, 2)"))
    assert (found["data"], found["said"]) == (b"", "Odd: 1")


def test_another_python_is_refused_on_a_rank_too(answer: Answer) -> None:
    """A batch system starts ranks on nodes that nobody has asked."""
    found = answer(local("def f(): return 1"), python="2.7")
    assert "a function of Python 2.7 cannot run in Python 3." in found["said"]


# ------------------------------------------------------------------------------- what comes back


def ended(here: Staged, tmp_path: Path, *outcomes: dict[str, Any], **changes: Any) -> Job:
    """A job of two ranks that has ended, with what its ranks have written down."""
    (tmp_path / "tree").mkdir()
    program = Program(kind=ProgramKind.PYTHON, target="call.py")
    job = here.job(tmp_path / "tree", what=making.spec(program=program, ranks=2))
    for rank, outcome in enumerate(outcomes):
        folder = here.work(f"worker-{rank + 1}") / ".clusterctl-call" / "results"
        folder.mkdir(parents=True)
        (folder / str(rank)).write_bytes(pickle.dumps(outcome))
    return replace(job, **changes)


def outcome(value: Any, said: str = "") -> dict[str, Any]:
    data = pickle.dumps(value)
    return {"ok": not said, "data": data, "said": said, "traceback": said and f"File x\n{said}"}


def test_results_come_by_rank(here: Staged, tmp_path: Path) -> None:
    job = ended(here, tmp_path, outcome("a"), outcome("b"))
    assert call.read_results(here.store, job) == ["a", "b"]


def test_a_result_that_is_missing_is_an_error(here: Staged, tmp_path: Path) -> None:
    job = ended(here, tmp_path, outcome("a"))
    with pytest.raises(JobError, match="the result of rank 1 of job 7 could not be read"):
        call.read_results(here.store, job)


def test_the_exception_of_the_first_rank_that_failed_is_raised(
    here: Staged, tmp_path: Path
) -> None:
    failure = RankFailure(rank=1, node="worker-2", exit_code=1)
    raised = outcome(ValueError("boom"), "ValueError: boom")
    failed: Any = {"state": JobState.FAILED, "failure": failure}
    job = ended(here, tmp_path, outcome("a"), raised, **failed)
    with pytest.raises(JobError) as caught:
        call.read_results(here.store, job)
    error = caught.value
    assert error.message == "rank 1 on worker-2: ValueError: boom"
    assert (error.job, error.rank, error.node) == (7, 1, "worker-2")
    assert "File x" in str(error), "an uncaught one shows where"
    assert isinstance(error.__cause__, ValueError)
    again = pickle.loads(pickle.dumps(error))  # as a pool of processes passes it on
    assert (str(again), again.rank, again.hint) == (str(error), 1, error.hint)


def test_a_rank_that_was_killed_has_no_result(here: Staged, tmp_path: Path) -> None:
    failure = RankFailure(rank=0, node="worker-1", exit_code=137)
    job = ended(here, tmp_path, state=JobState.FAILED, failure=failure)
    with pytest.raises(JobError, match="job 7 failed: rank 0 on worker-1 was killed by SIGKILL"):
        call.read_results(here.store, job)


# --------------------------------------------------------------------------------------- clusters


def test_the_package_has_one_name() -> None:
    assert clusterctl.Cluster is Cluster
    with pytest.raises(AttributeError, match="no attribute 'Clusters'"):
        clusterctl.Clusters  # noqa: B018


def test_a_cluster_that_is_not_there() -> None:
    with pytest.raises(RecordError, match="no cluster exists"):
        Cluster.attach()


@rows("options, said", "api.options_are_checked_as_on_the_command_line")
def test_options_are_checked_as_on_the_command_line(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Cluster.up(**options)
    assert open_store().list_names() == ()


@pytest.mark.parametrize("program", [[], None, 3, b"train.py"])
def test_only_a_path_or_a_function_runs(program: Any) -> None:
    open_store().save(making.cluster())
    with pytest.raises(UsageError, match=r"not a script or a function: ") as caught:
        Cluster.attach().run(program)
    assert "give a path" in caught.value.hint


def test_money_is_not_spent_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Regions("us-east-1")
    provide(monkeypatch, "ec2", there)
    options = {"cpu": "c7i.large:1", "regions": ["us-east-1"]}
    with pytest.raises(UsageError, match=r"consent is required: start 1 machine for up to \$9"):
        Cluster.up("paid", **options)
    assert there.done == []


def test_only_a_cluster_that_up_has_made_goes_with_its_block(
    here: Staged, capfd: pytest.CaptureFixture[str]
) -> None:
    store = here.store
    with Cluster.attach("lab") as cluster:
        assert [node.name for node in cluster.nodes] == ["launcher", "worker-1", "worker-2"]
    assert store.list_names() == ("lab",)
    told: list[str] = []
    with (
        pytest.raises(KeyboardInterrupt),
        Cluster(store, "lab", created=True, report=told.append),
    ):
        raise KeyboardInterrupt
    assert store.list_names() == ()
    assert told, "progress is for whoever asks for it"
    assert capfd.readouterr().out == ""
