"""From SCRIPT and ARGS to what every rank runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions.run import make_spec, prepare, resolve_run
from clusterctl.core.job import ProgramKind
from clusterctl.core.model import Python, Role
from clusterctl.errors import LaunchError, UsageError
from clusterctl.options.verbs import Run
from clusterctl.project.program import (
    Search,
    check_program,
    make_missing_error,
    may_use_mpi,
    resolve_command,
    resolve_module,
    resolve_program,
    warn_of_backend,
)
from tests.unit.making import cluster, node, program
from tests.unit.tables import rows

BUNDLED = "multinode_ddp_mpi.py"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    (folder / "pkg" / "sub").mkdir(parents=True)
    for name in (
        "train.py",
        "hello.c",
        "sim.cpp",
        "tool",
        "notes.txt",
        "a b.R",
        "mpi.jl",
        "a b.py",
        "a b.ipynb",
    ):
        (folder / name).touch()
    (folder / "tool").chmod(0o755)
    for name in ("__init__.py", "train.py", "sub/__main__.py"):
        (folder / "pkg" / name).touch()
    monkeypatch.chdir(folder)
    return folder


@rows("script, kind, target, source", "program.kinds")
def test_kinds(script: str, kind: str, target: str, source: str, here: Path) -> None:
    args = ("--flag", "a b", "")
    for path in (script, str(here / script)):
        found = resolve_program(path, args)
        assert (found.program.kind, found.program.args) == (kind, args)
        assert (found.program.target, found.program.source) == (target, source)
        # The target is where it will be on the node, seen from the working directory.
        tree = found.tree
        named = source or target
        assert (tree.root / found.program.folder / named).resolve() == (here / script).resolve()
        assert not found.program.bundled


def test_bundled(here: Path) -> None:
    found = resolve_program(BUNDLED, ("5",))
    assert found.program.bundled
    assert found.program.target == BUNDLED
    assert BUNDLED in {Path(name).name for name in found.tree.files}


def test_a_file_here_wins_over_a_bundled_one(here: Path) -> None:
    (here / BUNDLED).touch()
    found = resolve_program(BUNDLED, ())
    assert not found.program.bundled
    assert found.tree.root == here.resolve()


def test_ranks_start_where_the_user_stands(
    here: Path, need: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([need("git"), "init", "-q"], check=True)
    found = resolve_program("pkg/train.py", ())
    assert (found.program.folder, found.program.target) == (".", "pkg/train.py")
    monkeypatch.chdir(here / "pkg" / "sub")
    found = resolve_program("../train.py", ())
    assert (found.program.folder, found.program.target) == ("pkg/sub", "../train.py")
    monkeypatch.chdir("/")
    found = resolve_program(str(here / "pkg" / "train.py"), ())
    assert (found.program.folder, found.program.target) == ("pkg", "train.py")


@pytest.mark.parametrize("body", ["#SBATCH -N 1\n", "srun hostname\n"])
def test_a_batch_script_starts_where_the_user_stands(
    body: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `sbatch pkg/job.sh` starts it. On the login node nothing is copied, so no size counts, and
    neither does a home folder."""
    script = here / "pkg" / "job.sh"
    script.write_text(f"#!/bin/sh\n{body}")
    script.chmod(0o755)
    site = cluster(node("login", role=Role.LOGIN), provider="slurm")
    elsewhere = resolve_program("pkg/job.sh", ("x",), Search(cluster=site))
    assert (elsewhere.program.folder, elsewhere.program.target) == (".", "pkg/job.sh")
    assert {"pkg/job.sh", "notes.txt"} <= {*elsewhere.tree.files}
    with (here / "pkg" / "large").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(UsageError, match="too large"):
        resolve_program("pkg/job.sh", (), Search(cluster=site))
    monkeypatch.setenv("HOME", str(here))
    login = cluster(node("login", address="", role=Role.LOGIN), provider="slurm")
    for words in (("pkg/job.sh",), ("--", str(script))):
        given = Run({"command": words, "include": (here / "pkg",)})
        found = resolve_run(given, cluster=login)
        assert (found.program.kind, found.program.target) == (ProgramKind.BATCH, words[-1])
        spec, secrets = make_spec(given, found.program)
        prepared = prepare(login, spec, found, secrets, number=1)
        assert prepared.job.spec.in_place == str(here.resolve())
        assert prepared.tree.files == ()
        assert prepared.plan.argv == ("sbatch", "--parsable", words[-1])


