"""`run --setup` on a node: what its lines make, and for whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.agent import outputs, setup
from tests.unit.scripts import note_staged

LINES = "cat given >made; echo 2 >given; ln -s made link; echo run >>../runs; echo said"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    folder = tmp_path / "environment"
    folder.mkdir()
    return folder


def make_job(folder: Path) -> Path:
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "given").write_text("1\n")
    note_staged(folder)
    return folder


def set_up(job: Path, environment: Path, lines: str = LINES) -> int:
    return setup.set_up(str(job), str(environment), lines, ".", {"FLAVOUR": "sweet"})


def test_each_job_gets_what_was_made_once(
    tmp_path: Path, environment: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        job = make_job(tmp_path / str(number))
        assert set_up(job, environment) == 0
        work = job / "work"
        assert (work / "made").read_text() == "1\n"
        assert os.readlink(work / "link") == "made"
        assert (work / "given").read_text() == "2\n"
        assert outputs.list_outputs(str(job)) == []
    assert (environment / "setup" / "runs").read_text() == "run\n"
    assert capfd.readouterr().out == "said\n"


def test_what_another_job_has_left_for_this_one_stays(tmp_path: Path, environment: Path) -> None:
    job = make_job(tmp_path / "job")
    (job / "work" / "made").write_text("carried\n")
    assert set_up(job, environment) == 0
    assert (job / "work" / "made").read_text() == "carried\n"
    assert [entry.path for entry in outputs.list_outputs(str(job))] == ["made"]


def test_nothing_is_left_of_one_that_fails(tmp_path: Path, environment: Path) -> None:
    assert set_up(make_job(tmp_path / "job"), environment, "touch half\nfalse\ntrue") == 1
    assert not environment.exists()
    assert not (tmp_path / "job" / "work" / "half").exists()


def test_one_that_was_cut_begins_anew(tmp_path: Path, environment: Path) -> None:
    left = environment / "setup" / "tree"
    left.mkdir(parents=True)
    (left / "made").write_text("half")
    job = make_job(tmp_path / "job")
    assert set_up(job, environment, "[ ! -e made ]; echo $FLAVOUR >made") == 0
    assert (job / "work" / "made").read_text() == "sweet\n"


def test_what_was_removed_and_empty_folders_are_as_the_lines_left_them(
    tmp_path: Path, environment: Path
) -> None:
    for number in (1, 2):
        job = make_job(tmp_path / str(number))
        assert set_up(job, environment, "rm given; mkdir -p out/deep") == 0
        assert not (job / "work" / "given").exists()
        assert (job / "work" / "out" / "deep").is_dir()


def test_nothing_goes_on_behind_its_back(tmp_path: Path, environment: Path) -> None:
    """Neither what holds its output, nor what is in a session of its own."""
    job = make_job(tmp_path / "job")
    (job / "tag").write_text("CLUSTERCTL_JOB=test-setup/1;")
    lines = "sleep 301 & setsid sleep 301 & echo $! >pid"
    assert set_up(job, environment, lines) == 0
    pid = (job / "work" / "pid").read_text().strip()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
