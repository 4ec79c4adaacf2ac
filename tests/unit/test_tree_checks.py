"""What is said before the start of files that will not be on the nodes as they are here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.core.job import Program, ProgramKind
from clusterctl.errors import LaunchError, UsageError
from clusterctl.project import tree
from clusterctl.project.tree import find_tree
from tests.unit.tables import rows

MAIN = Program(kind=ProgramKind.PYTHON, target="main.py")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 9\n"


def write(folder: Path, **files: str) -> None:
    for name, text in {"main.py": "x", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def look(folder: Path, *env_files: Path, program: Program = MAIN) -> tuple[str, ...]:
    return tree.check_tree(program, find_tree(folder), env_files)


def git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", folder, *own, *words], check=True, capture_output=True)


def test_nothing_is_said_of_a_healthy_tree(tmp_path: Path) -> None:
    write(tmp_path, **{"sub/a": "a", "attributes": POINTER.replace("version", "about")})
    (tmp_path / "folder").symlink_to("sub")
    (tmp_path / "sub" / "b").symlink_to("../main.py")
    (tmp_path / "chain").symlink_to("sub/b")
    (tmp_path / ".#main.py").symlink_to("me@host.123:1")
    assert look(tmp_path) == ()


@pytest.mark.parametrize("target", ["../out", "sub/../../x", ".."])
def test_links_that_lead_out_of_the_tree_are_named(target: str, tmp_path: Path) -> None:
    write(tmp_path, **{"sub/a": "a"})
    (tmp_path / "data").symlink_to(target)
    [note] = look(tmp_path)
    assert f"data → {target}" in note


def test_files_that_git_has_not_fetched_are_named(tmp_path: Path) -> None:
    library, work = tmp_path / "library", tmp_path / "work"
    write(library)
    write(work, **{"model.pt": POINTER, "sub dir/b.bin": POINTER, "large.txt": POINTER * 20})
    for folder in (library, work):
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "x")
    git(work, "submodule", "add", "-q", str(library), "third/party")
    git(work, "commit", "-qm", "x")
    assert "third" not in "".join(look(work))
    git(tmp_path, "clone", "-q", str(work), str(tmp_path / "clone"))
    pointers, submodules = look(tmp_path / "clone")
    assert "model.pt, sub dir/b.bin;" in pointers
    assert "third/party" in submodules
    write(work, **{"main.py": POINTER})
    with pytest.raises(UsageError, match=r"main\.py is a Git LFS pointer"):
        look(work)


def test_files_of_variables_outside_git_are_named(tmp_path: Path) -> None:
    """Copied or not: programs look for them, and they hold secrets."""
    write(tmp_path, **{".env": "KEY=1", "sub/.env": "KEY=2"})
    [note] = look(tmp_path)
    assert note.startswith("copied to the nodes: .env, sub/.env")
    (tmp_path / ".gitignore").write_text("/.env\n")
    git(tmp_path, "init", "-q")
    untracked, ignored = look(tmp_path)
    assert untracked.startswith("copied to the nodes: sub/.env")
    assert ignored.startswith("not copied to the nodes: .env")
    git(tmp_path, "add", "-A")
    assert look(tmp_path, tmp_path / ".env") == ()


@rows("first, name", "tree_checks.the_interpreter_of_a_script")
def test_the_interpreter_of_a_script(first: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text(f"{first}\nprint()\n")
    assert tree.find_interpreter(tmp_path / "tool") == name


def test_a_node_without_the_interpreter_of_a_script() -> None:
    """Ranks that run elsewhere may have what the login node has not."""
    program = Program(kind=ProgramKind.BINARY, target="./tool", interpreter="Rscript")
    assert tree.read_answer(b"29500\n") == (False, "29500\n")
    assert tree.read_answer(b"interpreter\x0029500\n") == (True, "29500\n")
    assert tree.judge_answers(program, [], certain=True) == ""
    with pytest.raises(LaunchError, match=r"Rscript, which does not exist on worker-\[1-2\]"):
        tree.judge_answers(program, ["worker-1", "worker-2"], certain=True)
    assert "Rscript" in tree.judge_answers(program, ["login"], certain=False)
