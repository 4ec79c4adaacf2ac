"""A choice of a job's output by line, however the output is cut into pieces."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.actions.run import suggest
from clusterctl.core.job import JobState, RankFailure
from clusterctl.jobs.records import Choice, Piece, choose_lines
from clusterctl.project import program
from clusterctl.project import tree as project_tree
from tests.unit.calling import Call
from tests.unit.making import job

TEXT = {0: b"epoch 1\nloss 3\nepoch 2\nloss 2\nno end", 1: b"loss 9\n\xff\n\nloss 8\n"}


def pieces(size: int) -> Iterator[list[Piece]]:
    for start in range(0, 60, size):
        yield [
            Piece(rank, f"worker-{rank}", "stdout", text[start : start + size])
            for rank, text in TEXT.items()
            if text[start : start + size]
        ]


@pytest.mark.parametrize("size", [1, 7, 60])
@pytest.mark.parametrize(
    ("choice", "first", "second"),
    [
        (Choice(), TEXT[0], TEXT[1]),
        (Choice(tail=2), b"loss 2\nno end", b"\nloss 8\n"),
        (Choice(tail=9), TEXT[0], TEXT[1]),
        (Choice(grep=r"^loss \d"), b"loss 3\nloss 2\n", b"loss 9\nloss 8\n"),
        (Choice(grep="o e"), b"no end", b""),
        (Choice(tail=1, grep="loss"), b"loss 2\n", b"loss 8\n"),
    ],
)
def test_lines_are_chosen(choice: Choice, first: bytes, second: bytes, size: int) -> None:
    found = {0: b"", 1: b""}
    for batch in choose_lines(pieces(size), choice):
        for piece in batch:
            assert piece.rank is not None
            assert piece.node == f"worker-{piece.rank}"
            found[piece.rank] += piece.data
    assert found == {0: first, 1: second}


def test_what_matches_is_shown_as_it_comes() -> None:
    """`logs -f --grep` waits for no end."""

    def endless() -> Iterator[list[Piece]]:
        yield [Piece(0, "worker-1", "stdout", b"epoch 1\nloss 3\n")]
        raise AssertionError("read on before what was there had been shown")

    [shown] = next(choose_lines(endless(), Choice(grep="loss")))
    assert shown.data == b"loss 3\n"


def failed(text: str) -> str:
    """What is said of a job whose rank 1 wrote that to its stderr."""
    failure = RankFailure(rank=1, node="worker-2", exit_code=1)
    made = job(state=JobState.FAILED, program_exit_code=1, failure=failure)
    store = open_store()
    store.save_job(made)
    path = store.locate_job_folder(made.id) / "out" / "worker-2" / "rank-1.err"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return suggest(store, made)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ModuleNotFoundError: No module named 'transformers'", "requirements.txt"),
        ("OSError: [Errno 98] Address already in use", "port"),
        ("x" * 100_000 + "\nRuntimeError: CUDA out of memory", "smaller batch"),
    ],
)
def test_a_failed_run_says_what_to_do(text: str, hint: str) -> None:
    line, advice = failed(f"Traceback (most recent call last):\n{text}\n").split("\n")
    assert line == text.rpartition("\n")[2]
    assert hint in advice


def test_a_file_that_git_ignores_was_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most usual surprise of a project with its data beside the program."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    Path("data").mkdir()
    Path("data", "train set.bin").touch()
    Path("data", "kept.bin").touch()
    Path(".gitignore").write_text("*set.bin\n")
    wanted = "FileNotFoundError: [Errno 2] No such file or directory: "
    what, advice = failed(f"{wanted}'data/train set.bin'\n").split("\n")
    assert what == "data/train set.bin was not copied to the nodes, because git ignores it"
    _, path = shlex.split(advice.partition("`")[2].partition("`")[0])
    tree = project_tree.find_tree(tmp_path)
    assert "data/train set.bin" not in tree.files
    assert "data/train set.bin" in project_tree.include(tree, [Path(path)]).files
    assert program.explain_missing_file(f"{wanted}'data/nowhere.bin'\n") == ""
    copied = program.explain_missing_file(f"{wanted}'data/kept.bin'\n")
    assert copied == "", "the reason is another one"
    assert "data push" in program.explain_missing_file(f"{wanted}'{tmp_path}/data/kept.bin'\n")
    shutil.rmtree(".git")
    assert "`--stage .`" in program.explain_missing_file(f"{wanted}'data/kept.bin'\n")


def test_a_failure_that_is_not_known() -> None:
    assert failed("ValueError: mine\n") == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--grep", "a("), "--grep 'a(' is not a regular expression"),
        (("--tail", "3", "--follow"), "--tail cannot be combined with --follow"),
    ],
)
def test_a_choice_that_cannot_be(words: tuple[str, ...], message: str, call: Call) -> None:
    said = call("logs", "7", *words)
    assert said.code == 2
    assert message in said.err


def test_a_size_that_is_none(call: Call, lab: None) -> None:
    said = call("run", "--max-stage", "much", "train.py")
    assert (said.code, "--max-stage 'much': expected a size" in said.err) == (2, True)
    assert call("run", "--dry-run", "--max-stage", "1.5GB", str(Path("train.py"))).code == 0
