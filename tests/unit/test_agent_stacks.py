"""What the agent reads of ranks that have been silent, by a py-spy that is one of ours."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.agent.stacks import find_ranks, list_stacks, show_stacks
from tests.unit.scripts import write_program

TAG = f"CLUSTERCTL_JOB=stacks-{os.getpid()}/1;"
SPY = """#!/bin/sh
case "$*" in
--version) echo py-spy ;;
*--native*) sleep 0.1; echo '["native"]' ;;
*) echo "Error: $4 is gone" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """Rank 0 is a shell with a Python, rank 1 a shell; another process is no rank's."""
    (tmp_path / "out").mkdir()
    (tmp_path / "bin").mkdir()
    python = f"{sys.executable} -c 'import time; print(1, flush=True); time.sleep(60)'"
    started = []
    for rank, script in (
        ("0", f"{python}; :"),
        ("1", "echo 1; sleep 60; :"),
        ("", "echo 1; read a"),
    ):
        env = {**os.environ, "CLUSTERCTL_JOB": TAG.partition("=")[2], "CLUSTERCTL_RANK": rank}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            ["/bin/sh", "-c", script], env=env, stdin=pipe, stdout=pipe, start_new_session=True
        )
        assert process.stdout
        process.stdout.readline()
        started.append(process)
        if rank:
            (tmp_path / "out" / f"rank-{rank}.pid").write_text(f"{process.pid}\n")
    yield tmp_path
    for process in started:
        os.killpg(process.pid, 9)
        process.communicate()


def read_notes(job: Path, largest: int = 100_000) -> dict[str, str]:
    settings = {"python_folder": str(job / "bin"), "why": "no spy", "limit": 5, "largest": largest}
    (job / "stacks.json").write_text(json.dumps(settings))
    notes = {str(rank): note for _, rank, note in list_stacks(str(job), TAG)}
    assert list(job.glob(".stacks-*")) == []
    return {rank: gzip.decompress(base64.b64decode(note)).decode() for rank, note in notes.items()}


def test_the_first_python_of_a_rank_counts(job: Path) -> None:
    found = find_ranks(str(job), TAG)
    assert {rank: process.is_python for rank, process in found.items()} == {"0": True, "1": False}
    first = (job / "out" / "rank-1.pid").read_text().strip()
    assert str(found["1"].pid) == first


def test_stacks_with_their_c_functions_are_preferred(job: Path) -> None:
    write_program(job / "bin" / "py-spy", SPY)
    notes = read_notes(job)
    lines = notes["0"].splitlines()
    assert lines[0] == f"folder {job}/work"
    assert lines[1].startswith(f"process {find_ranks(str(job), TAG)['0'].pid} (")
    assert lines[2].startswith("waits ")
    assert lines[3:] == ["python yes", '["native"]']
    assert notes["1"].splitlines()[3:] == ["why sh is not a Python program"]
    assert read_notes(job, largest=10) == {}


def test_why_a_stack_cannot_be_read_is_said(job: Path) -> None:
    write_program(job / "bin" / "py-spy", SPY.replace("*--native*)", "*--none*)"))
    pid = find_ranks(str(job), TAG)["0"].pid
    assert read_notes(job)["0"].splitlines()[3:] == ["python yes", f"why {pid} is gone"]


def test_without_a_py_spy_its_absence_is_the_reason(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that came with the job is used, where it runs here."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with gzip.open(job / "py-spy.gz", "wb") as file:
        file.write(b"#!/bin/sh\nexit 1\n")
    assert read_notes(job)["0"].splitlines()[3:] == ["python yes", "why no spy"]
    with gzip.open(job / "py-spy.gz", "wb") as file:
        file.write(SPY.encode())
    assert read_notes(job)["0"].splitlines()[4:] == ['["native"]']


def test_the_use_of_processors_is_measured(job: Path) -> None:
    """Of a program that sleeps, and of one that computes."""
    folder = job / "jobs" / "1"
    busy = subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"])
    idle = find_ranks(str(job), TAG)["0"].pid
    try:
        facts = show_stacks(str(folder), [idle, busy.pid], [], [], 5, str(job / "bin"))
        use = {fact[1]: fact[2:] for fact in facts if fact[0] == "use"}
    finally:
        busy.kill()
        busy.wait()
    assert use[idle] == (0.0, 0, 0.0)
    assert use[busy.pid][:2] > (0.0, 0)
