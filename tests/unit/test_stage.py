"""Which files travel, and the archive that they travel in."""

from __future__ import annotations

import os
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.core.job import JobState
from clusterctl.errors import UsageError
from clusterctl.project import tree as project_tree
from clusterctl.project.program import resolve_program
from clusterctl.project.tree import END_OF_ARCHIVE, find_tree, write_archive
from clusterctl.state.home import KEPT_JOBS, Home
from tests.unit.making import job
from tests.unit.tables import read_rows

WEIRD = [
    b"two words",
    b"-dash",
    b"line\nbreak",
    b"\xff\xfe",
    "ü".encode(),
    b'it\'s "$HOME" `id`',
    b"*",
]


@pytest.fixture
def git(need: Callable[[str], str], tmp_path: Path) -> Callable[..., str]:
    program = need("git")

    def run(folder: Path, *words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
        return subprocess.run(
            [program, "-C", folder, *identity, *words], check=True, capture_output=True, text=True
        ).stdout

    return run


@pytest.fixture
def work(git: Callable[..., str], tmp_path: Path) -> Path:
    """A git work tree with a tracked, an untracked and an ignored file."""
    folder = tmp_path / "work"
    (folder / "pkg").mkdir(parents=True)
    git(folder, "init", "-q")
    write(folder, {".gitignore": "*.log\ndata/\n", "train.py": "x", "pkg/a.py": "a"})
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")
    write(folder, {"new.py": "n", "big.log": "l", "data/d": "d"})
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def unpack(home: Home, *names: str, into: Path) -> Path:
    """What tar makes of the archives, one after the other."""
    data = b"".join((home.stages / name).read_bytes() for name in names)
    into.mkdir()
    done = subprocess.run(
        ["tar", "-xpof", "-", "-C", into], input=data + END_OF_ARCHIVE, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return into


# --------------------------------------------------------------------------------- what travels


def test_git_decides(work: Path) -> None:
    for start in (work, work / "pkg"):
        tree = find_tree(start)
        assert (tree.root, tree.by_git) == (work.resolve(), True)
        assert tree.files == (".gitignore", "new.py", "pkg/a.py", "train.py")
    assert "4 files" in find_tree(work).describe()
    assert "git" in find_tree(work).describe()


def test_an_ignored_script_travels(work: Path) -> None:
    tree = find_tree(work, script=work / "data" / "d")
    assert "data/d" in tree.files
    assert "big.log" not in tree.files
    assert find_tree(work, script=work / "train.py").files.count("train.py") == 1


def test_a_chosen_folder_keeps_gits_rules(work: Path) -> None:
    write(work, {"pkg/b.log": "", "pkg/c.py": ""})
    tree = find_tree(work, chosen=work / "pkg")
    assert (tree.root, tree.files, tree.by_git) == (work.resolve() / "pkg", ("a.py", "c.py"), True)


def test_tracked_files_and_folders_that_became_the_other(work: Path) -> None:
    for name in ("train.py", "pkg/a.py"):
        (work / name).unlink()
    (work / "pkg").rmdir()
    write(work, {"pkg": "a file now", "train.py/inner.py": "x"})
    assert find_tree(work).files == (".gitignore", "new.py", "pkg", "train.py/inner.py")


def test_submodule(work: Path, git: Callable[..., str], tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    write(library, {"lib.py": "l", ".gitignore": "*.o"})
    git(library, "add", "-A")
    git(library, "commit", "-qm", "x")
    git(work, "submodule", "add", "-q", str(library), "sub")
    git(work, "commit", "-qm", "sub")
    write(work, {"sub/x.o": "o", "sub/own.py": "p"})
    files = find_tree(work).files
    assert {"sub/lib.py", "sub/own.py"} <= set(files)
    assert "sub/x.o" not in files
    # As a clone has it before `git submodule update`: an empty folder.
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(work), str(clone))
    assert "train.py" in find_tree(clone).files


def test_a_repository_inside(work: Path, git: Callable[..., str]) -> None:
    write(work, {"inner/x.py": "x"})
    git(work / "inner", "init", "-q")
    assert "inner/x.py" in find_tree(work).files
    assert not any(".git/" in name for name in find_tree(work).files)


def test_without_git(tmp_path: Path) -> None:
    files = ["a.py", "sub/b.py", "__pycache__/a.pyc", ".venv/bin/python", "sub/node_modules/x"]
    write(tmp_path, dict.fromkeys(files, "x"))
    os.mkfifo(tmp_path / "pipe")
    tree = find_tree(tmp_path)
    assert (tree.files, tree.by_git, tree.size) == (("a.py", "sub/b.py"), False, 2)


@pytest.fixture
def refusing_git(
    need: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its eyes, every repository is somebody else's."""
    write(
        tmp_path, {"bin/git": f'#!/bin/sh\nGIT_TEST_ASSUME_DIFFERENT_OWNER=1 {need("git")} "$@"\n'}
    )
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


@pytest.mark.parametrize("chosen", [False, True], ids=["found", "--stage"])
def test_a_repository_that_git_refuses_is_not_staged_whole(
    work: Path, chosen: bool, refusing_git: None
) -> None:
    """Without its ignore rules data and secrets would travel."""
    with pytest.raises(
        UsageError, match=r"could not tell which files it ignores: .*dubious"
    ) as error:
        find_tree(work / "pkg", chosen=work / "pkg" if chosen else None)
    assert f"git -C {work} status" in error.value.hint


def test_bundled_programs_run_from_somebody_elses_clone(refusing_git: None) -> None:
    found = resolve_program("reduce_all.py", ())
    assert found.program.bundled
    assert "reduce_all.py" in found.tree.files


def test_a_tree_whose_repository_lies_elsewhere_is_not_staged_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "dot", {"train.py": "x", "secret": "x"})
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "dot"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "dot.git"))
    with pytest.raises(UsageError, match="GIT_WORK_TREE"):
        find_tree(tmp_path / "dot")
    monkeypatch.delenv("GIT_WORK_TREE")
    assert find_tree(tmp_path / "dot").files == ("secret", "train.py")