@rows("words, kind, target, args", "program.a_command_of_the_nodes")
def test_a_command_of_the_nodes(
    words: str, kind: str, target: str, args: list[str], here: Path
) -> None:
    """`run -- WORDS`; Python's words mean what they say without `--`, too."""
    found = resolve_command(words.split()).program
    assert (found.kind, found.target, list(found.args)) == (kind, target, args)
    if words.startswith("python ") or words.startswith("python3 "):
        first, *rest = words.split()
        assert resolve_program(first, tuple(rest)).program == found


def test_a_command_comes_with_the_folder_where_it_is_typed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "train.py" in resolve_command(["cat", "train.py"]).tree.files
    monkeypatch.setenv("HOME", str(here))
    found = resolve_command(["hostname"])
    assert (found.tree.files, found.program.folder) == ((), "."), "nothing of a home folder"
    with pytest.raises(UsageError, match="home folder"):
        resolve_program("train.py", ())


def test_a_python_command_needs_python() -> None:
    what = program("-c", "pass", kind=ProgramKind.COMMAND, target="python")
    bare = cluster(node("worker-1", python=""))
    with pytest.raises(LaunchError, match="no Python"):
        check_program(what, bare, ("worker-1",))
    check_program(replace(what, target="hostname"), bare, ("worker-1",))


def test_a_link_to_a_script_inside(here: Path) -> None:
    (here / "link.py").symlink_to("pkg/train.py")
    (here / "pkg" / "train.py").write_text("print()")
    found = resolve_program("link.py", (), Search(chosen=here))
    assert (here / found.program.folder / found.program.target).samefile(here / "pkg/train.py")


def test_a_link_to_a_script_outside(here: Path, tmp_path: Path) -> None:
    (tmp_path / "other.py").touch()
    (here / "link.py").symlink_to(tmp_path / "other.py")
    with pytest.raises(UsageError, match="not inside") as caught:
        resolve_program("link.py", ())
    assert "--stage" in caught.value.hint


