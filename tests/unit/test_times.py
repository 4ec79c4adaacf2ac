"""What folders of tests cost, as the suite's own plug-in says it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PARAMETER = "@pytest.mark.parametrize('name', ['tests/three/test_it.py::test_one'])\n"
"""Part of the test's own name."""


@pytest.mark.parametrize("processes", [1, 2])
def test_each_folder_has_its_tests_and_seconds(tmp_path: Path, processes: int) -> None:
    for folder, number in (("one", 1), ("two", 2)):
        path = tmp_path / "tests" / folder / f"test_{folder}.py"
        path.parent.mkdir(parents=True)
        tests = "".join(f"{PARAMETER}def test_{n}(name): pass\n" for n in range(number))
        path.write_text(f"import pytest\n{tests}")
    document = tmp_path / "document.md"
    document.write_text("before\n<!-- times -->\nold\n<!-- /times -->\nafter\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.times", "--times", str(document)]
    more = ["-n", str(processes)] if processes > 1 else []
    done = subprocess.run(
        [*argv, *more, "tests/one", "tests/two"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    start, told, *rows, end = filter(None, document.read_text().splitlines()[1:-1])
    assert (start, end) == ("<!-- times -->", "<!-- /times -->")
    assert told.endswith(f"minutes with {processes} processes:")
    assert rows[2:] == ["| `tests/one` | 1 | 0 | 0 |", "| `tests/two` | 2 | 0 | 0 |"]
