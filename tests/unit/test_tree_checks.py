"""What is said before the start of files that will not be on the nodes as they are here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clusterctl.core.job import Program, ProgramKind
from clusterctl.errors import LaunchError, UsageError
from clusterctl.project import tree
from clusterctl.project.tree import find_tree
from tests.unit.making import cluster
from tests.unit.tables import rows

MAIN = Program(kind=ProgramKind.PYTHON, target="main.py")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 9\n"


def write(folder: Path, **files: str) -> None:
    for name, text in {"main.py": "x", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def look(folder: Path, *env_files: Path, program: Program = MAIN) -> tree.Findings:
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
    assert look(tmp_path) == tree.Findings()


@pytest.mark.parametrize("target", ["../out", "sub/../../x", ".."])
def test_links_that_lead_out_of_the_tree_are_named(target: str, tmp_path: Path) -> None:
    write(tmp_path, **{"sub/a": "a"})
    (tmp_path / "data").symlink_to(target)
    [note] = look(tmp_path).notes
    assert f"data → {target}" in note


@pytest.mark.parametrize("target", ["/usr/share", "nowhere", "ignored/x", "outside/x"])
def test_of_other_links_the_nodes_say_whether_they_lead_anywhere(
    target: str, tmp_path: Path
) -> None:
    write(tmp_path, **{"ignored/x": "x", ".clusterctlignore": "ignored/\n"})
    (tmp_path / "outside").symlink_to("/usr")
    (tmp_path / "data").symlink_to(target)
    found = look(tmp_path)
    assert found.notes == ()
    assert found.doubtful


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
    assert "third" not in "".join(look(work).notes)
    git(tmp_path, "clone", "-q", str(work), str(tmp_path / "clone"))
    pointers, submodules = look(tmp_path / "clone").notes
    assert "model.pt, sub dir/b.bin;" in pointers
    assert "third/party" in submodules
    write(work, **{"main.py": POINTER})
    with pytest.raises(UsageError, match=r"main\.py is a Git LFS pointer"):
        look(work)


def test_pipes_are_named(tmp_path: Path) -> None:
    """Neither those that are ignored, nor those of what `fetch` has brought."""
    write(tmp_path, **{".clusterctlignore": "*.sock\n", f"job-1/{tree.MARK}": "", "sub/a": "a"})
    for name in ("pipe", "sub/in", "agent.sock", "job-1/pipe"):
        os.mkfifo(tmp_path / name)
    [note] = look(tmp_path).notes
    assert note.startswith("pipes, sockets and devices are not copied: pipe, sub/in; ")


def test_files_of_variables_outside_git_are_named(tmp_path: Path) -> None:
    """Copied or not: programs look for them, and they hold secrets."""
    write(tmp_path, **{".env": "KEY=1", "sub/.env": "KEY=2"})
    [note] = look(tmp_path).notes
    assert note.startswith("copied to the nodes: .env, sub/.env")
    (tmp_path / ".gitignore").write_text("/.env\n")
    git(tmp_path, "init", "-q")
    [untracked] = look(tmp_path).notes
    write(tmp_path, **{"main.py": "load_dotenv()"})
    untracked, ignored = look(tmp_path).notes
    assert untracked.startswith("copied to the nodes: sub/.env")
    assert ignored.startswith("not copied to the nodes: .env")
    git(tmp_path, "add", "-A")
    assert look(tmp_path, tmp_path / ".env").notes == ()


@rows("first, name", "tree_checks.the_interpreter_of_a_script")
def test_the_interpreter_of_a_script(first: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text(f"{first}\nprint()\n")
    assert tree.find_interpreter(tmp_path / "tool") == name


def test_nodes_name_links_that_lead_nowhere(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work)
    targets = {"main": "main.py", "none": "a\nb", "x\ny": "none", "loop": "loop"}
    for name, target in targets.items():
        (work / name).symlink_to(target)
    node = cluster().nodes[0]
    [question] = tree.render_questions(MAIN, str(tmp_path), node, tuple(targets))
    done = subprocess.run(["sh", "-ec", question], cwd=tmp_path, capture_output=True, check=True)
    assert done.stderr == b""
    lacks, _ = tree.read_answers(done.stdout, tuple(targets))
    assert sorted(lacks) == ["link loop", "link none", "link x\ny"]


@pytest.mark.parametrize("there", [[], ["apptainer"], ["singularity"]], ids=str)
def test_a_login_node_without_containers(there: list[str], tmp_path: Path) -> None:
    for name in there:
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    words = ["/bin/sh", "-ec", tree.ASK_FOR_APPTAINER]
    said = subprocess.run(words, env={"PATH": str(tmp_path)}, capture_output=True, check=True)
    lacks, _ = tree.read_answers(said.stdout)
    notes = tree.judge_answers(MAIN, {"login": lacks}, certain=False)
    assert [("no apptainer or singularity on login" in note) for note in notes] == (
        [] if there else [True]
    )


def test_what_nodes_lack() -> None:
    """Ranks that run elsewhere may have what the login node has not."""
    program = Program(kind=ProgramKind.BINARY, target="./tool", interpreter="Rscript")
    said = b"link data\nx\0link named already\0interpreter Rscript\x0029500\n"
    lacks, port = tree.read_answers(said, ["data\nx", "another"])
    assert port == "29500\n"
    answers = {"worker-1": lacks, "worker-2": lacks}
    with pytest.raises(LaunchError, match=r"Rscript, which does not exist on worker-\[1-2\]"):
        tree.judge_answers(program, answers, certain=True)
    missing, links = tree.judge_answers(program, {"login": lacks}, certain=False)
    assert "Rscript" in missing
    assert links == "1 link to files that do not exist on login: data\nx"
