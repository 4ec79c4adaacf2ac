"""A batch system takes modules of its own and a row: the one that CONTRIBUTING shows has its flag
of `attach`, its options of `run` and its format of `--emit`, without a word about it elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
from importlib import import_module
from clusterctl.options.batch import BATCH_SYSTEMS
from tests.contract.example_options import OPTIONS

BATCH_SYSTEMS["oar"] = OPTIONS
example = import_module("tests.contract.example_scheduler")
sys.modules["clusterctl.batch.oar"] = example
import_module("clusterctl.machines.attached").OarProvider = example.OarProvider
from clusterctl.cli.main import execute

for line in json.loads(sys.argv[1]):
    print("@@", execute(line), flush=True)
"""
"""Runs command lines, with a row for OAR. The exit code comes behind what each has printed."""

FAKE = """#!/bin/sh
case $1 in
--version) echo 2.5.9 ;;
-I) shift; exec "$@" ;;
-s) echo node-1; echo node-2 ;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A login node of a site with OAR."""
    (tmp_path / "bin").mkdir()
    for name in ("oarsub", "oarnodes"):
        path = tmp_path / "bin" / name
        path.write_text(FAKE)
        path.chmod(0o755)
    (tmp_path / "train.py").write_text("print(1)\n")
    words = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **words, "COLUMNS": "100"}


def say(environment: dict[str, str], folder: Path, *lines: list[str]) -> list[tuple[int, str, str]]:
    """Of each line: the exit code, and what it has printed; what all have complained of."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(lines)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.stdout.count("@@") == len(lines), done.stderr
    parts = done.stdout.split("@@ ")
    codes = [int(part.split("\n", 1)[0]) for part in parts[1:]]
    texts = [parts[0], *(part.split("\n", 1)[1] for part in parts[1:-1])]
    return [(code, text, done.stderr) for code, text in zip(codes, texts, strict=True)]


def test_a_row_is_all_that_a_batch_system_takes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    own = ["--queue", "fast", "--property", "gpu=YES"]
    helped, attached, planned, emitted = say(
        environment,
        tmp_path,
        ["run", "--help"],
        ["attach", "lab", "--oar", "--workdir", str(tmp_path / "work")],
        ["run", *own, "--dry-run", "train.py"],
        ["run", *own, "--emit", "oarsub", "train.py"],
    )
    words = " ".join(helped[1].split())
    assert "Batch systems (Slurm, Grid Engine and OAR):" in words
    assert "Passed to OAR: --property" in words
    assert "Passed to Grid Engine and OAR: --queue" in words
    assert attached[0] == 0, attached[2]
    assert "cluster lab is ready: 2.5.9" in attached[2]
    for code, text, complaints in (planned, emitted):
        assert code == 0, complaints
        assert {"#OAR -q fast", "#OAR -p gpu=YES"} <= set(text.splitlines())
    assert "mpirun" in emitted[1]


def test_its_options_and_those_of_others_are_held_apart(
    environment: dict[str, str], tmp_path: Path
) -> None:
    *refused, _ = say(
        environment,
        tmp_path,
        ["attach", "lab", "--oar", "--workdir", str(tmp_path / "work")],
        ["run", "--constraint", "a100", "train.py"],
        ["run", "--gres", "gpu:2", "train.py"],
        ["run", "--dry-run", "-r", "3", "train.py"],
        ["attach", "other"],
    )
    assert [code for code, _, _ in refused] == [0, 2, 2, 0]
    complaints = refused[0][2]
    assert "--constraint works only with Slurm" in complaints
    assert "--gres works only with Slurm" in complaints
    assert "specify --hosts, --slurm, --sge or --oar" in complaints
