"""What a rank notes of itself: whether it was alone. Programs run with a torch that is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.batch import verdict
from clusterctl.core import assets
from clusterctl.core.job import JobState
from tests.unit.making import job
from tests.unit.tables import rows

C10D = "_backend = _default_pg_init_method = None\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder on a node."""
    for name in ("out", "lib", "work"):
        (tmp_path / name).mkdir()
    torch = tmp_path / "installed" / "torch" / "distributed"
    torch.mkdir(parents=True)
    (torch.parent / "__init__.py").touch()
    (torch / "__init__.py").touch()
    (torch / "distributed_c10d.py").write_text(C10D)
    shutil.copy(assets.find_folder("templates") / "job/sitecustomize.py", tmp_path / "lib")
    return tmp_path


def run(folder: Path, script: str, start: Sequence[str] = (sys.executable, "train.py")) -> set[str]:
    """The notes of rank 0."""
    (folder / "work" / "train.py").write_text(script)
    wrapper = folder / "rank.sh"
    wrapper.write_text('"$@"\nexit\n')
    subprocess.run(
        ["sh", str(wrapper), *start],
        cwd=folder / "work",
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PWD": str(folder / "work"),
            "PYTHONPATH": f"{folder / 'lib'}:{folder / 'installed'}",
            "CLUSTERCTL_RANK": "0",
        },
        check=True,
        timeout=60,
    )
    return {path.suffix for path in (folder / "out").iterdir()}


@rows("script, notes", "alone.a_rank_notes_whether_it_was_alone")
def test_a_rank_notes_whether_it_was_alone(folder: Path, script: str, notes: list[str]) -> None:
    (folder / "work" / "other.py").write_text("import os; os.environ.get('SLURM_PROCID')\n")
    assert sorted(run(folder, script)) == notes


def test_a_start_file_of_the_persons_own_runs_too(folder: Path) -> None:
    (folder / "installed" / "sitecustomize.py").write_text("open('ran', 'w').close()\n")
    assert run(folder, "import torch") == {".alone"}
    assert (folder / "work" / "ran").exists()


ENDED = "running 1 1\nlauncher 5 0\nstarted 5 2\nexit 4 0 0 1\nexit 4 1 0 1\n"


@rows("lines, alone", "alone.ranks_have_never_met_if_all_were_alone")
def test_ranks_have_never_met_if_all_were_alone(lines: str, alone: bool) -> None:
    one = replace(job(), state=JobState.RUNNING)
    ended = verdict.judge(one, f"{ENDED}{lines}ended 5\n")
    assert (ended.state, ended.ranks, ended.never_met) == (JobState.SUCCEEDED, 2, alone)


@pytest.mark.parametrize(
    ("shell", "notes"),
    [
        (["bash", "run.sh"], {".alone"}),
        (["sh", "-c", "python3 train.py; true"], {".alone"}),
        (["bash", "shard.sh"], {".met"}),
        (["sh", "-c", "SHARD=${RANK-0} python3 train.py; true"], {".met"}),
    ],
    ids=["script", "words", "script that divides", "words that divide"],
)
def test_a_program_behind_a_shell_is_looked_at_too(
    folder: Path, shell: list[str], notes: set[str]
) -> None:
    work = folder / "work"
    (work / "run.sh").write_text("python3 train.py\ntrue\n")
    (work / "shard.sh").write_text("export SHARD=$RANK\npython3 train.py\ntrue\n")
    assert run(folder, "import torch", start=shell) == notes