def test_a_repository_is_not_staged_whole_where_there_is_no_git(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UsageError, match="could not tell which files it ignores: git: No such file"
    ):
        find_tree(work / "pkg")
    worktree = tmp_path / "worktree"
    write(worktree, {".git": "gitdir: elsewhere", "train.py": "x"})
    with pytest.raises(UsageError, match="could not tell which files it ignores"):
        find_tree(worktree)
    plain = tmp_path / "plain"
    write(plain, {"train.py": "x"})
    (plain / ".git").mkdir()  # what a container's mount leaves behind
    assert find_tree(plain).files == ("train.py",)


def test_our_own_state_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path / "state"))
    write(tmp_path, {"a.py": "x", "state/jobs/1/job.json": "x"})
    assert find_tree(tmp_path).files == ("a.py",)


@pytest.mark.parametrize("repository", [True, False])
def test_the_folders_of_clusters_are_left_out(repository: bool, work: Path, tmp_path: Path) -> None:
    """`attach --workdir` may have put them into the project: also of a cluster that has no record
    here, and where one of its files is asked for."""
    root = work if repository else tmp_path / "plain"
    write(root, {"train.py": "x", "state/lab-1/bin/free-port": "", "state/lab-1/jobs/7/work/a": ""})
    write(root, {"state/site-1/.shared": "", "state/site-1/jobs/7/work/a": ""})
    write(root, {"state/home/clusters/lab/key": "", "state/home/jobs/last-id": "7"})
    tree = find_tree(root)
    assert "train.py" in tree.files
    assert not any(name.startswith("state/") for name in tree.files)
    assert project_tree.include(tree, (root / "state",)).files == tree.files


def test_links_travel_as_links(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, {"a": "a", "sub/b": "b"})
    (root / "file").symlink_to("a")
    (root / "folder").symlink_to("sub")
    (root / "broken").symlink_to("nowhere")
    (root / "out").symlink_to("/etc")
    (root / "sub" / "loop").symlink_to("..")
    home = Home(tmp_path / "state")
    tree = find_tree(root)
    assert set(tree.files) == {"a", "sub/b", "file", "folder", "broken", "out", "sub/loop"}
    got = unpack(home, write_archive(tree, home), into=tmp_path / "got") / "work"
    assert {name: os.readlink(got / name) for name in ("file", "folder", "broken", "out")} == {
        "file": "a",
        "folder": "sub",
        "broken": "nowhere",
        "out": "/etc",
    }


# --------------------------------------------------------------------------------------- limits


