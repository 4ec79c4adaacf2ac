"""What a failed job's output says, and how much of an output is kept."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.actions.run import suggest
from clusterctl.batch.direct import LEAST_OUTPUT
from clusterctl.core.job import JobState, Program, ProgramKind, RankFailure
from clusterctl.jobs import records
from clusterctl.jobs.records import read_stored
from clusterctl.project import program
from clusterctl.project import tree as project_tree
from clusterctl.state.home import KEPT_JOBS
from clusterctl.state.store import Store
from tests.unit.calling import Call
from tests.unit.followed import ENDED, Site, agent, site, text
from tests.unit.making import job, spec
from tests.unit.scripts import processes


def failed(text: str, remarks: str = "", folder: str = "worker-2", **changes: str) -> str:
    """What is said of a job whose rank 1 wrote that to its stderr. `folder`: where it lies."""
    failure = RankFailure(rank=1, node="worker-2", exit_code=1)
    made = job(state=JobState.FAILED, program_exit_code=1, failure=failure, **changes)
    store = open_store()
    store.save_job(made)
    path = store.locate_job_folder(made.id) / "out" / folder / "rank-1.err"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return suggest(store, made, remarks)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ModuleNotFoundError: No module named 'transformers'", "list transformers in"),
        ("ModuleNotFoundError: No module named 'sklearn.svm'", "list scikit-learn in"),
        ("ModuleNotFoundError: No module named 'helprs'", "did you mean helpers? Otherwise, "),
        ("ModuleNotFoundError: No module named 'yaml'", "`run --extra more …` installs pyyaml, "),
        ("python3: No module named pytest.__main__", "`run --group dev …` installs pytest, "),
        ("ImportError: No module named 'cv2'", "lists it: leave out `--requirements none`"),
        ("OSError: [Errno 98] Address already in use", "port"),
        ("x" * 100_000 + "\nRuntimeError: CUDA out of memory", "smaller batch"),
    ],
)
def test_a_failed_run_says_what_to_do(
    text: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("helpers.py").touch()
    Path("requirements.txt").write_text("opencv-python-headless>=4\n")
    Path("pyproject.toml").write_text(
        '[project.optional-dependencies]\nmore = ["PyYAML>=6"]\n[dependency-groups]\n'
        'dev = ["pytest-cov", {include-group = "x"}, "pytest>=8"]\n'
    )
    line, advice = failed(f"Traceback (most recent call last):\n{text}\n").split("\n")
    assert line == text.rpartition("\n")[2]
    assert hint in advice


@pytest.mark.parametrize(
    ("system", "text", "remarks", "hint"),
    [
        ("slurm", "OSError: [Errno 122] Disk quota exceeded: 'out.pt'", "", "`quota -s`"),
        ("slurm", "", "srun: error: c2: task 1: Out Of Memory", "--mem or"),
        ("sge", "MemoryError", "", "h_vmem"),
    ],
)
def test_a_failed_job_of_a_queue_says_what_to_do(
    system: str, text: str, remarks: str, hint: str
) -> None:
    """All of its output comes by way of the login node."""
    line, advice = failed(f"{text}\n", remarks, "login", scheduler=system).split("\n")
    assert line == (text or remarks)
    assert hint in advice


@pytest.mark.parametrize("remarks", ["Socket closed", "Open MPI failed to TCP connect to a peer"])
def test_a_rank_has_the_last_word_behind_its_launcher(remarks: str) -> None:
    """Also where that names a cause, which may only follow from the end of the rank."""
    last = failed("Can't open file pots/Cu_u6.eam.  Fatal Error.\n", remarks).rpartition("\n")[2]
    assert last.startswith("rank 1 on worker-2 said at last: Can't open file pots/Cu_u6.eam.")


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


def test_a_command_of_an_extra_that_was_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failure = RankFailure(rank=1, node="worker-2", exit_code=127)
    what = spec(program=Program(kind=ProgramKind.COMMAND, target="pytest"))
    made = job(what=what, state=JobState.FAILED, program_exit_code=127, failure=failure)
    said = suggest(open_store(), made, "stdbuf: failed to run command")
    assert "check its name and PATH" in said
    Path("pyproject.toml").write_text('[dependency-groups]\ntest = ["pytest"]\n')
    said = suggest(open_store(), made, "stdbuf: failed to run command")
    assert "`run --group test …` installs pytest" in said


def test_a_failure_that_is_not_known() -> None:
    assert failed("ValueError: mine\n") == ""


def test_a_size_that_is_none(call: Call, lab: None) -> None:
    said = call("run", "--max-stage", "much", "train.py")
    assert (said.code, "--max-stage 'much': expected a size" in said.err) == (2, True)
    assert call("run", "--dry-run", "--max-stage", "1.5GB", str(Path("train.py"))).code == 0


# ------------------------------------------------------------------------------------------------
# Output that has become too long: what is kept of it, on a node and here, and that it is said.


_ = agent, site  # fixtures

LINES = b"".join(b"%07d\n" % number for number in range(250_000))
"""2 MB."""


def tend(site: Site, node: str, need: Callable[[str], str]) -> None:
    """What the launcher asks of a node from time to time, with a limit of 200 kB."""
    need("fallocate")
    processes(site.folder(node), f"{os.getpid()}/none;", "tend", "0", "200000")


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def check(pieces: bytes) -> None:
    """The beginning, what was left out, and the end."""
    head, _, rest = pieces.partition(b"\n[clusterctl: ")
    missing, _, tail = rest.partition(b" of output left out here]\n")
    assert head
    assert LINES.startswith(head)
    assert tail
    assert LINES.endswith(tail)
    assert missing == b"1.8 MB"


def test_a_file_that_becomes_too_long_loses_its_middle_on_its_node(
    site: Site, need: Callable[[str], str]
) -> None:
    """A follower that is behind goes on after it, and says so; the copy here does, too."""
    path = site.write("worker-1", "rank-0.out", LINES)
    short = site.write("worker-1", "rank-1.out", b"short\n")
    tend(site, "worker-1", need)
    assert on_disk(path) > 1_900_000, "who is reading there has time to go on behind it"
    tend(site, "worker-1", need)
    assert on_disk(path) < 300_000
    assert (path.stat().st_size, short.read_bytes()) == (len(LINES), b"short\n")
    site.state(ENDED)
    _, pieces = site.follow()
    check(text(pieces, 0))
    assert text(pieces, 1) == b"short\n"
    stored = [piece for batch in read_stored(site.home) for piece in batch]
    check(text(stored, 0))
    assert on_disk(site.copy("worker-1", "rank-0.out")) < 300_000


def test_a_rank_goes_on_writing_to_a_file_that_was_shortened(
    site: Site, need: Callable[[str], str]
) -> None:
    """Who follows the job loses nothing while it keeps up."""
    site.write("worker-1", "rank-0.out", LINES)
    _, pieces = site.follow(until_ended=False)
    assert text(pieces, 0) == LINES
    for _ in range(2):
        tend(site, "worker-1", need)
    site.write("worker-1", "rank-0.out", b"more\n")
    site.state(ENDED)
    _, pieces = site.follow()
    assert text(pieces, 0) == LINES + b"more\n"


def test_a_copy_here_is_bounded_too(tmp_path: Path, need: Callable[[str], str]) -> None:
    need("fallocate")
    path = tmp_path / "rank-0.out"
    size = LEAST_OUTPUT * 3 // 2
    path.write_bytes(b"x" * size)
    records.shorten(path, files=1)
    assert on_disk(path) == pytest.approx(size, rel=0.01), "it has not more than its share"
    records.shorten(path, files=1_000_000)
    assert on_disk(path) < LEAST_OUTPUT + 10_000
    [(start, end)] = records.read_cuts(path)
    shown = b"".join(data for data, _ in records.read_log(path))
    assert shown == b"x" * start + records.render_marker(end - start) + b"x" * (size - end)


def test_a_copy_that_ends_where_something_was_left_out_goes_on_there(tmp_path: Path) -> None:
    """Its clusterctl was killed before the file was as long as it has noted."""
    path = tmp_path / "rank-0.out"
    path.write_bytes(b"head")
    path.with_name("rank-0.out.cut").write_text("4 100\n4 90\n")
    assert list(records.read_log(path)) == [(b"head", 4)]
    records.leave_out(path, 4, 120)
    with path.open("ab") as file:
        file.write(b"tail")
    assert list(records.read_log(path))[-1] == (b"tail", 124)


def test_the_output_of_old_jobs_is_removed(tmp_path: Path) -> None:
    """Of those that are not among the last, and ended long ago; it can be told."""
    store = Store(open_store().home)
    old = time.time() - records.KEPT_SECONDS - 60
    for number in range(1, KEPT_JOBS + 3):
        output = store.locate_job_folder(number) / "out" / "worker-1"
        output.mkdir(parents=True)
        (output / "rank-0.out").write_text("it\n")
        os.utime(output.parent, (old, old) if number != 2 else None)
    records.remove_old(store)
    there = [n for n in range(1, KEPT_JOBS + 3) if (store.locate_job_folder(n) / "out").exists()]
    assert there == list(range(2, KEPT_JOBS + 3))
    assert records.was_removed(store.locate_job_folder(1))
    assert not records.was_removed(store.locate_job_folder(2))
    assert list(read_stored(store.locate_job_folder(1))) == []
