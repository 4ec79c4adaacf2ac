"""The projects in `examples/`, by the lines of their READMEs and nothing else."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, Done

pytestmark = [pytest.mark.sshd, pytest.mark.mpi, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

EXPECTED = {
    "char-gpt": (["on 2 processes", "sample: "], ["char-gpt.pt"]),
    "digits": (["accuracy 0.9", "on 2 processes"], ["digits.pt"]),
    "mpi-regression": (
        ["rate 0.1: mean squared error 0.010 on 2 processes", "rate 0.01: ", "rate 0.3: "],
        ["weights.csv"] * 5,
    ),
}
"""What the commands of a README print, and the files that they bring home."""


def commands(readme: str) -> Iterator[list[str]]:
    for line in readme.splitlines():
        if line.startswith("    "):
            yield shlex.split(line)


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(EXPECTED)


@pytest.mark.all
@pytest.mark.parametrize("name", EXPECTED)
def test_the_readme_is_enough(name: str, make_cli: Callable[..., Cli]) -> None:
    cli = make_cli()
    folder = cli.folder / name
    shutil.copytree(EXAMPLES / name, folder)
    printed, said = "", ""
    for word, *rest in commands((folder / "README.md").read_text()):
        assert word in ("python", "clusterctl")
        if word == "python":
            subprocess.run([sys.executable, *rest], cwd=folder, check=True, timeout=120)
            continue
        done: Done = cli(*rest, cwd=folder, timeout=250)
        printed, said = printed + done.out, said + done.err
    lines, files = EXPECTED[name]
    for line in lines:
        assert line in printed
    found = sorted(path.name for path in folder.glob("job-*/**/[!.]*") if path.is_file())
    assert found == files
    assert "using the packages" not in said, "the nodes have all of them"
    assert cli.clusters() == []