def test_too_many_bytes(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(project_tree.MAX_BYTES)
    assert find_tree(tmp_path).size == project_tree.MAX_BYTES
    (tmp_path / "more").write_text("x")
    with pytest.raises(UsageError) as caught:
        find_tree(tmp_path)
    assert "200.0 MB" in caught.value.message
    assert "--stage" in caught.value.hint


def test_too_many_files(tmp_path: Path) -> None:
    for index in range(project_tree.MAX_FILES):
        os.mknod(tmp_path / str(index))
    assert len(find_tree(tmp_path).files) == project_tree.MAX_FILES
    os.mknod(tmp_path / "more")
    with pytest.raises(UsageError, match=r"10,?000 files"):
        find_tree(tmp_path)


def test_a_limit_of_ones_own_counts_bytes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_tree, "MAX_FILES", 2)
    monkeypatch.setattr(project_tree, "MAX_BYTES", 10)
    for name in "abc":
        (tmp_path / name).write_text("12345")
    assert find_tree(tmp_path, limit=15).size == 15
    with pytest.raises(
        UsageError, match=r"3 files, 15 B \(limits: 14 B\); largest: a \(5 B\)"
    ) as e:
        find_tree(tmp_path, limit=14)
    assert "--max-stage 1GB" in str(e.value.hint)
    assert project_tree.suggest_limit(3_200_000_000) == " 4GB"