@pytest.mark.parametrize(
    ("script", "words", "hint"),
    [
        ("pkg/", ["is a folder"], "script"),
        (".", ["is a folder"], "script"),
        ("nope.py", ["no script", "nope.py"], "bundled"),
        ("multinode_ddp_mpy.py", ["no script"], "did you mean the bundled multinode_ddp_mpi.py"),
        ("nothing.py", ["no script"], "give a path, or a bundled program: "),
        ("mainly.py", ["no script"], "give a path, or a bundled program: "),
        ("notes.txt", ["not a program"], "chmod +x"),
        ("a b.R", ["not a program"], "clusterctl run -- Rscript 'a b.R'"),
        ("mpi.jl", ["not a program"], "clusterctl run -- julia mpi.jl"),
        ("a b.ipynb", ["is a notebook"], "--to script 'a b.ipynb', then clusterctl run 'a b.py'"),
        ("../outside/nope.py", ["no script"], "bundled"),
        ("", [""], ""),
        ("/dev/null/x", ["no script"], ""),
        ("line\nbreak.py", ["no script"], ""),
        ("x" * 5000, ["no script"], ""),
        ("nul\0byte.py", [""], ""),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_mistakes(script: str, words: list[str], hint: str, here: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_program(script, ())
    assert all(word in caught.value.message for word in words), caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message


def test_a_script_with_the_line_endings_of_windows(here: Path) -> None:
    (here / "tool").write_bytes(b"#!/bin/sh\r\nexit 0\r\n")
    with pytest.raises(UsageError, match="Windows line endings") as caught:
        resolve_program("./tool", ())
    mend = caught.value.hint.partition(" (")[0]
    subprocess.run(["sh", "-c", mend], check=True)
    assert (here / "tool").read_bytes() == b"#!/bin/sh\nexit 0\n"
    assert resolve_program("./tool", ()).program.kind is ProgramKind.BINARY
    (here / "train.py").write_bytes(b"#!/usr/bin/env python3\r\nprint()\r\n")
    assert resolve_program("train.py", ()).program.kind is ProgramKind.PYTHON, "Python reads them"


def test_a_program_that_was_not_built_yet_is_no_command_of_the_nodes(here: Path) -> None:
    with pytest.raises(UsageError, match=r"no file \./solver here") as caught:
        resolve_command(["./solver", "100"])
    assert "build it first" in caught.value.hint
    (here / "bin").mkdir()
    (here / "bin" / "solver").touch(mode=0o755)
    assert resolve_command(["bin/solver"]).program.kind is ProgramKind.BINARY
    assert resolve_command(["/opt/solver"]).program.kind is ProgramKind.COMMAND


def test_what_people_type_before_a_script_is_understood(here: Path) -> None:
    (here / "job.sh").write_text("hostname\n")
    for words in (("bash", "job.sh"), ("bash", "-x", "job.sh"), ("sh", "-c", "hostname")):
        found = resolve_program(words[0], words[1:]).program
        assert (found.kind, found.target, found.args) == (ProgramKind.COMMAND, words[0], words[1:])
    with pytest.raises(UsageError) as caught:
        resolve_program("job.sh", ())
    assert "clusterctl run -- bash job.sh" in caught.value.hint
    for words in (("pip", "install", "demo"), ("sbatch", "job.sh")):
        with pytest.raises(UsageError, match=f"no script named '{words[0]}'"):
            resolve_program(words[0], words[1:])
    with pytest.raises(UsageError, match="no script named 'bash'"):
        resolve_program("bash", ())


@rows("line, hint", "program.a_line_in_quotes_is_no_program")
def test_a_line_in_quotes_is_no_program(line: str, hint: str, here: Path) -> None:
    for words in ((line,), ("--", line, "more")):
        with pytest.raises(
            UsageError, match=f"^{re.escape(repr(line))} is one word, and"
        ) as caught:
            resolve_run(Run({"command": words}))
        assert caught.value.hint == hint
    (here / line).touch()
    with suppress(UsageError):
        resolve_run(Run({"command": (line,)}))


def test_a_file_here_is_what_a_slip_meant(here: Path) -> None:
    """Before a bundled program of a like name."""
    (here / "src").mkdir()
    (here / "src" / "train_minst_ddp.py").touch()
    with pytest.raises(UsageError) as caught:
        resolve_program("src/train_mnist_dpp.py", ())
    assert caught.value.hint == "did you mean src/train_minst_ddp.py?"
    for words, hint in (
        (("pyhton", "t.py"), "did you mean python?"),
        (
            ("sbatch", "-n", "2", "tool"),
            "leave out sbatch: clusterctl run tool hands in a batch script",
        ),
        (
            ("pip", "install", "-e", ".[tests, docs]"),
            "what the project's files ask for is installed by itself: `clusterctl run --extra tests"
            " --extra docs SCRIPT`; --requirements FILE names others",
        ),
        (("env", "-i", "a b"), "for a command of the nodes: clusterctl run -- env -i 'a b'"),
    ):
        assert make_missing_error(words[0], words[1:]).hint == hint


@rows("text, directives", "program.a_batch_script_is_for_its_queue")
def test_a_batch_script_is_for_its_queue(text: str, directives: str, here: Path) -> None:
    (here / "tool").write_text(text)
    program = resolve_program("tool", ("a",)).program
    assert (program.kind, program.directives) == (ProgramKind.BATCH, directives)
    assert (program.target, program.args) == ("tool", ("a",))


@rows("text, why", "program.a_batch_script_of_an_editor_of_windows")
def test_a_batch_script_of_an_editor_of_windows(text: str, why: str, here: Path) -> None:
    (here / "job.sh").write_text(text, newline="")
    with pytest.raises(UsageError, match=why) as caught:
        resolve_program("job.sh", ())
    assert caught.value.hint.startswith("sed -i")


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\necho '\n#SBATCH --nodes=2\n'\n", "\x7fELF\0\n", "#!/bin/sh\n#$HOME\n"]
)
def test_what_only_looks_like_a_batch_script_is_run(text: str, here: Path) -> None:
    (here / "tool").write_text(text)
    assert resolve_program("tool", ()).program.target == "./tool"


@pytest.mark.parametrize("name", ["sim.cxx", "solver.f90", "old.f"])
def test_more_languages(name: str, here: Path) -> None:
    (here / name).touch()
    assert resolve_program(name, ()).program.kind is ProgramKind.SOURCE


def test_further_sources_are_named_from_where_ranks_start(here: Path) -> None:
    (here / "pkg" / "util.c").touch()
    found = resolve_program("hello.c", (), Search(sources=[Path("pkg/util.c"), here / "sim.cpp"]))
    assert found.program.sources == ("pkg/util.c", "sim.cpp")


@rows("script, further, word", "program.further_sources_that_cannot_be")
def test_further_sources_that_cannot_be(
    script: str, further: str, word: str, here: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.c").touch()
    with pytest.raises(UsageError, match=word) as caught:
        resolve_program(script, (), Search(sources=[Path(further)]))
    assert caught.value.hint


def test_stage_must_hold_the_script(here: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="not inside"):
        resolve_program("train.py", (), Search(chosen=tmp_path / "other"))


@pytest.mark.parametrize("module", ["pkg.train", "pkg.sub", "train"])
def test_module(module: str, here: Path) -> None:
    found = resolve_module(module, ("--lr", "1"))
    assert found.program.kind is ProgramKind.MODULE
    assert (found.program.target, found.program.args) == (module, ("--lr", "1"))
    assert (found.tree.root, found.program.folder) == (here.resolve(), ".")


@pytest.mark.parametrize("module", ["pkg.train", "pkg.sub"])
def test_a_module_is_understood_without_an_option(module: str, here: Path) -> None:
    assert resolve_program(module, ("1",)) == resolve_module(module, ("1",))
    (here / module).write_text("#!/bin/sh\n")
    (here / module).chmod(0o755)
    assert resolve_program(module, ()).program.kind is ProgramKind.BINARY


def test_a_module_that_is_installed_on_the_nodes(here: Path) -> None:
    assert resolve_module("torch.utils.collect_env", ()).program.target == "torch.utils.collect_env"


def test_no_such_module(here: Path) -> None:
    with pytest.raises(UsageError, match=r"pkg\.nope") as caught:
        resolve_module("pkg.nope", ())
    assert "pkg/nope.py" in caught.value.hint


@rows("text, backend, noted", "program.a_backend_that_no_program_asks_for_is_said")
def test_a_backend_that_no_program_asks_for_is_said(
    text: str, backend: str, noted: bool, here: Path
) -> None:
    (here / "train.py").write_text(text)
    note = warn_of_backend(resolve_program("train.py", ()), backend)
    assert bool(note) == noted
    assert (f"--backend {backend}" in note) == noted


@rows("words, files, may", "program.which_programs_may_use_mpi")
def test_which_programs_may_use_mpi(
    words: str, files: dict[str, str], may: bool, here: Path
) -> None:
    for name, text in files.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    first, *rest = shlex.split(words)
    if first == "-m":
        found = resolve_module(rest[0], ())
    else:
        found = resolve_command(rest) if first == "--" else resolve_program(first, ())
    assert may_use_mpi(found, "auto") == may
    assert may_use_mpi(found, "mpi")


def test_a_bundled_program_heeds_the_backend(here: Path) -> None:
    assert warn_of_backend(resolve_program(BUNDLED, ()), "gloo") == ""


def test_nodes_without_python() -> None:
    where = cluster(node("launcher", "10.0.0.10"), node(python=None))
    with pytest.raises(LaunchError, match="worker-1"):
        check_program(program(), where, ("worker-1",))
    check_program(program(kind=ProgramKind.BINARY), where, ("worker-1",))


def test_bundled_programs_need_their_packages() -> None:
    plain = Python(executable="/usr/bin/python3", version="3.11.2", packages={"numpy": "2"})
    where = cluster(
        node("launcher", "10.0.0.10"), node(), node("worker-2", "10.0.0.12", python=plain)
    )
    nodes = ("worker-1", "worker-2")
    check_program(program(), where, nodes)
    with pytest.raises(LaunchError) as caught:
        check_program(replace(program(), bundled=True), where, nodes)
    assert "worker-2" in caught.value.message
    assert "torch, mpi4py" in caught.value.message
    assert "worker-1" not in caught.value.message


def test_an_unreadable_script(here: Path) -> None:
    if os.geteuid() == 0:
        return  # reads everything
    (here / "train.py").chmod(0)
    with pytest.raises(UsageError, match="cannot be read"):
        resolve_program("train.py", ())


def test_a_path_of_another_machine_is_found_by_its_name(here: Path) -> None:
    """As the seed's README has it; what is here goes before what is bundled. One of the user's own
    is not taken for another file of its name."""
    found = resolve_command(["python3", "/test/multinode_ddp_mpi.py", "10"])
    assert (found.program.bundled, found.program.args) == (True, ("10",))
    (here / "multinode_ddp_mpi.py").touch()
    found = resolve_program("/test/multinode_ddp_mpi.py", ())
    assert not found.program.bundled
    assert "/test/multinode_ddp_mpi.py" in found.notes[0]
    for path in ("/test/train.py", "tests/train.py", "/test/nothing_like_it.py"):
        with pytest.raises(UsageError, match=f"no script named '{path}'") as caught:
            resolve_program(path, ())
        assert caught.value.hint == "did you mean ./train.py?" or "nothing" in path


@rows("line", "program.a_script_that_is_not_here_starts_no_job")
def test_a_script_that_is_not_here_starts_no_job(line: str, here: Path) -> None:
    with pytest.raises(UsageError, match=r"no script named 'tran\.\w+'") as caught:
        resolve_run(Run({"command": tuple(line.split())}))
    assert caught.value.hint == "did you mean train.py?"
    resolve_run(Run({"command": tuple(line.split()), "setup": "make"}))
    (here / line.split()[-1]).touch(mode=0o755)
    resolve_run(Run({"command": tuple(line.split())}))