@pytest.mark.parametrize("repository", [True, False])
def test_a_tree_may_name_what_is_left_out(tmp_path: Path, repository: bool) -> None:
    for name in ("train.py", "data/big.bin", "data/keep.txt", "runs/1/model.pt", "sub/model.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".clusterctlignore").write_text("# large\n/data/*\n!/data/keep.txt\nruns/\n*.pt\n")
    if repository:
        for words in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", *words], cwd=tmp_path, check=True, timeout=20)
    assert find_tree(tmp_path).files == (".clusterctlignore", "data/keep.txt", "train.py")
    assert "sub/model.pt" in find_tree(tmp_path, script=tmp_path / "sub/model.pt").files


def test_what_makes_a_tree_too_large_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script comes first: the limit is reached before the walk gets to what matters."""
    write(tmp_path, {"a/small.py": "x", "train.py": "x"})
    sizes = {"a/part": 150_000_000, "data/train.bin": 900_000_000, "z.bin": 60_000_000}
    for name, size in sizes.items():
        write(tmp_path, {name: ""})
        os.truncate(tmp_path / name, size)
    with pytest.raises(UsageError) as caught:
        find_tree(tmp_path, script=tmp_path / "train.py")
    said = caught.value.message
    assert "too large to copy: 5 files, 1.1 GB" in said
    assert "largest: data/train.bin (900.0 MB), a/part (150.0 MB), z.bin (60.0 MB)" in said
    assert "most files" not in said
    monkeypatch.setattr(project_tree, "LOOK_ON", -1.0)
    with pytest.raises(UsageError, match=r"too large to copy: more than 3 files, 210\.0 MB"):
        find_tree(tmp_path, script=tmp_path / "train.py")


def test_where_too_many_files_are_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_tree, "MAX_FILES", 10)
    write(tmp_path, {f"cache/x/{number}": "" for number in range(9)})
    write(tmp_path, {"train.py": "", "cache/a": "", "cache/b": ""})
    with pytest.raises(
        UsageError, match=r"most files: cache/x \(9\), cache \(2\), \. \(1\)(\n→ |$)"
    ):
        find_tree(tmp_path)


@pytest.mark.parametrize("how", ["start", "chosen", "link", "git"])
@pytest.mark.parametrize("what", ["/", "home"])
def test_the_whole_machine_is_refused(
    what: str, how: str, tmp_path: Path, git: Callable[..., str]
) -> None:
    folder = Path("/") if what == "/" else Path(os.environ["HOME"])
    if how == "git":
        if what == "/":
            return
        git(folder, "init", "-q")
        (folder / "sub").mkdir()
        folder = folder / "sub"
    if how == "link":
        (tmp_path / "link").symlink_to(folder)
        folder = tmp_path / "link"
    chosen = folder if how == "chosen" else None
    with pytest.raises(UsageError) as caught:
        find_tree(tmp_path if chosen else folder, chosen=chosen)
    assert "it is never copied" in caught.value.message
    assert "--stage" in caught.value.hint


def test_no_such_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(UsageError, match="--stage"):
            find_tree(tmp_path, chosen=path)


# -------------------------------------------------------------------------------------- archive


def test_the_name_depends_on_content_alone(tmp_path: Path) -> None:
    home, names = Home(tmp_path / "state"), []
    for folder in ("one", "two"):
        write(tmp_path / folder, {"a": "a", "sub/b": "b"})
        (tmp_path / folder / "sub" / "link").symlink_to("b")
        names.append(write_archive(find_tree(tmp_path / folder), home))
    os.utime(tmp_path / "two" / "a", (1, 1))
    if os.geteuid() == 0:
        os.chown(tmp_path / "two" / "a", 12345, 12345)
    assert {*names, write_archive(find_tree(tmp_path / "two"), home)} == {names[0]}
    assert [path.name for path in home.stages.iterdir()] == [names[0]]
    changes: list[Callable[[Path], object]] = [
        lambda root: (root / "a").write_text("b"),
        lambda root: (root / "a").chmod(0o600),
        lambda root: (root / "a").rename(root / "c"),
        lambda root: (root / "c").write_text(""),
    ]
    for change in changes:
        change(tmp_path / "two")
        names.append(write_archive(find_tree(tmp_path / "two"), home))
    assert len(set(names)) == 1 + len(changes)


@pytest.mark.parametrize("name", WEIRD, ids=ascii)
@pytest.mark.parametrize("by_git", [True, False], ids=["git", "folder"])
def test_weird_names_arrive(
    name: bytes, by_git: bool, git: Callable[..., str], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for folder in (b".", name, b"long" * 40):
        path = os.path.join(os.fsencode(root), folder)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, name + b".py"), "wb") as file:
            file.write(name)
    os.symlink(name, os.path.join(os.fsencode(root), b"link"))
    if by_git:
        git(root, "init", "-q")
    home = Home(tmp_path / "state")
    tree = find_tree(root)
    assert len(tree.files) == 4
    got = unpack(home, write_archive(tree, home), into=tmp_path / "got") / "work"

    def listing(root: Path) -> dict[bytes, bytes]:
        found = {}
        for folder, folders, files in os.walk(os.fsencode(root)):
            folders[:] = [item for item in folders if item != b".git"]
            for item in files:
                path = os.path.join(folder, item)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, os.fsencode(root))] = file.read()
        return found

    assert listing(got) == listing(root)
    assert os.readlink(os.fsencode(got / "link")) == name


def test_files_arrive_as_they_are(tmp_path: Path) -> None:
    """Modes without setuid and setgid, those of folders with all rights of the owner; two names of
    one file."""
    modes = {"id": 0o600, "tool": 0o6755, "shared/x": 0o664, "readable": 0o444}
    write(tmp_path / "root", {**dict.fromkeys(modes, "x"), "secret/key": "k", "locked/x": "x"})
    for name, mode in {**modes, "secret": 0o700, "locked": 0o555, "shared": 0o2775}.items():
        (tmp_path / "root" / name).chmod(mode)
    (tmp_path / "root" / "zz").hardlink_to(tmp_path / "root" / "id")
    home = Home(tmp_path / "state")
    archive = write_archive(find_tree(tmp_path / "root"), home)
    got = unpack(home, archive, into=tmp_path / "got") / "work"
    arrived = {name: (got / name).stat().st_mode & 0o7777 for name in modes}
    assert arrived == {"id": 0o600, "tool": 0o755, "shared/x": 0o664, "readable": 0o444}
    folders = {name: (got / name).stat().st_mode & 0o7777 for name in ("secret", "locked")}
    assert folders == {"secret": 0o700, "locked": 0o755}
    assert (got / "shared").stat().st_mode & 0o777 == 0o775
    assert (got / "zz").samefile(got / "id")


def test_joined_archives(tmp_path: Path) -> None:
    write(tmp_path / "root", {"a": "a" * 513, "empty": "", "run": "#!/bin/sh"})
    (tmp_path / "root" / "run").chmod(0o700)
    home = Home(tmp_path / "state")
    name = write_archive(find_tree(tmp_path / "root"), home)
    data = (
        project_tree.pack_texts([("env", "ü\n", 0o600), ("out/x", "", 0o755)])
        + project_tree.pack_workloads("lib", project_tree.LIBRARY)
        + (home.stages / name).read_bytes()
        + END_OF_ARCHIVE
    )
    (tmp_path / "got").mkdir()
    subprocess.run(["tar", "-xof", "-", "-C", tmp_path / "got"], input=data, check=True)
    got = tmp_path / "got"
    assert (got / "work" / "a").read_text() == "a" * 513
    assert (got / "env").read_text() == "ü\n"
    assert (got / "env").stat().st_mode & 0o777 == 0o600
    assert (got / "work" / "run").stat().st_mode & 0o777 == 0o700
    assert (got / "lib" / "trainlib" / "__init__.py").is_file()
    assert not list((got / "lib").rglob("__pycache__"))
    (tmp_path / "all.tar").write_bytes(data)
    with tarfile.open(tmp_path / "all.tar") as file:
        assert all(member.uid == member.gid == member.mtime == 0 for member in file)


def test_a_file_that_vanishes_is_one_clear_error(tmp_path: Path) -> None:
    write(tmp_path / "root", {"a": "a", "b": "b"})
    home = Home(tmp_path / "state")
    tree = find_tree(tmp_path / "root")
    (tmp_path / "root" / "b").unlink()
    with pytest.raises(UsageError) as caught:
        write_archive(tree, home)
    assert str(tmp_path / "root" / "b") in caught.value.message
    assert "readable" not in caught.value.hint
    assert list(home.stages.iterdir()) == []


def test_archives_that_no_recent_job_used_are_removed_after_a_month() -> None:
    """And the beginning of one whose clusterctl was killed; not what may be written just now."""
    store = open_store()
    folder = store.home.make(store.home.stages)
    first = 5
    for number in range(first, first + KEPT_JOBS + 1):
        store.save_job(job(id=number, stage=f"tree-{number}", state=JobState.SUCCEEDED))
    for name in (f"tree-{first}", f"tree-{first + 1}", "nobodys", "fresh", ".1.new", ".2.new"):
        (folder / name).touch()
        if name not in ("fresh", ".2.new"):
            os.utime(folder / name, (1e9, 1e9))
    project_tree.remove_old(store)
    assert sorted(path.name for path in folder.iterdir()) == [
        ".2.new",
        "fresh",
        f"tree-{first + 1}",
    ]


def test_archives_beyond_the_limit_go_those_first_that_no_kept_job_needs() -> None:
    """Never that of a job that has not ended, nor one that may belong to a job that begins."""
    store = open_store()
    folder = store.home.make(store.home.stages)
    store.save_job(job(id=1, stage="runs", state=JobState.RUNNING))
    for number in (2, 3):
        store.save_job(job(id=number, stage=f"of-{number}", state=JobState.SUCCEEDED))
    now = time.time()
    ages = {"runs": 9, "of-2": 8, "of-3": 7, "nobodys-1": 6, "nobodys-2": 5, "fresh": 0}
    for name, hours in ages.items():
        (folder / name).write_bytes(bytes(10))
        os.utime(folder / name, (now - 3600 * hours, now - 3600 * hours))
    left = set(ages)
    for limit, gone in (
        (60, set()),
        (50, {"nobodys-1"}),
        (30, {"nobodys-2", "of-2"}),
        (0, {"of-3"}),
    ):
        project_tree.remove_old(store, limit)
        left -= gone
        assert {path.name for path in folder.iterdir()} == left
    assert left == {"runs", "fresh"}


def test_no_archive_is_removed_while_a_record_cannot_be_read() -> None:
    store = open_store()
    store.save_job(job(id=1))
    (store.locate_job_folder(1) / "job.json").write_text("{")
    archive = store.home.make(store.home.stages) / "its"
    archive.touch()
    os.utime(archive, (1e9, 1e9))
    project_tree.remove_old(store)
    assert archive.exists()


def test_what_git_ignores_is_copied_where_it_is_included(tmp_path: Path) -> None:
    subprocess.run(("git", "init", "-q", str(tmp_path)), check=True)
    (tmp_path / ".gitignore").write_text("data/\n*.pt\n")
    (tmp_path / "data" / "raw").mkdir(parents=True)
    for name in ("train.py", "best.pt", "data/a.bin", "data/raw/b.bin", "data/.DS"):
        (tmp_path / name).write_text("12345")
    tree = project_tree.find_tree(tmp_path)
    assert tree.files == (".gitignore", "train.py")
    more = project_tree.include(
        tree, (tmp_path / "data", tmp_path / "best.pt", tmp_path / "train.py")
    )
    assert set(more.files) - set(tree.files) == {
        "best.pt",
        "data/a.bin",
        "data/raw/b.bin",
        "data/.DS",
    }
    assert more.size == tree.size + 20
    for path, limit, message in read_rows("stage", "what_git_ignores_is_copied_where_it_is"):
        with pytest.raises(UsageError, match=message):
            project_tree.include(tree, (tmp_path / path,), limit)
